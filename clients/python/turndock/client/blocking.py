"""The client for code without an event loop: the same methods, each of which blocks until it has its answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import grpc

from turndock.agent.v1 import (
    AgentStatus,
    ApprovalAnswer,
    GetServerInfoResponse,
    InterruptResponse,
    NotifyResponse,
    PromptOutcome,
    Skipped,
    TellResponse,
)
from turndock.client.agent import AgentHandle, Busy
from turndock.client.answering import Asked
from turndock.client.blocking_maintenance import SyncMaintenance
from turndock.client.blocking_query import SyncQuery
from turndock.client.client import Client
from turndock.client.host import DEFAULT_ENDPOINT, Retry
from turndock.client.loop_thread import LoopThread
from turndock.client.prompt import PromptStream
from turndock.client.streams import OnLost, OnResumed
from turndock.client.watch import Watch
from turndock.types.v1 import (
    AgentLimits,
    Cursor,
    Event,
    EventType,
    Response,
    Run,
    RunStatus,
    Session,
    ToolApprovalRequested,
)
from turndock.wire import Tls


class ClientOptions(TypedDict, total=False):
    """Arguments of `Client`."""

    token: str
    token_file: Path | str | None
    scope: str | None
    tls: Tls | None
    credentials: grpc.ChannelCredentials | None
    insecure: bool
    retry: Retry | None
    timeout: float
    start_timeout: float


class AgentOptions(TypedDict, total=False):
    """Arguments of `Client.start_agent`."""

    backend_config: Mapping[str, Any] | None
    behavior: str
    behavior_config: Mapping[str, Any] | None
    limits: AgentLimits | None
    session_id: str
    tags: tuple[str, ...]
    metadata: Mapping[str, Any] | None
    context: Mapping[str, Any] | None
    request_id: str | None


class PromptOptions(TypedDict, total=False):
    """Arguments of `AgentHandle.ask`, `tell` and `prompt`."""

    busy: Busy
    metadata: Mapping[str, Any] | None
    correlation_id: str
    request_id: str | None


class WatchOptions(TypedDict, total=False):
    """Arguments of `AgentHandle.watch`."""

    types: Iterable[EventType.ValueType]
    run_id: str
    until_terminal: bool
    max_delay: float
    tries: int | None
    on_lost: OnLost | None
    on_resumed: OnResumed | None


class SyncClient:
    """`Client` for code without an event loop. May be used from several threads.

    with SyncClient() as client:
        print(client.agent("ann").ask("hello").text)
    """

    def __init__(self, endpoint: str = DEFAULT_ENDPOINT, **options: Unpack[ClientOptions]) -> None:
        self._loop = LoopThread("turndock-client")
        try:
            self._client = self._loop.run(_make(endpoint, options))
        except BaseException:
            self._loop.stop()
            raise

    def close(self) -> None:
        """Close the connection. Repeatable."""
        if self._loop.running:
            self._loop.run(self._client.close())
            self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def agent(self, name: str) -> SyncAgentHandle:
        """The agent of that name. Calls nobody."""
        return SyncAgentHandle(self._loop, self._client.agent(name))

    def start_agent(self, name: str, *, backend: str, **options: Unpack[AgentOptions]) -> SyncAgentHandle:
        """See `Client.start_agent`."""
        return SyncAgentHandle(
            self._loop, self._loop.run(self._client.start_agent(name, backend=backend, **options))
        )

    def list_agents(self, *, page_size: int = 100) -> Iterator[AgentStatus]:
        """See `Client.list_agents`."""
        return self._loop.iterate(self._client.list_agents(page_size=page_size))

    def fork_session(
        self, session_id: str, *, at_sequence: int | None = None, request_id: str | None = None
    ) -> Session:
        """See `Client.fork_session`."""
        return self._loop.run(
            self._client.fork_session(session_id, at_sequence=at_sequence, request_id=request_id)
        )

    def maintenance(self, *, timeout: float = 3600.0) -> SyncMaintenance:
        """See `Client.maintenance`."""
        return SyncMaintenance(self._loop, self._client.maintenance(timeout=timeout))

    def query(self) -> SyncQuery:
        """See `Client.query`."""
        return SyncQuery(self._loop, self._client.query())

    def info(self) -> GetServerInfoResponse:
        """See `Client.info`."""
        return self._loop.run(self._client.info())


class SyncAgentHandle:
    """`AgentHandle` for code without an event loop."""

    def __init__(self, loop: LoopThread, agent: AgentHandle) -> None:
        self._loop = loop
        self._agent = agent

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._agent.name

    def __repr__(self) -> str:
        return f"SyncAgentHandle({self.name!r})"

    def ask(self, prompt: str, *, timeout: float | None = None, **options: Unpack[PromptOptions]) -> Response:
        """See `AgentHandle.ask`."""
        return self._loop.run(self._agent.ask(prompt, timeout=timeout, **options))

    def tell(self, prompt: str, **options: Unpack[PromptOptions]) -> TellResponse:
        """See `AgentHandle.tell`."""
        return self._loop.run(self._agent.tell(prompt, **options))

    def prompt(self, prompt: str, **options: Unpack[PromptOptions]) -> SyncPromptStream:
        """See `AgentHandle.prompt`."""
        return SyncPromptStream(self._loop, self._loop.run(_prompt(self._agent, prompt, options)))

    def run(self, run_id: str, *, wait: float = 0.0, with_events: bool = False) -> Run:
        """See `AgentHandle.run`."""
        return self._loop.run(self._agent.run(run_id, wait=wait, with_events=with_events))

    def result(self, run_id: str, *, timeout: float | None = None, with_events: bool = False) -> Response:
        """See `AgentHandle.result`."""
        return self._loop.run(self._agent.result(run_id, timeout=timeout, with_events=with_events))

    def runs(self, *statuses: RunStatus.ValueType, page_size: int = 100) -> Iterator[Run]:
        """See `AgentHandle.runs`."""
        return self._loop.iterate(self._agent.runs(*statuses, page_size=page_size))

    def edit(self, run_id: str, *, prompt: str | None = None, before: str = "", to_tail: bool = False) -> Run:
        """See `AgentHandle.edit`."""
        return self._loop.run(self._agent.edit(run_id, prompt=prompt, before=before, to_tail=to_tail))

    def cancel(self, run_id: str, *, reason: str = "") -> Run:
        """See `AgentHandle.cancel`."""
        return self._loop.run(self._agent.cancel(run_id, reason=reason))

    def status(self) -> AgentStatus:
        """See `AgentHandle.status`."""
        return self._loop.run(self._agent.status())

    def interrupt(self, run_id: str = "") -> InterruptResponse:
        """See `AgentHandle.interrupt`."""
        return self._loop.run(self._agent.interrupt(run_id))

    def notify(
        self,
        payload: Any,
        *,
        wait_applied: bool = False,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> NotifyResponse:
        """See `AgentHandle.notify`."""
        return self._loop.run(
            self._agent.notify(payload, wait_applied=wait_applied, timeout=timeout, request_id=request_id)
        )

    def unhalt(self) -> AgentStatus:
        """See `AgentHandle.unhalt`."""
        return self._loop.run(self._agent.unhalt())

    def approvals(self) -> Sequence[ToolApprovalRequested]:
        """See `AgentHandle.approvals`."""
        return self._loop.run(self._agent.approvals())

    def resolve_approval(self, *answers: ApprovalAnswer, request_id: str | None = None) -> AgentStatus:
        """See `AgentHandle.resolve_approval`."""
        return self._loop.run(self._agent.resolve_approval(*answers, request_id=request_id))

    def approve(self, *asked: Asked, request_id: str | None = None) -> AgentStatus:
        """See `AgentHandle.approve`."""
        return self._loop.run(self._agent.approve(*asked, request_id=request_id))

    def edit_approval(self, asked: Asked, arguments: Any, *, request_id: str | None = None) -> AgentStatus:
        """See `AgentHandle.edit_approval`."""
        return self._loop.run(self._agent.edit_approval(asked, arguments, request_id=request_id))

    def reject(self, *asked: Asked, feedback: str = "", request_id: str | None = None) -> AgentStatus:
        """See `AgentHandle.reject`."""
        return self._loop.run(self._agent.reject(*asked, feedback=feedback, request_id=request_id))

    def touch(self) -> None:
        """See `AgentHandle.touch`."""
        self._loop.run(self._agent.touch())

    def stop(self, *, reason: str = "") -> AgentStatus:
        """See `AgentHandle.stop`."""
        return self._loop.run(self._agent.stop(reason=reason))

    def watch(self, after: int | Cursor = 0, **options: Unpack[WatchOptions]) -> SyncWatch:
        """See `AgentHandle.watch`. `on_lost` and `on_resumed` are called in the client's own thread."""
        return SyncWatch(self._loop, self._loop.run(_watch(self._agent, after, options)))


