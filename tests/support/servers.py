"""Real servers: processes of their own, which are started, stopped, killed, and started again at the same place."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2

from turndock import events, jsontext, serving, wire
from turndock.agent.v1 import (
    AgentStatus,
    AskRequest,
    AskResponse,
    CancelRunRequest,
    CancelRunResponse,
    End,
    GetAgentRequest,
    GetAgentResponse,
    GetRunRequest,
    GetRunResponse,
    GetServerInfoRequest,
    GetServerInfoResponse,
    InterruptRequest,
    InterruptResponse,
    ListAgentsRequest,
    ListAgentsResponse,
    ListRunsRequest,
    ListRunsResponse,
    NotifyRequest,
    NotifyResponse,
    PromptRequest,
    PromptResponse,
    ResolveApprovalRequest,
    ResolveApprovalResponse,
    StartAgentRequest,
    StartAgentResponse,
    StopAgentRequest,
    StopAgentResponse,
    TellRequest,
    TellResponse,
    TouchRequest,
    TouchResponse,
    UnhaltRequest,
    UnhaltResponse,
    UpdateQueuedRunRequest,
    UpdateQueuedRunResponse,
    WatchRequest,
    WatchResponse,
    agent_host_pb2,
)
from turndock.remote import RemoteSessionStore
from turndock.remote.calls import Remote, Stream, Unary
from turndock.store.v1 import GetEventsRequest
from turndock.types.v1 import AgentDefinition, AgentLimits, Cursor, Event, EventType, Run
from turndock_server.processes import Child, base_environment

Script = Sequence[Mapping[str, Any]]

SERVING = health_pb2.HealthCheckResponse.SERVING
WAIT_S = 30.0
"""Longest a test waits for what must happen."""
PLUGIN = f"exec:{sys.executable} -m turndock_server.backends.plugin"
"""The endpoint of a supervised plug-in of this package, but for its name."""
IMPATIENT = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100))
"""For channels to a server that comes back at once."""


class ServerProcess:
    """`turndock serve` with a configuration, in a directory."""

    def __init__(
        self, folder: Path, config: str = "", *, listen: str = "", python: Path = Path(sys.executable)
    ) -> None:
        self.endpoint = listen or f"unix:{folder / 'api'}"
        self.log = folder / "server.log"
        self._folder = folder
        self._python = str(python)
        self._config = folder / "turndock.toml"
        self.configure(config)
        self._said = asyncio.Event()
        self._child: Child | None = None
        self._logging: list[asyncio.Task[None]] = []

    @property
    def child(self) -> Child:
        """The process."""
        assert self._child is not None
        return self._child

    @property
    def database(self) -> Path:
        """The default store's file."""
        return self._folder / "data" / "turndock.db"

    def configure(self, config: str) -> None:
        """Another configuration, from the next start on."""
        self._config.write_text(f'data = "data"\n{config}')

    async def spawn(self, *arguments: str) -> None:
        """Start the process, and wait for nothing."""
        program = [self._python, "-m", "turndock_server", "serve", "--config", str(self._config)]
        environment = base_environment() | {"TMPDIR": str(self._folder)}
        self._child = await Child.start(
            [*program, "--listen", self.endpoint, *arguments], environment=environment
        )
        self._logging = [
            asyncio.create_task(self._keep(output)) for output in (self._child.stdout, self._child.stderr)
        ]

    async def start(self) -> None:
        """Start the process, and wait until health says SERVING."""
        await self.spawn()
        await self.until_serving()

    async def until_serving(self) -> None:
        """Wait until health says SERVING; fails when the process ends before."""
        serves = asyncio.ensure_future(self.serves())
        ended = asyncio.ensure_future(self.child.wait())
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait((serves, ended), return_when=asyncio.FIRST_COMPLETED)
        if not serves.done():
            serves.cancel()
            raise AssertionError(f"the server ended with {await ended}:\n{self.log.read_text()}")
        ended.cancel()
        await serves

    async def serves(self) -> None:
        """Wait until health says SERVING."""
        async with self.health() as states:
            async for state in states:
                if state == SERVING:
                    return

    @asynccontextmanager
    async def health(self) -> AsyncGenerator[AsyncGenerator[int, None]]:
        """What health says, and every change of it."""
        # A connection of its own: a shared one may be that to a server just killed, and not know it yet.
        options = (*IMPATIENT, ("grpc.use_local_subchannel_pool", 1))
        async with wire.connect(self.endpoint, options=options) as channel:
            watch = channel.unary_stream(
                "/grpc.health.v1.Health/Watch",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )(health_pb2.HealthCheckRequest(), wait_for_ready=True)

            async def states() -> AsyncGenerator[int, None]:
                async for answer in watch:
                    yield answer.status

            try:
                yield states()
            finally:
                watch.cancel()

    def kill(self) -> None:
        """kill -9: the process alone, as the kernel or a person does it."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        os.kill(self.child.pid, number)

    async def ended(self) -> int:
        """Wait for the end of the process and of what it says. Returns its exit code, or minus its signal."""
        async with asyncio.timeout(WAIT_S):
            code = await self.child.wait()
            await asyncio.wait(self._logging)
        return code

    async def said(self, text: str) -> str:
        """Wait until the process has said something; the line."""
        async with asyncio.timeout(WAIT_S):
            while (line := self._line(text)) is None:
                self._said.clear()
                await self._said.wait()
        return line

    def took(self) -> float:
        """Seconds the server took to stop, by its own log."""
        began, ended = (self._line(text) for text in ('"stopping; ', '"stopped"'))
        assert began is not None
        assert ended is not None
        return (_moment(ended) - _moment(began)).total_seconds()

    def _line(self, text: str) -> str | None:
        """The newest line of the log with that text."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return next((line for line in reversed(lines) if text in line), None)

    async def restart(self) -> None:
        """Kill the process and start it again."""
        self.kill()
        await self.ended()
        await self.start()

    async def close(self) -> None:
        """End the process if it still runs."""
        if self._child is not None:
            await self._child.stop()
            await asyncio.wait(self._logging)

    async def _keep(self, output: asyncio.StreamReader) -> None:
        with self.log.open("ab") as log:
            while said := await output.read(1 << 16):
                log.write(said)
                log.flush()
                self._said.set()


