"""What a SessionStore refuses before it looks at anything stored: one rule book for every store of this package.

Each function returns quietly or raises `TurndockError` naming the field. None of them knows how anything is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, Protocol

from turndock import events as event_rules
from turndock import jsontext
from turndock.errors import invalid
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventsRequest,
    AppendEventWithSequenceRequest,
    CancelRunRequest,
    ClaimAgentRequest,
    EditRunRequest,
    EnqueueRunRequest,
    ExpectedSequence,
    FlushRequest,
    GetEventsRequest,
    ReleaseIfEmptyRequest,
    RenewClaimsRequest,
)
from turndock.types.v1 import Event, EventType, Fence, Page, Run, RunStatus, Scope, Session, SessionStatus

UNSCOPED: Final = ""
"""Name of the unscoped partition; no tenant can have it."""

MAX_TENANT_BYTES: Final = 256
MAX_OPAQUE_BYTES: Final = 4096
MAX_RUN_ID_BYTES: Final = 256
MAX_AGENT_NAME_BYTES: Final = 256
MAX_REQUEST_ID_BYTES: Final = 256
MAX_BATCH_EVENTS: Final = 10_000
MAX_PAGE_BYTES: Final = 1 << 20
"""A page ends before the row that would make it larger; its first row is always there."""
MAX_ROWS: Final = 1000
DEFAULT_ROWS: Final = 50
MAX_EVENTS: Final = 10_000
DEFAULT_EVENTS: Final = 1000
MAX_WAIT_MS: Final = 60_000
MAX_CLAIMS: Final = 1000


class Scoped(Protocol):
    """A request with a scope."""

    @property
    def scope(self) -> Scope: ...
    def HasField(self, field_name: Literal["scope"]) -> bool: ...  # protobuf's own spelling


def partition(request: Scoped, field: str = "scope") -> str:
    """Name of the partition a request is about: its tenant, or `UNSCOPED`."""
    if not request.HasField("scope"):
        return UNSCOPED
    event_rules.check_id(request.scope.tenant, f"{field}.tenant", max_bytes=MAX_TENANT_BYTES)
    if len(request.scope.opaque) > MAX_OPAQUE_BYTES:
        raise invalid(f"{field}.opaque", f"is longer than {MAX_OPAQUE_BYTES} bytes")
    return request.scope.tenant


def scope_of(tenant: str) -> Scope | None:
    """The scope a stored row shows for its partition; what callers passed on in `opaque` is never stored."""
    return None if tenant == UNSCOPED else Scope(tenant=tenant)


def check_session_id(session_id: str, field: str = "session_id") -> None:
    """Refuse what cannot be a session's id."""
    event_rules.check_id(session_id, field)


def check_run_id(run_id: str, field: str = "run_id") -> None:
    """Refuse what cannot be a run's id."""
    event_rules.check_id(run_id, field, max_bytes=MAX_RUN_ID_BYTES)


def check_request_id(request_id: str) -> None:
    """Refuse a retry token that cannot be kept."""
    if request_id:
        event_rules.check_id(request_id, "request_id", max_bytes=MAX_REQUEST_ID_BYTES)


def check_fence(fence: Fence | None) -> None:
    """Refuse a fence that no claim can have granted."""
    if fence is not None and not fence.epoch:
        raise invalid("fence.epoch", "must be above 0")


def check_session(session: Session, field: str = "session") -> None:
    """Refuse a session that must not be stored."""
    check_session_id(session.id, f"{field}.id")
    event_rules.check_id(session.agent_id, f"{field}.agent_id", max_bytes=MAX_AGENT_NAME_BYTES)
    if session.status == SessionStatus.SESSION_STATUS_UNSPECIFIED:
        raise invalid(f"{field}.status", "must be set")
    jsontext.check_object(session.metadata_json, f"{field}.metadata_json")
    jsontext.check_object(session.context_json, f"{field}.context_json")
    jsontext.check_text(session.parent_session_id, f"{field}.parent_session_id")
    for index, tag in enumerate(session.tags):
        jsontext.check_text(tag, f"{field}.tags[{index}]")


