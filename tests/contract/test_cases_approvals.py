"""H and PF-B19: approvals inside a turn and with a parked one."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.harness import Harness, approve, edit, kinds, refused, reject, types
from support.parts import Script, approval, asked, gate, paused, result, text, tool_use, usage
from support.setups import on_postgres_too
from turndock import events, jsontext
from turndock.agent.v1 import ApprovalAnswer, BusyPolicy, InterruptOutcome
from turndock.backend.v1 import PromptRequest
from turndock.client import Client, SyncClient
from turndock.client import edit as client_edit
from turndock.errors import Code, TurndockError
from turndock.ports import Rejected, TurnContext, TurnOutput
from turndock.types.v1 import (
    AgentLimits,
    AgentPhase,
    ApprovalDecision,
    BackendSession,
    Cursor,
    Event,
    RunStatus,
    ToolApprovalDecided,
    ToolApprovalRequested,
)
from turndock_server.backends.scripted import ScriptedBackend

AWAITING = AgentPhase.AGENT_PHASE_AWAITING_APPROVAL
IDLE = AgentPhase.AGENT_PHASE_IDLE
DORMANT = AgentPhase.AGENT_PHASE_DORMANT

ASKS = [text("may I? "), approval("a1", "delete", arguments={"path": "/x"}), result()]
PARKS = [text("may I? "), paused(asked("a1", "delete", arguments={"path": "/x"}))]
GOES_ON = [text("done"), result()]


def decisions(log: list[Event]) -> list[tuple[str, str]]:
    """What the log says was decided."""
    return [
        (
            event.tool_approval_decided.approval_id,
            ApprovalDecision.Name(event.tool_approval_decided.decision)
            .removeprefix("APPROVAL_DECISION_")
            .lower(),
        )
        for event in log
        if event.HasField("tool_approval_decided")
    ]


class Tools(ScriptedBackend):
    """A model that wants to write, read and delete; writing and deleting need an approval."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        turn.accept(request.session)
        calls = ("write_file", "read_file", "delete_file")
        may = {
            "write_file": [],
            "delete_file": [
                ApprovalDecision.APPROVAL_DECISION_APPROVE,
                ApprovalDecision.APPROVAL_DECISION_REJECT,
            ],
        }
        answers = await asyncio.gather(
            *(
                turn.approval(
                    ToolApprovalRequested(
                        approval_id=f"{name}-1",
                        tool_call_id=name,
                        tool_name=name,
                        arguments_json='{"path": "/x"}',
                        allowed_decisions=allowed,
                    )
                )
                for name, allowed in may.items()
            )
        )
        told = {answer.tool_call_id: answer for answer in answers}
        for name in calls:
            answer = told.get(name)
            yield events.tool_use(name, name, '{"path":"/x"}')
            if answer and answer.decision == ApprovalDecision.APPROVAL_DECISION_REJECT:
                yield events.tool_result(
                    name, jsontext.canonical(f"rejected by a human reviewer: {answer.feedback}")
                )
                continue
            self.ran.append(name if not answer or not answer.arguments_json else answer.arguments_json)
            yield events.tool_result(name, '"ok"')
        yield events.result("done")


# --- In a turn -------------------------------------------------------------------------------------------------------


@on_postgres_too
async def test_H_01_a_turn_waits_for_a_decision_and_goes_on_with_it(host: Harness) -> None:
    await host.start(ASKS)
    asking = host.asking("go", request_id="r1")
    (request,) = await host.until_asked()
    assert request.approval_id == "a1"
    assert request.arguments_json == '{"path":"/x"}'
    assert request.arguments_sha256 == hashlib.sha256(b'{"path":"/x"}').digest()
    status = await host.status()
    assert (status.phase, status.current_run_id) == (AWAITING, "r1")
    after = await host.resolve(approve("a1", arguments_sha256=request.arguments_sha256))
    assert not after.pending_approvals
    answer = await asking
    assert answer.response.text == "may I? "
    assert kinds(answer.response.events) == ["text", "approval_request", "tool_result", "result"]
    assert types(await host.log(run_id="r1")) == [
        "run_started",
        "message_sent",
        "message_streamed",
        "tool_approval_requested",
        "tool_approval_granted",
        "tool_call_completed",
        "message_received",
        "run_completed",
    ]
    assert [event.sequence for event in answer.response.events] == [
        event.sequence
        for event in await host.log(run_id="r1")
        if event.id in {kept.id for kept in answer.response.events}
    ]
    assert (await host.poll("r1", with_events=True)).response.events == answer.response.events
    assert (await host.state())["seen"] == ["text", "approval_request", "tool_result", "result"]


