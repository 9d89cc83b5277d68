"""M: what can happen to one turn. Interrupts, the watchdog, crashes, pre_turn, and what its response carries."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from support.harness import Harness, kinds, types
from support.parts import crash, emit, gate, result, text, tool_result, tool_use
from support.scripted_agent import ScriptedAgent, chain, noted
from support.setups import on_postgres_too
from turndock.agent.v1 import InterruptOutcome
from turndock.backend.v1 import (
    InterruptRequest,
    InterruptResponse,
    PromptRequest,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
    UpdateSessionRequest,
    UpdateSessionResponse,
)
from turndock.behavior.v1 import (
    Deny,
    Halt,
    HandleStreamEventRequest,
    HandleStreamEventResponse,
    PostTurnRequest,
    PostTurnResponse,
    PreTurnRequest,
    PreTurnResponse,
    Proceed,
    Rewrite,
    Skip,
)
from turndock.events import result as a_result
from turndock.jsontext import parse_object
from turndock.ports import Backend, TurnContext, TurnOutput
from turndock.types.v1 import AgentLimits, AgentPhase, CaptureMode, Cursor, Failure, RunStatus
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.core.accounts import DEFAULT_LIMITS

IDLE = AgentPhase.AGENT_PHASE_IDLE


@on_postgres_too
async def test_M_18_an_interrupt_kills_the_turn_and_nothing_else(host: Harness) -> None:
    await host.start([text("partial"), gate("g"), result("never")], [result("next")])
    asking = host.asking("a", request_id="r1")
    await host.backend.entered("g")
    told = await host.tell("b")
    assert await host.interrupt(run_id="other") == InterruptOutcome.INTERRUPT_OUTCOME_NOT_CURRENT
    assert await host.interrupt(run_id="r1") == InterruptOutcome.INTERRUPT_OUTCOME_ACCEPTED
    answer = await asking
    assert answer.failure.reason == "interrupted"
    assert answer.run.status == RunStatus.RUN_STATUS_CANCELLED
    await host.ended(told)
    status = await host.status()
    assert (status.phase, status.halted) == (IDLE, False)
    assert (await host.state())["errors"] == ["interrupted"]
    assert (await host.state())["responses"] == ["next"]
    assert host.backend.record.interrupts == ["interrupted"]
    terminals = [event for event in await host.log(run_id="r1") if event.HasField("run_failed")]
    assert types(terminals) == ["run_cancelled"]
    assert terminals[0].run_failed.incomplete_text


async def test_M_18_the_stream_of_an_interrupted_turn_is_cancelled(host: Harness) -> None:
    await host.dock_backend("deaf", ScriptedBackend(without=["interrupt"], stage=host.backend.stage))
    await host.start([gate("g"), result("never")], backend="deaf")
    asking = host.asking("a")
    await host.backend.entered("g")
    await host.interrupt()
    await asking
    await host.backend.stage.reached(left=1)


async def test_M_18_a_turn_can_be_interrupted_in_its_very_beginning(host: Harness) -> None:
    await host.start(*[[gate(f"g{number}"), result("never")] for number in range(5)])
    for number in range(5):
        asking = host.asking("a", request_id=f"r{number}")
        await host.until(lambda status: status.phase == AgentPhase.AGENT_PHASE_PROCESSING)
        assert await host.interrupt() == InterruptOutcome.INTERRUPT_OUTCOME_ACCEPTED
        assert (await asking).failure.reason == "interrupted"
        assert len((await host.state())["errors"]) == number + 1


@on_postgres_too
async def test_M_18_two_interrupts_make_one_outcome(host: Harness) -> None:
    await host.start([gate("g"), result("never")], [result("ok")])
    asking = host.asking("a")
    await host.backend.entered("g")
    await asyncio.gather(*(host.interrupt() for _ in range(5)))
    assert (await asking).failure.reason == "interrupted"
    assert (await host.state())["errors"] == ["interrupted"]
    assert (await host.ask("b")).response.text == "ok"


async def test_M_18_an_interrupt_after_the_terminal_changes_nothing(host: Harness) -> None:
    decided = asyncio.Event()

    async def post_turn(_: PostTurnRequest) -> PostTurnResponse:
        await decided.wait()
        return PostTurnResponse()

    agent = ScriptedAgent(post_turn=post_turn)
    await host.dock_behavior("slow", agent)
    await host.start([result("done")], behavior="slow")
    asking = host.asking("a")
    await agent.called("post_turn")
    assert await host.interrupt() == InterruptOutcome.INTERRUPT_OUTCOME_IDLE
    decided.set()
    assert (await asking).response.text == "done"


async def test_M_20_the_watchdog_ends_a_turn(host: Harness) -> None:
    await host.start([gate("g"), result("never")], [result("ok")], limits=AgentLimits(watchdog_ms=50))
    began = time.monotonic()
    answer = await host.ask("a")
    assert time.monotonic() - began >= 0.05
    assert answer.failure.reason == "timeout"
    assert answer.run.status == RunStatus.RUN_STATUS_TIMEOUT
    assert (await host.status()).phase == IDLE
    assert (await host.ask("b")).response.text == "ok"


class Slow(Backend):
    """Takes its time for each turn."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse()

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> AsyncIterator[TurnOutput]:
        await asyncio.sleep(self._seconds)
        yield a_result(request.prompt)

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()


