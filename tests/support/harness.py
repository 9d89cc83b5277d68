"""A host with a scripted backend and a scripted behavior, and short names for its calls.

What the acceptance cases speak of: every call goes through gRPC, the backend and the behavior are in this process or
behind gRPC, and the store is whichever the test runs on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from support import postgres
from support.docking import Mode, docked
from support.hosting import Served, make_host, served
from support.parts import Script
from support.scripted_agent import ScriptedAgent, state_of
from support.snapshots import behind_grpc
from turndock import events, jsontext, serving, wire
from turndock.agent.v1 import (
    AgentStatus,
    ApprovalAnswer,
    AskRequest,
    AskResponse,
    CancelRunRequest,
    ForkSessionRequest,
    GetAgentRequest,
    GetRunRequest,
    InterruptOutcome,
    InterruptRequest,
    ListRunsRequest,
    NotifyRequest,
    NotifyResponse,
    PromptRequest,
    PromptResponse,
    ResolveApprovalRequest,
    StartAgentRequest,
    StartAgentResponse,
    StopAgentRequest,
    TellRequest,
    UnhaltRequest,
    UpdateQueuedRunRequest,
    WatchRequest,
    WatchResponse,
)
from turndock.errors import TurndockError
from turndock.ports import AgentPersistence, Backend, Behavior, SessionStore
from turndock.remote import RemoteBehavior, RemoteSessionStore
from turndock.store.v1 import GetEventsRequest, GetSessionRequest
from turndock.types.v1 import (
    AgentDefinition,
    AgentLimits,
    AgentPhase,
    ApprovalDecision,
    Cursor,
    Event,
    Run,
    RunStatus,
    Session,
    ToolApprovalRequested,
)
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.core.behavior_calls import Patience
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore
from turndock_server.stores.sql import SqlSessionStore

StoreName = Literal["memory", "sqlite", "postgres", "remote"]
Watching = AsyncGenerator[WatchResponse, None]

WAIT_S = 20.0
"""Longest a test waits for what must happen."""


class Harness:
    """A served host and what is docked to it."""

    def __init__(self, store: SessionStore, mode: Mode, exits: AsyncExitStack) -> None:
        self.store = store
        self.mode: Mode = mode
        self.backend = ScriptedBackend()
        self.agent = ScriptedAgent()
        self.artifacts = MemoryArtifactStore()
        self.backends: dict[str, Backend] = {}
        self.behaviors: dict[str, Behavior] = {}
        self.patience: dict[str, Patience] = {}
        """How long behaviors are waited for, by name."""
        self.served: Served
        self._exits = exits

    # --- What is docked ------------------------------------------------------------------------------------------

    async def dock_backend(self, name: str, backend: Backend) -> None:
        """Let agents use a backend."""
        self.backends[name] = await self._exits.enter_async_context(docked(backend, self.mode))

    async def dock_behavior(self, name: str, behavior: Behavior) -> None:
        """Let agents use a behavior."""
        if self.mode != "in_process":
            behavior = await self._exits.enter_async_context(_behavior_over_grpc(behavior))
        self.behaviors[name] = behavior

    # --- Agents --------------------------------------------------------------------------------------------------

    async def start(
        self,
        *scripts: Script,
        name: str = "a1",
        backend: str = "scripted",
        behavior: str = "scripted",
        limits: AgentLimits | None = None,
        request_id: str = "",
        session_id: str = "",
        metadata_json: str = "",
        **config: Any,
    ) -> StartAgentResponse:
        """Start an agent whose prompts play these scripts, one each."""
        return await self.start_with(
            backend,
            {"scripts": list(scripts), **config},
            name=name,
            behavior=behavior,
            limits=limits,
            request_id=request_id,
            session_id=session_id,
            metadata_json=metadata_json,
        )

    async def start_with(
        self,
        backend: str,
        config: Mapping[str, Any],
        *,
        name: str = "a1",
        behavior: str = "scripted",
        limits: AgentLimits | None = None,
        request_id: str = "",
        session_id: str = "",
        metadata_json: str = "",
    ) -> StartAgentResponse:
        """Start an agent with a backend configured so."""
        request = StartAgentRequest(
            request_id=request_id,
            session_id=session_id,
            metadata_json=metadata_json,
            definition=AgentDefinition(
                agent_name=name,
                backend=backend,
                behavior=behavior,
                backend_config_json=jsontext.canonical(config),
                limits=limits,
            ),
        )
        with wire.translated():
            return await self.served.stub.StartAgent(request)

    async def status(self, name: str = "a1") -> AgentStatus:
        with wire.translated():
            return (await self.served.stub.GetAgent(GetAgentRequest(agent_name=name))).agent

    async def state(self, name: str = "a1") -> dict[str, Any]:
        """The behavior's state."""
        return state_of((await self.status(name)).state_json)

    async def stored_session(self, session_id: str) -> Session:
        """The session as the store has it."""
        return (await self.store.get_session(GetSessionRequest(session_id=session_id))).session

    async def stop(self, name: str = "a1", **fields: Any) -> AgentStatus:
        with wire.translated():
            return (await self.served.stub.StopAgent(StopAgentRequest(agent_name=name, **fields))).agent

    async def fork(self, session_id: str, at: int | None = None, request_id: str = "f-1") -> Session:
        with wire.translated():
            request = ForkSessionRequest(session_id=session_id, at_sequence=at, request_id=request_id)
            return (await self.served.stub.ForkSession(request)).session

    async def until(self, holds: Callable[[AgentStatus], bool], name: str = "a1") -> AgentStatus:
        """Wait until the agent's status is as it should be."""
        session_id = (await self.status(name)).session_id
        async with (
            asyncio.timeout(WAIT_S),
            self.watching(Cursor(session_id=session_id), with_status=True) as w,
        ):
            async for frame in w:
                if frame.HasField("status") and holds(frame.status):
                    return frame.status
        raise AssertionError("the watch ended before the status was as it should be")

    async def until_idle(self, name: str = "a1") -> AgentStatus:
        """Wait until nothing is under way and nothing waits."""
        return await self.until(
            lambda status: (
                status.phase == AgentPhase.AGENT_PHASE_IDLE
                and not status.queued
                and not status.pending_notifications
            ),
            name,
        )

    # --- Prompts -------------------------------------------------------------------------------------------------

    async def ask(
        self, prompt: str, name: str = "a1", *, timeout: float = WAIT_S, **fields: Any
    ) -> AskResponse:
        with wire.translated():
            request = AskRequest(agent_name=name, prompt=prompt, **fields)
            return await self.served.stub.Ask(request, timeout=timeout)

    def asking(self, prompt: str, name: str = "a1", **fields: Any) -> asyncio.Task[AskResponse]:
        """An Ask in the background."""
        return asyncio.create_task(self.ask(prompt, name, **fields))

    async def tell(self, prompt: str, name: str = "a1", **fields: Any) -> str:
        """The id of the run that a Tell made."""
        with wire.translated():
            request = TellRequest(agent_name=name, prompt=prompt, **fields)
            return (await self.served.stub.Tell(request)).run.id

    async def prompt(self, prompt: str, name: str = "a1", **fields: Any) -> list[PromptResponse]:
        """All frames of a Prompt."""
        with wire.translated():
            request = PromptRequest(agent_name=name, prompt=prompt, **fields)
            return [frame async for frame in self.served.stub.Prompt(request, timeout=WAIT_S)]

    async def poll(self, run_id: str, name: str = "a1", **fields: Any) -> Run:
        with wire.translated():
            request = GetRunRequest(agent_name=name, run_id=run_id, **fields)
            return (await self.served.stub.GetRun(request)).run

    async def ended(self, run_id: str, name: str = "a1") -> Run:
        """The run, once it has ended."""
        run = await self.poll(run_id, name, wait_ms=int(WAIT_S * 1000))
        assert run.ended_at_us, f"run {run_id} has not ended"
        return run

    async def runs(self, *statuses: RunStatus.ValueType, name: str = "a1") -> list[str]:
        """The ids of the agent's runs, in mailbox order."""
        with wire.translated():
            request = ListRunsRequest(agent_name=name, statuses=statuses)
            return [run.id for run in (await self.served.stub.ListRuns(request)).runs]

    async def edit(self, run_id: str, name: str = "a1", **fields: Any) -> Run:
        with wire.translated():
            request = UpdateQueuedRunRequest(agent_name=name, run_id=run_id, **fields)
            return (await self.served.stub.UpdateQueuedRun(request)).run

    async def cancel(self, run_id: str, name: str = "a1", **fields: Any) -> Run:
        with wire.translated():
            request = CancelRunRequest(agent_name=name, run_id=run_id, **fields)
            return (await self.served.stub.CancelRun(request)).run

    # --- Verbs ---------------------------------------------------------------------------------------------------

    async def notify(
        self, payload: object, name: str = "a1", *, wait: bool = False, **fields: Any
    ) -> NotifyResponse:
        with wire.translated():
            request = NotifyRequest(
                agent_name=name, payload_json=jsontext.canonical(payload), wait_applied=wait, **fields
            )
            return await self.served.stub.Notify(request, timeout=WAIT_S)

    async def interrupt(self, name: str = "a1", run_id: str = "") -> InterruptOutcome.ValueType:
        with wire.translated():
            request = InterruptRequest(agent_name=name, run_id=run_id)
            return (await self.served.stub.Interrupt(request)).outcome

    async def resolve(self, *answers: ApprovalAnswer, name: str = "a1", request_id: str = "") -> AgentStatus:
        """Answer approvals."""
        with wire.translated():
            request = ResolveApprovalRequest(agent_name=name, answers=answers, request_id=request_id)
            return (await self.served.stub.ResolveApproval(request, timeout=WAIT_S)).agent

    async def until_asked(self, count: int = 1, name: str = "a1") -> list[ToolApprovalRequested]:
        """Wait until so many approvals are pending; they are."""
        status = await self.until(lambda status: len(status.pending_approvals) == count, name)
        return list(status.pending_approvals)

    async def unhalt(self, name: str = "a1") -> AgentStatus:
        with wire.translated():
            return (await self.served.stub.Unhalt(UnhaltRequest(agent_name=name))).agent

    # --- The log -------------------------------------------------------------------------------------------------

    async def log(self, name: str = "a1", *, run_id: str = "", after: int = 0) -> list[Event]:
        """The agent's stored events."""
        session_id = (await self.status(name)).session_id
        return await self.log_of(session_id, run_id=run_id, after=after)

    async def log_of(self, session_id: str, *, run_id: str = "", after: int = 0) -> list[Event]:
        """A session's stored events."""
        found: list[Event] = []
        while True:
            page = await self.store.get_events(
                GetEventsRequest(session_id=session_id, run_id=run_id, after_sequence=after)
            )
            found += page.events
            if page.scanned_through >= page.head:
                return found
            after = page.scanned_through

    @asynccontextmanager
    async def watching(self, *cursors: Cursor, **fields: Any) -> AsyncGenerator[Watching]:
        """The frames of a watch; leaving the block cancels it."""
        call = self.served.stub.Watch(WatchRequest(cursors=cursors, **fields))

        async def frames() -> Watching:
            with wire.translated():
                async for frame in call:
                    yield frame

        try:
            yield frames()
        finally:
            call.cancel()

    async def watched_until_end(self, session_id: str) -> str:
        """Watch a session until its agent has ended; the name of the event that says so."""
        ends = ("session_completed", "session_failed")
        async with asyncio.timeout(WAIT_S), self.watching(Cursor(session_id=session_id)) as frames:
            async for frame in frames:
                for name in types(list(frame.batch.events)):
                    if name in ends:
                        return name
        raise AssertionError("the watch ended before the agent did")

    async def watched(self, *cursors: Cursor, upto: int, **fields: Any) -> list[Event]:
        """What a watch delivers until it has delivered the event with that number."""
        got: list[Event] = []
        async with asyncio.timeout(WAIT_S), self.watching(*cursors, **fields) as frames:
            async for frame in frames:
                got += frame.batch.events
                if got and got[-1].sequence >= upto:
                    return got
        raise AssertionError(f"the watch ended after {[event.sequence for event in got]}")