async def test_H_01_each_tool_waits_for_its_own_decision(host: Harness) -> None:
    tools = Tools()
    await host.dock_backend("tools", tools)
    await host.start(backend="tools")
    asking = host.asking("go", request_id="r1")
    requests = await host.until_asked(2)
    assert [request.tool_name for request in requests] == ["write_file", "delete_file"]
    assert not tools.ran
    write, delete = (request.approval_id for request in requests)
    with refused("VALIDATION_ERROR") as caught:
        await host.resolve(approve(write), edit(delete, {"path": "/y"}))
    assert caught.value.violations[0].field == "answers[1].decision"
    assert "delete_file" in caught.value.message
    bad: list[tuple[list[ApprovalAnswer], str]] = [
        ([], "answers"),
        ([edit(write, {}), edit(delete, {})], "answers[1].decision"),
        (
            [
                ApprovalAnswer(approval_id=write, decision=ApprovalDecision.APPROVAL_DECISION_EDIT),
                approve(delete),
            ],
            "answers[0].arguments_json",
        ),
        ([ApprovalAnswer(), approve(delete)], "answers[0].approval_id"),
        ([ApprovalAnswer(approval_id=write)], "answers[0].decision"),
        (
            [ApprovalAnswer(approval_id=write, decision=ApprovalDecision.APPROVAL_DECISION_EXPIRED)],
            "answers[0].decision",
        ),
        ([edit(write, [1]), approve(delete)], "answers[0].arguments_json"),
        ([approve(write), approve(write)], "answers[1].approval_id"),
        ([approve(write, arguments_json="{}")], "answers[0].arguments_json"),
        ([approve(write, arguments_sha256=b"other")], "answers[0].arguments_sha256"),
        ([reject(write, "no\0")], "answers[0].feedback"),
    ]
    for answers, field in bad:
        with refused("VALIDATION_ERROR") as caught:
            await host.resolve(*answers)
        assert caught.value.code is Code.INVALID_ARGUMENT
        assert caught.value.violations[0].field == field
        status = await host.status()
        assert (status.phase, len(status.pending_approvals)) == (AWAITING, 2)
    assert not decisions(await host.log())
    await host.resolve(approve(write), reject(delete, "keep it"))
    answer = await asking
    assert tools.ran == ["write_file", "read_file"]
    results = {
        event.tool_call_completed.tool_call_id: event.tool_call_completed.result_json
        for event in answer.response.events
        if event.HasField("tool_call_completed")
    }
    assert results["delete_file"] == '"rejected by a human reviewer: keep it"'
    assert decisions(await host.log()) == [(write, "approve"), (delete, "reject")]


async def test_H_01_approvals_are_answered_singly_too(host: Harness) -> None:
    tools = Tools()
    await host.dock_backend("tools", tools)
    await host.start(backend="tools")
    asking = host.asking("go")
    await host.until_asked(2)
    status = await host.resolve(edit("write_file-1", {"path": "/y"}))
    assert (status.phase, len(status.pending_approvals)) == (AWAITING, 1)
    await host.resolve(approve("delete_file-1"))
    await asking
    assert tools.ran == ['{"path":"/y"}', "read_file", "delete_file"]


