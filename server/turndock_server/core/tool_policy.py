"""What a behavior says to a tool call before the tool runs; a person is asked only where it says so, or says nothing.

A backend that runs tools asks leave for a call with `TurnContext.approval`, and waits. Leave and refusal reach it the
same way, whoever gave them: as the one answer to what it asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from turndock.behavior.v1 import PreToolResponse, RequireApproval
from turndock.types.v1 import (
    ApprovalDecision,
    Event,
    EventType,
    Failure,
    PolicyViolation,
    Run,
    ToolApprovalDecided,
    ToolApprovalRequested,
)
from turndock_server.core.conduct import Conduct, denial

_APPROVE = ApprovalDecision.APPROVAL_DECISION_APPROVE
_EDIT = ApprovalDecision.APPROVAL_DECISION_EDIT
_REJECT = ApprovalDecision.APPROVAL_DECISION_REJECT


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a backend's request for leave."""

    call: ToolApprovalRequested
    """The request as people are to be asked."""
    decided: ToolApprovalDecided | None = None
    """The answer; None = people have to be asked."""
    violation: Event | None = None
    """Goes into the log before the answer is given."""


async def judge(conduct: Conduct, run: Run, call: ToolApprovalRequested) -> Judgement:
    """What the behavior says. Where it fails, or says nothing the host knows, people are asked."""
    answer = await conduct.pre_tool(run, call) or PreToolResponse()
    judged = Judgement(call)
    match answer.WhichOneof("answer"):
        case "proceed":
            judged = Judgement(call, _decided(call, _APPROVE))
        case "rewrite":
            judged = Judgement(call, _decided(call, _EDIT, arguments_json=answer.rewrite.arguments_json))
        case "skip":
            judged = Judgement(call, _decided(call, _REJECT, feedback=answer.skip.reason or "skipped"))
        case "deny":
            failure = denial(answer.deny.failure, "tool_denied")
            why = failure.message or f"the tool {call.tool_name!r} is not allowed"
            forbidden = violation(Failure(reason=failure.reason, message=why))
            judged = Judgement(call, _decided(call, _REJECT, feedback=why), forbidden)
        case "require_approval":
            judged = Judgement(_for_people(call, answer.require_approval))
        case _:
            pass
    return judged


def violation(failure: Failure) -> Event:
    """Says that something was attempted which a behavior forbids."""
    forbidden = PolicyViolation(policy=failure.reason, message=failure.message)
    return Event(type=EventType.EVENT_TYPE_POLICY_VIOLATION, policy_violation=forbidden)


def _for_people(call: ToolApprovalRequested, wanted: RequireApproval) -> ToolApprovalRequested:
    """What the call is, is the backend's to say; how it is decided, the behavior's."""
    asked = ToolApprovalRequested()
    asked.CopyFrom(call)
    if wanted.request.allowed_decisions:
        del asked.allowed_decisions[:]
        asked.allowed_decisions.extend(wanted.request.allowed_decisions)
    if wanted.request.HasField("expires_at_us"):
        asked.expires_at_us = wanted.request.expires_at_us
    asked.message = wanted.request.message or asked.message
    return asked


def _decided(
    call: ToolApprovalRequested,
    decision: ApprovalDecision.ValueType,
    *,
    arguments_json: str = "",
    feedback: str = "",
) -> ToolApprovalDecided:
    return ToolApprovalDecided(
        approval_id=call.approval_id,
        tool_call_id=call.tool_call_id,
        decision=decision,
        arguments_json=arguments_json,
        feedback=feedback,
    )
