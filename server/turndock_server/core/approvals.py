"""Approvals as data: what may be asked, what may be answered, and what is written down about it. Pure.

Whoever wants a person to decide on something (a backend, a parked turn, a policy) makes a request with `checked`; the
agent's `Desk` stores it and waits. `verdict` and `denied` say the same for a policy that decides without a person.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from turndock import events, jsontext
from turndock.agent.v1 import ApprovalAnswer, ResolveApprovalRequest
from turndock.errors import TurndockError, invalid, not_found
from turndock.ports import Rejected
from turndock.types.v1 import (
    ApprovalDecision,
    Event,
    EventType,
    Failure,
    ToolApprovalDecided,
    ToolApprovalRequested,
)
from turndock_server.core.intake import Intake

MAX_PENDING: Final = 64
"""Most requests that a turn may wait for at a time."""
MAX_REQUEST_BYTES: Final = 256 << 10
"""Largest request, and largest answer: people read them, and they are kept with the session."""
INVALID_APPROVAL: Final = "invalid_approval"
"""Why a turn fails that asks for what nobody can decide on."""

APPROVE: Final = ApprovalDecision.APPROVAL_DECISION_APPROVE
EDIT: Final = ApprovalDecision.APPROVAL_DECISION_EDIT
REJECT: Final = ApprovalDecision.APPROVAL_DECISION_REJECT
EXPIRED: Final = ApprovalDecision.APPROVAL_DECISION_EXPIRED
WITHDRAWN: Final = ApprovalDecision.APPROVAL_DECISION_WITHDRAWN

ANSWERS: Final = (APPROVE, EDIT, REJECT)
"""What a person may answer, in the order in which it is shown."""


def decision_name(decision: ApprovalDecision.ValueType) -> str:
    """`approve`, `edit`, `reject`, `expired`, `withdrawn`; the number for one this release does not know."""
    if decision not in ApprovalDecision.values():
        return str(int(decision))
    return ApprovalDecision.Name(decision).removeprefix("APPROVAL_DECISION_").lower()


# --- Requests ------------------------------------------------------------------------------------------------------


def checked(asked: ToolApprovalRequested) -> ToolApprovalRequested:
    """A request as it is stored, with an id, canonical arguments and their digest; the given one is left alone.

    Raises `Rejected` (`invalid_approval`) for one that nobody can decide on.
    """
    request = ToolApprovalRequested()
    request.CopyFrom(asked)
    for name in ("approval_id", "tool_call_id", "tool_name", "message"):
        setattr(request, name, jsontext.repair_text(getattr(request, name)))
    request.approval_id = request.approval_id or events.new_id()
    size = request.ByteSize()
    if size > MAX_REQUEST_BYTES:
        raise _refused(f"the request is {size} bytes; the limit is {MAX_REQUEST_BYTES}")
    try:
        events.check_id(request.approval_id, "approval_id")
        arguments = jsontext.parse(request.arguments_json or "{}", "arguments_json")
    except TurndockError as error:
        raise _refused(error.message) from None
    request.arguments_json = jsontext.canonical(arguments)
    request.arguments_sha256 = hashlib.sha256(request.arguments_json.encode()).digest()
    if request.allowed_decisions:
        kept = [decision for decision in ANSWERS if decision in request.allowed_decisions]
        if len(kept) != len(set(request.allowed_decisions)):
            raise _refused("allowed_decisions may name approve, edit and reject")
        del request.allowed_decisions[:]
        request.allowed_decisions.extend(kept)
    return request


def checked_all(asked: Sequence[ToolApprovalRequested]) -> list[ToolApprovalRequested]:
    """The requests of a turn that pauses. Raises as `checked`, also when there is none or two have one id."""
    if not 1 <= len(asked) <= MAX_PENDING:
        raise _refused(f"a turn that pauses waits for 1 to {MAX_PENDING} approvals, not for {len(asked)}")
    requests = [checked(one) for one in asked]
    if len({request.approval_id for request in requests}) < len(requests):
        raise _refused("two requests have the same approval_id")
    return requests


def too_many() -> Rejected:
    """The end of a turn that asks for more than can be shown."""
    return _refused(f"{MAX_PENDING} approvals wait already")


def asked_twice(approval_id: str) -> Rejected:
    """The end of a turn that asks under an id that waits already."""
    return _refused(f"approval {approval_id!r} waits already")


def _refused(why: str) -> Rejected:
    return Rejected(Failure(reason=INVALID_APPROVAL, message=why[:1024]))


def allowed(request: ToolApprovalRequested) -> tuple[ApprovalDecision.ValueType, ...]:
    """The answers a request takes."""
    return tuple(request.allowed_decisions) or ANSWERS


def has_expired(request: ToolApprovalRequested, now_us: int) -> bool:
    """Whether it is too late to answer."""
    return request.HasField("expires_at_us") and request.expires_at_us <= now_us


# --- Answers -------------------------------------------------------------------------------------------------------


def check_answers(request: ResolveApprovalRequest) -> None:
    """Refuse answers that could not be right whatever they are about (VALIDATION_ERROR, naming the index)."""
    if not 1 <= len(request.answers) <= MAX_PENDING:
        raise invalid("answers", f"must be 1 to {MAX_PENDING}")
    seen: set[str] = set()
    for index, answer in enumerate(request.answers):
        at = f"answers[{index}]"
        events.check_id(answer.approval_id, f"{at}.approval_id", max_bytes=512)
        if answer.approval_id in seen:
            raise invalid(f"{at}.approval_id", "is answered twice in this call")
        seen.add(answer.approval_id)
        if answer.decision not in ANSWERS:
            raise invalid(f"{at}.decision", "must be approve, edit or reject")
        if answer.decision == EDIT and not answer.arguments_json:
            raise invalid(f"{at}.arguments_json", "edit needs the new arguments")
        if answer.decision != EDIT and answer.arguments_json:
            raise invalid(f"{at}.arguments_json", "only edit takes arguments")
        jsontext.check(answer.arguments_json, f"{at}.arguments_json")
        jsontext.check_text(answer.feedback, f"{at}.feedback")
        if answer.ByteSize() > MAX_REQUEST_BYTES:
            raise invalid(at, f"is {answer.ByteSize()} bytes; the limit is {MAX_REQUEST_BYTES}")


def decide(
    answer: ApprovalAnswer, request: ToolApprovalRequested, index: int, principal: str
) -> ToolApprovalDecided:
    """The decision an answer makes on the request it is about. Raises VALIDATION_ERROR naming the index."""
    at = f"answers[{index}]"
    if answer.decision not in allowed(request):
        may = ", ".join(decision_name(decision) for decision in allowed(request))
        name = decision_name(answer.decision)
        raise invalid(
            f"{at}.decision",
            f"{name} is not allowed for {request.tool_name or 'this request'}; allowed: {may}",
        )
    if answer.arguments_sha256 and answer.arguments_sha256 != request.arguments_sha256:
        raise invalid(f"{at}.arguments_sha256", "the request has other arguments; read them again")
    arguments_json = ""
    if answer.decision == EDIT:
        arguments = jsontext.parse(answer.arguments_json, f"{at}.arguments_json")
        if not isinstance(arguments, dict) and request.arguments_json.startswith("{"):
            raise invalid(f"{at}.arguments_json", "must be a JSON object, as the request's arguments are")
        arguments_json = jsontext.canonical(arguments)
    return ToolApprovalDecided(
        approval_id=request.approval_id,
        tool_call_id=request.tool_call_id,
        decision=answer.decision,
        arguments_json=arguments_json,
        feedback=answer.feedback,
        principal=principal,
    )


def verdict(
    request: ToolApprovalRequested, decision: ApprovalDecision.ValueType, feedback: str = ""
) -> ToolApprovalDecided:
    """A decision that nobody was asked for: it has expired or was withdrawn, or a policy has made it."""
    return ToolApprovalDecided(
        approval_id=request.approval_id,
        tool_call_id=request.tool_call_id,
        decision=decision,
        feedback=feedback,
    )


# --- What is written down --------------------------------------------------------------------------------------------


def requested_event(intake: Intake, session_id: str, request: ToolApprovalRequested) -> Event:
    """The event that says so. Its id follows from the request's, so that the store knows whether that is taken."""
    event = intake.own(
        Event(type=EventType.EVENT_TYPE_TOOL_APPROVAL_REQUESTED, tool_approval_requested=request)
    )
    event.id = f"approval-{hashlib.sha256(f'{session_id}/{request.approval_id}'.encode()).hexdigest()}"
    return event