# --- Answers -------------------------------------------------------------------------------------------------------


def approve(approval_id: str, **fields: Any) -> ApprovalAnswer:
    return ApprovalAnswer(
        approval_id=approval_id, decision=ApprovalDecision.APPROVAL_DECISION_APPROVE, **fields
    )


def edit(approval_id: str, arguments: object, **fields: Any) -> ApprovalAnswer:
    return ApprovalAnswer(
        approval_id=approval_id,
        decision=ApprovalDecision.APPROVAL_DECISION_EDIT,
        arguments_json=jsontext.canonical(arguments),
        **fields,
    )


def reject(approval_id: str, feedback: str = "", **fields: Any) -> ApprovalAnswer:
    return ApprovalAnswer(
        approval_id=approval_id,
        decision=ApprovalDecision.APPROVAL_DECISION_REJECT,
        feedback=feedback,
        **fields,
    )


# --- Small words ---------------------------------------------------------------------------------------------------


def types(log: list[Event], *, skip: frozenset[str] = frozenset()) -> list[str]:
    """Names of the events' types."""
    names = [events.type_name(event.type) for event in log]
    return [name for name in names if name not in skip]


def kinds(response_events: Any) -> list[str]:
    """What a backend calls the events of a response."""
    return [events.kind(event) for event in response_events]