async def test_M_20_the_watchdog_starts_anew_for_every_turn(host: Harness) -> None:
    """Two turns that together take longer than one may; ten times the case's figures, for the sake of slow machines."""
    await host.dock_backend("slow", Slow(0.6))
    host.agent.responses["first"] = chain("second")
    await host.start(backend="slow", limits=AgentLimits(watchdog_ms=1_000))
    assert (await host.ask("first", request_id="r1")).response.text == "first"
    assert (await host.ended("r1/chain/1")).response.text == "second"


def test_M_20_the_default_is_ten_minutes() -> None:
    assert DEFAULT_LIMITS.watchdog_ms == 600_000


async def test_M_20_silence_can_be_limited_beside_the_whole(host: Harness) -> None:
    await host.start([text("a"), gate("g")], limits=AgentLimits(inactivity_ms=60))
    assert (await host.ask("a")).failure.reason == "timeout"


@on_postgres_too
async def test_M_21_a_crash_ends_its_turn_alone(host: Harness) -> None:
    await host.start([text("a"), crash("boom")], [result("ok")])
    await host.start([gate("g"), result("other")], name="a2")
    other = host.asking("x", "a2")
    await host.backend.entered("g")
    answer = await host.ask("a")
    assert answer.failure.reason == "task_crashed"
    assert "boom" in answer.failure.message
    assert (await host.ask("b")).response.text == "ok"
    host.backend.release("g")
    assert (await other).response.text == "other"


async def test_M_21_a_lost_backend_ends_its_turn_alone(local_host: Harness) -> None:
    await local_host.start([text("a"), {"lost": "the cable was cut"}], [result("ok")])
    answer = await local_host.ask("a")
    assert (answer.failure.reason, answer.failure.retryable) == ("backend_lost", True)
    assert (await local_host.ask("b")).response.text == "ok"


class Misbehaved(Backend):
    """Breaks the contract in the way its prompt names."""

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse()

    def prompt(self, request: PromptRequest, turn: TurnContext) -> AsyncIterator[TurnOutput]:
        if request.prompt == "no generator":
            raise TypeError("no generator at all")
        return self._outputs(request.prompt)

    async def _outputs(self, fault: str) -> AsyncIterator[TurnOutput]:
        yield "a"
        if fault == "cancels itself":
            raise asyncio.CancelledError
        if fault == "hangs":
            await asyncio.Event().wait()
        try:
            yield a_result("ok")
            yield a_result("never")
        finally:
            if fault == "raises when left":
                raise RuntimeError("told to raise")

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        raise RuntimeError("told to raise")

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        raise RuntimeError("told to raise")

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        raise RuntimeError("told to raise")


