"""Reading logs from the SQL store: pages by bytes, frames, waits, and the statements behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Select
from sqlalchemy import event as sqlalchemy_event

from support.sql_programs import event
from turndock.ports import EventWatcher, Mailbox, SessionStore
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventsRequest,
    ClaimAgentRequest,
    DeleteSessionRequest,
    GetEventsRequest,
    GetEventsResponse,
    ListSessionsRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import Event, Page, Scope, Session, SessionStatus
from turndock_server.stores.checks import MAX_PAGE_BYTES
from turndock_server.stores.sql import SqlSessionStore, logs, mailbox, rows, runs, sessions

SESSION = "ses_1"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqlSessionStore]:
    opened = await SqlSessionStore.open(tmp_path / "store.db")
    yield opened
    await opened.close()


@pytest.fixture
def statements(store: SqlSessionStore) -> list[str]:
    """Every statement that is read with from now on."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    sqlalchemy_event.listen(store._database._lane.reading, "before_cursor_execute", note)
    return seen


async def append(store: SqlSessionStore, *events: Event, **fields: Any) -> None:
    await store.append_events(AppendEventsRequest(events=events, **fields))


async def read(store: SqlSessionStore, **fields: Any) -> GetEventsResponse:
    return await store.get_events(GetEventsRequest(session_id=SESSION, **fields))


def numbers(page: GetEventsResponse) -> list[int]:
    return [each.sequence for each in page.events]


def test_the_store_is_what_it_says(store: SqlSessionStore) -> None:
    as_store: SessionStore = store
    as_mailbox: Mailbox = store
    as_watcher: EventWatcher = store
    assert isinstance(as_mailbox, Mailbox)
    assert isinstance(as_watcher, EventWatcher)
    assert as_store is store


@pytest.mark.parametrize("is_descending", [False, True])
async def test_PF_B29_pages_are_cut_by_bytes_in_both_directions(
    store: SqlSessionStore, is_descending: bool
) -> None:
    sizes = [100, 900_000, 100, 100, 700_000, 200_000, 1_000_000, 1_000_000, 100]
    for size in sizes:
        await append(store, event(SESSION, size=size))
    seen: list[list[int]] = []
    bound: dict[str, int] = {}
    while sum(map(len, seen)) < len(sizes):
        page = await read(store, descending=is_descending, **bound)
        seen.append(numbers(page))
        assert sum(each.ByteSize() for each in page.events) <= MAX_PAGE_BYTES or len(page.events) == 1
        bound = {"before_sequence" if is_descending else "after_sequence": page.scanned_through}
    assert seen == (
        [[9, 8], [7], [6, 5, 4, 3], [2, 1]] if is_descending else [[1, 2, 3, 4], [5, 6], [7], [8, 9]]
    )


async def test_large_events_are_weighed_before_they_are_fetched(
    store: SqlSessionStore, statements: list[str]
) -> None:
    await append(store, *(event(SESSION) for _ in range(10)))
    await read(store)
    assert not [each for each in statements if "length(" in each]
    for _ in range(12):
        await append(store, event(SESSION, size=1_000_000))
    assert numbers(await read(store, after_sequence=10)) == [11]
    assert [each for each in statements if "length(" in each]


@pytest.mark.parametrize("size", [10, 400_000])
async def test_filters_and_limits_hold_whichever_way_a_page_is_read(
    store: SqlSessionStore, size: int
) -> None:
    for number in range(1, 31):
        await append(store, event(SESSION, f"run_{number % 3}", size=size if number % 10 == 0 else 10))
    page = await read(store, run_id="run_1", after_sequence=1, before_sequence=29, limit=3)
    assert (numbers(page), page.scanned_through) == ([4, 7, 10], 10)
    page = await read(store, run_id="run_1", before_sequence=29, limit=2, descending=True)
    assert (numbers(page), page.scanned_through) == ([28, 25], 25)
    page = await read(store, run_id="nobody's", after_sequence=3)
    assert (numbers(page), page.scanned_through, page.head) == ([], 30, 30)
    assert {each.run_id for each in (await read(store, run_id="run_2")).events} == {"run_2"}


async def test_frames_are_the_events_bytes(store: SqlSessionStore) -> None:
    scope = Scope(tenant="red")
    await append(store, *(event(SESSION, f"run_{n % 4}" if n % 4 else "") for n in range(20)), scope=scope)
    page = await read(store, scope=scope)
    frames = await store.read_frames("red", SESSION, after=0)
    assert [Event.FromString(body) for *_, body in frames.frames] == list(page.events)
    assert [frame[:3] for frame in frames.frames] == [(e.sequence, e.type, e.run_id) for e in page.events]
    assert (frames.head, frames.oldest, frames.scanned_through) == (20, 1, 20)
    assert (frames.incarnation, frames.pruned_through) == (page.incarnation, 0)
    tail = await store.read_frames("red", SESSION, after=18, limit=1)
    assert ([frame[0] for frame in tail.frames], tail.scanned_through) == ([19], 19)
    nothing = await store.read_frames("red", SESSION, after=18, limit=0)
    assert (nothing.frames, nothing.scanned_through, nothing.head) == ([], 18, 20)
    assert not (await store.read_frames("blue", SESSION, after=0)).incarnation


