"""A server under load that is killed again and again: what was acknowledged holds, once, in order, for everybody."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, groupby
from pathlib import Path
from typing import Any

import pytest

from support import postgres
from support.servers import (
    PLUGIN,
    WAIT_S,
    Calls,
    ServerProcess,
    beside,
    calls,
    custom,
    of_type,
    terminals,
)
from turndock.agent.v1 import WatchRequest
from turndock.client import AgentHandle, Client, Retry, TurnFailed, Watch
from turndock.errors import Code, TurndockError
from turndock.events import RUN_TERMINAL
from turndock.types.v1 import AgentLimits, Cursor, Event, EventType, HostLostPolicy, Run, RunStatus
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.core.lifecycle import TERMINAL_EVENT
from turndock_server.core.transcript import ATTEMPT_SUPERSEDED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 20
SEED = "TURNDOCK_TEST_SEED"
"""Environment variable that has the same moments chosen again."""
TELLERS = 2
AHEAD = 4
"""Prompts of a teller that may be on their way."""
RETRY = Retry(tries=10_000, first_pause=0.02, longest_pause=0.2)

WORDS = "one two three four five six seven eight"
SCRIPT = [
    {"tool_use": {"id": "t", "name": "look"}},
    {"emit": {"count": 24, "size": 12, "batch": 3}},
    {"ckpt": "conversation"},
    {"tool_result": {"id": "t", "result": 1}},
    {"emit": {"count": 8, "size": 12}},
    {"usage": [3, 4]},
    {"result": None},
]
TOOL_ENDS = (EventType.EVENT_TYPE_TOOL_CALL_COMPLETED, EventType.EVENT_TYPE_TOOL_CALL_FAILED)
AGENTS: dict[str, tuple[str, dict[str, Any], HostLostPolicy.ValueType]] = {
    # Name: where its backend is, what it is told, what becomes of a run whose host died.
    "inside": ("inside", {"delay_ms": 3}, HostLostPolicy.HOST_LOST_POLICY_FAIL),
    "beside": ("beside", {"default": SCRIPT}, HostLostPolicy.HOST_LOST_POLICY_FAIL),
    "below": ("below", {"delay_ms": 2}, HostLostPolicy.HOST_LOST_POLICY_FAIL),
    "again": ("beside", {"default": SCRIPT}, HostLostPolicy.HOST_LOST_POLICY_RETRY),
}


def config(folder: Path) -> str:
    return f"""
        [backends.inside]
        kind = "echo"
        [backends.beside]
        kind = "plugin"
        plugin = "beside"
        [backends.below]
        kind = "plugin"
        plugin = "below"
        [plugins.beside]
        endpoint = "unix:{folder / "backend"}"
        [plugins.below]
        endpoint = "{PLUGIN} echo"
    """


async def until(change: asyncio.Event, holds: Callable[[], bool]) -> None:
    """Wait until something holds that can only change when the event is set."""
    async with asyncio.timeout(WAIT_S):
        while not holds():
            change.clear()
            await change.wait()


class Pulse:
    """Counts what happens, for those who wait for more of it."""

    def __init__(self) -> None:
        self.beats = 0
        self._beat = asyncio.Event()

    def beat(self) -> None:
        self.beats += 1
        self._beat.set()

    async def more(self, beats: int) -> None:
        """Wait for so many more."""
        goal = self.beats + beats
        await until(self._beat, lambda: self.beats >= goal)


class Load:
    """One agent, those who talk to it, and those who watch it."""

    def __init__(self, client: Client, name: str, session_id: str, pulse: Pulse) -> None:
        self.name = name
        self.session_id = session_id
        self.agent: AgentHandle = client.agent(name)
        self.told: list[list[str]] = [[] for _ in range(TELLERS)]
        """Acknowledged prompts, by teller."""
        self.answered: dict[str, str] = {}
        """What an asker was answered: nothing, or why the turn failed."""
        self.cancelled: set[str] = set()
        self.seen: list[Event] = []
        """What the client's watch yields, over all kills."""
        self._ended: set[str] = set()
        self._pulse = pulse
        self._moved = asyncio.Event()
        self._over = False

    def finish(self) -> None:
        """Say nothing new."""
        self._over = True
        self._moved.set()

    async def watch(self, watch: Watch) -> None:
        async for event in watch:
            self.seen.append(event)
            if event.type in RUN_TERMINAL:
                self._ended.add(event.run_id)
            self._pulse.beat()
            self._moved.set()

    async def sees(self, sequence: int) -> None:
        """Wait until the client's watch has yielded everything up to a number."""
        await until(self._moved, lambda: bool(self.seen) and self.seen[-1].sequence >= sequence)

    async def tell(self, teller: int) -> None:
        """Tell one prompt after another, and take some back."""
        for number in count():
            await until(self._moved, lambda: self._over or self._ahead(teller) < AHEAD)
            if self._over:
                return
            run_id = f"{teller}-{number}"
            await self.agent.tell(f"{run_id} {WORDS}", request_id=run_id)
            self.told[teller].append(run_id)
            self._pulse.beat()
            if number % 7 == 6:
                await self._take_back(run_id)

    async def ask(self) -> None:
        """Ask one prompt after another, with the same id until there is an answer."""
        for number in count():
            if self._over:
                return
            run_id = f"ask-{number}"
            try:
                await self.agent.ask(run_id, request_id=run_id)
                self.answered[run_id] = ""
            except TurnFailed as failed:
                self.answered[run_id] = failed.failure.reason
            self._pulse.beat()

    async def _take_back(self, run_id: str) -> None:
        try:
            await self.agent.cancel(run_id)
            self.cancelled.add(run_id)
        except TurndockError as error:
            if error.reason != "INVALID_STATUS":
                raise

    def _ahead(self, teller: int) -> int:
        return sum(run_id not in self._ended for run_id in self.told[teller])


