"""What the stores refuse before they look, and the cursors of their lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turndock import events
from turndock.errors import TurndockError
from turndock.store.v1 import (
    AppendEventsRequest,
    ClaimAgentRequest,
    EnqueueRunRequest,
    GetEventsRequest,
    GetSessionRequest,
    ListRunsRequest,
    ListSessionsRequest,
    MailboxLimits,
    ReleaseIfEmptyRequest,
    RenewClaimsRequest,
)
from turndock.types.v1 import Event, EventType, Page, Run, Scope
from turndock_server.stores import checks, rules
from turndock_server.stores.cursors import PageCodec

INT64 = st.integers(-(2**63), 2**63 - 1)


def event(session_id: str = "ses_1") -> Event:
    return Event(
        id=events.new_id(), session_id=session_id, time_us=1, type=EventType.EVENT_TYPE_MESSAGE_RECEIVED
    )


def run() -> Run:
    return Run(id="run_1", session_id="ses_1")


@pytest.mark.parametrize(
    ("check", "reason", "field"),
    [
        (lambda: checks.check_events([event()] * 10_001), "LIMIT_EXCEEDED", "events"),
        (
            lambda: checks.partition(GetSessionRequest(scope=Scope(tenant="a", opaque=b"x" * 4097))),
            "VALIDATION_ERROR",
            "scope.opaque",
        ),
        (lambda: checks.check_request_id("x" * 257), "VALIDATION_ERROR", "request_id"),
        (lambda: checks.page_limit(Page(limit=0)), "VALIDATION_ERROR", "page.limit"),
        (
            lambda: checks.check_get_events(GetEventsRequest(session_id="s", types=[0])),  # type: ignore[list-item] # the enum's zero
            "INVALID_EVENT_TYPE",
            "types[0]",
        ),
        (
            lambda: checks.check_enqueue(EnqueueRunRequest(run=run(), limits=MailboxLimits(max_count=-1))),
            "VALIDATION_ERROR",
            "limits.max_count",
        ),
        (
            lambda: checks.check_enqueue(EnqueueRunRequest(run=run(), limits=MailboxLimits(max_bytes=-1))),
            "VALIDATION_ERROR",
            "limits.max_bytes",
        ),
        (lambda: checks.check_enqueue(EnqueueRunRequest()), "VALIDATION_ERROR", "run"),
        (
            lambda: checks.check_claim(
                ClaimAgentRequest(session_id="s", owner="a", ticket_id="\0", lease_ms=1)
            ),
            "VALIDATION_ERROR",
            "ticket_id",
        ),
        (
            lambda: checks.check_renew(RenewClaimsRequest(owner="a", lease_ms=1, claims=[{}] * 1001)),  # type: ignore[list-item] # protobuf takes mappings
            "VALIDATION_ERROR",
            "claims",
        ),
        (
            lambda: checks.check_release(ReleaseIfEmptyRequest(session_id="s")),
            "VALIDATION_ERROR",
            "fence",
        ),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_field(
    check: Callable[[], object], reason: str, field: str
) -> None:
    with pytest.raises(TurndockError) as refusal:
        check()
    assert refusal.value.reason == reason
    assert [violation.field for violation in refusal.value.violations] == [field]


def test_the_largest_allowed_is_allowed() -> None:
    checks.check_append(AppendEventsRequest(events=[event()] * 10_000))
    assert checks.partition(GetSessionRequest(scope=Scope(tenant="x" * 256, opaque=b"x" * 4096))) == "x" * 256
    assert checks.partition(GetSessionRequest()) == checks.UNSCOPED
    assert checks.page_limit(Page()) == 50
    assert checks.check_get_events(GetEventsRequest(session_id="s", limit=10_000, wait_ms=60_000)) == (
        10_000,
        60_000,
    )


@given(INT64, st.text(st.characters(codec="utf-8")), INT64)
def test_a_cursor_comes_back_as_the_place_it_was_made_for(first: int, name: str, last: int) -> None:
    codec = PageCodec("ListSessions", "red", ListSessionsRequest(agent_id="a"))
    assert codec.decode(codec.encode((first, name, last))) == (first, name, last)


@given(st.text())
def test_any_other_text_is_an_invalid_cursor(text: str) -> None:
    codec = PageCodec("ListSessions", "red", ListSessionsRequest())
    if not text:
        assert codec.decode(text) is None
        return
    with pytest.raises(TurndockError) as refusal:
        codec.decode(text)
    assert refusal.value.reason == "INVALID_CURSOR"


def test_a_cursor_is_bound_to_call_partition_and_filters() -> None:
    request = ListSessionsRequest(scope=Scope(tenant="red", opaque=b"1"), agent_id="a", page=Page(limit=3))
    cursor = PageCodec("ListSessions", "red", request).encode((1, "x"))
    same = ListSessionsRequest(
        scope=Scope(tenant="red", opaque=b"2"), agent_id="a", page=Page(limit=9, cursor="y")
    )
    assert PageCodec("ListSessions", "red", same).decode(cursor) == (1, "x")
    for codec in (
        PageCodec("ListSessions", "blue", request),
        PageCodec("SearchSessions", "red", request),
        PageCodec("ListSessions", "red", ListSessionsRequest(agent_id="b")),
        PageCodec("ListRuns", "red", ListRunsRequest(session_id="a")),
    ):
        with pytest.raises(TurndockError, match="INVALID_CURSOR"):
            codec.decode(cursor)


@given(st.integers(0, 5), st.integers(0, 5), st.booleans(), st.booleans())
def test_a_mailbox_counts_every_waiting_run_but_the_next(
    pending: int, max_count: int, dispatches: bool, front: bool
) -> None:
    waiting = rules.Waiting(count=pending, prompt_bytes=0, dispatches=dispatches)
    limits = MailboxLimits(max_count=max_count, max_bytes=0)
    refused = pending + 1 - dispatches > max_count
    if refused:
        with pytest.raises(TurndockError, match="MAX_RUNS_EXCEEDED") as refusal:
            rules.admit(Run(), waiting, limits, front=front)
        assert refusal.value.metadata["limit"] == "count"
    else:
        rules.admit(Run(), waiting, limits, front=front)


def test_a_run_that_goes_first_counts_no_bytes() -> None:
    long, limits = Run(prompt="x" * 10), MailboxLimits(max_count=9, max_bytes=5)
    idle = rules.Waiting(count=1, prompt_bytes=1, dispatches=True)
    rules.admit(long, idle, limits, front=True)
    with pytest.raises(TurndockError, match="10 bytes came"):
        rules.admit(long, idle, limits, front=False)
    busy = rules.Waiting(count=0, prompt_bytes=0, dispatches=False)
    with pytest.raises(TurndockError, match="MAX_RUNS_EXCEEDED"):
        rules.admit(long, busy, limits, front=True)
