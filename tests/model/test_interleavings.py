"""Callers that all come at once, over a store whose calls interleave in every way: nothing acknowledged is lost.

The order in which tasks go on is drawn, not left to the machine: the store in memory is given pauses at random.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis import Phase, given, settings

from support.hosting import make_host
from support.scripted_agent import HALT, ScriptedAgent, chain, state_of
from turndock import events, jsontext
from turndock.agent.v1 import (
    BusyPolicy,
    CancelRunRequest,
    InterruptRequest,
    NotifyRequest,
    StartAgentRequest,
    StopAgentRequest,
    TellRequest,
    UpdateQueuedRunRequest,
)
from turndock.errors import TurndockError
from turndock.store.v1 import GetEventsRequest, ListRunsRequest
from turndock.types.v1 import (
    AgentDefinition,
    AgentPhase,
    Event,
    EventType,
    Page,
    Run,
    RunOrigin,
    RunStatus,
)
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.core.host import Located
from turndock_server.core.prompts import Prompts
from turndock_server.core.starter import Starter
from turndock_server.stores.memory import MemorySessionStore

CALLERS = 5
CALLS = 12
WAIT_S = 20.0
NAME = "a1"
EXPECTED = frozenset(("INVALID_STATUS", "MAX_RUNS_EXCEEDED", "AGENT_BUSY", "RUN_NOT_FOUND"))
"""Why a call may be refused that comes too late or too early."""


class Jittery:
    """A store whose calls take their time, before they do something and after."""

    def __init__(self, store: MemorySessionStore, chance: random.Random) -> None:
        self._store = store
        self._chance = chance

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        call: Callable[[Any], Awaitable[Any]] = getattr(self._store, name)

        async def jittery(request: Any) -> Any:
            await self._pause()
            answer = await call(request)
            await self._pause()
            return answer

        return jittery

    async def _pause(self) -> None:
        for _ in range(self._chance.choice((0, 0, 1, 2, 5))):
            await asyncio.sleep(0)


class World:
    """A host, one agent, and what its callers were told."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = MemorySessionStore()
        scripts: list[list[dict[str, Any]]] = [
            [{"text": "a"}, {"text": "b"}, {"usage": [1, 1]}, {"result": None}],
            [{"text": "a"}, {"error": "e"}],
            [{"ckpt": "s"}, {"result": "halt"}],
            [{"text": "c"}, {"result": "chain"}],
        ]
        self.chance.shuffle(scripts)
        self.backend = ScriptedBackend(scripts * 30)
        self.agent = ScriptedAgent(
            responses={"halt": HALT, "chain": chain("chained")},
            errors={"e": chain("again")},
            notified={"prompt": chain("from a note"), "halt": HALT},
        )
        self.host = make_host(
            Jittery(self.store, self.chance),  # type: ignore[arg-type]  # passes every call on
            {"scripted": self.backend},
            {"scripted": self.agent},
        )
        self.prompts = Prompts(self.host, max_prompt_bytes=1 << 20)
        self.told: list[list[str]] = [[] for _ in range(CALLERS)]
        """By caller: its accepted runs, in order."""
        self.moved: set[str] = set()
        """Runs that may have been put elsewhere."""
        self.accepted: set[str] = set()
        self.noted: list[tuple[int, str]] = []
        """Number and payload of each accepted notification."""

    async def start(self) -> None:
        await self.host.start()
        definition = AgentDefinition(agent_name=NAME, backend="scripted", behavior="scripted")
        started = await Starter(self.host).start(None, StartAgentRequest(definition=definition))
        self.key = started.located.key

    async def caller(self, number: int) -> None:
        for call in range(CALLS):
            try:
                await self._one_call(number, f"c{number}.{call}")
            except TurndockError as error:
                if error.reason not in EXPECTED:
                    raise

    async def _one_call(self, number: int, name: str) -> None:
        chance = self.chance
        match chance.choice(["tell", "tell", "tell", "urgent", "notify", "notify", "other", "hasty"]):
            case "tell":
                await self._tell(name, BusyPolicy.BUSY_POLICY_ENQUEUE)
                self.told[number].append(name)
            case "urgent":
                await self._tell(name, BusyPolicy.BUSY_POLICY_INTERRUPT)
            case "notify":
                await self._notify(name, chance.choice(["plain", "prompt", "halt"]))
            case "hasty":
                await self._hasty(name)
            case _:
                await self._change(chance.choice(["interrupt", "unhalt", "cancel", "edit", "sleep"]))

    async def _tell(self, name: str, policy: BusyPolicy.ValueType) -> None:
        call = TellRequest(request_id=name, agent_name=NAME, prompt=name, busy_policy=policy)
        async with self.prompts.submitted(None, call, RunOrigin.RUN_ORIGIN_TELL):
            self.accepted.add(name)

    async def _hasty(self, name: str) -> None:
        """A caller who hangs up in the middle of a call and tries the same again."""
        telling = asyncio.create_task(self._tell(name, BusyPolicy.BUSY_POLICY_ENQUEUE))
        for _ in range(self.chance.randrange(12)):
            await asyncio.sleep(0)
        telling.cancel()
        await asyncio.wait((telling,))
        await self._tell(name, BusyPolicy.BUSY_POLICY_ENQUEUE)

    async def _notify(self, name: str, payload: str) -> None:
        request = NotifyRequest(
            request_id=name,
            agent_name=NAME,
            payload_json=jsontext.canonical(payload),
            wait_applied=self.chance.random() < 0.3,
        )
        answer = await self.host.notify(await self._located(), request)
        self.noted.append((answer.sequence, payload))

    async def _change(self, what: str) -> None:
        located = await self._located()
        waiting = [run.id for run in await self.runs() if run.status == RunStatus.RUN_STATUS_PENDING]
        chosen = self.chance.choice(waiting or ["none"])
        match what:
            case "interrupt":
                await self.host.interrupt(located, InterruptRequest(agent_name=NAME))
            case "unhalt":
                await self.host.unhalt(located)
            case "cancel":
                await self.prompts.cancel(located, CancelRunRequest(agent_name=NAME, run_id=chosen))
            case "edit":
                self.moved.add(chosen)
                request = UpdateQueuedRunRequest(agent_name=NAME, run_id=chosen, to_tail=True)
                await self.prompts.update(located, request)
            case _:
                agent = self.host.roster.get(self.key)
                if agent is not None:
                    await self.host.roster.leave(agent, "inactivity")

    async def _located(self) -> Located:
        return await self.host.locate(None, NAME)

    async def settle(self) -> None:
        """Until nothing is under way and nothing waits; whatever halts the agent meanwhile is undone."""
        dispatcher: Any = self.host.roster.dispatcher
        while True:
            while tasks := [*self.host.roster._loops.values(), *dispatcher._deliveries]:
                await asyncio.wait(tasks)
            status = await self.host.status(await self._located())
            if not status.halted:
                return
            await self.host.unhalt(await self._located())

    async def runs(self) -> list[Run]:
        request = ListRunsRequest(session_id=self.key.session_id, page=Page(limit=1000))
        return list((await self.store.list_runs(request)).runs)

    async def log(self) -> list[Event]:
        request = GetEventsRequest(session_id=self.key.session_id, limit=10_000)
        return list((await self.store.get_events(request)).events)