class Reader:
    """A watch of all logs without the client's help: it keeps its cursors, and calls again when a call breaks."""

    def __init__(self, sessions: Iterable[str], types: Iterable[EventType.ValueType] = ()) -> None:
        self.seen: dict[str, list[Event]] = {session_id: [] for session_id in sessions}
        self.cursors = {session_id: Cursor(session_id=session_id) for session_id in self.seen}
        self._types = frozenset(types)
        self._moved = asyncio.Event()

    async def read(self, api: Calls) -> None:
        while True:
            request = WatchRequest(cursors=self.cursors.values(), types=self._types)
            try:
                async for frame in api.agents.watch(request):
                    self.seen[frame.cursor.session_id] += frame.batch.events
                    self.cursors[frame.cursor.session_id] = frame.cursor
                    self._moved.set()
            except TurndockError as error:
                if error.code is not Code.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.02)  # nobody listens

    async def reaches(self, session_id: str, sequence: int) -> None:
        """Wait until everything up to a number was read."""
        await until(self._moved, lambda: self.cursors[session_id].after_sequence >= sequence)


@asynccontextmanager
async def running(*tasks: asyncio.Task[None]) -> AsyncGenerator[None]:
    """Cancel tasks at the end, and let none of them fail unseen."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def kill_at_random(server: ServerProcess, rng: random.Random, pulse: Pulse) -> str:
    """Start the server, and kill it while it starts, as soon as it serves, or in the middle of its work."""
    (when,) = rng.choices(("starting", "serving", "working"), (1, 1, 6))
    await server.spawn()
    if when == "starting":
        await asyncio.sleep(rng.uniform(0.05, 0.8))
    else:
        await server.until_serving()
        if when == "working":
            await pulse.more(rng.randint(1, 400))
    server.kill()
    assert await server.ended() == -signal.SIGKILL
    return when


def store_config(kind: str) -> str:
    if kind == "sqlite":
        return ""
    return f'[store]\nkind = "postgresql"\nurl = "{postgres.server().new_database()}"\n'


@pytest.mark.parametrize(("store", "kills"), [("sqlite", KILLS), ("postgresql", 5)])
async def test_over_twenty_kills_nothing_acknowledged_is_lost_done_twice_or_seen_twice(
    tmp_path: Path, store: str, kills: int
) -> None:
    seed = int(os.environ.get(SEED) or random.randrange(10**6))
    print(f"{SEED}={seed}")
    rng = random.Random(seed)
    backend = ScriptedBackend()
    server = ServerProcess(tmp_path, store_config(store) + config(tmp_path))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(beside(f"unix:{tmp_path / 'backend'}", backend=backend))
        stack.push_async_callback(server.close)
        await server.start()
        client = await stack.enter_async_context(Client(server.endpoint, retry=RETRY, timeout=120))
        api = await stack.enter_async_context(calls(server))
        pulse = Pulse()
        loads: list[Load] = []
        for name, (where, settings, policy) in AGENTS.items():
            limits = AgentLimits(host_lost_policy=policy)
            agent = await client.start_agent(name, backend=where, backend_config=settings, limits=limits)
            loads.append(Load(client, name, (await agent.status()).session_id, pulse))
        sessions = [load.session_id for load in loads]
        readers = [Reader(sessions), Reader(sessions, RUN_TERMINAL)]
        watching = [asyncio.create_task(load.watch(load.agent.watch())) for load in loads]
        reading = [asyncio.create_task(reader.read(api)) for reader in readers]
        await stack.enter_async_context(running(*watching, *reading))
        talking = [asyncio.create_task(load.tell(teller)) for load in loads for teller in range(TELLERS)]
        talking += [asyncio.create_task(load.ask()) for load in loads]
        await stack.enter_async_context(running(*talking))

        await pulse.more(100)
        server.kill()
        await server.ended()
        moments = Counter([await kill_at_random(server, rng, pulse) for _ in range(kills - 1)])
        await server.start()
        for load in loads:
            load.finish()
        async with asyncio.timeout(120):
            await asyncio.gather(*talking)
        lost = 0
        for load in loads:
            lost += await check(load, readers, api, backend)
        print(f"killed {dict(moments)}; {lost} turns were under way; {pulse.beats} beats")
        assert lost > 0
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0


async def check(load: Load, readers: list[Reader], api: Calls, backend: ScriptedBackend) -> int:
    """Everything that must hold of an agent in the end. Returns how many of its turns a kill ended."""
    asked = [*load.answered]
    runs: dict[str, Run] = {}
    for run_id in [*(run_id for told in load.told for run_id in told), *asked]:
        runs[run_id] = await load.agent.run(run_id, wait=WAIT_S)
        assert runs[run_id].status in TERMINAL_EVENT, f"{load.name} does not end {run_id}"
    log = await api.stored(load.session_id)
    assert [event.sequence for event in log] == [*range(1, len(log) + 1)]

    # Everybody saw everything, once.
    everything, ends_only = readers
    for reader in readers:
        await reader.reaches(load.session_id, log[-1].sequence)
    assert everything.seen[load.session_id] == log
    assert ends_only.seen[load.session_id] == of_type(log, *RUN_TERMINAL)
    await load.sees(log[-1].sequence)
    assert load.seen == log

    # Every acknowledged prompt has one end, which its row and whoever asked agree on.
    ends = terminals(log)
    assert ends.keys() == runs.keys()
    assert {run_id for run_id in ends if len(ends[run_id]) != 1} == set()
    for run_id, run in runs.items():
        assert ends[run_id][0].type == TERMINAL_EVENT[run.status]
    assert {run_id: runs[run_id].failure.reason for run_id in asked} == load.answered
    cancelled = {run_id for run_id, run in runs.items() if run.status == RunStatus.RUN_STATUS_CANCELLED}
    assert cancelled == load.cancelled
    others = {run.failure.reason for run_id, run in runs.items() if run_id not in cancelled} - {
        "",
        "host_lost",
    }
    assert others == set()

    # Each was begun once, or once more after each kill where the agent asked for that; in the mailbox's order.
    began = [
        (event.run_id, event.run_started.attempt) for event in of_type(log, EventType.EVENT_TYPE_RUN_STARTED)
    ]
    order = [run_id for run_id, _ in groupby(began, key=lambda begun: begun[0])]
    assert len(order) == len(set(order))
    assert set(order) == runs.keys() - cancelled
    assert order == [run.id async for run in load.agent.runs() if run.id not in cancelled]
    for told in load.told:
        assert [run_id for run_id in order if run_id in told] == [
            run_id for run_id in told if run_id in order
        ]
    superseded = Counter(event.run_id for event in custom(log, ATTEMPT_SUPERSEDED))
    for run_id in order:
        attempts = [attempt for begun, attempt in began if begun == run_id]
        assert attempts == [*range(1, runs[run_id].attempt + 1)]
        assert superseded[run_id] == len(attempts) - 1
    if load.name != "again":
        assert superseded.total() == 0

    # The backend heard each attempt once at most, and the one that succeeded.
    if AGENTS[load.name][0] == "beside":
        heard = Counter(
            (prompt.run_id, prompt.attempt)
            for prompt in backend.record.prompts
            if prompt.session_id == load.session_id
        )
        assert set(heard.values()) == {1}
        assert heard.keys() <= set(began)
        completed = [run for run in runs.values() if run.status == RunStatus.RUN_STATUS_COMPLETED]
        assert {(run.id, run.attempt) for run in completed} <= heard.keys()
    check_tools(log)
    return superseded.total() + sum(run.failure.reason == "host_lost" for run in runs.values())


def check_tools(log: list[Event]) -> None:
    """Every tool call that began has an end before its run has, or before its attempt was given up."""
    for run_id in terminals(log):
        open_calls = 0
        for event in log:
            if event.run_id != run_id:
                continue
            if event.type == EventType.EVENT_TYPE_TOOL_CALL_STARTED:
                open_calls += 1
            elif event.type in TOOL_ENDS:
                open_calls -= 1
            elif event.type in RUN_TERMINAL or custom([event], ATTEMPT_SUPERSEDED):
                assert open_calls == 0, (run_id, event.sequence)