def numbers(log: list[Event]) -> list[int]:
    return [event.sequence for event in log]


@contextmanager
def refused(reason: str) -> Generator[pytest.ExceptionInfo[TurndockError]]:
    """The block raises `TurndockError` with that reason."""
    with pytest.raises(TurndockError) as caught:
        yield caught
    assert caught.value.reason == reason, caught.value


# --- Making one ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened_store(name: StoreName, folder: Path) -> AsyncGenerator[SessionStore]:
    """A store of that name; `remote` is one in memory, behind gRPC."""
    if name == "memory":
        yield MemorySessionStore()
        return
    if name == "remote":
        async with _store_over_grpc(MemorySessionStore()) as remote:
            yield remote
        return
    place = postgres.server().new_database() if name == "postgres" else folder / "turndock.db"
    store = await SqlSessionStore.open(place, synchronous="normal")
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def harnessed(
    store: StoreName,
    mode: Mode,
    folder: Path,
    *,
    snapshots: AgentPersistence | None = None,
    snapshot_timeout_s: float = 5.0,
) -> AsyncGenerator[Harness]:
    """A host over that store, with what is docked in that mode."""
    async with AsyncExitStack() as exits:
        harness = Harness(await exits.enter_async_context(opened_store(store, folder)), mode, exits)
        await harness.dock_backend("scripted", harness.backend)
        await harness.dock_behavior("scripted", harness.agent)
        if snapshots is not None and mode != "in_process":
            snapshots = await exits.enter_async_context(behind_grpc(snapshots))
        host = make_host(
            harness.store,
            harness.backends,
            harness.behaviors,
            artifacts=harness.artifacts,
            snapshots=snapshots,
            snapshot_timeout_s=snapshot_timeout_s,
            patience=harness.patience,
        )
        # Left before whatever is docked meanwhile, which has to outlive the turns that use it.
        async with served(host, snapshots=snapshots) as harness.served:
            yield harness


@asynccontextmanager
async def _store_over_grpc(store: SessionStore) -> AsyncGenerator[SessionStore]:
    server = wire.new_server()
    serving.add_session_store(server, store)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with wire.connect(endpoint) as channel:
            yield RemoteSessionStore(channel)
    finally:
        await server.stop(0)


@asynccontextmanager
async def _behavior_over_grpc(behavior: Behavior) -> AsyncGenerator[Behavior]:
    server = wire.new_server()
    serving.add_behavior(server, behavior)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with wire.connect(endpoint) as channel:
            yield RemoteBehavior(channel, behavior.capabilities)
    finally:
        await server.stop(0)