def check_run(run: Run, field: str = "run", *, status_is_set: bool = True) -> None:
    """Refuse a run that must not be stored. `status_is_set = False` when the store is the one that sets its status."""
    check_run_id(run.id, f"{field}.id")
    check_session_id(run.session_id, f"{field}.session_id")
    if status_is_set and run.status == RunStatus.RUN_STATUS_UNSPECIFIED:
        raise invalid(f"{field}.status", "must be set")
    jsontext.check_object(run.metadata_json, f"{field}.metadata_json")
    jsontext.check_object(run.provider_metadata_json, f"{field}.provider_metadata_json")
    jsontext.check_text(run.prompt, f"{field}.prompt")
    jsontext.check_text(run.provider, f"{field}.provider")


def check_event(event: Event, field: str) -> None:
    """Refuse an event that must not be stored."""
    event_rules.check_event(event, field)
    if event.run_id:
        check_run_id(event.run_id, f"{field}.run_id")
    jsontext.check_text(event.provider, f"{field}.provider")
    jsontext.check_text(event.correlation_id, f"{field}.correlation_id")


def check_events(events: Sequence[Event], field: str = "events") -> None:
    """Refuse a batch if one of its events must not be stored."""
    if len(events) > MAX_BATCH_EVENTS:
        raise invalid(
            field,
            f"holds {len(events)} events; the limit for a batch is {MAX_BATCH_EVENTS}",
            reason="LIMIT_EXCEEDED",
        )
    for index, event in enumerate(events):
        check_event(event, f"{field}[{index}]")


def check_append_one(request: AppendEventRequest | AppendEventWithSequenceRequest) -> None:
    """Refuse an event that must not be appended."""
    check_event(request.event, "event")


def check_append(request: AppendEventsRequest) -> None:
    """Refuse a batch that must not be appended."""
    check_events(request.events)
    if request.HasField("fence") or has_condition(request.expected):
        _check_one_session(request.events, "events", "when `expected` or `fence` is set")


def has_condition(expected: ExpectedSequence) -> bool:
    """Whether a log must be in a certain state: `any` is as good as nothing."""
    return expected.WhichOneof("condition") in {"last_sequence", "no_events"}


def check_flush(request: FlushRequest) -> None:
    """Refuse a flush of which a part is missing, wrong, or of another session."""
    for name, is_set in (
        ("session", request.HasField("session")),
        ("run", request.HasField("run")),
        ("events", request.HasField("events")),
    ):
        if not is_set:
            raise invalid(name, "must be set")
    check_session(request.session)
    check_run(request.run)
    check_events(request.events.events, "events.events")
    jsontext.check_object(request.provider_metadata_json, "provider_metadata_json")
    _check_same_session(request.run.session_id, request.session.id, "run.session_id")
    for index, event in enumerate(request.events.events):
        _check_same_session(event.session_id, request.session.id, f"events.events[{index}].session_id")
    if request.HasField("chained_run"):
        check_run(request.chained_run, "chained_run", status_is_set=False)
        _check_same_session(request.chained_run.session_id, request.session.id, "chained_run.session_id")
        if request.chained_run.id == request.run.id:
            raise invalid("chained_run.id", "is the id of the run itself")


def check_get_events(request: GetEventsRequest) -> tuple[int, int]:
    """Refuse a read that asks for what no log has. Returns the limit and the wait in milliseconds."""
    check_session_id(request.session_id)
    limit = request.limit if request.HasField("limit") else DEFAULT_EVENTS
    if not 1 <= limit <= MAX_EVENTS:
        raise invalid("limit", f"must be from 1 to {MAX_EVENTS}, not {limit}")
    if not 0 <= request.wait_ms <= MAX_WAIT_MS:
        raise invalid("wait_ms", f"must be from 0 to {MAX_WAIT_MS}, not {request.wait_ms}")
    for index, event_type in enumerate(request.types):
        if event_type == EventType.EVENT_TYPE_UNSPECIFIED:
            raise invalid(f"types[{index}]", "must be set", reason="INVALID_EVENT_TYPE")
    return limit, request.wait_ms


