"""Rules every SessionStore of this package decides by, apart from how it stores anything."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from turndock.errors import TurndockError
from turndock.store.v1 import MailboxLimits
from turndock.types.v1 import Event, Run, RunStatus, Session, SessionStatus

QUEUE_STEP: Final = 1 << 20
"""Distance of queue keys at a mailbox's tail: room for what goes before all others and still after what has run."""

NOTIFIED: Final = "turndock.notified"
"""Name of the custom event that holds a notification."""

_RUN_STATUS_NAMES: Final[dict[int, str]] = {
    number: name.removeprefix("RUN_STATUS_").lower() for name, number in RunStatus.items()
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """A mailbox as another run finds it."""

    count: int
    """PENDING runs."""
    prompt_bytes: int
    """Bytes of their prompts."""
    dispatches: bool
    """Whether its next run starts at once: no run is RUNNING and the agent is not halted."""


NEVER: Final = (1 << 63) - 1
"""Later than any time, in microseconds since the Unix epoch."""


def rests_until(session: Session | None) -> int | None:
    """Until when a session has no work whatever its rows say, as it waits for approvals; None = it has what it has."""
    if session is None or session.status != SessionStatus.SESSION_STATUS_PAUSED:
        return None
    parked = session.agent.parked
    return min(parked.wake_at_us, NEVER) if parked.HasField("wake_at_us") else NEVER


def prompt_bytes(run: Run) -> int:
    """What a run counts for against a mailbox's bytes."""
    return len(run.prompt.encode())


def admit(run: Run, waiting: Waiting, limits: MailboxLimits, *, front: bool) -> None:
    """Refuse a run that a mailbox has no room for, with the figures (MAX_RUNS_EXCEEDED).

    The next run of a mailbox that dispatches does not count, so that a limit of 0 still lets one run.
    """
    incoming = prompt_bytes(run)
    count = waiting.count + 1 - (1 if waiting.dispatches else 0)
    is_next = waiting.dispatches and (front or waiting.count == 0)
    if count > limits.max_count:
        limit = "count"
    elif waiting.prompt_bytes + incoming > limits.max_bytes and not is_next:
        limit = "bytes"
    else:
        return
    raise TurndockError(
        "MAX_RUNS_EXCEEDED",
        f"the mailbox is full: {waiting.count} runs with {waiting.prompt_bytes} bytes wait, and {incoming} bytes came;"
        f" at most {limits.max_count} runs and {limits.max_bytes} bytes may wait",
        metadata={
            "queue": "prompts",
            "limit": limit,
            "pending_count": str(waiting.count),
            "pending_bytes": str(waiting.prompt_bytes),
            "incoming_bytes": str(incoming),
            "max_count": str(limits.max_count),
            "max_bytes": str(limits.max_bytes),
        },
    )


def bounds_scope(limits: MailboxLimits) -> bool:
    """Whether all mailboxes of the scope have to be counted together."""
    return limits.HasField("max_scope_count") or limits.HasField("max_scope_bytes")


def admit_to_scope(
    run: Run, own: Waiting, count: int, waiting_bytes: int, limits: MailboxLimits, *, front: bool
) -> None:
    """Refuse a run that its scope has no room for, with the figures (MAX_RUNS_EXCEEDED).

    `own` is the run's mailbox; `count` runs with `waiting_bytes` of prompts wait in all of the scope's. What starts at
    once does not wait, so it is let in.
    """
    if own.dispatches and (front or own.count == 0):
        return
    if limits.HasField("max_scope_count") and count + 1 > limits.max_scope_count:
        limit, most, current = "scope_count", limits.max_scope_count, count
    elif limits.HasField("max_scope_bytes") and waiting_bytes + prompt_bytes(run) > limits.max_scope_bytes:
        limit, most, current = "scope_bytes", limits.max_scope_bytes, waiting_bytes
    else:
        return
    raise TurndockError(
        "MAX_RUNS_EXCEEDED",
        f"the scope's mailboxes are full: {count} runs with {waiting_bytes} bytes wait in all of them",
        metadata={
            "queue": "prompts",
            "limit": limit,
            "max": str(most),
            "current": str(current),
            "incoming_bytes": str(prompt_bytes(run)),
        },
    )


def as_written(event: Event) -> bytes:
    """An event's bytes without what the store sets: equal for equal writes."""
    written = Event()
    written.CopyFrom(event)
    for name in ("sequence", "incarnation", "stored_at_us"):
        written.ClearField(name)
    return written.SerializeToString(deterministic=True)


def fingerprint(request: Message) -> bytes:
    """Tells a repeated request from another one with the same retry token; the scope is compared by its key alone."""
    call = request.DESCRIPTOR.full_name
    compared = type(request)()
    compared.CopyFrom(request)
    compared.ClearField("scope")
    return hashlib.sha256(call.encode() + b"\0" + compared.SerializeToString(deterministic=True)).digest()


def token_conflict(request_id: str) -> TurndockError:
    """The error for a retry token that was used for another request."""
    return TurndockError(
        "IDEMPOTENCY_CONFLICT",
        f"request_id {request_id!r} was used for another request",
        metadata={"request_id": request_id},
    )


def event_conflict(event: Event, field: str) -> TurndockError:
    """The error for a known event id with another payload, where duplicates must be true ones."""
    return TurndockError(
        "IDEMPOTENCY_CONFLICT",
        f"{field}: event {event.id!r} is stored with another payload",
        metadata={"event_id": event.id, "field": field},
    )


def fenced(session_id: str, epoch: int | None, highest: int) -> TurndockError:
    """The error for a write that is not its session's owner's."""
    written = "without a fence" if epoch is None else f"with epoch {epoch}"
    return TurndockError(
        "FENCED",
        f"the write {written} came too late: session {session_id!r} has an owner with epoch {highest}",
        metadata={"session_id": session_id, "epoch": str(epoch or 0), "highest_epoch": str(highest)},
    )


def run_status_name(status: int) -> str:
    """A status's name in snake_case, or its number for one this release does not know."""
    return _RUN_STATUS_NAMES.get(status, str(status))


def wrong_status(run: Run, needed: str) -> TurndockError:
    """The error for a run that is not where a call needs it."""
    status = run_status_name(run.status)
    return TurndockError(
        "INVALID_STATUS",
        f"run {run.id!r} is {status}, not {needed}",
        metadata={"key": run.id, "status": status},
    )
