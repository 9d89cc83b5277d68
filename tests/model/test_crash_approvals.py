"""A host that dies at any of its writes while turns wait for people: each answer is given once, whoever lives."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from support.crashing import MortalStore, kill
from support.harness import StoreName, approve, edit, opened_store, reject
from support.hosting import make_host
from support.parts import approval, asked, paused, result, text
from support.scripted_agent import ScriptedAgent
from turndock import events
from turndock.agent.v1 import ApprovalAnswer, ResolveApprovalRequest, StartAgentRequest, TellRequest
from turndock.behavior.v1 import PreTurnRequest, PreTurnResponse, Proceed, RequireApproval
from turndock.errors import TurndockError
from turndock.ports import SessionStore
from turndock.store.v1 import GetEventsRequest, ListRunsRequest
from turndock.types.v1 import (
    AgentDefinition,
    AgentPhase,
    ApprovalDecision,
    Event,
    EventType,
    Page,
    Run,
    RunOrigin,
    RunStatus,
    SessionStatus,
    ToolApprovalRequested,
)
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.core.host import Host
from turndock_server.core.prompts import Prompts
from turndock_server.core.starter import Starter

SCRIPTS = [
    [text("p0"), paused(asked("a"), asked("b"))],
    [text("p1"), paused(asked("c"))],
    [result("parked")],
    [text("o0"), approval("d"), result("open")],
    [result("last")],
]
TELLS = ("t0", "t1", "t2")
ANSWERS = {
    "a": approve("a"),
    "b": reject("b", "no"),
    "c": edit("c", {"x": 1}),
    "d": approve("d"),
    "before": edit("before", {"prompt": "the last words"}),
}


async def ask_before_the_last(request: PreTurnRequest) -> PreTurnResponse:
    """A policy: people have to agree to the last turn."""
    if request.run.id != TELLS[-1]:
        return PreTurnResponse(proceed=Proceed())
    asked = ToolApprovalRequested(approval_id="before")
    return PreTurnResponse(require_approval=RequireApproval(request=asked))


WAIT_S = 20.0


class World:
    """One store and what outlives a host: the backend, and a person who answers until everything is decided."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self.backend = ScriptedBackend(SCRIPTS)
        self.session_id = ""

    def host(self, store: Any) -> Host:
        behavior = ScriptedAgent(pre_turn=ask_before_the_last)
        return make_host(store, {"scripted": self.backend}, {"careful": behavior})

    async def live(self, host: Host) -> None:
        """All that clients want, repeated from its beginning by every host: retry tokens make that harmless."""
        definition = AgentDefinition(agent_name="a1", backend="scripted", behavior="careful")
        started = await Starter(host).start(None, StartAgentRequest(request_id="q0", definition=definition))
        self.session_id = started.located.key.session_id
        prompts = Prompts(host, max_prompt_bytes=1 << 20)
        for run_id in TELLS:
            call = TellRequest(request_id=run_id, agent_name="a1", prompt=run_id)
            async with prompts.submitted(None, call, RunOrigin.RUN_ORIGIN_TELL):
                pass
        await self.answer_all(host)

    async def answer_all(self, host: Host) -> None:
        """Answer whatever is asked until the last run has ended."""
        while not await self.has_ended(TELLS[-1]):
            located = await host.locate(None, "a1")
            for request in (await host.status(located)).pending_approvals:
                await self.answer(host, request.approval_id)
            await asyncio.sleep(0)

    async def answer(self, host: Host, approval_id: str) -> None:
        """Two people answer at once; one of them wins."""
        located = await host.locate(None, "a1")

        async def once(answer: ApprovalAnswer, request_id: str) -> None:
            request = ResolveApprovalRequest(agent_name="a1", answers=[answer], request_id=request_id)
            try:
                await host.resolve_approval(located, request, "")
            except TurndockError as error:
                if error.reason not in ("APPROVAL_RESOLVED", "APPROVAL_NOT_FOUND"):
                    raise

        name = approval_id.rpartition("/")[2]
        await asyncio.gather(
            once(_named(ANSWERS[name], approval_id), f"first-{approval_id.replace('/', '-')}"),
            once(_named(reject(name, "late"), approval_id), f"second-{approval_id.replace('/', '-')}"),
        )

    async def has_ended(self, run_id: str) -> bool:
        return any(run.id == run_id and run.ended_at_us for run in await self.runs())

    async def runs(self) -> list[Run]:
        request = ListRunsRequest(session_id=self.session_id, page=Page(limit=1000))
        return list((await self.store.list_runs(request)).runs)

    async def log(self) -> list[Event]:
        page = await self.store.get_events(GetEventsRequest(session_id=self.session_id, limit=10_000))
        return list(page.events)


