"""The turn machine against its model: whatever callers do and whenever hosts die, both say the same.

Every turn waits at a gate, so that nothing depends on time: after each step the machine is idle or at a gate.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from model.driver import Driver
from model.turn_machine import PENDING, RUNNING, Model, Note, Plan
from support.harness import StoreName, approve, edit, reject
from support.scripted_agent import HALT, RAISE, chain, state_of
from turndock import events, jsontext
from turndock.agent.v1 import BusyPolicy
from turndock.types.v1 import AgentPhase, Event, EventType, Run, RunStatus

T = TypeVar("T")

TURNS = 80
WAIT_S = 10.0

ends = st.sampled_from(["ok", "ok", "ok", "error", "eof", "crash", "asks", "parks"])
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


class TurnMachine(RuleBasedStateMachine):
    """One agent, its callers, its watchers, and hosts that come and go."""

    store_name: StoreName = "memory"
    model: Model
    driver: Driver

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.count = 0

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        async def in_time() -> T:
            async with asyncio.timeout(WAIT_S):
                return await work

        return self.runner.run(in_time())

    @initialize(plans=plans, retries=st.booleans())
    def begin(self, plans: list[Plan], retries: bool) -> None:
        uneventful: list[Plan] = [("ok", "noreply")] * (TURNS - len(plans))
        self.model = Model(plans + uneventful, max_pending=3, retries=retries)
        self.driver = Driver(self.model.plans, max_pending=3, retries=retries)
        self.do(self.driver.open(self.store_name, Path(self.folder.name)))

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.do(self.driver.close())
        self.runner.close()
        self.folder.cleanup()

    def _next(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    # --- Prompts -------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.model.stopped)
    @rule(policy=policies)
    def tell(self, policy: BusyPolicy.ValueType) -> None:
        run_id = self._next("tell")
        reason = self._put(run_id, policy)
        assert self.do(self.driver.tell(run_id, run_id, policy)) == reason

    @precondition(lambda self: not self.model.stopped)
    @rule(policy=policies)
    def ask(self, policy: BusyPolicy.ValueType) -> None:
        run_id = self._next("ask")
        reason = self._put(run_id, policy)
        assert self.do(self.driver.ask(run_id, policy)) == reason

    def _put(self, run_id: str, policy: BusyPolicy.ValueType) -> str | None:
        """Have the model take a prompt; the reason why it does not."""
        if policy == BusyPolicy.BUSY_POLICY_REJECT and self.model.busy:
            return "AGENT_BUSY"
        if not self.model.admits():
            return "MAX_RUNS_EXCEEDED"
        self.model.enqueue(run_id, run_id, interrupts=policy == BusyPolicy.BUSY_POLICY_INTERRUPT)
        return None

    @precondition(lambda self: not self.model.stopped and self.model.given())
    @rule(data=st.data(), same=st.booleans())
    def retry(self, data: st.DataObject, same: bool) -> None:
        run_id = data.draw(st.sampled_from(self.model.given()))
        prompt = run_id if same else "other"
        refused = self.do(self.driver.tell(run_id, prompt, BusyPolicy.BUSY_POLICY_ENQUEUE))
        assert refused == (None if same else "IDEMPOTENCY_CONFLICT")

    @precondition(lambda self: self.driver.asks)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.driver.asks)))
        if self.model.runs[run_id].status == PENDING:
            self.model.cancel(run_id, "caller_gone")
        self.do(self.driver.hang_up(run_id))

    @precondition(lambda self: self.model.queue and not self.model.stopped)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(self.model.queue))
        self.model.cancel(run_id, "cancelled")
        self.do(self.driver.cancel(run_id))

    @precondition(lambda self: self.model.queue and not self.model.stopped)
    @rule(data=st.data(), rewrite=st.booleans())
    def edit(self, data: st.DataObject, rewrite: bool) -> None:
        run_id = data.draw(st.sampled_from(self.model.queue))
        others = [name for name in self.model.queue if name != run_id]
        before = data.draw(st.sampled_from([*others, None]))
        prompt = f"{self.model.runs[run_id].prompt}!" if rewrite else None
        self.model.edit(run_id, before, prompt)
        self.do(self.driver.edit(run_id, before, prompt))

    # --- Verbs ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.current and not self.model.waits)
    @rule()
    def release(self) -> None:
        turn = self.model.turn
        self.model.release()
        self.do(self.driver.release(turn))

    @precondition(lambda self: self.model.waits)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        approval_id = self.model.asked
        answers = (approve(approval_id), edit(approval_id, {"x": 1}), reject(approval_id, "no"))
        self.model.answer()
        assert self.do(self.driver.answer(data.draw(st.sampled_from(answers)))) is None
        assert self.do(self.driver.answer(approve(approval_id))) == "APPROVAL_RESOLVED"

    @precondition(lambda self: not self.model.stopped)
    @rule()
    def interrupt(self) -> None:
        current = self.model.current or ""
        self.model.interrupt()
        assert self.do(self.driver.interrupt()) == current

    @precondition(lambda self: not self.model.stopped)
    @rule(told=notes, wait=st.booleans())
    def notify(self, told: Any, wait: bool) -> None:
        name = self._next("note")
        payload = jsontext.canonical({"note": name, "told": told})
        move = {"prompt": chain(f"from {name}"), "halt": HALT, "raise": RAISE}.get(told)
        if move is not None:
            self.driver.agent.notified[payload] = move
        wait = wait and self.model.current is None
        sequence = self.do(self.driver.notify(name, payload, wait=wait))
        self.model.notify(Note(name, told, f"{name}/event/{sequence}"))

    @precondition(lambda self: not self.model.stopped)
    @rule()
    def unhalt(self) -> None:
        self.model.unhalt()
        self.do(self.driver.unhalt())

    @precondition(lambda self: not self.model.stopped)
    @rule()
    def stop(self) -> None:
        self.model.stop()
        self.do(self.driver.stop_agent())

    @precondition(lambda self: self.model.stopped)
    @rule()
    def start_again(self) -> None:
        self.model.start_again()
        self.do(self.driver.start_agent())

    # --- Hosts and watchers ----------------------------------------------------------------------------------------

    @rule(knows=st.booleans())
    def lose_host(self, knows: bool) -> None:
        """A host dies, or is taken for dead and goes on: then it must not be able to write any more."""
        at_gate = self.model.current is not None and not self.model.waits
        turn = self.model.turn if at_gate and not knows else None
        waiting = [] if self.model.stopped else list(self.driver.asks)
        self.model.lose_host()
        self.do(self.driver.lose_host(turn))
        for run_id in waiting:
            assert self.do(self.driver.ask(run_id, BusyPolicy.BUSY_POLICY_ENQUEUE)) is None

    @precondition(
        lambda self: not self.model.stopped and (self.model.current is None or self.model.waits == "parked")
    )
    @rule()
    def leave_memory(self) -> None:
        self.do(self.driver.leave_memory())

    @rule(data=st.data())
    def watch(self, data: st.DataObject) -> None:
        async def begin() -> None:
            head = len(await self.driver.log())
            self.driver.watch(data.draw(st.integers(0, head)))

        self.do(begin())

    # --- What holds after each step --------------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "driver"):
            self.do(self._agrees())

    async def _agrees(self) -> None:
        model, driver = self.model, self.driver
        await driver.quiet(None if model.current is None else model.turn, model.asked)
        heard = [(prompt.run_id, prompt.prompt) for prompt in driver.backend.record.prompts]
        assert heard == model.heard
        stored = {run.id: _status(run) for run in await driver.runs()}
        assert stored == {run.id: run.status for run in model.runs.values()}
        assert [name for name, status in stored.items() if status == PENDING] == model.queue
        await self._status_agrees()
        log = await driver.log()
        self._log_agrees(log)
        for watcher in driver.watchers:
            await watcher.reached(len(log))
            assert watcher.got == log[watcher.after : watcher.cursor.after_sequence]
        await self._asks_agree()

    async def _status_agrees(self) -> None:
        model, host = self.model, self.driver.host
        status = await host.status(await host.locate(None, "", self.driver.session_id))
        assert (status.current_run_id, status.halted) == (model.current or "", model.halted)
        assert status.queued == len(model.queue)
        if status.phase != AgentPhase.AGENT_PHASE_DORMANT:  # Its row does not count them.
            assert status.pending_notifications == len(model.deferred)
        assert [each.approval_id for each in status.pending_approvals] == [model.asked] * bool(model.waits)
        state = state_of(status.state_json)
        for name in ("responses", "errors", "events"):
            assert state[name] == getattr(model, name), name

    def _log_agrees(self, log: list[Event]) -> None:
        assert [event.sequence for event in log] == list(range(1, len(log) + 1))
        terminals = [event.run_id for event in log if event.type in events.RUN_TERMINAL]
        ended = [run.id for run in self.model.runs.values() if run.status not in (PENDING, RUNNING)]
        assert sorted(terminals) == sorted(ended)
        started = [event.run_id for event in log if event.type == EventType.EVENT_TYPE_RUN_STARTED]
        assert started == self.model.begun
        requested = [each.tool_approval_requested.approval_id for each in log if _asks(each)]
        decided = [each.tool_approval_decided.approval_id for each in log if _decides(each)]
        open_ones = [self.model.asked] if self.model.waits else []
        assert sorted([*decided, *open_ones]) == sorted(requested)

    async def _asks_agree(self) -> None:
        for run_id, task in list(self.driver.asks.items()):
            expected = self.model.runs[run_id].status
            if expected in (PENDING, RUNNING):
                assert not task.done()
                continue
            run, response = await task
            assert _status(run) == expected
            assert (response is not None) == (expected == "completed")
            del self.driver.asks[run_id]


def _asks(event: Event) -> bool:
    return event.HasField("tool_approval_requested")


def _decides(event: Event) -> bool:
    return event.HasField("tool_approval_decided")


def _status(run: Run) -> str:
    name = RunStatus.Name(run.status).removeprefix("RUN_STATUS_").lower()
    return f"{name}:{run.failure.reason}" if run.failure.reason else name


class TurnMachineOnSqlite(TurnMachine):
    """The same over a database on disk, where calls really take turns."""

    store_name = "sqlite"


# A step is many calls, and few rules apply to an agent that has stopped.
UNHURRIED = [HealthCheck.too_slow, HealthCheck.filter_too_much]

TestTurnMachine = TurnMachine.TestCase
TestTurnMachine.settings = settings(max_examples=60, stateful_step_count=40, suppress_health_check=UNHURRIED)
TestTurnMachineOnSqlite = TurnMachineOnSqlite.TestCase
TestTurnMachineOnSqlite.settings = settings(
    max_examples=10, stateful_step_count=30, suppress_health_check=UNHURRIED
)
