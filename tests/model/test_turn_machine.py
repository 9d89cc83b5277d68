"""The turn machine against its model: whatever callers do and whenever hosts die, both say the same.

Every turn waits at a gate, so that nothing depends on time: after each step the machine is idle or at a gate.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from model.turn_machine import Model, Note, Plan
from support.crashing import MortalStore, forsake, kill
from support.harness import StoreName, opened_store
from support.hosting import make_host
from support.scripted_agent import HALT, RAISE, ScriptedAgent, chain, state_of
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
    WatchRequest,
    WatchResponse,
)
from turndock.errors import TurndockError
from turndock.ports import SessionStore
from turndock.store.v1 import GetEventsRequest, ListRunsRequest
from turndock.types.v1 import (
    AgentDefinition,
    AgentLimits,
    AgentPhase,
    Cursor,
    Event,
    EventType,
    HostLostPolicy,
    Page,
    Run,
    RunOrigin,
    RunStatus,
)
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.core.host import Host, Located
from turndock_server.core.prompts import Prompts
from turndock_server.core.starter import Starter

T = TypeVar("T")

TURNS = 80
WAIT_S = 10.0
NAME = "a1"

ends = st.sampled_from(["ok", "ok", "ok", "error", "eof", "crash"])
choices = st.sampled_from(["noreply", "noreply", "chain", "halt"])
plans = st.lists(st.tuples(ends, choices), max_size=12)
notes = st.sampled_from(["noreply", "prompt", "halt", "raise"])
policies = st.sampled_from(
    [
        BusyPolicy.BUSY_POLICY_ENQUEUE,
        BusyPolicy.BUSY_POLICY_ENQUEUE,
        BusyPolicy.BUSY_POLICY_REJECT,
        BusyPolicy.BUSY_POLICY_INTERRUPT,
    ]
)


class Watcher:
    """Collects a log from a cursor on, over as many hosts as it takes."""

    def __init__(self, cursor: Cursor) -> None:
        self.after = cursor.after_sequence
        self.cursor = cursor
        self.got: list[Event] = []
        self._task: asyncio.Task[None] | None = None
        self._more = asyncio.Event()

    def attach(self, host: Host) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._watch(host))

    async def reached(self, head: int) -> None:
        while self.cursor.after_sequence < head:
            self._more.clear()
            await self._more.wait()

    async def _watch(self, host: Host) -> None:
        async with aclosing(host.watch(None, WatchRequest(cursors=[self.cursor]))) as frames:
            async for encoded in frames:
                frame = WatchResponse.FromString(encoded)
                self.got += frame.batch.events
                self.cursor = frame.cursor
                self._more.set()


class TurnMachine(RuleBasedStateMachine):
    """One agent, its callers, its watchers, and hosts that come and go."""

    store_name: StoreName = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.exits = AsyncExitStack()
        self.folder = tempfile.TemporaryDirectory()
        self.backend: ScriptedBackend
        self.model: Model
        self.store: SessionStore
        self.host: Host
        self.hung_up: set[str] = set()
        self.asks: dict[str, asyncio.Task[tuple[Run, Any]]] = {}
        self.watchers: list[Watcher] = []
        self.count = 0
        self.is_awake = True

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        async def in_time() -> T:
            async with asyncio.timeout(WAIT_S):
                return await work

        return self.runner.run(in_time())

    @initialize(plans=plans, retries=st.booleans())
    def begin(self, plans: list[Plan], retries: bool) -> None:
        uneventful: list[Plan] = [("ok", "noreply")] * (TURNS - len(plans))
        self.model = Model(plans + uneventful, max_pending=3, retries=retries)
        self.do(self._begin())

    async def _begin(self) -> None:
        self.store = await self.exits.enter_async_context(
            opened_store(self.store_name, Path(self.folder.name))
        )
        last = {"ok": {"result": None}, "error": {}, "eof": {"eof": None}, "crash": {"crash": "told to"}}
        scripts: list[list[dict[str, Any]]] = []
        self.agent = ScriptedAgent()
        for turn, (end, choice) in enumerate(self.model.plans):
            terminal = {"error": f"e{turn}"} if end == "error" else last[end]
            scripts.append([{"text": f"r{turn}"}, {"gate": f"g{turn}"}, terminal])
            if choice != "noreply":
                move = HALT if choice == "halt" else chain(f"c{turn}")
                self.agent.responses[f"r{turn}"] = self.agent.errors[f"e{turn}"] = move
        self.backend = ScriptedBackend(scripts)
        await self._new_host()
        started = await self.starter.start(None, self._start_request())
        self.key = started.located.key
        self._watch(Cursor(session_id=self.key.session_id))

    def _start_request(self, session_id: str = "") -> StartAgentRequest:
        policy = (
            HostLostPolicy.HOST_LOST_POLICY_RETRY
            if self.model.retries
            else HostLostPolicy.HOST_LOST_POLICY_FAIL
        )
        limits = AgentLimits(max_pending_prompts=self.model.max_pending, host_lost_policy=policy)
        definition = AgentDefinition(agent_name=NAME, backend="scripted", behavior="scripted", limits=limits)
        return StartAgentRequest(definition=definition, session_id=session_id)

    async def _new_host(self) -> None:
        self.mortal = MortalStore(self.store)
        self.host = make_host(self.mortal, {"scripted": self.backend}, {"scripted": self.agent})  # type: ignore[arg-type]  # passes every call on
        self.prompts = Prompts(self.host, max_prompt_bytes=1 << 20)
        self.starter = Starter(self.host)
        await self.host.start()

    def _watch(self, cursor: Cursor) -> None:
        watcher = Watcher(cursor)
        watcher.attach(self.host)
        self.watchers.append(watcher)

    async def _located(self) -> Located:
        return await self.host.locate(None, NAME)

    def _next(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    # --- Prompts -------------------------------------------------------------------------------------------------

    def _call(self, run_id: str, prompt: str, policy: BusyPolicy.ValueType) -> TellRequest:
        return TellRequest(request_id=run_id, agent_name=NAME, prompt=prompt, busy_policy=policy)

    def _put(self, run_id: str, policy: BusyPolicy.ValueType) -> str | None:
        """Have the model take a prompt; the reason why it does not."""
        model = self.model
        if policy == BusyPolicy.BUSY_POLICY_REJECT and model.busy:
            return "AGENT_BUSY"
        if not model.admits():
            return "MAX_RUNS_EXCEEDED"
        interrupts = policy == BusyPolicy.BUSY_POLICY_INTERRUPT
        if interrupts and model.current is not None:
            # In the queue before the turn ends, so that a notification's prompt comes after it.
            model.runs[run_id] = type(model.runs[model.current])(run_id, run_id)
            model.queue.insert(0, run_id)
            model.interrupt()
        else:
            model.enqueue(run_id, run_id, front=interrupts)
        return None

    @precondition(lambda self: not self.model.stopped)
    @rule(policy=policies)
    def tell(self, policy: BusyPolicy.ValueType) -> None:
        run_id = self._next("tell")
        reason = self._put(run_id, policy)
        refused = self.do(self._tell(run_id, run_id, policy))
        assert refused == reason

    async def _tell(self, run_id: str, prompt: str, policy: BusyPolicy.ValueType) -> str | None:
        call = self._call(run_id, prompt, policy)
        try:
            async with self.prompts.submitted(None, call, RunOrigin.RUN_ORIGIN_TELL) as submitted:
                assert submitted.run.id == run_id
        except TurndockError as error:
            return error.reason
        return None

    @precondition(lambda self: not self.model.stopped)
    @rule(policy=policies)
    def ask(self, policy: BusyPolicy.ValueType) -> None:
        run_id = self._next("ask")
        reason = self._put(run_id, policy)
        self.do(self._ask(run_id, policy, refused=reason))

    async def _ask(self, run_id: str, policy: BusyPolicy.ValueType, refused: str | None = None) -> None:
        accepted = asyncio.Event()

        async def asking() -> tuple[Run, Any]:
            try:
                call = self._call(run_id, run_id, policy)
                async with self.prompts.submitted(
                    None, call, RunOrigin.RUN_ORIGIN_ASK, unwanted=lambda: run_id in self.hung_up
                ) as submitted:
                    accepted.set()
                    return await self.prompts.outcome(submitted)
            finally:
                accepted.set()

        task = asyncio.create_task(asking())
        await accepted.wait()
        if refused is None:
            self.asks[run_id] = task
            return
        with contextlib.suppress(TurndockError):
            await task
        error = task.exception()
        assert isinstance(error, TurndockError)
        assert error.reason == refused

    @precondition(lambda self: not self.model.stopped and self.model.runs)
    @rule(data=st.data(), same=st.booleans())
    def retry(self, data: st.DataObject, same: bool) -> None:
        run_id = data.draw(st.sampled_from([name for name in self.model.runs if "/" not in name] or ["none"]))
        if run_id == "none":
            return
        refused = self.do(self._tell(run_id, run_id if same else "other", BusyPolicy.BUSY_POLICY_ENQUEUE))
        assert refused == (None if same else "IDEMPOTENCY_CONFLICT")

    @precondition(lambda self: self.asks)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.asks)))
        if self.model.runs[run_id].status == "pending":
            self.model.cancel(run_id, "caller_gone")
        self.hung_up.add(run_id)
        self.do(self._hang_up(self.asks.pop(run_id)))

    async def _hang_up(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        await asyncio.wait((task,))

    @precondition(lambda self: self.model.queue and not self.model.stopped)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(self.model.queue))
        self.model.cancel(run_id, "cancelled")
        request = CancelRunRequest(agent_name=NAME, run_id=run_id)
        self.do(self._cancel(request))

    async def _cancel(self, request: CancelRunRequest) -> None:
        run = await self.prompts.cancel(await self._located(), request)
        assert run.status == RunStatus.RUN_STATUS_CANCELLED

    @precondition(lambda self: self.model.queue and not self.model.stopped)
    @rule(data=st.data(), rewrite=st.booleans())
    def edit(self, data: st.DataObject, rewrite: bool) -> None:
        model = self.model
        run_id = data.draw(st.sampled_from(model.queue))
        before = data.draw(st.sampled_from([*(name for name in model.queue if name != run_id), None]))
        model.move(run_id, before)
        if rewrite:
            model.runs[run_id].prompt = f"{model.runs[run_id].prompt}!"
        request = UpdateQueuedRunRequest(
            agent_name=NAME,
            run_id=run_id,
            before_run_id=before or "",
            to_tail=before is None,
            prompt=model.runs[run_id].prompt if rewrite else None,
        )
        self.do(self._edit(request))

    async def _edit(self, request: UpdateQueuedRunRequest) -> None:
        await self.prompts.update(await self._located(), request)

    # --- Verbs ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.current)
    @rule()
    def release(self) -> None:
        turn = self.model.turn
        self.model.release()
        self.do(self._release(turn))

    async def _release(self, turn: int) -> None:
        self.backend.release(f"g{turn}")

    @precondition(lambda self: not self.model.stopped)
    @rule()
    def interrupt(self) -> None:
        current = self.model.current or ""
        self.model.interrupt()
        self.do(self._interrupt(current))

    async def _interrupt(self, current: str) -> None:
        answer = await self.host.interrupt(await self._located(), InterruptRequest(agent_name=NAME))
        assert answer.run_id == current

    @precondition(lambda self: not self.model.stopped)
    @rule(told=notes, wait=st.booleans())
    def notify(self, told: Any, wait: bool) -> None:
        number = self.count = self.count + 1
        payload = jsontext.canonical({"n": number, "told": told})
        move = {"prompt": chain(f"from note {number}"), "halt": HALT, "raise": RAISE}.get(told)
        if move is not None:
            self.agent.notified[payload] = move
        sequence = self.do(self._notify(f"note{number}", payload, wait=wait and self.model.current is None))
        self.model.notify(Note(number, told, f"note{number}/event/{sequence}"))

    async def _notify(self, request_id: str, payload: str, *, wait: bool) -> int:
        request = NotifyRequest(
            request_id=request_id, agent_name=NAME, payload_json=payload, wait_applied=wait
        )
        answer = await self.host.notify(await self._located(), request)
        assert answer.applied or not wait
        again = await self.host.notify(await self._located(), request)
        assert again.sequence == answer.sequence
        return answer.sequence

    @precondition(lambda self: not self.model.stopped)
    @rule()
    def unhalt(self) -> None:
        self.model.unhalt()
        self.do(self._unhalt())

    async def _unhalt(self) -> None:
        await self.host.unhalt(await self._located())

    @precondition(lambda self: not self.model.stopped)
    @rule()
    def stop(self) -> None:
        self.model.stop()
        self.do(self._stop())

    async def _stop(self) -> None:
        status = await self.host.stop_agent(None, StopAgentRequest(agent_name=NAME))
        assert status.phase == AgentPhase.AGENT_PHASE_STOPPED

    @precondition(lambda self: self.model.stopped)
    @rule()
    def start_again(self) -> None:
        self.model.start_again()
        self.do(self.starter.start(None, self._start_request(self.key.session_id)))

    # --- Hosts ---------------------------------------------------------------------------------------------------

    @rule(knows=st.booleans())
    def lose_host(self, knows: bool) -> None:
        """A host dies, or is taken for dead and goes on: then it must not be able to write any more."""
        turn = self.model.turn
        zombie = not knows and self.model.current is not None
        self.model.lose_host()
        self.do(self._lose_host(turn if zombie else None))

    async def _lose_host(self, zombies_turn: int | None) -> None:
        for task in self.asks.values():
            task.cancel()
        lost = self.host
        if zombies_turn is None:
            await kill(lost, self.mortal)
        else:
            await forsake(lost)
        if self.asks:
            await asyncio.wait(self.asks.values())
        asks, self.asks = self.asks, {}
        await self._new_host()
        for watcher in self.watchers:
            watcher.attach(self.host)
        if zombies_turn is not None:
            loops = list(lost.roster._loops.values())
            self.backend.release(f"g{zombies_turn}")
            if loops:
                await asyncio.wait(loops)
            assert not list(lost.roster.agents)
        for run_id in asks:
            if not self.model.stopped:
                await self._ask(run_id, BusyPolicy.BUSY_POLICY_ENQUEUE)

    @precondition(lambda self: not self.model.stopped and self.model.current is None)
    @rule()
    def leave_memory(self) -> None:
        self.do(self._leave_memory())

    async def _leave_memory(self) -> None:
        await self._quiet()
        agent = self.host.roster.get(self.key)
        if agent is not None:
            await self.host.roster.leave(agent, "inactivity")
            assert self.host.roster.get(self.key) is None

    @rule(data=st.data())
    def watch(self, data: st.DataObject) -> None:
        async def begin() -> None:
            head = (await self._log())[-1].sequence
            after = data.draw(st.integers(0, head))
            self._watch(Cursor(session_id=self.key.session_id, after_sequence=after))

        self.do(begin())

    # --- What holds after each step --------------------------------------------------------------------------------

    async def _quiet(self) -> None:
        """Wait until the machine is where the model is: at a gate, or idle."""
        if self.model.current is not None:
            await self.backend.entered(f"g{self.model.turn}")
            return
        dispatcher: Any = self.host.roster.dispatcher
        while tasks := [*self.host.roster._loops.values(), *dispatcher._deliveries]:
            await asyncio.wait(tasks)

    async def _log(self) -> list[Event]:
        log: list[Event] = []
        while True:
            request = GetEventsRequest(session_id=self.key.session_id, after_sequence=len(log))
            page = await self.store.get_events(request)
            log += page.events
            if not page.events:
                return log

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "model"):
            self.do(self._agrees())

    async def _agrees(self) -> None:
        await self._quiet()
        model = self.model
        heard = [(prompt.run_id, prompt.prompt) for prompt in self.backend.record.prompts]
        assert heard == model.heard
        await self._runs_agree()
        located = await self.host.locate(None, "", self.key.session_id)
        status = await self.host.status(located)
        assert (status.current_run_id, status.halted) == (model.current or "", model.halted)
        assert status.queued == len(model.queue)
        assert status.pending_notifications == len(model.deferred)
        state = state_of(status.state_json)
        for name in ("responses", "errors", "events"):
            assert state[name] == getattr(model, name), name
        self._log_agrees(log := await self._log())
        for watcher in self.watchers:
            await watcher.reached(log[-1].sequence)
            assert watcher.got == log[watcher.after : watcher.cursor.after_sequence]
        await self._asks_agree()

    async def _runs_agree(self) -> None:
        stored: dict[str, str] = {}
        cursor = ""
        while True:
            page = await self.store.list_runs(
                ListRunsRequest(session_id=self.key.session_id, page=Page(cursor=cursor))
            )
            stored |= {run.id: _status(run) for run in page.runs}
            cursor = page.next_cursor
            if not cursor:
                break
        assert stored == {run.id: run.status for run in self.model.runs.values()}
        assert [name for name, status in stored.items() if status == "pending"] == self.model.queue

    def _log_agrees(self, log: list[Event]) -> None:
        assert [event.sequence for event in log] == list(range(1, len(log) + 1))
        terminals = [event.run_id for event in log if event.type in events.RUN_TERMINAL]
        ended = [run.id for run in self.model.runs.values() if run.status not in ("pending", "running")]
        assert sorted(terminals) == sorted(ended)
        started = [event.run_id for event in log if event.type == EventType.EVENT_TYPE_RUN_STARTED]
        assert started == [run_id for run_id, _ in self.model.heard]

    async def _asks_agree(self) -> None:
        for run_id, task in list(self.asks.items()):
            expected = self.model.runs[run_id].status
            if expected in ("pending", "running"):
                assert not task.done()
                continue
            run, response = await task
            assert _status(run) == expected
            assert (response is not None) == (expected == "completed")
            del self.asks[run_id]

    def teardown(self) -> None:
        async def end() -> None:
            for task in self.asks.values():
                task.cancel()
            if hasattr(self, "host"):
                await kill(self.host, self.mortal)
            await self.exits.aclose()

        self.do(end())
        self.runner.close()
        self.folder.cleanup()


def _status(run: Run) -> str:
    name = RunStatus.Name(run.status).removeprefix("RUN_STATUS_").lower()
    return f"{name}:{run.failure.reason}" if run.failure.reason else name


class TurnMachineOnSqlite(TurnMachine):
    """The same over a database on disk, where calls really take turns."""

    store_name = "sqlite"


TestTurnMachine = TurnMachine.TestCase
TestTurnMachine.settings = settings(
    max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestTurnMachineOnSqlite = TurnMachineOnSqlite.TestCase
TestTurnMachineOnSqlite.settings = settings(
    max_examples=12, stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