async def check(world: World) -> None:
    log, runs = await world.log(), await world.runs()
    assert [event.sequence for event in log] == list(range(1, len(log) + 1))
    status = await world.host.status(await world.host.locate(None, NAME))
    assert status.queued == 0
    ends = [event.run_id for event in log if event.type in events.RUN_TERMINAL]
    assert sorted(ends) == sorted(run.id for run in runs)
    assert all(run.ended_at_us and not run.decision_pending for run in runs)
    assert world.accepted <= {run.id for run in runs}
    assert not [run.id for run in runs if run.failure.reason == "host_lost"]
    heard = Counter(prompt.run_id for prompt in world.backend.record.prompts)
    assert max(heard.values(), default=1) == 1
    started = [event.run_id for event in log if event.type == EventType.EVENT_TYPE_RUN_STARTED]
    for told in world.told:
        in_order = [name for name in told if name in started and name not in world.moved]
        assert [name for name in started if name in in_order] == in_order
    state = state_of(status.state_json)
    assert state["events"] == [payload for _, payload in sorted(world.noted)]
    assert len(state["responses"]) + len(state["errors"]) == len(started)
    prompted = [name for name in started if "/event/" in name and "/chain/" not in name]
    assert len(set(prompted)) == len(prompted)
    made = {run.id for run in runs if run.origin == RunOrigin.RUN_ORIGIN_EVENT}
    assert len(made) == [payload for _, payload in world.noted].count("prompt")


async def scenario(seed: int) -> None:
    world = World(seed)
    await world.start()
    try:
        async with asyncio.TaskGroup() as callers:
            for number in range(CALLERS):
                callers.create_task(world.caller(number))
        await world.settle()
        await check(world)
        stopped = await world.host.stop_agent(None, StopAgentRequest(agent_name=NAME))
        assert stopped.phase == AgentPhase.AGENT_PHASE_STOPPED
    finally:
        await world.host.stop(1.0)


def run(work: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WAIT_S):
            await work

    asyncio.run(limited())


# A scenario is 0.2 s of work, and a machine may be five times as busy. A seed is not simpler for being smaller, and to
# look for one would take the time in which the failure is to be told.
@settings(max_examples=60, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(seed=st.integers(0, 2**32))
def test_nothing_acknowledged_is_lost_and_nothing_happens_twice(seed: int) -> None:
    run(scenario(seed))