async def test_H_02_an_approval_that_is_not_pending_is_refused_and_nothing_runs(host: Harness) -> None:
    await host.start(ASKS)
    with refused("APPROVAL_NOT_FOUND"):
        await host.resolve(approve("a1"))
    asking = host.asking("go")
    await host.until_asked()
    await host.resolve(reject("a1", "no"))
    with refused("APPROVAL_RESOLVED") as caught:
        await host.resolve(approve("a1"))
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert caught.value.metadata["decision"] == "reject"
    await asking
    with refused("APPROVAL_RESOLVED"):
        await host.resolve(approve("a1"))
    assert decisions(await host.log()) == [("a1", "reject")]


@on_postgres_too
@pytest.mark.parametrize("script", [ASKS, PARKS], ids=["open", "parked"])
async def test_H_02_prompts_wait_meanwhile_and_run_in_order(host: Harness, script: Script) -> None:
    scripts = [script] if script is ASKS else [script, GOES_ON]
    await host.start(*scripts, [result("two")], [result("three")])
    first = await host.tell("go")
    await host.until_asked()
    second, third = await host.tell("b"), await host.tell("c")
    assert (await host.status()).queued == 2
    assert (await host.poll(second)).status == RunStatus.RUN_STATUS_PENDING
    with refused("AGENT_BUSY"):
        await host.tell("d", busy_policy=BusyPolicy.BUSY_POLICY_REJECT)
    await host.resolve(approve("a1"))
    ended = [await host.ended(run) for run in (first, second, third)]
    assert [run.status for run in ended] == [RunStatus.RUN_STATUS_COMPLETED] * 3
    assert [run.response.text for run in ended[1:]] == ["two", "three"]
    assert ended[0].ended_at_us <= ended[1].started_at_us


async def test_PF_B19_a_late_approval_never_runs_another_tool(host: Harness) -> None:
    one = [approval("i1", "X"), approval("i2", "Y"), result()]
    await host.start(one)
    await host.start([approval("other"), result()], name="a2")
    asking = host.asking("go")
    await host.until_asked()
    await host.resolve(reject("i1"))
    await host.until(lambda status: [each.approval_id for each in status.pending_approvals] == ["i2"])
    with refused("APPROVAL_RESOLVED"):
        await host.resolve(approve("i1"))
    with refused("VALIDATION_ERROR"):
        await host.resolve(approve(""))
    with refused("APPROVAL_NOT_FOUND"):
        await host.resolve(approve("i3"))
    with refused("APPROVAL_NOT_FOUND"):
        await host.resolve(approve("i1"), name="a2")
    with refused("APPROVAL_RESOLVED"):
        await host.resolve(approve("i2"), approve("i1"))
    status = await host.status()
    assert (status.phase, [each.approval_id for each in status.pending_approvals]) == (AWAITING, ["i2"])
    assert decisions(await host.log()) == [("i1", "reject")]
    await host.resolve(reject("i2"))
    await asking


async def test_PF_B19_an_id_used_again_is_another_approval(host: Harness) -> None:
    await host.start([approval("a1"), result()], [approval("a1"), result("two")])
    first = host.asking("go")
    await host.until_asked()
    await host.resolve(approve("a1"))
    await first
    second = host.asking("again", request_id="r2")
    (request,) = await host.until_asked()
    assert request.approval_id == "r2/a1"
    with refused("APPROVAL_RESOLVED"):
        await host.resolve(approve("a1"))
    await host.resolve(approve("r2/a1"))
    assert (await second).response.text == "two"


@on_postgres_too
@pytest.mark.parametrize("script", [ASKS, PARKS], ids=["open", "parked"])
async def test_the_first_of_many_answers_wins(host: Harness, script: Script) -> None:
    await host.start(script, GOES_ON)
    run = await host.tell("go")
    await host.until_asked()
    answers = [approve("a1"), reject("a1", "no"), edit("a1", {"path": "/y"})] * 4
    outcomes = await asyncio.gather(*(host.resolve(one) for one in answers), return_exceptions=True)
    winners = [
        one for one, outcome in zip(answers, outcomes, strict=True) if not isinstance(outcome, Exception)
    ]
    assert len(winners) == 1
    (decided,) = decisions(await host.log())
    losers = [outcome for outcome in outcomes if isinstance(outcome, TurndockError)]
    assert {loser.metadata["decision"] for loser in losers} == {decided[1]}
    assert (await host.ended(run)).status == RunStatus.RUN_STATUS_COMPLETED


