"""What only the SQL Query has: an index that searches fill, columns that a migration fills, plans that use indexes."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, func, select

from turndock import events
from turndock.store.v1 import (
    AppendEventsRequest,
    CountEventsRequest,
    DeleteSessionRequest,
    EventFilter,
    EventOrder,
    GetCostSummaryRequest,
    GetUsageSummaryRequest,
    RunOrder,
    SaveRunRequest,
    SaveSessionRequest,
    SearchEventsRequest,
    SearchRunsRequest,
    SearchSessionsRequest,
)
from turndock.types.v1 import Event, EventType, Run, RunStatus, Scope, Session, SessionStatus, Usage
from turndock_server.stores.spool import MEMORY_BYTES, Spool
from turndock_server.stores.sql import SqlQuery, SqlSessionStore, event_index, graves, migrations, schema
from turndock_server.stores.sql.transaction import Transaction

TIME_ASC = EventOrder.EVENT_ORDER_TIME_ASC


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqlSessionStore]:
    opened = await SqlSessionStore.open(tmp_path / "store.db")
    yield opened
    await opened.close()


def an_event(session_id: str, number: int = 1, **fields: Any) -> Event:
    return Event(
        id=events.new_id(), session_id=session_id, type=EventType.EVENT_TYPE_CUSTOM, time_us=number, **fields
    )


async def append(store: SqlSessionStore, session_id: str, count: int) -> None:
    batch = [an_event(session_id, number + 1, provider="p") for number in range(count)]
    await store.append_events(AppendEventsRequest(events=batch))


async def indexed(store: SqlSessionStore) -> int:
    def count(connection: Connection, _: object) -> int:
        return int(connection.execute(select(func.count()).select_from(schema.event_index)).scalar_one())

    return await store.read("", count)


async def test_the_index_is_filled_by_searches_that_need_it_and_only_as_far(store: SqlSessionStore) -> None:
    query = SqlQuery(store)
    await append(store, "a", 3)
    await append(store, "b", 5)
    await query.search_events(SearchEventsRequest())
    await query.count_events(CountEventsRequest(filter=EventFilter(run_ids=["r"])))
    assert await indexed(store) == 0
    only_a = EventFilter(session_ids=["a"], providers=["p"])
    assert (await query.count_events(CountEventsRequest(filter=only_a))).event_count == 3
    assert await indexed(store) == 3
    assert len((await query.search_events(SearchEventsRequest(order=TIME_ASC))).events) == 8
    assert await indexed(store) == 8
    await append(store, "a", 1)
    assert len((await query.search_events(SearchEventsRequest(order=TIME_ASC))).events) == 9
    assert await indexed(store) == 9


async def test_a_long_log_is_indexed_a_piece_at_a_time(
    store: SqlSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_index, "AT_ONCE", 7)
    await append(store, "a", 40)
    await append(store, "b", 3)
    query = SqlQuery(store)
    wanted = EventFilter(since_us=1)
    assert (await query.count_events(CountEventsRequest(filter=wanted))).event_count == 43
    assert await indexed(store) == 43


async def test_events_that_go_leave_the_index(store: SqlSessionStore) -> None:
    await append(store, "a", 3)
    await append(store, "b", 2)
    query = SqlQuery(store)
    everything = CountEventsRequest(filter=EventFilter(since_us=1))
    assert (await query.count_events(everything)).event_count == 5
    await store.delete_session(DeleteSessionRequest(session_id="b"))
    assert (await query.count_events(everything)).event_count == 3
    await store.write(
        lambda tx: tx.connection.execute(schema.events.delete().where(schema.events.c.sequence == 2)).rowcount
    )
    assert await indexed(store) == 2


async def test_what_is_left_of_a_deleted_session_is_in_no_answer(store: SqlSessionStore) -> None:
    query = SqlQuery(store)
    await append(store, "a", 20)
    session = Session(id="a", agent_id="ann", status=SessionStatus.SESSION_STATUS_ACTIVE, tags=["x"])
    await store.save_session(SaveSessionRequest(session=session))
    run = Run(id="r", session_id="a", status=RunStatus.RUN_STATUS_COMPLETED, provider="p", cost_usd=1.0)
    await store.save_run(SaveRunRequest(run=run))
    everything = CountEventsRequest(filter=EventFilter(since_us=1))
    assert (await query.count_events(everything)).event_count == 20

    def bury(tx: Transaction) -> bool:
        key = tx.connection.execute(select(schema.sessions.c.key)).scalar_one()
        return graves.bury(tx, key, limit=5)

    assert await store.write(bury)
    assert await indexed(store) == 15
    assert (await query.count_events(everything)).event_count == 0
    assert (await query.count_events(CountEventsRequest())).event_count == 0
    assert not (await query.search_events(SearchEventsRequest(order=TIME_ASC))).events
    assert not (await query.search_events(SearchEventsRequest())).events
    assert (await query.search_sessions(SearchSessionsRequest(tags=["x"]))).total_count == 0
    assert (await query.search_runs(SearchRunsRequest())).total_count == 0
    assert (await query.get_usage_summary(GetUsageSummaryRequest())).run_count == 0
    assert (await query.get_cost_summary(GetCostSummaryRequest())).run_count == 0


def engine_at(path: Path) -> Engine:
    return create_engine(f"sqlite:///{path}")


async def test_a_migration_fills_what_rows_said_already(tmp_path: Path) -> None:
    """A database of the first schema, with a session, runs and events in it, answers like one that was made now."""
    path = tmp_path / "old.db"
    engine = engine_at(path)
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()
    session = Session(
        id="s", agent_id="ann", status=SessionStatus.SESSION_STATUS_ACTIVE, tags=["x", "y", "x"]
    )
    run = Run(
        id="r",
        session_id="s",
        status=RunStatus.RUN_STATUS_COMPLETED,
        provider="p",
        started_at_us=5,
        usage=Usage(input_tokens=1, output_tokens=2, model="m", cost_usd=0.5),
    )
    said = an_event("s", 9, provider="p", correlation_id="c")
    said.sequence = 1
    database = sqlite3.connect(path)
    database.execute("INSERT INTO scopes (key, tenant) VALUES (7, 'red')")
    database.execute(
        "INSERT INTO sessions VALUES"
        " (1, 7, 's', 'i', ?, 'ann', NULL, 2, 3, 4, NULL, 0, 0, 1, 0, 9, 0, 0, 0, '', '', 0)",
        (session.SerializeToString(),),
    )
    database.execute("INSERT INTO runs VALUES (1, 1, 'r', 3, 0, 1, 0, NULL, ?)", (run.SerializeToString(),))
    database.execute(
        "INSERT INTO events VALUES (1, 1, 1, 7, x'00112233445566778899aabbccddeeff', 100, 0, 9, ?)",
        (said.SerializeToString(),),
    )
    database.commit()
    database.close()
    store = await SqlSessionStore.open(path)
    query = SqlQuery(store)
    scope = Scope(tenant="red")
    found = await query.search_sessions(SearchSessionsRequest(scope=scope, tags=["x", "y"], provider="p"))
    assert [each.id for each in found.sessions] == ["s"]
    runs = await query.search_runs(SearchRunsRequest(scope=scope, started_after_us=5, min_tokens=3))
    assert [each.id for each in runs.runs] == ["r"]
    usage = await query.get_usage_summary(GetUsageSummaryRequest(scope=scope))
    assert usage.totals == Usage(input_tokens=1, output_tokens=2, total_tokens=3)
    costs = await query.get_cost_summary(GetCostSummaryRequest(scope=scope))
    assert (costs.total_cost_usd, costs.by_model[0].model) == (0.5, "m")
    wanted = EventFilter(correlation_id="c", providers=["p"], since_us=9, until_us=9)
    assert len((await query.search_events(SearchEventsRequest(scope=scope, filter=wanted))).events) == 1
    # What is saved from here on keeps it up.
    session.ClearField("tags")
    await store.save_session(SaveSessionRequest(scope=scope, session=session))
    assert (await query.search_sessions(SearchSessionsRequest(scope=scope, tags=["x"]))).total_count == 0
    run.provider = "q"
    await store.save_run(SaveRunRequest(scope=scope, run=run))
    assert (await query.search_runs(SearchRunsRequest(scope=scope, provider="q"))).total_count == 1
    await store.close()


SEARCHES: dict[str, tuple[Callable[[SqlQuery], object], str]] = {
    "sessions by change": (
        lambda query: query.search_sessions(SearchSessionsRequest()),
        "sessions_by_change (scope=?)",
    ),
    "sessions by tag": (
        lambda query: query.search_sessions(SearchSessionsRequest(tags=["x"])),
        "sqlite_autoindex_session_tags_1 (scope=? AND tag=?)",
    ),
    "sessions by provider": (
        lambda query: query.search_sessions(SearchSessionsRequest(provider="p")),
        "runs_by_provider (scope=? AND provider=?)",
    ),
    "runs by start": (lambda query: query.search_runs(SearchRunsRequest()), "runs_by_start (scope=?)"),
    "runs by tokens": (
        lambda query: query.search_runs(SearchRunsRequest(order=RunOrder.RUN_ORDER_TOKEN_USAGE_DESC)),
        "runs_by_tokens (scope=?)",
    ),
    "runs of a session": (
        lambda query: query.search_runs(SearchRunsRequest(session_id="a")),
        "(session=?)",
    ),
    "events by number": (
        lambda query: query.search_events(SearchEventsRequest()),
        "sqlite_autoindex_events_1 (session=? AND sequence>? AND sequence<?)",
    ),
    "events of runs": (
        lambda query: query.search_events(SearchEventsRequest(filter=EventFilter(run_ids=["r"]))),
        "events_of_run (session=? AND run=? AND sequence>? AND sequence<?)",
    ),
    "events by time": (
        lambda query: query.search_events(
            SearchEventsRequest(order=TIME_ASC, filter=EventFilter(since_us=3))
        ),
        "event_index_by_time (scope=? AND time>?)",
    ),
    "events of a correlation": (
        lambda query: query.search_events(
            SearchEventsRequest(order=TIME_ASC, filter=EventFilter(correlation_id="c"))
        ),
        "event_index_by_correlation (correlation=?)",
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
async def test_a_search_is_led_by_an_index(name: str, store: SqlSessionStore) -> None:
    await append(store, "a", 3)
    search, expected = SEARCHES[name]
    engine = store._database._lane.reading
    statements: list[tuple[str, object]] = []

    def note(_: object, __: object, statement: str, parameters: object, *___: object) -> None:
        statements.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    await search(SqlQuery(store))  # type: ignore[misc]  # every search is awaited
    event.remove(engine, "before_cursor_execute", note)

    def explain(connection: Connection, _: object) -> list[str]:
        return [
            str(row[3])
            for statement, parameters in statements
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)  # type: ignore[arg-type]  # as they were passed
        ]

    plan = await store.read("", explain)
    assert any(expected in step for step in plan), plan
    assert not [
        step for step in plan if step in {"SCAN events", "SCAN runs", "SCAN sessions", "SCAN event_index"}
    ]


def test_a_spool_gives_back_what_was_put_in_also_beyond_memory() -> None:
    runs = [Run(id=f"r{number}", prompt="x" * 10_000) for number in range(2 * MEMORY_BYTES // 10_000)]
    with Spool(Run) as spool:
        assert list(spool.batches(100_000)) == []
        for run in runs:
            spool.put(run)
        batches = list(spool.batches(100_000))
        assert [run for batch in batches for run in batch] == runs
        assert all(sum(run.ByteSize() for run in batch) <= 100_000 for batch in batches)
        assert [len(batch) for batch in spool.batches(1)] == [1] * len(runs)
        assert spool.count == len(runs)