def _moment(line: str) -> datetime:
    """When a line was logged."""
    return datetime.fromisoformat(json.loads(line)["time"])


class Agents(Remote, service=agent_host_pb2.DESCRIPTOR.services_by_name["AgentHost"]):
    """A server's agents as methods that raise `TurndockError`, without the SDK client's patience."""

    start_agent: Unary[StartAgentRequest, StartAgentResponse]
    resolve_approval: Unary[ResolveApprovalRequest, ResolveApprovalResponse]
    get_agent: Unary[GetAgentRequest, GetAgentResponse]
    list_agents: Unary[ListAgentsRequest, ListAgentsResponse]
    stop_agent: Unary[StopAgentRequest, StopAgentResponse]
    ask: Unary[AskRequest, AskResponse]
    tell: Unary[TellRequest, TellResponse]
    prompt: Stream[PromptRequest, PromptResponse]
    get_run: Unary[GetRunRequest, GetRunResponse]
    list_runs: Unary[ListRunsRequest, ListRunsResponse]
    update_queued_run: Unary[UpdateQueuedRunRequest, UpdateQueuedRunResponse]
    cancel_run: Unary[CancelRunRequest, CancelRunResponse]
    notify: Unary[NotifyRequest, NotifyResponse]
    interrupt: Unary[InterruptRequest, InterruptResponse]
    unhalt: Unary[UnhaltRequest, UnhaltResponse]
    touch: Unary[TouchRequest, TouchResponse]
    watch: Stream[WatchRequest, WatchResponse]
    get_server_info: Unary[GetServerInfoRequest, GetServerInfoResponse]


class Watcher:
    """One watch of one or several logs, and what it saw."""

    def __init__(self, agents: Agents, *cursors: Cursor, **request: Any) -> None:
        self.events: list[Event] = []
        self.end: End | None = None
        self.status = AgentStatus()
        self.cursors = {cursor.session_id: cursor for cursor in cursors}
        self._frames = agents.watch(WatchRequest(cursors=cursors, **request))
        self._moved = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def until(self, holds: Callable[[Watcher], object]) -> None:
        """Wait until what was seen is as it should be."""
        async with asyncio.timeout(WAIT_S):
            while not holds(self):
                self._moved.clear()
                await self._moved.wait()

    async def ended(self) -> End:
        """Wait for the frame that ends it."""
        async with asyncio.timeout(WAIT_S):
            await self._reading
        assert self.end is not None
        return self.end

    def close(self) -> None:
        self._reading.cancel()

    async def _read(self) -> None:
        frame: WatchResponse
        async for frame in self._frames:
            self.cursors[frame.cursor.session_id] = frame.cursor
            self.events += frame.batch.events
            if frame.HasField("status"):
                self.status = frame.status
            if frame.HasField("end"):
                self.end = frame.end
            self._moved.set()