class Careless(Misbehaved):
    """Misbehaved, but for update_session."""

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        return UpdateSessionResponse(session=request.session)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("no generator", "task_crashed"), ("cancels itself", "task_crashed"), ("raises when left", "")],
)
async def test_M_21_whatever_a_backend_does_the_agent_lives(
    local_host: Harness, fault: str, reason: str
) -> None:
    await local_host.dock_backend("careless", Careless())
    await local_host.start(backend="careless")
    answer = await local_host.ask(fault)
    assert answer.failure.reason == reason
    if not reason:
        assert answer.response.text == "ok"
    assert (await local_host.ask("hi")).response.text == "ok"
    await local_host.stop()


async def test_M_21_an_interrupt_that_raises_does_not_save_the_turn(local_host: Harness) -> None:
    await local_host.dock_backend("careless", Careless())
    await local_host.start(backend="careless", limits=AgentLimits(watchdog_ms=50))
    assert (await local_host.ask("hangs")).failure.reason == "timeout"
    assert (await local_host.ask("hi")).response.text == "ok"


async def test_M_21_update_session_that_raises_fails_the_turn(host: Harness) -> None:
    await host.dock_backend("misbehaved", Misbehaved())
    await host.start(backend="misbehaved")
    answer = await host.ask("hi")
    assert answer.failure.reason == "task_crashed"
    assert "update_session" in answer.failure.message


async def test_M_23_pre_turn_may_rewrite_the_prompt(host: Harness) -> None:
    async def pre_turn(request: PreTurnRequest) -> PreTurnResponse:
        if request.run.prompt == "as it is":
            return PreTurnResponse(proceed=Proceed())
        return PreTurnResponse(rewrite=Rewrite(prompt=f"[p] {request.run.prompt}"))

    await host.dock_behavior("prefixed", ScriptedAgent(pre_turn=pre_turn))
    await host.start([result("a")], [result("b")], behavior="prefixed")
    await host.ask("hello", request_id="r1")
    await host.ask("as it is", request_id="r2")
    assert [heard.prompt for heard in host.backend.record.prompts] == ["[p] hello", "as it is"]
    started = [(await host.log(run_id=run_id))[0].run_started for run_id in ("r1", "r2")]
    assert [(one.prompt, one.original_prompt, one.rewritten) for one in started] == [
        ("[p] hello", "hello", True),
        ("as it is", "as it is", False),
    ]
    assert (await host.poll("r1")).prompt == "hello"


ANSWERS = {
    "skip": (PreTurnResponse(skip=Skip(reason="not now")), "pre_turn_skipped"),
    "halt": (PreTurnResponse(halt=Halt(reason="enough")), "pre_turn_halted"),
    "deny": (PreTurnResponse(deny=Deny(failure=Failure(reason="forbidden"))), "forbidden"),
    "denied without a reason": (PreTurnResponse(deny=Deny()), "pre_turn_denied"),
    "nothing": (PreTurnResponse(), "pre_turn_invalid"),
    "raise": (None, "pre_turn_skipped"),
}


@pytest.mark.parametrize("given", ANSWERS)
async def test_M_23_pre_turn_may_refuse_the_turn(host: Harness, given: str) -> None:
    answer, reason = ANSWERS[given]

    async def pre_turn(request: PreTurnRequest) -> PreTurnResponse:
        if request.run.prompt == "fine":
            return PreTurnResponse(proceed=Proceed())
        if answer is None:
            raise RuntimeError("told to raise")
        return answer

    agent = ScriptedAgent(pre_turn=pre_turn)
    await host.dock_behavior("strict", agent)
    await host.start([result("ok")], behavior="strict")
    refusal = await host.ask("x", request_id="r1")
    assert (refusal.run.status, refusal.failure.reason) == (RunStatus.RUN_STATUS_FAILED, reason)
    assert host.backend.record.prompts == []
    assert agent.names() == ["init_agent", "pre_turn"]
    violation = ["policy_violation"] if given.startswith("den") else []
    assert types(await host.log(run_id="r1")) == [*violation, "run_failed"]
    assert (await host.status()).halted == (given == "halt")
    told = await host.tell("fine")
    await host.unhalt()
    assert (await host.ended(told)).response.text == "ok"


