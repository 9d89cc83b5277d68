"""A host that dies at any of its writes: whatever was acknowledged or is tried again happens exactly once."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from support.crashing import MortalStore, kill
from support.harness import StoreName, opened_store
from support.hosting import make_host
from support.scripted_agent import ScriptedAgent, chain, state_of
from turndock import events, jsontext
from turndock.agent.v1 import AgentStatus, NotifyRequest, StartAgentRequest, TellRequest
from turndock.ports import SessionStore
from turndock.store.v1 import GetEventsRequest, ListRunsRequest
from turndock.types.v1 import (
    AgentDefinition,
    AgentLimits,
    AgentPhase,
    Event,
    EventType,
    HostLostPolicy,
    Page,
    Run,
    RunOrigin,
    RunStatus,
)
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.core.host import Host
from turndock_server.core.prompts import Prompts
from turndock_server.core.recovery import MAX_ATTEMPTS
from turndock_server.core.starter import Starter

SCRIPTS: list[list[dict[str, Any]]] = [
    [{"text": "r0"}, {"ckpt": "s-1"}, {"usage": [1, 1]}, {"tool_use": {"id": "t"}}, {"result": None}],
    [{"text": "r1"}, {"usage": [1, 1]}, {"error": "e1"}],
    [{"text": "r2"}, {"eof": None}],
    [{"text": "r3"}, {"usage": [1, 1]}, {"usage": [2, 2]}, {"result": "r3"}],
    [{"result": "last"}],
]
TELLS = ("t0", "t1", "t2", "t3")
NOTES = ("n0", "n1", "n2")
WAIT_S = 20.0


class World:
    """One store and what outlives a host."""

    def __init__(self, store: SessionStore, *, retries: bool) -> None:
        self.store = store
        self.retries = retries
        self.backend = ScriptedBackend(SCRIPTS)
        self.agent = ScriptedAgent(responses={"r0": chain("chained")}, notified={"n1": chain("from n1")})
        self.session_id = ""

    def host(self, store: Any) -> Host:
        return make_host(store, {"scripted": self.backend}, {"scripted": self.agent})

    async def call_all(self, host: Host) -> None:
        """Everything the clients want, one after the other but for what may come at the same time."""
        policy = (
            HostLostPolicy.HOST_LOST_POLICY_RETRY if self.retries else HostLostPolicy.HOST_LOST_POLICY_FAIL
        )
        definition = AgentDefinition(
            agent_name="a1",
            backend="scripted",
            behavior="scripted",
            limits=AgentLimits(host_lost_policy=policy),
        )
        started = await Starter(host).start(None, StartAgentRequest(request_id="q0", definition=definition))
        self.session_id = started.located.key.session_id
        prompts = Prompts(host, max_prompt_bytes=1 << 20)
        await asyncio.gather(self._tell_all(prompts), self._notify_all(host))

    async def _tell_all(self, prompts: Prompts) -> None:
        for run_id in TELLS:
            call = TellRequest(request_id=run_id, agent_name="a1", prompt=run_id)
            async with prompts.submitted(None, call, RunOrigin.RUN_ORIGIN_TELL) as submitted:
                assert submitted.run.id == run_id

    async def _notify_all(self, host: Host) -> None:
        for name in NOTES:
            located = await host.locate(None, "a1")
            payload = jsontext.canonical(name)
            await host.notify(located, NotifyRequest(request_id=name, agent_name="a1", payload_json=payload))

    async def until_idle(self, host: Host) -> AgentStatus:
        """Once nothing is under way and nothing waits."""
        dispatcher: Any = host.roster.dispatcher
        while tasks := [*host.roster._loops.values(), *dispatcher._deliveries]:
            await asyncio.wait(tasks)
        return await host.status(await host.locate(None, "a1"))

    async def runs(self) -> list[Run]:
        request = ListRunsRequest(session_id=self.session_id, page=Page(limit=1000))
        return list((await self.store.list_runs(request)).runs)

    async def log(self) -> list[Event]:
        page = await self.store.get_events(GetEventsRequest(session_id=self.session_id, limit=10_000))
        return list(page.events)


async def die_at(world: World, lives: int, *, after: bool) -> None:
    """A host that does what it can before it dies at that write."""
    mortal = MortalStore(world.store, lives=lives, after=after)
    host = world.host(mortal)

    async def live() -> None:
        await host.start()
        await world.call_all(host)
        await world.until_idle(host)

    living, dying = asyncio.create_task(live()), asyncio.create_task(mortal.died.wait())
    await asyncio.wait((living, dying), return_when=asyncio.FIRST_COMPLETED)
    for task in (living, dying):
        task.cancel()
    await kill(host, mortal)
    with suppress(asyncio.CancelledError):
        await living


def check(world: World, deaths: int, status: AgentStatus, runs: list[Run], log: list[Event]) -> None:
    assert (status.phase, status.queued, status.halted) == (AgentPhase.AGENT_PHASE_IDLE, 0, False)
    assert [event.sequence for event in log] == list(range(1, len(log) + 1))
    by_id = {run.id: run for run in runs}
    derived = {name for name in by_id if name not in TELLS}
    from_n1 = [name for name in derived if name.startswith("n1/event/") and "/chain/" not in name]
    assert len(from_n1) == 1
    # Each run has one end, and the log says the same as its row.
    terminal = {RunStatus.RUN_STATUS_COMPLETED, RunStatus.RUN_STATUS_FAILED}
    assert all(run.status in terminal and not run.decision_pending for run in runs)
    ends = [event.run_id for event in log if event.type in events.RUN_TERMINAL]
    assert sorted(ends) == sorted(by_id)
    # At most the turns that were under way when their host died were lost, and nothing else ran twice.
    lost = [run for run in runs if run.failure.reason == "host_lost"]
    assert len(lost) <= (deaths // MAX_ATTEMPTS if world.retries else deaths)
    heard = Counter(prompt.run_id for prompt in world.backend.record.prompts)
    again = sum(times - 1 for times in heard.values())
    assert again <= (deaths if world.retries else 0)
    assert {run.id for run in runs if run not in lost} <= set(heard)
    # First come, first served.
    started = [event for event in log if event.type == EventType.EVENT_TYPE_RUN_STARTED]
    told = list(dict.fromkeys(event.run_id for event in started if event.run_id in TELLS))
    assert told == list(TELLS)
    # The behavior's state has each outcome and each notification once.
    state = state_of(status.state_json)
    assert state["events"] == list(NOTES)
    assert Counter(state["responses"]) == Counter(
        run.response.text for run in runs if run.HasField("response")
    )
    assert Counter(state["errors"]) == Counter(run.failure.reason for run in runs if run.HasField("failure"))
    assert status.turn_count == len(by_id)
    assert status.total_usage.input_tokens == sum(run.usage.input_tokens for run in runs)
    # No tool call is left open.
    opened = [event.run_id for event in log if event.type == EventType.EVENT_TYPE_TOOL_CALL_STARTED]
    closed = [event.run_id for event in log if event.type == EventType.EVENT_TYPE_TOOL_CALL_FAILED]
    assert opened == closed


async def scenario(store_name: StoreName, lives: list[int], *, after: bool, retries: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with opened_store(store_name, Path(folder)) as store:
            world = World(store, retries=retries)
            for number in lives:
                await die_at(world, number, after=after)
            host = world.host(store)
            await host.start()
            try:
                await world.call_all(host)
                status = await world.until_idle(host)
                check(world, len(lives), status, await world.runs(), await world.log())
            finally:
                await host.stop(1.0)


def in_time(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WAIT_S):
            await work()

    asyncio.run(limited())


deaths = st.lists(st.integers(1, 60), min_size=1, max_size=3)


@settings(max_examples=200)
@given(lives=deaths, after=st.booleans(), retries=st.booleans())
def test_in_memory(lives: list[int], after: bool, retries: bool) -> None:
    in_time(lambda: scenario("memory", lives, after=after, retries=retries))


@settings(max_examples=25)
@given(lives=deaths, after=st.booleans(), retries=st.booleans())
def test_on_sqlite(lives: list[int], after: bool, retries: bool) -> None:
    in_time(lambda: scenario("sqlite", lives, after=after, retries=retries))
