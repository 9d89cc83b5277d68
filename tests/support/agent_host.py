"""As much of a server as a client needs to be tested against: agents in memory, a log each, and faults on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from turndock import events, serving, wire
from turndock.agent.v1 import (
    AgentStatus,
    AskRequest,
    AskResponse,
    Batch,
    CaughtUp,
    Created,
    End,
    GetAgentRequest,
    GetAgentResponse,
    GetRunRequest,
    GetRunResponse,
    GetServerInfoRequest,
    GetServerInfoResponse,
    InterruptOutcome,
    InterruptRequest,
    InterruptResponse,
    ListAgentsRequest,
    ListAgentsResponse,
    ListRunsRequest,
    ListRunsResponse,
    NotifyRequest,
    NotifyResponse,
    PromptAccepted,
    PromptOutcome,
    PromptRequest,
    PromptResponse,
    Skipped,
    StartAgentRequest,
    StartAgentResponse,
    TellRequest,
    TellResponse,
    WatchRequest,
    WatchResponse,
    agent_host_pb2,
)
from turndock.errors import TurndockError, not_found
from turndock.types.v1 import Cursor, Event, EventType, Failure, Response, Run, RunStatus

SERVICE = agent_host_pb2.DESCRIPTOR.services_by_name["AgentHost"]

UNAVAILABLE = TurndockError("SERVER_STOPPING", "for the test", retry_after_ms=1)


class FakeAgent:
    """One agent: its runs and its log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.session_id = f"ses-{name}"
        self.incarnation = "one"
        self.runs: dict[str, Run] = {}
        self.log: list[Event] = []
        self.pruned_through = 0
        self.end: End.Reason.ValueType | None = None
        self.changed = asyncio.Event()

    def append(self, *texts: str, run_id: str = "") -> None:
        """Put events into the log."""
        for text in texts:
            event = events.text(text)
            event.sequence, event.session_id, event.run_id = len(self.log) + 1, self.session_id, run_id
            self.log.append(event)
        self.wake()

    def wake(self) -> None:
        """Have whoever waits look again."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def cursor(self, sequence: int) -> Cursor:
        """A place in the log."""
        return Cursor(session_id=self.session_id, incarnation=self.incarnation, after_sequence=sequence)


class FakeHost:
    """Serves AgentHost. A prompt `fail: reason` fails, `hold` waits for `release`, any other is echoed in capitals."""

    def __init__(self) -> None:
        self.agents: dict[str, FakeAgent] = {}
        self.calls: Counter[str] = Counter()
        self.request_ids: defaultdict[str, list[str]] = defaultdict(list)
        self.metadata: list[dict[str, str]] = []
        self.release = asyncio.Event()
        self.refuse: Counter[str] = Counter()
        """How often a call is refused before it does anything, by RPC."""
        self.drop: Counter[str] = Counter()
        """How often the answer of a call is lost after it was done, by RPC."""

    def agent(self, name: str) -> FakeAgent:
        """The agent of that name."""
        if name not in self.agents:
            raise not_found("agent", name)
        return self.agents[name]

    def enter(self, rpc: str, request: Any) -> None:
        """A call comes in."""
        self.calls[rpc] += 1
        self.request_ids[rpc].append(getattr(request, "request_id", ""))
        if self.refuse[rpc] > 0:
            self.refuse[rpc] -= 1
            raise UNAVAILABLE

    def leave(self, rpc: str) -> None:
        """A call's answer goes out, or is lost."""
        if self.drop[rpc] > 0:
            self.drop[rpc] -= 1
            raise UNAVAILABLE

    async def start_agent(self, request: StartAgentRequest) -> StartAgentResponse:
        self.enter("StartAgent", request)
        name = request.definition.agent_name
        agent = self.agents.setdefault(name, FakeAgent(name))
        self.leave("StartAgent")
        return StartAgentResponse(agent=self.status_of(agent))

    async def get_agent(self, request: GetAgentRequest) -> GetAgentResponse:
        self.enter("GetAgent", request)
        return GetAgentResponse(agent=self.status_of(self.agent(request.agent_name)))

    async def list_agents(self, request: ListAgentsRequest) -> ListAgentsResponse:
        self.enter("ListAgents", request)
        names = sorted(self.agents)
        start = int(request.page.cursor or 0)
        page = names[start : start + request.page.limit]
        left = start + len(page) < len(names)
        return ListAgentsResponse(
            agents=[self.status_of(self.agents[name]) for name in page],
            next_cursor=str(start + len(page)) if left else "",
        )

    def status_of(self, agent: FakeAgent) -> AgentStatus:
        """Its status."""
        return AgentStatus(
            agent_name=agent.name,
            session_id=agent.session_id,
            incarnation=agent.incarnation,
            last_sequence=len(agent.log),
        )

    async def get_server_info(self, request: GetServerInfoRequest) -> GetServerInfoResponse:
        self.enter("GetServerInfo", request)
        return GetServerInfoResponse(version="fake", backends=["echo"])

    # --- Runs ----------------------------------------------------------------------------------------------------

    def submit(self, agent: FakeAgent, request: AskRequest | TellRequest | PromptRequest) -> Run:
        """Make a run, once for each request id."""
        run = agent.runs.get(request.request_id)
        if run is None:
            run = Run(
                id=request.request_id,
                session_id=agent.session_id,
                prompt=request.prompt,
                status=RunStatus.RUN_STATUS_RUNNING,
            )
            agent.runs[run.id] = run
            agent.append("started", run_id=run.id)
            if request.prompt != "hold":
                self.finish(agent, run)
        return run

    def finish(self, agent: FakeAgent, run: Run) -> None:
        """End a run."""
        if run.prompt.startswith("fail: "):
            run.status = RunStatus.RUN_STATUS_FAILED
            run.failure.CopyFrom(Failure(reason=run.prompt.removeprefix("fail: ")))
        else:
            run.status = RunStatus.RUN_STATUS_COMPLETED
            run.response.CopyFrom(Response(text=run.prompt.upper()))
        agent.append("ended", run_id=run.id)
        agent.log[-1].type = EventType.EVENT_TYPE_RUN_COMPLETED

    async def ended(self, agent: FakeAgent, run: Run) -> None:
        """Wait for a run's end."""
        while run.status == RunStatus.RUN_STATUS_RUNNING:
            await agent.changed.wait()

    async def tell(self, request: TellRequest) -> TellResponse:
        self.enter("Tell", request)
        agent = self.agent(request.agent_name)
        cursor = agent.cursor(len(agent.log))
        run = self.submit(agent, request)
        self.leave("Tell")
        return TellResponse(run=run, cursor=cursor)

    async def ask(self, request: AskRequest) -> AskResponse:
        self.enter("Ask", request)
        agent = self.agent(request.agent_name)
        run = self.submit(agent, request)
        await self.ended(agent, run)
        self.leave("Ask")
        if run.status == RunStatus.RUN_STATUS_COMPLETED:
            return AskResponse(run=run, response=run.response)
        return AskResponse(run=run, failure=run.failure)

    async def prompt(self, request: PromptRequest) -> AsyncIterator[PromptResponse]:
        self.enter("Prompt", request)
        agent = self.agent(request.agent_name)
        run = self.submit(agent, request)
        yield PromptResponse(accepted=PromptAccepted(run=run, cursor=agent.cursor(0)))
        sent = 0
        while True:
            changed = agent.changed  # before looking, so that no change is missed
            ended = run.status != RunStatus.RUN_STATUS_RUNNING
            batch = [event for event in agent.log[sent:] if event.run_id == run.id]
            sent = len(agent.log)
            if batch:
                yield PromptResponse(batch=Batch(events=batch))
            if ended:
                break
            await changed.wait()
        self.leave("Prompt")
        outcome = PromptOutcome(run=run)
        if run.status == RunStatus.RUN_STATUS_COMPLETED:
            outcome.response.CopyFrom(run.response)
        else:
            outcome.failure.CopyFrom(run.failure)
        yield PromptResponse(outcome=outcome)

    async def get_run(self, request: GetRunRequest) -> GetRunResponse:
        self.enter("GetRun", request)
        agent = self.agent(request.agent_name)
        if request.run_id not in agent.runs:
            raise not_found("run", request.run_id)
        run = agent.runs[request.run_id]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended(agent, run), request.wait_ms / 1000)
        return GetRunResponse(run=run)

    async def list_runs(self, request: ListRunsRequest) -> ListRunsResponse:
        self.enter("ListRuns", request)
        return ListRunsResponse(runs=self.agent(request.agent_name).runs.values())

    async def notify(self, request: NotifyRequest) -> NotifyResponse:
        self.enter("Notify", request)
        agent = self.agent(request.agent_name)
        agent.append(request.payload_json)
        return NotifyResponse(sequence=len(agent.log), applied=request.wait_applied)

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        self.enter("Interrupt", request)
        self.agent(request.agent_name)
        return InterruptResponse(outcome=InterruptOutcome.INTERRUPT_OUTCOME_IDLE)

    # --- Watching ------------------------------------------------------------------------------------------------

    async def watch(self, request: WatchRequest) -> AsyncIterator[WatchResponse]:
        self.enter("Watch", request)
        [cursor] = request.cursors
        agent = next(one for one in self.agents.values() if one.session_id == cursor.session_id)
        place = cursor.after_sequence
        if cursor.incarnation and cursor.incarnation != agent.incarnation:
            raise TurndockError("SESSION_RECREATED", "another session")
        if place > len(agent.log):
            raise TurndockError("SEQUENCE_IN_FUTURE", "beyond the head")
        yield WatchResponse(cursor=agent.cursor(place), created=Created(head=len(agent.log)))
        if place < agent.pruned_through:
            skipped = Skipped(from_sequence=place + 1, to_sequence=agent.pruned_through)
            place = agent.pruned_through
            yield WatchResponse(cursor=agent.cursor(place), skipped=skipped)
        caught_up = False
        while True:
            changed = agent.changed
            batch = agent.log[place : place + 3]
            if batch:
                place += len(batch)
                yield WatchResponse(cursor=agent.cursor(place), batch=Batch(events=batch))
                continue
            if not caught_up:
                caught_up = True
                yield WatchResponse(cursor=agent.cursor(place), caught_up=CaughtUp(head=place))
            if agent.end is not None:
                end, agent.end = agent.end, None
                yield WatchResponse(cursor=agent.cursor(place), end=End(reason=end))
                return
            await changed.wait()


class _Recorder(grpc.aio.ServerInterceptor):
    """Keeps each call's metadata."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host

    async def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        pairs: list[tuple[str, str]] = [*handler_call_details.invocation_metadata]
        self._host.metadata.append(dict(pairs))
        return await continuation(handler_call_details)


@contextlib.asynccontextmanager
async def fake_host() -> AsyncGenerator[tuple[FakeHost, wire.Endpoint]]:
    """A host, and where it listens, for as long as the block runs."""
    host = FakeHost()
    server = wire.new_server(interceptors=(_Recorder(host),))
    serving.add_port(server, SERVICE, host)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield host, endpoint
    finally:
        await server.stop(0)