def free_ids(approval_id: str, run_id: str) -> list[str]:
    """Names for a request, best first: the backend's own, and what it is called when that was used before."""
    return [approval_id, f"{run_id}/{approval_id}", f"{run_id}/{events.new_id()}"]


def decided_event(intake: Intake, decided: ToolApprovalDecided, event_id: str = "") -> Event:
    """The event that says so."""
    is_granted = decided.decision in (APPROVE, EDIT)
    event = intake.own(
        Event(
            type=EventType.EVENT_TYPE_TOOL_APPROVAL_GRANTED
            if is_granted
            else EventType.EVENT_TYPE_TOOL_APPROVAL_DENIED,
            tool_approval_decided=decided,
        )
    )
    event.id = event_id or event.id
    return event


def decided_event_id(session_id: str, request_id: str, index: int) -> str:
    """Id of the event of a call's answer, by which a repeated call is known; empty for a call without an id."""
    if not request_id:
        return ""
    return f"approved-{hashlib.sha256(f'{session_id}/{request_id}'.encode()).hexdigest()}-{index}"


def fingerprint(request: ResolveApprovalRequest) -> bytes:
    """What makes two calls the same."""
    bare = ResolveApprovalRequest(answers=request.answers)
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).digest()


def too_late(approval_id: str, winner: Event | None) -> TurndockError:
    """Why a request cannot be answered any more, with the answer it has; `winner` is None if there never was one."""
    if winner is None:
        return not_found("approval", approval_id)
    decided = winner.tool_approval_decided
    name = decision_name(decided.decision)
    by = f" by {decided.principal}" if decided.principal else ""
    return TurndockError(
        "APPROVAL_RESOLVED",
        f"approval {approval_id!r} has its answer already: {name}{by}",
        metadata={
            "approval_id": approval_id,
            "decision": name,
            "principal": decided.principal,
            "run_id": winner.run_id,
            "sequence": str(winner.sequence),
        },
    )