@pytest.mark.parametrize("script", [ASKS, PARKS], ids=["open", "parked"])
async def test_who_answers_as_soon_as_a_request_is_in_the_log_is_heard(host: Harness, script: Script) -> None:
    session_id = (await host.start(script, GOES_ON)).agent.session_id
    async with host.watching(Cursor(session_id=session_id)) as frames:
        run = await host.tell("go")
        async for frame in frames:
            if any(event.HasField("tool_approval_requested") for event in frame.batch.events):
                break
        await host.resolve(approve("a1"))
    assert (await host.ended(run)).status == RunStatus.RUN_STATUS_COMPLETED


@on_postgres_too
@pytest.mark.parametrize("script", [ASKS, PARKS], ids=["open", "parked"])
async def test_a_repeated_call_changes_nothing_and_another_one_conflicts(
    host: Harness, script: Script
) -> None:
    await host.start(script, GOES_ON, [approval("a2"), result()])
    run = await host.tell("go")
    await host.until_asked()
    await asyncio.gather(*(host.resolve(approve("a1"), request_id="q1") for _ in range(5)))
    await host.ended(run)
    await host.resolve(approve("a1"), request_id="q1")
    with refused("IDEMPOTENCY_CONFLICT"):
        await host.resolve(reject("a1"), request_id="q1")
    with refused("APPROVAL_RESOLVED"):
        await host.resolve(approve("a1"), request_id="q2")
    assert decisions(await host.log()) == [("a1", "approve")]
    if script is ASKS:
        await host.ask("next")  # plays what follows a parked turn
    asking = host.asking("more")
    await host.until_asked()
    with refused("IDEMPOTENCY_CONFLICT"):
        await host.resolve(approve("a2"), request_id="q1")
    await host.resolve(approve("a2"), request_id="q3")
    await asking


async def test_the_watchdog_rests_while_a_turn_waits(host: Harness) -> None:
    limits = AgentLimits(watchdog_ms=400, inactivity_ms=300, idle_shutdown_ms=100)
    await host.start([approval("a1"), gate("g"), result("ok")], limits=limits)
    asking = host.asking("go")
    await host.until_asked()
    done, _ = await asyncio.wait((asking,), timeout=0.6)  # longer than every limit
    assert not done
    assert (await host.status()).phase == AWAITING
    await host.resolve(approve("a1"))
    assert (await asking).failure.reason == "timeout"


@pytest.mark.parametrize("script", ["open", "parked"])
async def test_an_approval_that_expires_is_no_rejection(host: Harness, script: str) -> None:
    short: dict[str, Any] = {"expires_in_ms": 100}
    scripts = (
        [[approval("a1", **short), result("ok")]]
        if script == "open"
        else [[paused(asked("a1", **short), asked("a2"))], [result("ok")]]
    )
    await host.start(*scripts)
    asking = host.asking("go")
    if script == "parked":
        await host.until_asked(1)
        with refused("APPROVAL_RESOLVED") as caught:
            await host.resolve(approve("a1"))
        assert caught.value.metadata["decision"] == "expired"
        await host.resolve(reject("a2"))
    answer = await asking
    assert answer.response.text == "ok"
    log = await host.log()
    assert decisions(log)[0] == ("a1", "expired")
    assert "tool_approval_granted" not in types(log)
    if script == "parked":
        assert host.backend.record.prompts[-1].decisions == ["expired", "reject"]


