"""Calls that a retry must not carry out twice: each leaves an event whose id follows from its `request_id`.

Such an event is the call's memory. It lives as long as the session, whoever owns the agent, and a second one of the
same id is not stored: the store answers with the first.
"""

from __future__ import annotations

from turndock import jsontext
from turndock.agent.v1 import InterruptOutcome, InterruptRequest, InterruptResponse
from turndock.errors import TurndockError
from turndock.types.v1 import Event
from turndock_server.core import transcript


def interrupted(session_id: str, request: InterruptRequest, answer: InterruptResponse) -> Event:
    """What an interrupt was asked for, and what it found."""
    data = {
        "asked_run_id": request.run_id,
        "outcome": InterruptOutcome.Name(answer.outcome),
        "run_id": answer.run_id,
    }
    return transcript.requested(
        transcript.INTERRUPTED, session_id, request.request_id, jsontext.canonical(data)
    )


def answer_of(stored: Event, request: InterruptRequest) -> InterruptResponse:
    """What the first try of the request was answered. Raises IDEMPOTENCY_CONFLICT if it was another request."""
    same_kind(stored, transcript.INTERRUPTED, request.request_id)
    data = jsontext.parse_object(stored.custom.data_json, "data_json")
    if data["asked_run_id"] != request.run_id:
        raise conflict(request.request_id)
    return InterruptResponse(outcome=InterruptOutcome.Value(data["outcome"]), run_id=data["run_id"])


def unhalted(session_id: str, request_id: str) -> Event:
    """That the mailbox was to be thawed."""
    return transcript.requested(transcript.UNHALTED, session_id, request_id, "{}")


def same_kind(stored: Event, name: str, request_id: str) -> None:
    """Raise IDEMPOTENCY_CONFLICT if the event that has this request's id is another call's."""
    if stored.custom.name != name:
        raise conflict(request_id)


def conflict(request_id: str) -> TurndockError:
    """The id is taken."""
    return TurndockError(
        "IDEMPOTENCY_CONFLICT",
        f"request_id {request_id!r} was used for another request",
        metadata={"request_id": request_id},
    )
