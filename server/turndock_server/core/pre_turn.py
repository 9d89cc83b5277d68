"""A turn that people have to agree to before its backend hears of it: parked, then begun, or not. Pure."""

from __future__ import annotations

from turndock import jsontext
from turndock.backend.v1 import Paused
from turndock.errors import TurndockError
from turndock.types.v1 import (
    ApprovalDecision,
    BackendSession,
    Event,
    Failure,
    ParkedTurn,
    Run,
    ToolApprovalDecided,
    ToolApprovalRequested,
)
from turndock_server.core import transcript
from turndock_server.core.conduct import Verdict
from turndock_server.core.lifecycle import Outcome
from turndock_server.core.tool_policy import violation


def waiting(request: ToolApprovalRequested, session: BackendSession) -> Outcome:
    """The turn, before anything has happened in it: as if its backend had left it with this request."""
    return Outcome(terminal=Paused(approvals=[request]), session=session)


def verdict(parked: ParkedTurn, run: Run) -> Verdict:
    """What the decisions make of a parked turn; one that had begun goes on whatever they are."""
    prompt = parked.prompt or run.prompt
    if not parked.not_begun:
        return Verdict(prompt)
    decision = parked.approvals[0].decision
    match decision.decision:
        case ApprovalDecision.APPROVAL_DECISION_APPROVE:
            return Verdict(prompt)
        case ApprovalDecision.APPROVAL_DECISION_EDIT:
            return _edited(decision, prompt)
        case ApprovalDecision.APPROVAL_DECISION_EXPIRED:
            return Verdict(prompt, Failure(reason="approval_expired", message="nobody decided in time"))
        case _:
            return Verdict(prompt, Failure(reason="pre_turn_denied", message=decision.feedback))


def closing(ended: Run, verdict: Verdict) -> list[Event]:
    """The events that end a run whose turn does not take place."""
    forbidden = [transcript.of_run(ended, violation(ended.failure))] if verdict.denied else []
    return [*forbidden, transcript.terminal_event(ended, 0)]


def _edited(decision: ToolApprovalDecided, prompt: str) -> Verdict:
    try:
        edited = jsontext.parse_object(decision.arguments_json, "arguments_json").get("prompt")
    except TurndockError:
        edited = None
    if isinstance(edited, str) and edited:
        return Verdict(edited)
    return Verdict(prompt, Failure(reason="pre_turn_invalid", message="the edited arguments have no prompt"))
