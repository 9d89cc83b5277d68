"""A server, from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, overload

import grpc

from turndock import jsontext
from turndock.agent.v1 import (
    AgentStatus,
    ForkSessionRequest,
    GetServerInfoRequest,
    GetServerInfoResponse,
    ListAgentsRequest,
    StartAgentRequest,
)
from turndock.client.agent import AgentHandle, watch_request
from turndock.client.host import DEFAULT_ENDPOINT, DEFAULT_TIMEOUT_S, HostCalls, Retry, read_token, rows_of
from turndock.client.streams import OnLost, OnResumed
from turndock.client.watch import FrameWatch, Watch
from turndock.events import new_id
from turndock.remote import (
    RemoteAgentPersistence,
    RemoteArtifactStore,
    RemoteMaintenance,
    RemoteSessionStore,
)
from turndock.types.v1 import AgentDefinition, AgentLimits, Cursor, EventType, Page, Session
from turndock.wire import Tls


class Client:
    """A Turndock server.

        async with Client() as client:
            agent = await client.start_agent("ann", backend="echo")
            print((await agent.ask("hello")).text)

    Calls that could not reach the server are made again, with the same request id, a bounded number of times. Methods
    raise `TurndockError`.

    Args:
        endpoint: `grpcs://host:port` (TLS), `grpc://host:port`, `host:port` or `unix:/path`.
        token: Sent as `authorization: Bearer …`.
        token_file: A file that holds the token, read once; instead of `token`.
        scope: The tenant to act for, where the credentials may act for others.
        tls: Whom to trust, and which certificate to show, as files. Encrypts, whatever the endpoint's scheme.
        credentials: The same as gRPC has it, such as `grpc.ssl_channel_credentials()`; instead of `tls`.
        insecure: Allow a token to travel unencrypted to another machine.
        retry: How often and after which pauses a call is made again.
        timeout: Seconds for a call that waits for no turn, all its tries together.
        start_timeout: Seconds for starting an agent, whose backend may take long to come up.
    """

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        token: str = "",
        token_file: Path | str | None = None,
        scope: str | None = None,
        tls: Tls | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        insecure: bool = False,
        retry: Retry | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        start_timeout: float = 60.0,
    ) -> None:
        self._start_timeout = start_timeout
        self._host = HostCalls(
            endpoint,
            token=token if token_file is None else read_token(Path(token_file)),
            scope=scope,
            credentials=credentials if tls is None else tls.credentials(),
            insecure=insecure,
            retry=retry or Retry(),
            timeout=timeout,
        )

    async def close(self) -> None:
        """Close the connection. Calls under way raise UNAVAILABLE; the server's turns go on."""
        await self._host.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def agent(self, name: str) -> AgentHandle:
        """The agent of that name. Calls nobody."""
        return AgentHandle(self._host, name)

    async def start_agent(
        self,
        name: str,
        *,
        backend: str,
        backend_config: Mapping[str, Any] | None = None,
        behavior: str = "",
        behavior_config: Mapping[str, Any] | None = None,
        limits: AgentLimits | None = None,
        session_id: str = "",
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> AgentHandle:
        """Make an agent, in a new session or in the one named, and start its backend.

        Raises ALREADY_EXISTS when the name is taken and BACKEND_START_FAILED when the backend refuses.
        """
        request = StartAgentRequest(
            request_id=request_id or new_id(),
            definition=AgentDefinition(
                agent_name=name,
                backend=backend,
                backend_config_json=_object(backend_config),
                behavior=behavior,
                behavior_config_json=_object(behavior_config),
                limits=limits,
            ),
            session_id=session_id,
            tags=tags,
            metadata_json=_object(metadata),
            context_json=_object(context),
        )
        await self._host.call(self._host.stub.StartAgent, request, timeout=self._start_timeout)
        return self.agent(name)

    def list_agents(self, *, page_size: int = 100) -> AsyncIterator[AgentStatus]:
        """The agents that are not stopped, newest change first."""

        async def read(cursor: str) -> tuple[Sequence[AgentStatus], str]:
            request = ListAgentsRequest(page=Page(limit=page_size, cursor=cursor))
            answer = await self._host.quick(self._host.stub.ListAgents, request)
            return answer.agents, answer.next_cursor

        return rows_of(read)

    def session_store(self) -> RemoteSessionStore:
        """The server's own session store, for requests within the scope of the credentials. Calls nobody."""
        return RemoteSessionStore(self._host.channel, metadata=self._host.metadata, unavailable="UNAVAILABLE")

    def artifact_store(self) -> RemoteArtifactStore:
        """The server's own artifact store, for requests within the scope of the credentials. Calls nobody."""
        return RemoteArtifactStore(
            self._host.channel, metadata=self._host.metadata, unavailable="UNAVAILABLE"
        )

    def agent_persistence(self) -> RemoteAgentPersistence:
        """What keeps the snapshots of the server's agents, as `session_store`. Calls nobody."""
        return RemoteAgentPersistence(
            self._host.channel, metadata=self._host.metadata, unavailable="UNAVAILABLE"
        )

    def maintenance(self, *, timeout: float = 3600.0) -> RemoteMaintenance:
        """The server's own maintenance, within the scope of the credentials. Calls nobody.

        `timeout` is in seconds, for each call: what was done when it is over stays done.
        """
        return RemoteMaintenance(
            self._host.channel, timeout=timeout, metadata=self._host.metadata, unavailable="UNAVAILABLE"
        )

    async def info(self) -> GetServerInfoResponse:
        """What the server is and what is docked."""
        return await self._host.quick(self._host.stub.GetServerInfo, GetServerInfoRequest())

    async def fork_session(
        self,
        session_id: str,
        *,
        at_sequence: int | None = None,
        request_id: str | None = None,
        timeout: float = 600.0,
    ) -> Session:
        """Make a session that begins with another one's history up to a number; unset = all of it.

        `start_agent` with its id goes on from there. A long history takes a while; after the `timeout` in seconds the
        server goes on, and the same `request_id` finds what it made. Raises SESSION_NOT_FOUND, SEQUENCE_IN_FUTURE for a
        number beyond the log, SEQUENCE_COMPACTED when some of the history was pruned.
        """
        request = ForkSessionRequest(
            request_id=request_id or new_id(), session_id=session_id, at_sequence=at_sequence
        )
        return (await self._host.call(self._host.stub.ForkSession, request, timeout=timeout)).session

    @overload
    def watch(
        self,
        *cursors: Cursor | str,
        types: Iterable[EventType.ValueType] = (),
        max_delay: float = 0.0,
        tries: int | None = None,
        on_lost: OnLost | None = None,
        on_resumed: OnResumed | None = None,
        frames: Literal[False] = False,
    ) -> Watch: ...
    @overload
    def watch(
        self,
        *cursors: Cursor | str,
        types: Iterable[EventType.ValueType] = (),
        max_delay: float = 0.0,
        progress_interval: float | None = None,
        with_status: bool = False,
        tries: int | None = None,
        on_lost: OnLost | None = None,
        on_resumed: OnResumed | None = None,
        frames: Literal[True],
    ) -> FrameWatch: ...
    def watch(
        self,
        *cursors: Cursor | str,
        types: Iterable[EventType.ValueType] = (),
        max_delay: float = 0.0,
        progress_interval: float | None = None,
        with_status: bool = False,
        tries: int | None = None,
        on_lost: OnLost | None = None,
        on_resumed: OnResumed | None = None,
        frames: bool = False,
    ) -> Watch | FrameWatch:
        """The logs of 1 to 100 sessions in one stream: each after its cursor, or from its beginning when named by id.

        See `AgentHandle.watch` for the other arguments.
        """

        async def locate() -> list[Cursor]:
            return [Cursor(session_id=one) if isinstance(one, str) else one for one in cursors]

        request = watch_request(
            types=types, max_delay=max_delay, progress_interval=progress_interval, with_status=with_status
        )
        return (FrameWatch if frames else Watch)(
            self._host, request, locate, tries=tries, on_lost=on_lost, on_resumed=on_resumed
        )


def _object(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else jsontext.canonical(value)
