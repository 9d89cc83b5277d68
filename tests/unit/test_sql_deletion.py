"""Deleting a session that is too large for one transaction: gone at once, its rows little by little."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from turndock import events as event_rules
from turndock.errors import TurndockError
from turndock.store.v1 import (
    AppendEventsRequest,
    DeleteSessionRequest,
    GetEventsRequest,
    GetSessionRequest,
    ListOrphansRequest,
    ListSessionsRequest,
    SaveRunRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import Event, EventType, Run, RunStatus, Session, SessionStatus
from turndock_server.stores.sql import SqlSessionStore, graves, schema
from turndock_server.stores.sql.graves import Undertaker
from turndock_server.stores.sql.postgresql import SessionKey

SESSION = "ses_1"
MANY = 3 * graves.ROWS_AT_ONCE + 7
DELETE = DeleteSessionRequest(session_id=SESSION)


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[SqlSessionStore]:
    store = await SqlSessionStore.open(path, synchronous="normal")
    try:
        yield store
    finally:
        await store.close()


def event(event_id: str) -> Event:
    return Event(
        id=event_id, session_id=SESSION, type=EventType.EVENT_TYPE_MESSAGE_STREAMED, time_us=1, run_id="run_1"
    )


async def filled(store: SqlSessionStore, count: int = MANY, runs: int = 1) -> Session:
    session = Session(id=SESSION, agent_id="agent-1", status=SessionStatus.SESSION_STATUS_ACTIVE)
    saved = (await store.save_session(SaveSessionRequest(session=session))).session
    for number in range(1, runs + 1):
        run = Run(id=f"run_{number}", session_id=SESSION, status=RunStatus.RUN_STATUS_RUNNING)
        await store.save_run(SaveRunRequest(run=run, request_id=f"token {number}"))
    for first in range(0, count, 1_000):
        batch = [event(f"evt_{number}") for number in range(first, min(first + 1_000, count))]
        await store.append_events(AppendEventsRequest(events=batch))
    return saved


def rows_in(path: Path) -> dict[str, int]:
    database = sqlite3.connect(path)
    tables = ("sessions", "runs", "events", "retry_tokens", "tombstones")
    found = {table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    database.close()
    return found


class Gate:
    """A writer that lets nothing through before it is opened."""

    def __init__(self, store: SqlSessionStore) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self._writer = store._writer
        store._undertaker = Undertaker(self)

    async def write(self, work: Any, sessions: Collection[SessionKey] = ()) -> Any:
        self.reached.set()
        await self.opened.wait()
        return await self._writer.write(work, sessions)


async def test_a_large_session_is_deleted_in_small_transactions(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await filled(store, runs=graves.ROWS_AT_ONCE + 3)
        database, commits = store._database, 0
        write = database.write

        def counted(work: Any) -> Any:
            nonlocal commits
            commits += 1
            return write(work)

        database.write = counted  # type: ignore[method-assign]  # counts and does the same
        await store.delete_session(DELETE)
        # Three full transactions of events and one with the rest and some runs, then runs, then their tokens.
        assert commits >= (MANY + 2 * graves.ROWS_AT_ONCE) // graves.ROWS_AT_ONCE
    assert rows_in(path) == {"sessions": 0, "runs": 0, "events": 0, "retry_tokens": 0, "tombstones": 1}


async def test_a_session_is_gone_for_everybody_while_its_rows_are_still_going(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        first = await filled(store)
        gate = Gate(store)
        deletion = asyncio.create_task(store.delete_session(DELETE))
        await gate.reached.wait()
        assert rows_in(path)["events"] == MANY - graves.ROWS_AT_ONCE
        with pytest.raises(TurndockError, match="SESSION_NOT_FOUND"):
            await store.get_session(GetSessionRequest(session_id=SESSION))
        log = await store.get_events(GetEventsRequest(session_id=SESSION))
        assert (len(log.events), log.head, log.incarnation) == (0, 0, "")
        assert not (await store.list_sessions(ListSessionsRequest(every_scope=True))).sessions
        assert not (await store.list_orphans(ListOrphansRequest(owner="h", sole_host=True))).sessions
        # Another life begins, with ids of events that are still there.
        last = f"evt_{MANY - 1}"
        batch = [event(last), event("evt_0"), event("new")]
        results = (await store.append_events(AppendEventsRequest(events=batch))).results
        assert [(each.event.sequence, each.duplicate) for each in results] == [
            (number, False) for number in (1, 2, 3)
        ]
        second = (
            await store.save_session(
                SaveSessionRequest(
                    session=Session(
                        id=SESSION, agent_id="agent-1", status=SessionStatus.SESSION_STATUS_ACTIVE
                    )
                )
            )
        ).session
        assert second.incarnation != first.incarnation
        await store.delete_session(DeleteSessionRequest(session_id="other"))
        assert not deletion.done()
        gate.opened.set()
        await deletion
        log = await store.get_events(GetEventsRequest(session_id=SESSION))
        assert [each.id for each in log.events] == [last, "evt_0", "new"]
    assert rows_in(path) == {"sessions": 1, "runs": 0, "events": 3, "retry_tokens": 0, "tombstones": 1}


async def test_a_deletion_goes_on_although_its_caller_has_gone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await filled(store)
        gate = Gate(store)
        deletion = asyncio.create_task(store.delete_session(DELETE))
        await gate.reached.wait()
        (rest,) = store._undertaker._tasks.values()
        deletion.cancel()
        await asyncio.wait((deletion,))
        gate.opened.set()
        await rest
    assert rows_in(path)["events"] == 0


async def test_whoever_opens_the_database_next_goes_on_with_what_a_crash_left(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await filled(store)
        gate = Gate(store)
        deletion = asyncio.create_task(store.delete_session(DELETE))
        await gate.reached.wait()
        for task in store._undertaker._tasks.values():
            task.cancel()  # as the process's end would
        await deletion
    assert rows_in(path)["events"] == MANY - graves.ROWS_AT_ONCE
    async with opened(path) as store:
        await asyncio.wait(list(store._undertaker._tasks.values()))
    assert rows_in(path) == {"sessions": 0, "runs": 0, "events": 0, "retry_tokens": 0, "tombstones": 1}


async def test_a_store_is_closed_in_the_middle_of_a_deletion(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await SqlSessionStore.open(path, synchronous="normal")
    await filled(store)
    gate = Gate(store)
    deletion = asyncio.create_task(store.delete_session(DELETE))
    await gate.reached.wait()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(closing, deletion)
    assert rows_in(path)["events"] == MANY - 2 * graves.ROWS_AT_ONCE
    async with opened(path) as store:
        await asyncio.wait(list(store._undertaker._tasks.values()))
    assert rows_in(path)["events"] == 0


async def test_a_row_that_cannot_be_deleted_keeps_the_whole_session(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await filled(store, count=1)
        database = sqlite3.connect(path)
        database.execute("CREATE TRIGGER stuck BEFORE DELETE ON runs BEGIN SELECT RAISE(ABORT, 'stuck'); END")
        database.close()
        with pytest.raises(TurndockError, match="STORAGE_ERROR"):
            await store.delete_session(DELETE)
        await store.get_session(GetSessionRequest(session_id=SESSION))
    assert rows_in(path) == {"sessions": 1, "runs": 1, "events": 1, "retry_tokens": 1, "tombstones": 0}


def test_no_tenant_has_the_name_of_the_graveyard() -> None:
    with pytest.raises(TurndockError, match="control characters"):
        event_rules.check_id(schema.GRAVEYARD, "scope.tenant")