def _named(answer: ApprovalAnswer, approval_id: str) -> ApprovalAnswer:
    named = ApprovalAnswer()
    named.CopyFrom(answer)
    named.approval_id = approval_id
    return named


async def die_at(world: World, lives: int, *, after: bool) -> None:
    """A host that does what it can before it dies at that write."""
    mortal = MortalStore(world.store, lives=lives, after=after)
    host = world.host(mortal)

    async def live() -> None:
        await host.start()
        await world.live(host)

    living, dying = asyncio.create_task(live()), asyncio.create_task(mortal.died.wait())
    await asyncio.wait((living, dying), return_when=asyncio.FIRST_COMPLETED)
    for task in (living, dying):
        task.cancel()
    await kill(host, mortal)
    with suppress(asyncio.CancelledError):
        await living


def check(world: World, deaths: int, runs: list[Run], log: list[Event]) -> None:
    assert [event.sequence for event in log] == list(range(1, len(log) + 1))
    assert [run.id for run in runs] == list(TELLS)
    ends = [event.run_id for event in log if event.type in events.RUN_TERMINAL]
    assert sorted(ends) == sorted(TELLS)
    # Only turns that were under way were lost: one for each death at most.
    refused = [run for run in runs if run.failure.reason == "pre_turn_denied"]
    lost = [run for run in runs if run.status != RunStatus.RUN_STATUS_COMPLETED and run not in refused]
    assert all(run.failure.reason == "host_lost" for run in lost)
    assert len(lost) <= deaths
    # Every request is decided once, and nothing else is.
    requested = [
        event.tool_approval_requested.approval_id
        for event in log
        if event.type == EventType.EVENT_TYPE_TOOL_APPROVAL_REQUESTED
    ]
    decided = [
        event.tool_approval_decided.approval_id for event in log if event.HasField("tool_approval_decided")
    ]
    assert sorted(decided) == sorted(requested)
    assert len(set(requested)) == len(requested)
    # Decisions are handed to the backend once, and are those of the log.
    handed = Counter((prompt.run_id, len(prompt.decisions)) for prompt in world.backend.record.prompts)
    assert all(times == 1 for (_, decisions), times in handed.items() if decisions)
    # A turn that people had to agree to has begun with what they said, once, and never without their word.
    said = [
        event.tool_approval_decided.decision
        for event in log
        if event.tool_approval_decided.approval_id.endswith("before")
    ]
    heard = [
        prompt.prompt
        for prompt in world.backend.record.prompts
        if prompt.run_id == TELLS[-1] and not prompt.decisions
    ]
    if runs[-1] in refused:
        assert (heard, said) == ([], [ApprovalDecision.APPROVAL_DECISION_REJECT])
    elif runs[-1] not in lost:
        assert (heard, said) == (["the last words"], [ApprovalDecision.APPROVAL_DECISION_EDIT])
    assert len(heard) <= said.count(ApprovalDecision.APPROVAL_DECISION_EDIT)


async def until_idle(host: Host) -> None:
    """Once nothing is under way."""
    dispatcher: Any = host.roster.dispatcher
    while tasks := [*host.roster._loops.values(), *dispatcher._deliveries]:
        await asyncio.wait(tasks)


async def scenario(store_name: StoreName, lives: list[int], *, after: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with opened_store(store_name, Path(folder)) as store:
            world = World(store)
            for number in lives:
                await die_at(world, number, after=after)
            host = world.host(store)
            await host.start()
            try:
                await world.live(host)
                await until_idle(host)
                status = await host.status(await host.locate(None, "a1"))
                session = (await host.locate(None, "a1")).session
                assert (status.queued, list(status.pending_approvals)) == (0, [])
                assert status.phase in (AgentPhase.AGENT_PHASE_IDLE, AgentPhase.AGENT_PHASE_DORMANT)
                assert session.status == SessionStatus.SESSION_STATUS_ACTIVE
                assert not session.agent.HasField("parked")
                check(world, len(lives), await world.runs(), await world.log())
            finally:
                await host.stop(1.0)


def in_time(store_name: StoreName, lives: list[int], *, after: bool) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WAIT_S):
            await scenario(store_name, lives, after=after)

    asyncio.run(limited())


deaths = st.lists(st.integers(1, 55), min_size=1, max_size=3)


@settings(max_examples=150)
@given(lives=deaths, after=st.booleans())
def test_in_memory(lives: list[int], after: bool) -> None:
    in_time("memory", lives, after=after)


@settings(max_examples=20)
@given(lives=deaths, after=st.booleans())
def test_on_sqlite(lives: list[int], after: bool) -> None:
    in_time("sqlite", lives, after=after)


def test_at_every_write_once() -> None:
    for after in (False, True):
        for number in range(1, 60):
            in_time("memory", [number], after=after)