@on_postgres_too
@pytest.mark.parametrize("script", [ASKS, PARKS], ids=["open", "parked"])
async def test_an_interrupt_ends_the_turn_and_closes_its_approvals(host: Harness, script: Script) -> None:
    await host.start([tool_use("t1"), *script], [result("next")])
    asking = host.asking("go", request_id="r1")
    await host.until_asked()
    told = await host.tell("b")
    assert await host.interrupt(run_id="r1") == InterruptOutcome.INTERRUPT_OUTCOME_ACCEPTED
    answer = await asking
    assert answer.failure.reason == "interrupted"
    assert answer.run.status == RunStatus.RUN_STATUS_CANCELLED
    assert (await host.ended(told)).response.text == "next"
    log = await host.log(run_id="r1")
    assert types(log)[-3:] == ["tool_approval_denied", "tool_call_failed", "run_cancelled"]
    assert decisions(log) == [("a1", "withdrawn")]
    with refused("APPROVAL_RESOLVED") as caught:
        await host.resolve(approve("a1"))
    assert caught.value.metadata["decision"] == "withdrawn"
    assert not (await host.until_idle()).pending_approvals


@pytest.mark.parametrize("script", [ASKS, PARKS], ids=["open", "parked"])
async def test_an_agent_that_waits_can_be_stopped(host: Harness, script: Script) -> None:
    started = await host.start(script)
    asking = host.asking("go")
    await host.until_asked()
    await host.stop()
    assert (await asking).failure.reason == "agent_terminated"
    log = await host.log_of(started.agent.session_id)
    assert decisions(log) == [("a1", "withdrawn")]
    assert types(log)[-1] == "session_completed"
    await host.start([result("again")], session_id=started.agent.session_id)
    assert (await host.ask("hi")).response.text == "again"


@pytest.mark.parametrize("script", [ASKS, PARKS], ids=["open", "parked"])
async def test_a_prompt_may_interrupt_a_turn_that_waits(host: Harness, script: Script) -> None:
    await host.start(script, [result("next")])
    asking = host.asking("go")
    await host.until_asked()
    answer = await host.ask("b", busy_policy=BusyPolicy.BUSY_POLICY_INTERRUPT)
    assert answer.response.text == "next"
    assert (await asking).failure.reason == "interrupted"