class SyncPromptStream(Iterator[Event]):
    """`PromptStream` for code without an event loop."""

    def __init__(self, loop: LoopThread, stream: PromptStream) -> None:
        self._loop = loop
        self._stream = stream
        self._events = loop.iterate(stream)

    def __next__(self) -> Event:
        return next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._stream.aclose())

    @property
    def run(self) -> Run:
        """See `PromptStream.run`."""
        return self._stream.run

    @property
    def outcome(self) -> PromptOutcome:
        """See `PromptStream.outcome`."""
        return self._stream.outcome

    @property
    def response(self) -> Response:
        """See `PromptStream.response`."""
        return self._stream.response


class SyncWatch(Iterator[Event]):
    """`Watch` for code without an event loop. `with` waits until it stands, and ends it."""

    def __init__(self, loop: LoopThread, watch: Watch) -> None:
        self._loop = loop
        self._watch = watch
        self._events = loop.iterate(watch)

    def __next__(self) -> Event:
        return next(self._events)

    def __enter__(self) -> Self:
        self._loop.run(self._watch.opened())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._watch.aclose())

    def close(self) -> None:
        """Stop. Iteration ends at its next step; may be called while another thread iterates."""
        self._loop.call(self._watch.close)

    @property
    def cursors(self) -> list[Cursor]:
        """See `Watch.cursors`."""
        return self._watch.cursors

    @property
    def skipped(self) -> list[Skipped]:
        """See `Watch.skipped`."""
        return self._watch.skipped


# Made in the loop: gRPC binds what it makes to the loop that runs.


async def _make(endpoint: str, options: ClientOptions) -> Client:
    return Client(endpoint, **options)


async def _prompt(agent: AgentHandle, prompt: str, options: PromptOptions) -> PromptStream:
    return agent.prompt(prompt, **options)


async def _watch(agent: AgentHandle, after: int | Cursor, options: WatchOptions) -> Watch:
    return agent.watch(after, **options)