async def test_a_wait_with_filters_reads_on_and_not_again(
    store: SqlSessionStore, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[int] = []
    original = logs._arguments

    def note(key: int, first: int, last: int, query: logs.LogQuery) -> dict[str, Any]:
        ranges.append(first)
        return original(key, first, last, query)

    monkeypatch.setattr(logs, "_arguments", note)
    await append(store, *(event(SESSION, "other") for _ in range(50)))
    waiting = asyncio.create_task(read(store, run_id="mine", wait_ms=60_000))
    while not ranges:
        await append(store, event("another log"))
    for _ in range(5):
        await append(store, event(SESSION, "other"))
    await append(store, event(SESSION, "mine"))
    assert numbers(await waiting) == [56]
    assert ranges[0] == 1
    assert all(first > 50 for first in ranges[1:])


async def test_a_wait_over_a_deletion_sees_the_new_log_from_its_beginning(store: SqlSessionStore) -> None:
    await append(store, *(event(SESSION, "other") for _ in range(5)))
    waiting = asyncio.create_task(read(store, run_id="mine", wait_ms=60_000))
    await append(store, event(SESSION, "other"))
    await store.delete_session(DeleteSessionRequest(session_id=SESSION))
    await append(store, event(SESSION, "mine"))
    assert numbers(await waiting) == [1]


def lookout_of(store: SqlSessionStore) -> asyncio.Task[None] | None:
    return store._bell._lookout


async def test_nobody_looks_out_for_other_processes_unless_somebody_waits(
    store: SqlSessionStore, statements: list[str]
) -> None:
    await append(store, event(SESSION))
    assert lookout_of(store) is None
    waiting = asyncio.create_task(read(store, after_sequence=1, wait_ms=60_000))
    await append(store, event("other"))
    while (lookout := lookout_of(store)) is None:
        await append(store, event("other"))
    await append(store, event(SESSION))
    assert numbers(await waiting) == [2]
    await lookout
    assert [each for each in statements if each == "PRAGMA data_version"]
    assert not store._bell._listeners


async def test_lists_are_cut_by_bytes_and_lose_nothing(store: SqlSessionStore) -> None:
    for number in range(8):
        context = '{"x": "' + "y" * (600_000 if number % 2 else 10) + '"}'
        await store.save_session(
            SaveSessionRequest(
                session=Session(
                    id=f"ses_{number}",
                    agent_id="agent-1",
                    status=SessionStatus.SESSION_STATUS_ACTIVE,
                    context_json=context,
                )
            )
        )
    seen: list[list[str]] = []
    cursor = ""
    while not seen or cursor:
        page = await store.list_sessions(ListSessionsRequest(page=Page(limit=5, cursor=cursor)))
        seen.append([each.id for each in page.sessions])
        cursor = page.next_cursor
    assert seen == [["ses_7", "ses_6"], ["ses_5", "ses_4"], ["ses_3", "ses_2"], ["ses_1", "ses_0"]]


@pytest.mark.parametrize(
    ("statement", "plan"),
    [
        (lambda: rows._ROW, "SEARCH sessions USING INDEX sqlite_autoindex_sessions_1 (scope=? AND id=?)"),
        (lambda: logs._HEAD, "SEARCH events USING COVERING INDEX sqlite_autoindex_events_1 (session=?)"),
        (
            lambda: logs._events(logs.LogQuery().shape),
            "SEARCH events USING INDEX sqlite_autoindex_events_1 (session=? AND sequence>? AND sequence<?)",
        ),
        (
            lambda: logs._events(logs.LogQuery(run_id="run").shape),
            "SEARCH events USING INDEX events_of_run (session=? AND run=? AND sequence>? AND sequence<?)",
        ),
        (lambda: runs._IN_MAILBOX, "SEARCH runs USING INDEX runs_unsettled (unsettled=? AND session=?)"),
        (lambda: runs._GET_ACTIVE, "SEARCH runs USING INDEX runs_unsettled (unsettled=? AND session=?)"),
        (lambda: runs._FIRST_PLACE, "SEARCH runs USING INDEX runs_unsettled (unsettled=? AND session=?)"),
        (lambda: runs._LAST_PLACE, "SEARCH runs USING COVERING INDEX runs_in_mailbox_order (session=?)"),
        (lambda: mailbox._COUNTS, "SEARCH runs USING INDEX runs_unsettled (unsettled=? AND session=?)"),
        (
            lambda: sessions._NAMESAKE,
            "SEARCH sessions USING INDEX sqlite_autoindex_sessions_2 (scope=? AND live_agent=?)",
        ),
    ],
)
async def test_nothing_that_is_done_often_walks_through_a_table(
    store: SqlSessionStore, statement: Callable[[], Select[Any]], plan: str
) -> None:
    def explain(connection: Connection) -> list[str]:
        compiled = statement().compile(connection)
        sql = f"EXPLAIN QUERY PLAN {compiled}"
        return [row[3] for row in connection.exec_driver_sql(sql, (1,) * len(compiled.positiontup or ()))]

    steps = await store._database.read(explain)
    assert plan in steps
    assert not [step for step in steps if step.startswith("SCAN")]


async def test_claims_and_appends_of_one_owner_interleave(store: SqlSessionStore) -> None:
    status = SessionStatus.SESSION_STATUS_ACTIVE
    await store.save_session(
        SaveSessionRequest(session=Session(id=SESSION, agent_id="agent-1", status=status))
    )
    claim = ClaimAgentRequest(session_id=SESSION, owner="host-a", ticket_id="t", lease_ms=30_000)
    first, second = await asyncio.gather(store.claim_agent(claim), store.claim_agent(claim))
    assert (first.epoch, second.epoch) == (1, 2)
    refused = await asyncio.gather(
        store.append_event(AppendEventRequest(event=event(SESSION))), return_exceptions=True
    )
    assert "FENCED" in str(refused[0])