async def test_M_23_the_state_pre_turn_leaves_is_kept(host: Harness) -> None:
    async def pre_turn(request: PreTurnRequest) -> PreTurnResponse:
        return PreTurnResponse(state_json=noted(request, "events", request.run.prompt), skip=Skip())

    await host.dock_behavior("noting", ScriptedAgent(pre_turn=pre_turn))
    await host.start(behavior="noting")
    await host.ask("x")
    assert (await host.state())["events"] == ["x"]


async def test_M_29_a_response_carries_what_fits_and_says_what_it_left_out(host: Harness) -> None:
    await host.start(
        [text(str(number)) for number in range(10)] + [result()], limits=AgentLimits(max_events_per_turn=3)
    )
    response = (await host.ask("x", request_id="r1")).response
    assert response.text == "0123456789"
    assert kinds(response.events) == ["text", "text", "text"]
    coverage = response.coverage
    assert coverage.mode == CaptureMode.CAPTURE_MODE_COMPACT
    assert (coverage.observed, coverage.retained, coverage.omitted) == (11, 3, 8)
    assert coverage.first_omission == "events/text"
    assert kinds([response.terminal]) == ["result"]
    assert len((await host.state())["seen"]) == 11
    assert len(await host.log(run_id="r1")) == 2 + 10 + 2
    assert (await host.poll("r1", with_events=True)).response == response


@on_postgres_too
async def test_M_29_lossless_fails_the_turn_instead(host: Harness) -> None:
    limits = AgentLimits(max_events_per_turn=3, capture_mode=CaptureMode.CAPTURE_MODE_LOSSLESS)
    await host.start([text(str(number)) for number in range(10)] + [result()], [result("ok")], limits=limits)
    answer = await host.ask("x")
    assert answer.failure.reason == "event_capture_overflow"
    details = parse_object(answer.failure.details_json, "details_json")
    assert {name: details[name] for name in ("limit", "retained_events", "rejected_event_kind")} == {
        "limit": "events",
        "retained_events": 3,
        "rejected_event_kind": "text",
    }
    assert (await host.state())["seen"] == ["text", "text", "text"]
    assert (await host.ask("y")).response.text == "ok"


async def test_M_29_bytes_count_too(host: Harness) -> None:
    await host.start(
        [text("x" * 400), text("y" * 400), result()], limits=AgentLimits(max_event_bytes_per_turn=700)
    )
    response = (await host.ask("x", request_id="r1")).response
    assert (response.coverage.retained, response.coverage.first_omission) == (1, "bytes/text")
    assert 400 < response.coverage.retained_bytes <= 700
    assert (await host.poll("r1", with_events=True)).response == response


@on_postgres_too
async def test_open_tool_calls_are_closed_with_the_turn(host: Harness) -> None:
    await host.start([tool_use("t1", "ls"), tool_result("t1"), tool_use("t2", "rm"), gate("g")])
    asking = host.asking("a", request_id="r1")
    await host.backend.entered("g")
    await host.interrupt()
    await asking
    log = await host.log(run_id="r1")
    assert types(log)[-2:] == ["tool_call_failed", "run_cancelled"]
    closed = log[-2].tool_call_failed
    assert (closed.tool_call_id, closed.name, closed.failure.reason) == ("t2", "rm", "cancelled")


class Slowly(ScriptedAgent):
    """Looks at one batch and then at nothing more until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        answer = await super().handle_stream_event(request)
        await self.go_on.wait()
        return answer


async def test_a_slow_behavior_sees_larger_batches_and_does_not_hold_up_the_log(host: Harness) -> None:
    agent = Slowly()
    await host.dock_behavior("slowly", agent)
    session_id = (
        await host.start([text("first"), emit(3_000), result()], behavior="slowly")
    ).agent.session_id
    asking = host.asking("a", request_id="r1")
    await agent.called("handle_stream_event")
    session_started_and_opening = 4
    head = session_started_and_opening + 3_001
    assert len(await host.watched(Cursor(session_id=session_id), upto=head)) == head
    agent.go_on.set()
    await asking
    assert len((await host.state())["seen"]) == 3_002
    assert len(agent.requests("handle_stream_event")) < 20