def page_limit(page: Page) -> int:
    """Most rows of a page; refuses what is out of bounds."""
    limit = page.limit if page.HasField("limit") else DEFAULT_ROWS
    if not 1 <= limit <= MAX_ROWS:
        raise invalid("page.limit", f"must be from 1 to {MAX_ROWS}, not {limit}")
    return limit


def check_enqueue(request: EnqueueRunRequest) -> None:
    """Refuse a run that no mailbox takes."""
    if not request.HasField("run"):
        raise invalid("run", "must be set")
    check_run(request.run, status_is_set=False)
    check_fence(request.fence if request.HasField("fence") else None)
    if request.limits.max_count < 0:
        raise invalid("limits.max_count", "must not be negative")
    if request.limits.max_bytes < 0:
        raise invalid("limits.max_bytes", "must not be negative")


def check_claim(request: ClaimAgentRequest) -> None:
    """Refuse a claim without an owner or without a lease."""
    check_session_id(request.session_id)
    event_rules.check_id(request.owner, "owner", max_bytes=MAX_REQUEST_ID_BYTES)
    jsontext.check_text(request.ticket_id, "ticket_id")
    _check_lease(request.lease_ms)


def check_renew(request: RenewClaimsRequest) -> list[tuple[str, str]]:
    """Refuse a renewal that names no owner, no lease or too many claims. Returns each claim's partition and session."""
    event_rules.check_id(request.owner, "owner", max_bytes=MAX_REQUEST_ID_BYTES)
    _check_lease(request.lease_ms)
    if len(request.claims) > MAX_CLAIMS:
        raise invalid("claims", f"holds {len(request.claims)} claims; the limit is {MAX_CLAIMS}")
    keys: list[tuple[str, str]] = []
    for index, claim in enumerate(request.claims):
        check_session_id(claim.session_id, f"claims[{index}].session_id")
        keys.append((partition(claim, f"claims[{index}].scope"), claim.session_id))
    return keys


def check_release(request: ReleaseIfEmptyRequest) -> None:
    """Refuse a release that does not say which claim is given up."""
    check_session_id(request.session_id)
    if not request.HasField("fence"):
        raise invalid("fence", "must be set: it names the claim")
    check_fence(request.fence)


def check_edit(request: EditRunRequest) -> None:
    """Refuse an edit that contradicts itself."""
    check_session_id(request.session_id)
    check_run_id(request.run_id)
    jsontext.check_text(request.prompt, "prompt")
    if request.before_run_id:
        check_run_id(request.before_run_id, "before_run_id")
        if request.to_tail:
            raise invalid("to_tail", "contradicts `before_run_id`")
        if request.before_run_id == request.run_id:
            raise invalid("before_run_id", "is the run itself")


def check_cancel(request: CancelRunRequest) -> None:
    """Refuse a cancellation without a reason, or whose terminal event is not that run's."""
    check_session_id(request.session_id)
    check_run_id(request.run_id)
    if not request.failure.reason:
        raise invalid("failure.reason", "must not be empty")
    if not request.HasField("event"):
        raise invalid("event", "must be set")
    check_event(request.event, "event")
    _check_same_session(request.event.session_id, request.session_id, "event.session_id")
    if request.event.run_id != request.run_id:
        raise invalid("event.run_id", f"must be {request.run_id!r}, the run that ends")


def _check_lease(lease_ms: int) -> None:
    if lease_ms <= 0:
        raise invalid("lease_ms", "must be above 0")


def _check_same_session(session_id: str, expected: str, field: str) -> None:
    if session_id != expected:
        raise invalid(field, f"must be {expected!r}: all parts belong to one session")


def _check_one_session(events: Iterable[Event], field: str, when: str) -> None:
    first: str | None = None
    for index, event in enumerate(events):
        if first is None:
            first = event.session_id
        elif event.session_id != first:
            raise invalid(f"{field}[{index}].session_id", f"must be {first!r}: one session {when}")