async def test_a_request_nobody_can_decide_on_fails_the_turn(host: Harness) -> None:
    class Odd(ScriptedBackend):
        async def prompt(
            self, request: PromptRequest, turn: TurnContext
        ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
            turn.accept(request.session)
            asked = ToolApprovalRequested(approval_id="a1", arguments_json=request.prompt)
            if request.prompt == "pause":
                yield events.paused([])
                return
            await turn.approval(asked)
            yield events.result()

    await host.dock_backend("odd", Odd())
    await host.start(backend="odd")
    for prompt in ("{", '{"a":1,"a":2}', "pause"):
        answer = await host.ask(prompt)
        assert answer.failure.reason == "invalid_approval", prompt
    assert "tool_approval_requested" not in types(await host.log())


async def test_what_a_backend_does_not_wait_for_is_withdrawn(local_host: Harness) -> None:
    class Impatient(ScriptedBackend):
        async def prompt(
            self, request: PromptRequest, turn: TurnContext
        ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
            turn.accept(request.session)
            later = events.now_us() + 3_600_000_000
            asked = [ToolApprovalRequested(approval_id=name, expires_at_us=later) for name in ("a1", "a1")]
            waits = [asyncio.create_task(turn.approval(one)) for one in asked[: len(request.prompt)]]
            await asyncio.wait(waits, timeout=0.05)
            self.waits = waits
            yield events.result("no matter")

    impatient = Impatient(without=["update_session"])
    await local_host.dock_backend("impatient", impatient)
    await local_host.start(backend="impatient")
    assert (await local_host.ask("1", request_id="r1")).response.text == "no matter"
    await asyncio.wait(impatient.waits)
    assert all(wait.cancelled() for wait in impatient.waits)
    assert decisions(await local_host.log()) == [("a1", "withdrawn")]
    # Two under one name: whatever the backend makes of the refusal, the turn fails.
    assert (await local_host.ask("22")).failure.reason == "invalid_approval"
    await asyncio.wait(impatient.waits)
    assert isinstance(impatient.waits[1].exception(), Rejected)


# --- Parked ----------------------------------------------------------------------------------------------------------


@on_postgres_too
async def test_a_parked_turn_is_one_turn_with_one_response(host: Harness) -> None:
    await host.start(
        [text("may I? "), usage(1, 1), paused(asked("a1"), asked("a2"))],
        [text("and "), paused(asked("a3"))],
        [text("done"), usage(5, 2), result()],
    )
    asking = host.asking("go", request_id="r1")
    await host.until_asked(2)
    status = await host.status()
    assert (status.phase, status.current_run_id, status.turn_count) == (AWAITING, "r1", 0)
    assert (await host.poll("r1")).status == RunStatus.RUN_STATUS_RUNNING
    await host.resolve(approve("a2"))
    assert len((await host.status()).pending_approvals) == 1
    await host.resolve(reject("a1", "no"))
    await host.until(lambda status: [each.approval_id for each in status.pending_approvals] == ["a3"])
    await host.resolve(edit("a3", {"b": 2}))
    answer = await asking
    assert answer.response.text == "may I? and done"
    assert (answer.response.usage.input_tokens, answer.response.usage.output_tokens) == (5, 2)
    assert kinds(answer.response.events) == [
        "text",
        "usage",
        "approval_request",
        "approval_request",
        "tool_result",
        "tool_result",
        "text",
        "approval_request",
        "tool_result",
        "text",
        "usage",
        "result",
    ]
    assert answer.response.coverage.observed == answer.response.coverage.retained == 12
    heard = host.backend.record.prompts
    assert [(each.prompt, each.attempt, each.decisions) for each in heard] == [
        ("go", 1, []),
        ("go", 1, ["reject", "approve"]),
        ("go", 1, ["edit"]),
    ]
    status = await host.until_idle()
    assert status.turn_count == 1
    assert types(await host.log()) == [
        "session_created",
        "session_started",
        "run_started",
        "message_sent",
        "message_streamed",
        "token_usage_updated",
        "tool_approval_requested",
        "tool_approval_requested",
        "session_paused",
        "tool_approval_granted",
        "tool_approval_denied",
        "session_resumed",
        "tool_call_failed",
        "tool_call_completed",
        "message_streamed",
        "tool_approval_requested",
        "session_paused",
        "tool_approval_granted",
        "session_resumed",
        "tool_call_completed",
        "message_streamed",
        "token_usage_updated",
        "message_received",
        "run_completed",
    ]
    assert (await host.poll("r1", with_events=True)).response.events == answer.response.events


async def test_a_parked_turn_keeps_its_backends_session(host: Harness) -> None:
    class Keeps(ScriptedBackend):
        async def prompt(
            self, request: PromptRequest, turn: TurnContext
        ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
            if not request.HasField("resume"):
                turn.accept(BackendSession(data=b"what I was about to do"))
                yield events.paused([ToolApprovalRequested(approval_id="a1", tool_call_id="t1")])
                return
            (decided,) = request.resume.decisions
            assert decided == ToolApprovalDecided(
                approval_id="a1",
                tool_call_id="t1",
                decision=ApprovalDecision.APPROVAL_DECISION_EDIT,
                arguments_json='{"x":1}',
            )
            yield events.result(request.session.data.decode())

    await host.dock_backend("keeps", Keeps(without=["update_session"]))
    await host.start(backend="keeps")
    asking = host.asking("go")
    await host.until_asked()
    await host.resolve(edit("a1", {"x": 1}))
    assert (await asking).response.text == "what I was about to do"


@on_postgres_too
async def test_a_parked_agent_leaves_memory_and_an_answer_wakes_it(host: Harness) -> None:
    limits = AgentLimits(idle_shutdown_ms=50)
    await host.start(PARKS, GOES_ON, [result("next")], limits=limits)
    run = await host.tell("go")
    await host.until(lambda status: status.phase == DORMANT)
    queued = await host.tell("next")
    await host.until(lambda status: status.phase == DORMANT and status.queued == 1)
    status = await host.status()
    assert [each.approval_id for each in status.pending_approvals] == ["a1"]
    assert status.current_run_id == run
    shutdown = [
        jsontext.parse_object(event.custom.data_json, "data_json")
        for event in await host.log()
        if event.custom.name == "turndock.agent_shutdown"
    ]
    assert shutdown[0]["interrupt_restorable"] is True
    await host.resolve(approve("a1"))
    assert (await host.ended(run)).response.text == "may I? done"
    assert (await host.ended(queued)).response.text == "next"
    assert decisions(await host.log()) == [("a1", "approve")]


@on_postgres_too
async def test_a_parked_agent_out_of_memory_can_be_interrupted(host: Harness) -> None:
    await host.start(PARKS, [result("next")], limits=AgentLimits(idle_shutdown_ms=50))
    run = await host.tell("go")
    await host.until(lambda status: status.phase == DORMANT)
    assert await host.interrupt() == InterruptOutcome.INTERRUPT_OUTCOME_ACCEPTED
    assert (await host.ended(run)).failure.reason == "interrupted"
    assert (await host.ask("b")).response.text == "next"


async def test_a_prompt_may_interrupt_a_parked_agent_out_of_memory(host: Harness) -> None:
    await host.start(PARKS, [result("next")], limits=AgentLimits(idle_shutdown_ms=50))
    run = await host.tell("go")
    await host.until(lambda status: status.phase == DORMANT)
    answer = await host.ask("b", busy_policy=BusyPolicy.BUSY_POLICY_INTERRUPT)
    assert answer.response.text == "next"
    assert (await host.ended(run)).failure.reason == "interrupted"


@on_postgres_too
async def test_a_parked_approval_expires_out_of_memory_too(host: Harness) -> None:
    parks = [paused(asked("a1", expires_in_ms=400))]
    await host.start(parks, [result("late")], limits=AgentLimits(idle_shutdown_ms=50))
    run = await host.tell("go")
    await host.until(lambda status: status.phase == DORMANT)
    assert (await host.ended(run)).response.text == "late"
    assert decisions(await host.log()) == [("a1", "expired")]


@on_postgres_too
async def test_a_notification_waits_for_a_parked_turn(host: Harness) -> None:
    await host.start(PARKS, GOES_ON)
    asking = host.asking("go")
    await host.until_asked()
    await host.notify("ping")
    assert (await host.status()).pending_notifications == 1
    assert (await host.state())["events"] == []
    await host.resolve(approve("a1"))
    await asking
    assert (await host.state())["events"] == ["ping"]


# --- Clients ---------------------------------------------------------------------------------------------------------


async def test_a_client_lists_approvals_and_decides(local_host: Harness) -> None:
    tools = Tools()
    await local_host.dock_backend("tools", tools)
    await local_host.start(backend="tools")
    asking = local_host.asking("go")
    await local_host.until_asked(2)
    async with Client(local_host.served.address) as client:
        agent = client.agent("a1")
        write, delete = await agent.approvals()
        stale = ToolApprovalRequested(approval_id=write.approval_id, arguments_sha256=b"other")
        with refused("VALIDATION_ERROR"):
            await agent.approve(stale)
        await agent.edit_approval(write, {"path": "/y"})
        await agent.reject(delete.approval_id, feedback="keep it")
        with refused("APPROVAL_RESOLVED"):
            await agent.approve(delete)
    await asking
    assert tools.ran == ['{"path":"/y"}', "read_file"]


async def test_a_client_without_an_event_loop_does_the_same(local_host: Harness) -> None:
    tools = Tools()
    await local_host.dock_backend("tools", tools)
    await local_host.start(backend="tools")
    asking = local_host.asking("go")
    await local_host.until_asked(2)

    def decide() -> int:
        with SyncClient(local_host.served.address) as client:
            agent = client.agent("a1")
            write, delete = agent.approvals()
            agent.resolve_approval(client_edit(write, {"path": "/y"}))
            agent.reject(delete, feedback="keep it")
            return len(agent.approvals())

    assert await asyncio.to_thread(decide) == 0
    await asking
    assert tools.ran == ['{"path":"/y"}', "read_file"]
