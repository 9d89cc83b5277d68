"""The SQL store where one process is not alone, and where a build or a reader is in its way."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.engine import Engine

from support import sql_programs
from support.sql_programs import event
from turndock.errors import Code, TurndockError
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventsRequest,
    DeleteSessionRequest,
    FlushRequest,
    GetEventsRequest,
    GetLatestSequenceRequest,
    ListSessionsRequest,
    PruneSessionEventsRequest,
    RetentionBound,
    RetentionPolicy,
    SaveSessionRequest,
    WatchEventsRequest,
)
from turndock.types.v1 import Event, EventBatch, EventType, Run, RunStatus, Session, SessionStatus
from turndock_server.stores.sql import SqlMaintenance, SqlSessionStore, sqlite

SESSION = "ses_1"


class Program:
    """A process of `support.sql_programs` that waits at the barrier."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, name: str, path: Path, *arguments: object) -> Program:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            sql_programs.__file__,
            name,
            str(path),
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": str(Path(sql_programs.__file__).parent.parent)},
        )
        program = cls(process)
        assert await program._line() == b"ready\n"
        return program

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def outcome(self) -> Any:
        told = await self._line()
        assert await self._process.wait() == 0
        return json.loads(told)

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.readline()


async def run(name: str, path: Path, *arguments: object) -> Any:
    """The outcome of a program that starts at once."""
    program = await Program.start(name, path, *arguments)
    program.go()
    return await program.outcome()


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncGenerator[SqlSessionStore]:
    store = await SqlSessionStore.open(path, **options)
    try:
        yield store
    finally:
        await store.close()


async def numbers_of(store: SqlSessionStore) -> list[int]:
    """The numbers of the whole log, read page by page."""
    numbers: list[int] = []
    while True:
        request = GetEventsRequest(session_id=SESSION, after_sequence=numbers[-1] if numbers else 0)
        page = await store.get_events(request)
        if not page.events:
            return numbers
        numbers += [each.sequence for each in page.events]