class Calls:
    """A channel to a server, and what is called over it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.agents = Agents(channel, timeout=WAIT_S)
        self.store = RemoteSessionStore(channel)
        self._watchers: list[Watcher] = []

    def watch(self, *cursors: Cursor, **request: Any) -> Watcher:
        """Begin to watch; ends with the channel at the latest."""
        watcher = Watcher(self.agents, *cursors, **request)
        self._watchers.append(watcher)
        return watcher

    def close(self) -> None:
        """End every watch."""
        for watcher in self._watchers:
            watcher.close()

    async def start(self, name: str, backend: str, script: Script = (), **limits: Any) -> str:
        """Start an agent that plays the script at every prompt; its session's id."""
        definition = AgentDefinition(
            agent_name=name,
            backend=backend,
            backend_config_json=jsontext.canonical({"default": script}) if script else "",
            limits=AgentLimits(**limits),
        )
        started = await self.agents.start_agent(StartAgentRequest(request_id=name, definition=definition))
        return started.agent.session_id

    async def status(self, name: str) -> AgentStatus:
        """How an agent is; does not wake it."""
        return (await self.agents.get_agent(GetAgentRequest(agent_name=name))).agent

    async def ended(self, name: str, run_id: str) -> Run:
        """Wait for a run's end."""
        request = GetRunRequest(agent_name=name, run_id=run_id, wait_ms=round(WAIT_S * 1000))
        return (await self.agents.get_run(request)).run

    async def stored(self, session_id: str) -> list[Event]:
        """A session's whole log, read from the store page by page."""
        found: list[Event] = []
        while True:
            page = await self.store.get_events(
                GetEventsRequest(session_id=session_id, after_sequence=found[-1].sequence if found else 0)
            )
            found += page.events
            if not page.events or page.events[-1].sequence == page.head:
                return found


@asynccontextmanager
async def a_server(folder: Path, config: str = "", *, listen: str = "") -> AsyncGenerator[ServerProcess]:
    """A server that serves; it has ended when the block has."""
    server = ServerProcess(folder, config, listen=listen)
    try:
        await server.start()
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def calls(server: ServerProcess) -> AsyncGenerator[Calls]:
    """A channel to the server, which outlives restarts."""
    async with wire.connect(server.endpoint, options=IMPATIENT) as channel:
        opened = Calls(channel)
        try:
            yield opened
        finally:
            opened.close()


@asynccontextmanager
async def beside(endpoint: str, **ports: Any) -> AsyncGenerator[None]:
    """A plug-in in this process: it outlives every server it is docked at."""
    stop = asyncio.Event()
    listens: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serving.serve(
            name="beside",
            version="1",
            endpoint=endpoint,
            stop=stop,
            grace=0,
            on_ready=lambda _: listens.set_result(None),
            **ports,
        )
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_end, task, stop)
        await asyncio.wait((task, listens), return_when=asyncio.FIRST_COMPLETED)
        yield


async def _end(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    stop.set()
    await task


async def peer(path: Path) -> int:
    """Number of the process that listens at a unix socket."""
    _, writer = await asyncio.open_unix_connection(path)
    credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    writer.close()
    await writer.wait_closed()
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)


def unused_port() -> int:
    """A port of the loopback interface that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def terminals(log: Iterable[Event]) -> dict[str, list[Event]]:
    """The terminal events of each run."""
    found: dict[str, list[Event]] = {}
    for event in log:
        if event.type in events.RUN_TERMINAL:
            found.setdefault(event.run_id, []).append(event)
    return found


def of_type(log: Iterable[Event], *types: EventType.ValueType) -> list[Event]:
    """The events of these types."""
    return [event for event in log if event.type in types]


def custom(log: Iterable[Event], name: str) -> list[Event]:
    """The custom events of this name."""
    return [event for event in log if event.HasField("custom") and event.custom.name == name]
