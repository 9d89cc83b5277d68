"""The one writer: groups, refusals within groups, failures nobody could foresee, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy import event as sqlalchemy_event

from support import postgres
from support.sql_programs import event
from turndock.errors import TurndockError
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventsRequest,
    AppendEventWithSequenceRequest,
    ClaimAgentRequest,
    DeleteSessionRequest,
    ExpectedSequence,
    FlushRequest,
    GetEventsRequest,
    GetSessionRequest,
    SaveRunRequest,
    SaveSessionRequest,
    WatchEventsRequest,
)
from turndock.types.v1 import EventBatch, Fence, Run, RunStatus, Scope, Session, SessionStatus
from turndock_server.stores.sql import SqlSessionStore
from turndock_server.stores.sql.transaction import Transaction

SESSION = "ses_1"


@pytest.fixture(params=["sqlite", "sqlite+aiosqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return postgres.server().new_database()
    return f"{request.param}:///{tmp_path / 'store.db'}"


@pytest.fixture
async def store(url: str) -> AsyncGenerator[SqlSessionStore]:
    opened = await SqlSessionStore.open(url)
    yield opened
    await opened.close()


@pytest.fixture
def commits(store: SqlSessionStore) -> list[int]:
    """One element for each commit from now on."""
    seen: list[int] = []

    def note(_: Connection) -> None:
        seen.append(1)

    sqlalchemy_event.listen(store._database._lane.writing, "commit", note)
    return seen


async def numbers_of(store: SqlSessionStore, session_id: str = SESSION) -> list[int]:
    page = await store.get_events(GetEventsRequest(session_id=session_id, limit=10_000))
    return [each.sequence for each in page.events]


async def append(store: SqlSessionStore, *sessions: str, **fields: Any) -> list[int]:
    batch = [event(session_id) for session_id in sessions or (SESSION,)]
    response = await store.append_events(AppendEventsRequest(events=batch, **fields))
    return [each.event.sequence for each in response.results]


def session(**fields: Any) -> Session:
    return Session(id=SESSION, agent_id="agent-1", status=SessionStatus.SESSION_STATUS_ACTIVE, **fields)


async def outcome(call: Any) -> str:
    """The reason a call fails with, or OK."""
    try:
        await call
    except TurndockError as error:
        return error.reason
    return "OK"


async def test_concurrent_writes_of_every_kind_share_a_commit(
    store: SqlSessionStore, commits: list[int]
) -> None:
    flush = FlushRequest(
        session=session(),
        run=Run(id="run_1", session_id=SESSION, status=RunStatus.RUN_STATUS_COMPLETED),
        events=EventBatch(events=[event(SESSION)]),
    )
    calls = [append(store) for _ in range(50)]
    await asyncio.gather(
        *calls, store.flush(flush), *(append(store, f"other_{n}", SESSION) for n in range(50))
    )
    assert await numbers_of(store) == list(range(1, 102))
    assert len(commits) <= 3


async def test_a_refused_write_leaves_the_others_of_its_group_alone(
    store: SqlSessionStore, commits: list[int]
) -> None:
    await store.save_session(SaveSessionRequest(session=session()))
    commits.clear()
    calls = [
        append(store),
        append(store, expected=ExpectedSequence(last_sequence=99)),
        append(store),
        store.save_run(
            SaveRunRequest(
                run=Run(id="run_1", session_id=SESSION, status=RunStatus.RUN_STATUS_RUNNING),
                expected_status=RunStatus.RUN_STATUS_PENDING,
            )
        ),
        append(store, expected=ExpectedSequence(last_sequence=2)),
        append(store, "never_made", expected=ExpectedSequence(last_sequence=1)),
        store.append_event(AppendEventRequest(event=event(SESSION), fence=Fence(epoch=5))),
        append(store, fence=Fence(epoch=4)),
        append(store),
    ]
    outcomes = [await each for each in [asyncio.create_task(outcome(call)) for call in calls]]
    assert outcomes == [
        "OK",
        "SEQUENCE_CONFLICT",
        "OK",
        "INVALID_TRANSITION",
        "OK",
        "SEQUENCE_CONFLICT",
        "OK",
        "FENCED",
        "OK",
    ]
    assert await numbers_of(store) == [1, 2, 3, 4, 5]
    assert (await store.get_events(GetEventsRequest(session_id="never_made"))).incarnation == ""
    assert len(commits) <= 3


async def test_PF_E31_a_known_id_in_a_group_harms_nobody_in_it(store: SqlSessionStore) -> None:
    known = event(SESSION)
    await store.append_event(AppendEventRequest(event=known))
    changed = event(SESSION)
    changed.id = known.id
    changed.message_streamed.text = "changed"

    def repeat(**fields: Any) -> AppendEventWithSequenceRequest:
        return AppendEventWithSequenceRequest(event=known, **fields)

    first, again, differing, refused, last = await asyncio.gather(
        append(store),
        store.append_event_with_sequence(repeat()),
        store.append_event_with_sequence(AppendEventWithSequenceRequest(event=changed)),
        outcome(
            store.append_event_with_sequence(
                AppendEventWithSequenceRequest(event=changed, strict_duplicates=True)
            )
        ),
        append(store),
    )
    assert (first, last) == ([2], [3])
    assert (again.result.event.sequence, again.result.duplicate, again.result.payload_differs) == (
        1,
        True,
        False,
    )
    assert differing.result.event == again.result.event
    assert differing.result.payload_differs
    assert refused == "IDEMPOTENCY_CONFLICT"
    assert await numbers_of(store) == [1, 2, 3]


async def test_the_same_new_id_in_one_group_is_stored_once(store: SqlSessionStore) -> None:
    same = event(SESSION)
    request = AppendEventWithSequenceRequest(event=same)
    responses = await asyncio.gather(*(store.append_event_with_sequence(request) for _ in range(20)))
    assert {each.result.event.sequence for each in responses} == {1}
    assert [each.result.duplicate for each in responses] == [False, *[True] * 19]


async def test_an_error_nobody_could_foresee_is_one_writes_own(store: SqlSessionStore) -> None:
    def refuse(tx: Transaction) -> None:
        tx.connection.exec_driver_sql("INSERT INTO scopes (key, tenant) VALUES (7, 'half written')")
        tx.connection.exec_driver_sql("INSERT INTO scopes (key, tenant) VALUES (8, NULL)")

    def crash(tx: Transaction) -> None:
        tx.connection.exec_driver_sql("INSERT INTO scopes (key, tenant) VALUES (9, 'half written too')")
        raise ZeroDivisionError

    outcomes = await asyncio.gather(
        append(store),
        store._writer.write(refuse),
        append(store),
        store._writer.write(crash),
        append(store),
        return_exceptions=True,
    )
    first, refused, second, crashed, third = outcomes
    assert [first, second, third] == [[1], [2], [3]]
    assert isinstance(refused, TurndockError)
    assert refused.reason == "STORAGE_ERROR"
    assert isinstance(crashed, ZeroDivisionError)
    assert await store._database.read(_tenants) == [""]


def _tenants(connection: Connection) -> list[str]:
    return [tenant for (tenant,) in connection.exec_driver_sql("SELECT tenant FROM scopes WHERE key >= 0")]


@pytest.mark.parametrize("url", ["sqlite", "sqlite+aiosqlite"], indirect=True)
async def test_a_full_disk_fails_what_does_not_fit_and_nothing_else(store: SqlSessionStore) -> None:
    await append(store)

    def bound(tx: Transaction) -> None:
        pages = tx.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        tx.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 20}")

    await store._writer.write(bound)
    large = AppendEventsRequest(events=[event(SESSION, size=100_000) for _ in range(3)])
    refused, small = await asyncio.gather(outcome(store.append_events(large)), append(store))
    assert (refused, small) == ("STORAGE_ERROR", [2])
    with pytest.raises(TurndockError, match="database or disk is full"):
        await store.append_events(large)
    await store._writer.write(lambda tx: tx.connection.exec_driver_sql("PRAGMA max_page_count = 1000000"))
    assert [each.event.sequence for each in (await store.append_events(large)).results] == [3, 4, 5]


async def test_a_caller_that_leaves_takes_only_its_own_write_along(store: SqlSessionStore) -> None:
    tasks = [asyncio.create_task(append(store)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    numbers = await numbers_of(store)
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 10


async def test_close_commits_what_is_queued_and_answers_who_waits(url: str) -> None:
    store = await SqlSessionStore.open(url)
    polling = asyncio.create_task(store.get_events(GetEventsRequest(session_id="quiet", wait_ms=60_000)))
    watching = asyncio.ensure_future(anext(store.watch_events(WatchEventsRequest(session_id="quiet"))))
    writes = [asyncio.create_task(append(store)) for _ in range(30)]
    await append(store)
    await store.close()
    await store.close()
    assert not (await polling).events
    with pytest.raises(TurndockError, match="SERVER_STOPPING"):
        await watching
    await asyncio.gather(*writes)
    for call in (append(store), numbers_of(store)):
        assert await outcome(call) == "SERVER_STOPPING"
    again = await SqlSessionStore.open(url)
    assert await numbers_of(again) == list(range(1, 32))
    await again.close()


async def test_PF_E05_the_owner_meets_no_conflict_when_the_clock_is_set_back(tmp_path: Path) -> None:
    now = [1_700_000_000_000_000]
    store = await SqlSessionStore.open(tmp_path / "store.db", clock=lambda: now[0])
    await store.save_session(SaveSessionRequest(session=session()))
    claim = ClaimAgentRequest(session_id=SESSION, owner="host-a", ticket_id="t", lease_ms=30_000)
    fence = Fence(epoch=(await store.claim_agent(claim)).epoch)
    updated: list[int] = []
    for index in range(10):
        now[0] -= 5_000_000 if index == 5 else 0
        await append(store, fence=fence)
        saved = await store.save_session(SaveSessionRequest(session=session(), fence=fence))
        updated.append(saved.session.updated_at_us)
    page = await store.get_events(GetEventsRequest(session_id=SESSION))
    assert [each.sequence for each in page.events] == list(range(1, 11))
    stamps = [each.stored_at_us for each in page.events]
    assert stamps == sorted(stamps)
    assert updated == sorted(set(updated))
    other = ClaimAgentRequest(session_id=SESSION, owner="host-b", ticket_id="u", lease_ms=1)
    assert await outcome(store.claim_agent(other)) == "CLAIM_CONFLICT"
    await store.close()


async def test_a_late_retry_of_a_deletion_does_not_delete_the_next_session(store: SqlSessionStore) -> None:
    await store.save_session(SaveSessionRequest(session=session()))
    request = DeleteSessionRequest(session_id=SESSION, request_id="d1")
    await store.delete_session(request)
    await store.save_session(SaveSessionRequest(session=session()))
    await store.delete_session(request)
    assert (await store.get_session(GetSessionRequest(session_id=SESSION))).session.id == SESSION
    other = DeleteSessionRequest(session_id=SESSION, request_id="d1", delete_artifacts=True)
    assert await outcome(store.delete_session(other)) == "IDEMPOTENCY_CONFLICT"
    await store.delete_session(DeleteSessionRequest(session_id=SESSION, request_id="d2"))
    assert await outcome(store.get_session(GetSessionRequest(session_id=SESSION))) == "SESSION_NOT_FOUND"


async def test_a_fence_above_all_epochs_there_can_be_is_refused(store: SqlSessionStore) -> None:
    for epoch in (0, (1 << 63) - 1, (1 << 64) - 1):
        assert await outcome(append(store, fence=Fence(epoch=epoch))) == "VALIDATION_ERROR"


async def test_scopes_are_apart_also_when_they_are_new_to_everybody(store: SqlSessionStore) -> None:
    scopes = [Scope(tenant=f"tenant-{number}") for number in range(20)]
    numbers = await asyncio.gather(*(append(store, scope=scope) for scope in scopes), append(store))
    assert numbers == [[1]] * 21
    for scope in scopes:
        page = await store.get_events(GetEventsRequest(scope=scope, session_id=SESSION))
        assert [each.sequence for each in page.events] == [1]