async def test_PF_B09_two_processes_use_an_empty_folder_for_the_first_time(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    programs = [await Program.start("first_use", path, SESSION, 20) for _ in range(2)]
    for program in programs:
        program.go()
    numbers = [number for program in programs for number in await program.outcome()]
    assert sorted(numbers) == list(range(1, 41))
    async with opened(path) as store:
        assert await numbers_of(store) == list(range(1, 41))
    rows = sqlite3.connect(path)
    assert rows.execute("SELECT id, last_sequence FROM sessions").fetchall() == [(SESSION, 40)]
    rows.close()


async def test_PF_B11_two_processes_and_a_pruner_write_and_a_reader_pages(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        programs = [await Program.start("busy_writers", path, SESSION, 8, 25) for _ in range(2)]
        for program in programs:
            program.go()
        outcomes = asyncio.gather(*(program.outcome() for program in programs))
        maintenance = SqlMaintenance(store)
        policy = RetentionPolicy(max_events_per_session=RetentionBound(max=60), batch_size=5)
        pruning = PruneSessionEventsRequest(session_id=SESSION, policy=policy)
        last, floor = 0, 0
        while not outcomes.done():
            page = await store.get_events(GetEventsRequest(session_id=SESSION, after_sequence=last, limit=7))
            read = [each.sequence for each in page.events]
            first = max(last, floor) + 1
            assert read == list(range(first, first + len(read)))
            last = page.scanned_through
            answer = await maintenance.prune_session_events(pruning)
            assert answer.pruned_through >= floor
            floor = answer.pruned_through
        written = sorted(number for numbers in await outcomes for number in numbers)
        assert written == list(range(1, 401))
        page = await store.get_events(GetEventsRequest(session_id=SESSION))
        assert (page.head, page.oldest, page.pruned_through) == (400, floor + 1, floor)
        assert floor > 0


async def test_PF_B11_a_lock_held_beyond_the_busy_timeout_is_a_retryable_error(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path, busy_timeout_ms=50) as store:
        await store.append_event(AppendEventRequest(event=event(SESSION)))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        calls = [store.append_event(AppendEventRequest(event=event(SESSION))) for _ in range(5)]
        for refusal in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(refusal, TurndockError)
            assert (refusal.reason, refusal.code, refusal.retryable) == (
                "STORAGE_BUSY",
                Code.UNAVAILABLE,
                True,
            )
        assert await numbers_of(store) == [1]  # readers are not held up
        other.execute("COMMIT")
        other.close()
        await store.append_event(AppendEventRequest(event=event(SESSION)))
        assert await numbers_of(store) == [1, 2]


async def test_PF_B15_nothing_of_a_failed_flush_is_seen_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        session = Session(id=SESSION, agent_id="agent-1", status=SessionStatus.SESSION_STATUS_ACTIVE)
        await store.save_session(SaveSessionRequest(session=session))
        await store.append_event(AppendEventRequest(event=event(SESSION)))
        before = await run("read", path, SESSION, "run_1")
        assert before == {
            "session": SessionStatus.SESSION_STATUS_ACTIVE,
            "run": "RUN_NOT_FOUND",
            "numbers": [1],
            "head": 1,
        }

        flush = FlushRequest(
            session=Session(id=SESSION, agent_id="agent-1", status=SessionStatus.SESSION_STATUS_COMPLETED),
            run=Run(id="run_1", session_id=SESSION, status=RunStatus.RUN_STATUS_COMPLETED),
            events=EventBatch(events=[event(SESSION) for _ in range(5)]),
        )
        invalid = FlushRequest()
        invalid.CopyFrom(flush)
        invalid.events.events[3].type = EventType.EVENT_TYPE_UNSPECIFIED
        with pytest.raises(TurndockError, match=r"events\.events\[3\]\.type"):
            await store.flush(invalid)
        assert await run("read", path, SESSION, "run_1") == before

        # The fourth insert fails in the database itself.
        trigger = sqlite3.connect(path)
        trigger.execute(
            "CREATE TRIGGER fail BEFORE INSERT ON events WHEN new.sequence = 5"
            " BEGIN SELECT RAISE(ABORT, 'made to fail'); END"
        )
        trigger.commit()
        with pytest.raises(TurndockError, match="made to fail") as failure:
            await store.flush(flush)
        assert failure.value.reason == "STORAGE_ERROR"
        assert await run("read", path, SESSION, "run_1") == before
        trigger.execute("DROP TRIGGER fail")
        trigger.commit()
        trigger.close()

        await store.append_event(AppendEventRequest(event=event(SESSION)))
        await store.flush(flush)
        assert await run("read", path, SESSION, "run_1") == {
            "session": SessionStatus.SESSION_STATUS_COMPLETED,
            "run": RunStatus.RUN_STATUS_COMPLETED,
            "numbers": [1, 2, 3, 4, 5, 6, 7],
            "head": 7,
        }


async def test_S_21_an_append_of_another_process_ends_a_wait(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        program = await Program.start("append_once", path, SESSION)
        waiting = asyncio.create_task(store.get_events(GetEventsRequest(session_id=SESSION, wait_ms=60_000)))
        watched = store.watch_events(WatchEventsRequest(session_id=SESSION))
        first = asyncio.ensure_future(anext(watched))
        program.go()
        assert [each.sequence for each in (await waiting).events] == [1]
        assert [each.sequence for each in (await first).events] == [1]
        await watched.aclose()
        assert await program.outcome() == 1


@pytest.fixture
def few_variables() -> Any:
    """Every connection made meanwhile is one of a build with SQLite's default limits."""

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)

    sqlalchemy_event.listen(Engine, "connect", limit)
    yield
    sqlalchemy_event.remove(Engine, "connect", limit)


async def test_PF_E23_large_batches_and_filters_fit_the_default_limits(
    few_variables: None, tmp_path: Path
) -> None:
    async with opened(tmp_path / "store.db") as store:
        batch = [event(SESSION, f"run_{number % 3}") for number in range(5_000)]
        first = await store.append_events(AppendEventsRequest(events=batch))
        assert [each.event.sequence for each in first.results] == list(range(1, 5_001))
        again = await store.append_events(AppendEventsRequest(events=batch))
        assert [each.event.sequence for each in again.results] == list(range(1, 5_001))
        assert all(each.duplicate and not each.payload_differs for each in again.results)
        mixed = await store.append_events(AppendEventsRequest(events=[event(SESSION), *batch[:1_000]]))
        assert [each.event.sequence for each in mixed.results] == [5_001, *range(1, 1_001)]

        # Newer types than this release knows are numbers as good as any.
        newer = [EventType.ValueType(number) for number in range(1_000, 41_000)]
        types = [EventType.EVENT_TYPE_MESSAGE_STREAMED, *newer]
        page = await store.get_events(GetEventsRequest(session_id=SESSION, types=types, limit=3))
        assert [each.sequence for each in page.events] == [1, 2, 3]
        statuses = [SessionStatus.ValueType(number) for number in range(1, 41_000)]
        sessions = await store.list_sessions(ListSessionsRequest(statuses=statuses))
        assert not sessions.sessions

        logs = [event(f"log_{number}") for number in range(2_000)]
        spread = await store.append_events(AppendEventsRequest(events=logs))
        assert {each.event.sequence for each in spread.results} == {1}
        for _ in range(8):
            more = [event(SESSION) for _ in range(5_000)]
            await store.append_events(AppendEventsRequest(events=more))
        await store.delete_session(DeleteSessionRequest(session_id=SESSION))
        head = await store.get_latest_sequence(GetLatestSequenceRequest(session_id=SESSION))
        assert (head.sequence, head.incarnation) == (0, "")


def wal(path: Path) -> int:
    return path.with_name(path.name + "-wal").stat().st_size


async def write(store: SqlSessionStore, megabytes: int, path: Path) -> int:
    """Write so much. Returns the largest size the write-ahead log had."""
    largest = 0
    for _ in range(megabytes * 2):
        batch: list[Event] = [event("other", size=64 << 10) for _ in range(8)]
        await store.append_events(AppendEventsRequest(events=batch))
        largest = max(largest, wal(path))
    return largest


async def timed_append(store: SqlSessionStore) -> float:
    began = time.perf_counter()
    await store.append_event(AppendEventRequest(event=event("timed")))
    return time.perf_counter() - began


async def test_PF_E07_readers_that_stop_reading_hold_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path, synchronous="normal") as store:
        await store.append_events(
            AppendEventsRequest(events=[event(SESSION, size=1_000) for _ in range(3_000)])
        )
        alone = sorted([await timed_append(store) for _ in range(30)])[15]
        watchers = [store.watch_events(WatchEventsRequest(session_id=SESSION)) for _ in range(10)]
        for watcher in watchers:
            await anext(watcher)  # and no further
        assert await write(store, 100, path) < sqlite.WAL_BOUND // 2
        beside = sorted([await timed_append(store) for _ in range(30)])[15]
        assert beside < 10 * alone + 0.01
        for watcher in watchers:
            await watcher.aclose()


async def test_PF_E07_the_log_shrinks_again_once_another_process_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction of somebody else's does keep the write-ahead log from being emptied, but only while it lasts."""
    monkeypatch.setattr("turndock_server.stores.sql.writer.WAL_BOUND", 20 << 20)
    monkeypatch.setattr("turndock_server.stores.sql.writer._CHECKPOINT_PAUSE_SECONDS", 0.0)
    path = tmp_path / "store.db"
    async with opened(path, synchronous="normal") as store:
        await store.append_event(AppendEventRequest(event=event(SESSION)))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM events").fetchone()
        assert await write(store, 30, path) > 30 << 20
        other.execute("COMMIT")
        other.close()
        await write(store, 1, path)
        assert wal(path) < 20 << 20
