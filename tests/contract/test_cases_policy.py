"""What a behavior may say before a turn and before a tool: proceed, rewrite, skip, deny, or have a person asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.harness import Harness, types
from support.parts import asked as asks_for
from support.parts import paused, result, text
from support.scripted_agent import ScriptedAgent, noted
from turndock import events, jsontext
from turndock.agent.v1 import ApprovalAnswer, AskResponse, InterruptOutcome
from turndock.behavior.v1 import (
    Deny,
    PreToolRequest,
    PreToolResponse,
    PreTurnRequest,
    PreTurnResponse,
    Proceed,
    RequireApproval,
    RewriteArguments,
    Skip,
)
from turndock.types.v1 import (
    AgentLimits,
    AgentPhase,
    ApprovalDecision,
    Event,
    Failure,
    RunStatus,
    ToolApprovalRequested,
)

APPROVE = ApprovalDecision.APPROVAL_DECISION_APPROVE
EDIT = ApprovalDecision.APPROVAL_DECISION_EDIT
REJECT = ApprovalDecision.APPROVAL_DECISION_REJECT


def asks(call_id: str = "t1", name: str = "delete", **arguments: object) -> dict[str, object]:
    """A part of a script that asks leave for a tool call and says how it ended."""
    approval = {"approval_id": f"ap-{call_id}", "tool_call_id": call_id, "tool_name": name}
    return {"approval": {**approval, "arguments": arguments}}


def judging(answer: Callable[[PreToolRequest], PreToolResponse]) -> ScriptedAgent:
    async def pre_tool(request: PreToolRequest) -> PreToolResponse:
        return answer(request)

    return ScriptedAgent(pre_tool=pre_tool)


async def turn_with(host: Harness, answer: PreToolResponse) -> list[Event]:
    """The log of a turn whose one tool call got this answer."""
    await host.dock_behavior("judge", judging(lambda _: answer))
    use = {"tool_use": {"id": "t1", "name": "delete", "arguments": {"path": "/"}}}
    await host.start([text("a"), use, asks(path="/"), result("done")], behavior="judge")
    assert (await host.ask("go", request_id="r1")).response.text == "done"
    return await host.log(run_id="r1")


async def test_a_tool_call_proceeds_and_nobody_else_is_asked(host: Harness) -> None:
    log = await turn_with(host, PreToolResponse(proceed=Proceed()))
    assert types(log)[-4:] == [
        "tool_call_started",
        "tool_call_completed",
        "message_received",
        "run_completed",
    ]
    assert jsontext.parse(log[-3].tool_call_completed.result_json, "result") == {"path": "/"}


async def test_a_tool_call_gets_other_arguments(host: Harness) -> None:
    rewrite = RewriteArguments(arguments_json='{"path":"/tmp"}')
    log = await turn_with(host, PreToolResponse(rewrite=rewrite))
    assert log[-3].tool_call_completed.result_json == '{"path":"/tmp"}'


@pytest.mark.parametrize(("reason", "told"), [("not today", "not today"), ("", "skipped")])
async def test_a_tool_call_is_left_out_and_the_model_is_told_why(
    host: Harness, reason: str, told: str
) -> None:
    log = await turn_with(host, PreToolResponse(skip=Skip(reason=reason)))
    assert types(log)[-4:] == ["tool_call_started", "tool_call_failed", "message_received", "run_completed"]
    assert log[-3].tool_call_failed.failure.message == told


@pytest.mark.parametrize(
    ("failure", "policy", "told"),
    [
        (
            Failure(reason="read_only", message="this agent may only read"),
            "read_only",
            "this agent may only read",
        ),
        (Failure(), "tool_denied", "the tool 'delete' is not allowed"),
    ],
)
async def test_a_tool_call_that_is_denied_is_a_violation_in_the_log(
    host: Harness, failure: Failure, policy: str, told: str
) -> None:
    log = await turn_with(host, PreToolResponse(deny=Deny(failure=failure)))
    assert types(log)[-5:] == [
        "tool_call_started",
        "policy_violation",
        "tool_call_failed",
        "message_received",
        "run_completed",
    ]
    assert (log[-4].policy_violation.policy, log[-4].policy_violation.message) == (policy, told)
    assert log[-3].tool_call_failed.tool_call_id == "t1"
    assert log[-3].tool_call_failed.failure.message == told


UNDECIDED = {
    "requires approval": PreToolResponse(require_approval=RequireApproval()),
    "nothing": PreToolResponse(),
    "a newer member": PreToolResponse.FromString(bytes([0x9A, 0x06, 0x02, 0x0A, 0x00])),
    "no JSON": PreToolResponse(rewrite=RewriteArguments(arguments_json="{")),
    "raises": None,
}


@pytest.mark.parametrize("given", UNDECIDED)
async def test_a_tool_call_never_runs_because_a_policy_failed(host: Harness, given: str) -> None:
    def answer(_: PreToolRequest) -> PreToolResponse:
        chosen = UNDECIDED[given]
        if chosen is None:
            raise RuntimeError("told to raise")
        return chosen

    await host.dock_behavior("judge", judging(answer))
    await host.start([asks(), result("done")], behavior="judge")
    asking = host.asking("go", request_id="r1")
    (asked,) = await host.until_asked()
    assert "tool_call_completed" not in types(await host.log(run_id="r1"))
    await host.resolve(ApprovalAnswer(approval_id=asked.approval_id, decision=APPROVE))
    assert (await asking).response.text == "done"


async def test_what_a_policy_notes_is_merged_with_what_is_noted_of_the_events(host: Harness) -> None:
    def answer(request: PreToolRequest) -> PreToolResponse:
        assert (request.run_id, request.attempt) == ("r1", 1)
        return PreToolResponse(
            state_json=noted(request, "events", request.call.tool_call_id), proceed=Proceed()
        )

    await host.dock_behavior("judge", judging(answer))
    await host.start(
        [text("a"), asks("t1"), text("b"), asks("t2"), text("c"), asks("t3"), result("done")],
        behavior="judge",
    )
    await host.ask("go", request_id="r1")
    state = await host.state()
    assert state["events"] == ["t1", "t2", "t3"]
    assert state["seen"] == ["text", "tool_result", "text", "tool_result", "text", "tool_result", "result"]


async def test_a_turn_that_is_denied_is_a_violation_in_the_log(host: Harness) -> None:
    async def pre_turn(request: PreTurnRequest) -> PreTurnResponse:
        if "rm -rf" in request.run.prompt:
            failure = Failure(reason="dangerous", message="such prompts are not taken")
            return PreTurnResponse(deny=Deny(failure=failure))
        return PreTurnResponse(proceed=Proceed())

    await host.dock_behavior("guard", ScriptedAgent(pre_turn=pre_turn))
    await host.start([result("fine")], behavior="guard")
    denied = await host.ask("rm -rf /", request_id="r1")
    assert (denied.run.status, denied.failure.reason) == (RunStatus.RUN_STATUS_FAILED, "dangerous")
    log = await host.log(run_id="r1")
    assert types(log) == ["policy_violation", "run_failed"]
    assert log[0].policy_violation.policy == "dangerous"
    assert log[0].policy_violation.message == "such prompts are not taken"
    assert (await host.ask("ls")).response.text == "fine"


async def test_what_people_are_asked_is_the_behaviors_to_say(host: Harness) -> None:
    wanted = ToolApprovalRequested(tool_name="other", message="careful", allowed_decisions=[APPROVE, REJECT])
    answer = PreToolResponse(require_approval=RequireApproval(request=wanted))
    await host.dock_behavior("judge", judging(lambda _: answer))
    await host.start([asks(path="/"), result("done")], behavior="judge")
    asking = host.asking("go", request_id="r1")
    (asked,) = await host.until_asked()
    assert (asked.tool_name, asked.message, list(asked.allowed_decisions)) == (
        "delete",
        "careful",
        [APPROVE, REJECT],
    )
    answered = ApprovalAnswer(approval_id=asked.approval_id, decision=REJECT, feedback="no")
    await host.resolve(answered)
    assert (await asking).response.text == "done"
    failed = [event for event in await host.log(run_id="r1") if event.HasField("tool_call_failed")]
    assert [event.tool_call_failed.failure.message for event in failed] == ["no"]


async def careful_turn(
    host: Harness, *, limits: AgentLimits | None = None, **wanted: Any
) -> tuple[asyncio.Task[AskResponse], ToolApprovalRequested]:
    """A turn that waits for a person before it begins, and what the person is shown."""

    async def pre_turn(request: PreTurnRequest) -> PreTurnResponse:
        asked = RequireApproval(
            request=ToolApprovalRequested(message="really?", **wanted), prompt="politely: go"
        )
        return PreTurnResponse(require_approval=asked)

    agent = ScriptedAgent(pre_turn=pre_turn)
    await host.dock_behavior("careful", agent)
    await host.start([result("done")], behavior="careful", limits=limits)
    asking = host.asking("go", request_id="r1")
    (asked,) = await host.until_asked()
    status = await host.status()
    assert status.phase == AgentPhase.AGENT_PHASE_AWAITING_APPROVAL
    assert host.backend.record.prompts == []
    assert types(await host.log(run_id="r1")) == ["run_started", "tool_approval_requested"]
    assert (asked.message, asked.arguments_json) == ("really?", '{"prompt":"politely: go"}')
    return asking, asked


async def test_a_turn_begins_when_a_person_agrees(host: Harness) -> None:
    asking, asked = await careful_turn(host)
    await host.resolve(ApprovalAnswer(approval_id=asked.approval_id, decision=APPROVE))
    assert (await asking).response.text == "done"
    assert [heard.prompt for heard in host.backend.record.prompts] == ["politely: go"]
    assert host.backend.record.prompts[0].decisions == []
    log = await host.log(run_id="r1")
    assert types(log) == [
        "run_started",
        "tool_approval_requested",
        "tool_approval_granted",
        "message_sent",
        "message_received",
        "run_completed",
    ]
    assert log[3].message_sent.text == "politely: go"


async def test_a_person_may_change_the_prompt_first(host: Harness) -> None:
    asking, asked = await careful_turn(host)
    await host.resolve(
        ApprovalAnswer(approval_id=asked.approval_id, decision=EDIT, arguments_json='{"prompt":"wait"}')
    )
    assert (await asking).response.text == "done"
    assert [heard.prompt for heard in host.backend.record.prompts] == ["wait"]


async def test_a_turn_that_a_person_rejects_never_begins(host: Harness) -> None:
    asking, asked = await careful_turn(host)
    await host.resolve(ApprovalAnswer(approval_id=asked.approval_id, decision=REJECT, feedback="not today"))
    answer = await asking
    assert (answer.failure.reason, answer.failure.message) == ("pre_turn_denied", "not today")
    assert host.backend.record.prompts == []
    assert (await host.state())["errors"] == []
    assert (await host.until_idle()).phase == AgentPhase.AGENT_PHASE_IDLE


async def test_a_turn_that_nobody_decides_on_expires(host: Harness) -> None:
    asking, _ = await careful_turn(host, expires_at_us=events.now_us() + 500_000)
    assert (await asking).failure.reason == "approval_expired"
    assert host.backend.record.prompts == []


async def test_a_turn_that_waits_for_a_person_can_be_interrupted(host: Harness) -> None:
    asking, _ = await careful_turn(host)
    await host.interrupt()
    assert (await asking).failure.reason == "interrupted"
    assert host.backend.record.prompts == []


async def test_a_turn_that_waits_for_a_person_first_outlives_its_agent_in_memory(host: Harness) -> None:
    asking, asked = await careful_turn(host, limits=AgentLimits(idle_shutdown_ms=50))
    await host.until(lambda status: status.phase == AgentPhase.AGENT_PHASE_DORMANT)
    asking.cancel()
    await host.resolve(ApprovalAnswer(approval_id=asked.approval_id, decision=APPROVE))
    assert (await host.ended("r1")).response.text == "done"
    assert [heard.prompt for heard in host.backend.record.prompts] == ["politely: go"]


async def test_a_behavior_may_name_its_request_as_often_as_it_likes(host: Harness) -> None:
    async def pre_turn(request: PreTurnRequest) -> PreTurnResponse:
        asked = RequireApproval(request=ToolApprovalRequested(approval_id="mine"))
        return PreTurnResponse(require_approval=asked)

    await host.dock_behavior("careful", ScriptedAgent(pre_turn=pre_turn))
    await host.start([result("a")], [result("b")], behavior="careful")
    for run_id, approval_id in (("r1", "mine"), ("r2", "r2/mine")):
        asking = host.asking("go", request_id=run_id)
        (asked,) = await host.until_asked()
        assert asked.approval_id == approval_id
        await host.resolve(ApprovalAnswer(approval_id=approval_id, decision=APPROVE))
        assert (await asking).HasField("response")


async def test_a_request_for_a_turn_that_nobody_can_decide_on_ends_it(host: Harness) -> None:
    async def pre_turn(request: PreTurnRequest) -> PreTurnResponse:
        asked = RequireApproval(request=ToolApprovalRequested(arguments_json="{"))
        return PreTurnResponse(require_approval=asked)

    await host.dock_behavior("careful", ScriptedAgent(pre_turn=pre_turn))
    await host.start([result("never")], behavior="careful")
    assert (await host.ask("go")).failure.reason == "invalid_approval"
    assert host.backend.record.prompts == []


async def test_the_calls_of_a_turn_that_pauses_are_judged_too(host: Harness) -> None:
    failure = Failure(reason="read_only", message="this agent may only read")
    answers = {
        "read": PreToolResponse(proceed=Proceed()),
        "write": PreToolResponse(rewrite=RewriteArguments(arguments_json='{"path":"/tmp"}')),
        "delete": PreToolResponse(deny=Deny(failure=failure)),
        "send": PreToolResponse(require_approval=RequireApproval()),
    }
    await host.dock_behavior("judge", judging(lambda request: answers[request.call.tool_name]))
    calls = [asks_for(name, name) for name in answers]
    await host.start([text("a"), paused(*calls)], [result("done")], behavior="judge")
    asking = host.asking("go", request_id="r1")
    (pending,) = await host.until_asked()
    assert pending.approval_id == "send", "the others are decided"
    await host.resolve(ApprovalAnswer(approval_id="send", decision=REJECT))
    answer = await asking
    assert answer.response.text == "done"
    assert host.backend.record.prompts[1].decisions == ["approve", "edit", "reject", "reject"]
    log = await host.log(run_id="r1")
    assert types(log)[2:] == [
        "message_streamed",
        "policy_violation",
        "tool_approval_requested",
        "tool_approval_denied",
        "tool_call_completed",
        "tool_call_completed",
        "tool_call_failed",
        "tool_call_failed",
        "message_received",
        "run_completed",
    ]
    assert list(answer.response.events)[:3] == log[2:5]
    assert log[7].tool_call_completed.result_json == '{"path":"/tmp"}'
    assert log[8].tool_call_failed.failure.message == failure.message


async def test_a_turn_that_pauses_for_what_a_policy_decides_goes_on_at_once(host: Harness) -> None:
    await host.dock_behavior("judge", judging(lambda _: PreToolResponse(proceed=Proceed())))
    await host.start([text("a"), paused(asks_for("t1"))], [text("b"), result()], behavior="judge")
    answer = await host.ask("go", request_id="r1")
    assert answer.response.text == "ab"
    assert [heard.run_id for heard in host.backend.record.prompts] == ["r1", "r1"]
    assert "tool_approval_requested" not in types(await host.log(run_id="r1"))
    assert (await host.status()).phase == AgentPhase.AGENT_PHASE_IDLE


async def test_an_interrupt_that_meets_a_turn_while_it_is_parked_ends_it(host: Harness) -> None:
    """Between the backend's word and the moment when people can answer, the policy thinks."""
    thinking, may_answer = asyncio.Event(), asyncio.Event()

    async def pre_tool(_: PreToolRequest) -> PreToolResponse:
        thinking.set()
        await may_answer.wait()
        return PreToolResponse(require_approval=RequireApproval())

    await host.dock_behavior("slow", ScriptedAgent(pre_tool=pre_tool))
    await host.start([paused(asks_for("t1"))], [result("next")], behavior="slow")
    asking = host.asking("go")
    await thinking.wait()
    assert await host.interrupt() == InterruptOutcome.INTERRUPT_OUTCOME_ACCEPTED
    may_answer.set()
    assert (await asking).failure.reason == "interrupted"
    assert (await host.ask("next")).response.text == "next"
