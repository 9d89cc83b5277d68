"""The schema: the same whichever way it was made, and never touched when it is not ours."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, column, create_engine, insert, inspect, table

from support import postgres
from turndock.errors import TurndockError
from turndock.store.v1 import (
    AppendEventsRequest,
    ClaimAgentRequest,
    CountEventsRequest,
    EventFilter,
    GetEventsRequest,
    GetSessionRequest,
    GetUsageSummaryRequest,
    Lifecycle,
    ListRunsRequest,
    LoadStateRequest,
    LoadStateResponse,
    SearchSessionsRequest,
)
from turndock.types.v1 import Event, EventType, Fence, Run, RunStatus, Scope, Session, SessionStatus
from turndock_server.stores.sql import SqlQuery, SqlSessionStore, encoding, migrations, schema
from turndock_server.stores.sql.engine import Database
from turndock_server.stores.sql.products import product_of


@contextmanager
def engine_at(path: Path) -> Generator[Engine]:
    engine = create_engine(f"sqlite:///{path}")
    try:
        yield engine
    finally:
        engine.dispose()


def described(path: Path) -> dict[str, tuple[object, ...]]:
    """Tables with their columns, keys and indexes, however the statements that made them were written."""
    database = sqlite3.connect(path)
    result: dict[str, tuple[object, ...]] = {}
    for name, statement in database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
        indexes: list[object] = []
        for _, index, is_unique, origin, is_partial in database.execute(f"PRAGMA index_list({name})"):
            columns = database.execute(f"PRAGMA index_xinfo({index})").fetchall()
            keys = [(column, is_descending) for _, _, column, is_descending, _, is_key in columns if is_key]
            (where,) = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", (index,)).fetchone()
            condition = (
                str(where).partition("WHERE")[2].replace(f"{name}.", "").split() if is_partial else None
            )
            indexes.append((index if origin == "c" else "", is_unique, origin, keys, condition))
        result[name] = (
            database.execute(f"PRAGMA table_info({name})").fetchall(),
            sorted(row[2:] for row in database.execute(f"PRAGMA foreign_key_list({name})")),
            sorted(indexes, key=repr),
            "AUTOINCREMENT" in (statement or ""),
        )
    database.close()
    return result


def test_the_schema_is_what_its_revisions_make(tmp_path: Path) -> None:
    made, migrated = tmp_path / "made.db", tmp_path / "migrated.db"
    with engine_at(made) as engine, engine.begin() as connection:
        migrations.bring_up_to_date(connection)
    with engine_at(migrated) as engine, engine.begin() as connection:
        schema.alembic_version.create(connection)  # as Alembic leaves a database at its base
        assert not migrations.is_current(connection)
        migrations.bring_up_to_date(connection)
        assert migrations.is_current(connection)
    assert described(made) == described(migrated)
    for path in (made, migrated):
        database = sqlite3.connect(path)
        assert database.execute("SELECT * FROM scopes ORDER BY key").fetchall() == [
            (schema.GRAVEYARD_KEY, schema.GRAVEYARD),
            (schema.UNSCOPED_KEY, ""),
        ]
        assert database.execute("SELECT * FROM alembic_version").fetchall() == [(schema.REVISIONS[-1],)]
        database.close()


def test_every_revision_is_known_to_the_schema() -> None:
    versions = Path(migrations.__file__).parent / "versions"
    assert tuple(sorted(path.name.partition("_")[0] for path in versions.glob("*.py"))) == schema.REVISIONS


async def test_a_schema_from_the_future_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await (await SqlSessionStore.open(path)).close()
    database = sqlite3.connect(path)
    database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.commit()
    with pytest.raises(TurndockError, match=f"9999, which is newer than {schema.REVISIONS[-1]}") as refusal:
        await SqlSessionStore.open(path)
    assert refusal.value.reason == "MIGRATION_REQUIRED"
    assert database.execute("SELECT * FROM alembic_version").fetchall() == [("9999",)]
    database.close()


async def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "other.db")
    database.execute("CREATE TABLE theirs (x)")
    database.close()
    with pytest.raises(TurndockError, match="tables of something else") as refusal:
        await SqlSessionStore.open(tmp_path / "other.db")
    assert refusal.value.reason == "MIGRATION_REQUIRED"


async def test_without_leave_to_migrate_the_error_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with pytest.raises(TurndockError, match="open it once with migration allowed") as refusal:
        await SqlSessionStore.open(path, migrate=False)
    assert refusal.value.reason == "MIGRATION_REQUIRED"
    await (await SqlSessionStore.open(path)).close()
    await (await SqlSessionStore.open(path, migrate=False)).close()


async def test_an_old_schema_is_brought_up_to_date_only_with_leave(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with engine_at(path) as engine, engine.begin() as connection:
        schema.alembic_version.create(connection)
    with pytest.raises(TurndockError, match="MIGRATION_REQUIRED"):
        await SqlSessionStore.open(path, migrate=False)
    await (await SqlSessionStore.open(path)).close()
    await (await SqlSessionStore.open(path, migrate=False)).close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"no database at all" * 100, "STORAGE_ERROR"), (None, "STORAGE_CONNECTION_FAILED")],
)
async def test_a_file_that_is_no_database_is_an_error_of_the_store(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "missing" / "store.db" if content is None else tmp_path / "store.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TurndockError) as failure:
        await SqlSessionStore.open(path)
    assert failure.value.reason == reason
    assert len(str(failure.value)) < 1024


@pytest.mark.parametrize("target", ["mysql://host/db", "sqlite://", "sqlite:///:memory:", ":memory:", "://"])
async def test_what_names_no_file_is_refused(target: str) -> None:
    with pytest.raises(TurndockError) as refusal:
        await SqlSessionStore.open(target)
    assert refusal.value.reason == "VALIDATION_ERROR"


async def test_a_url_is_as_good_as_a_path(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for url in (f"sqlite:///{path}", f"sqlite+aiosqlite:///{path}"):
        await (await SqlSessionStore.open(url)).close()
    assert path.exists()


def test_an_empty_file_is_opened_without_alembic(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from turndock_server.stores.sql import SqlSessionStore\n"
        "async def main():\n"
        f"    await (await SqlSessionStore.open({str(tmp_path / 'store.db')!r})).close()\n"
        "asyncio.run(main())\n"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- On both databases, from the first schema up ------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return postgres.server().new_database() if request.param == "postgresql" else str(tmp_path / "store.db")


@asynccontextmanager
async def writing(
    database: str,
) -> AsyncGenerator[Callable[[Callable[[Connection], object]], Awaitable[object]]]:
    """Runs functions over a database whose schema nobody has looked at, each in a transaction."""
    opened = Database(
        product_of(database, password=None, synchronous="normal", busy_timeout_ms=5_000),
        busy_timeout_ms=5_000,
        readers=1,
    )
    try:
        await opened.open()
        yield opened.write
    finally:
        await opened.close()


def schema_at(revision: str, connection: Connection) -> None:
    """What an older release left behind: tables without a line of today's code, and rows in all of them."""
    schema.alembic_version.create(connection)
    migrations.upgrade(connection, to=revision)
    there = inspect(connection)
    tables = {
        name: table(name, *(column(each["name"], each["type"]) for each in there.get_columns(name)))
        for name in there.get_table_names()
    }

    def put(name: str, **values: object) -> int:
        if name not in tables:
            return 0
        rows = tables[name]
        values = {key: value for key, value in values.items() if key in rows.columns}
        statement = insert(rows).values(values)
        if "key" not in rows.columns:
            connection.execute(statement)
            return 0
        return int(connection.execute(statement.returning(rows.columns["key"])).scalar_one())

    session = Session(id="ses_1", agent_id="a1", status=SessionStatus.SESSION_STATUS_ACTIVE, created_at_us=5)
    session.tags.append("ß")
    run = Run(id="run_1", session_id="ses_1", status=RunStatus.RUN_STATUS_PENDING, prompt="?", provider="p")
    run.usage.input_tokens, run.usage.output_tokens = 1 << 40, 2
    saved = LoadStateResponse(lifecycle=Lifecycle.LIFECYCLE_ON_COMPLETION)
    saved.snapshot.state_json = '{"n":1}'
    for tenant in ("", "acme"):
        scope = put("scopes", tenant=tenant) if tenant else schema.UNSCOPED_KEY
        key = put(
            "sessions",
            scope=scope,
            id="ses_1",
            incarnation="first",
            body=session.SerializeToString(),
            agent_id="a1",
            status=session.status,
            created_at=5,
            updated_at=6,
            stopped=0,
            halted=0,
            last_sequence=2,
            pruned_through=1,
            largest_event=200,
            last_notification=0,
            notified_sequence=schema.NEVER,
            epoch=7,
            owner="",
            ticket_id="",
            lease_until=0,
            tag_count=1,
        )
        put("session_tags", scope=scope, tag="ß", session=key)
        body = Event(
            id="evt_2", session_id="ses_1", time_us=1, sequence=2, incarnation="first", stored_at_us=9
        )
        body.type, body.message_streamed.text = EventType.EVENT_TYPE_MESSAGE_STREAMED, "kept"
        put(
            "events",
            session=key,
            sequence=2,
            scope=scope,
            id=encoding.event_key("evt_2"),
            type=body.type,
            run=0,
            stored_at=9,
            body=body.SerializeToString(),
        )
        put(
            "runs",
            session=key,
            id="run_1",
            status=run.status,
            queue_key=3,
            created_at=4,
            prompt_bytes=1,
            unsettled=1,
            body=run.SerializeToString(),
            scope=scope,
            provider="p",
            model="",
            started_at=0,
            input_tokens=1 << 40,
            output_tokens=2,
            total_tokens=(1 << 40) + 2,
        )
        snapshot = put(
            "snapshots",
            scope=scope,
            conversation_id="ses_1",
            agent_id="",
            body=saved.SerializeToString(),
            interrupted=1,
            epoch=7,
            saved_at=9,
        )
        put("snapshot_tokens", snapshot=snapshot, request_id="t", fingerprint=b"f")
        put("maintenance_answers", scope=scope, request_id="t", fingerprint=b"f", response=b"r")
        put("retry_tokens", session=key, request_id="t", fingerprint=b"f", response=b"r")
        put(
            "tombstones",
            scope=scope,
            session_id="gone",
            incarnation="x",
            epoch=3,
            deleted_at=1,
            request_id="",
            fingerprint=b"",
        )


@pytest.mark.parametrize("revision", schema.REVISIONS[:-1])
async def test_data_of_every_schema_there_was_is_there_after_the_migration(
    database: str, revision: str
) -> None:
    async with writing(database) as write:
        await write(partial(schema_at, revision))
    with pytest.raises(TurndockError, match="MIGRATION_REQUIRED"):
        await SqlSessionStore.open(database, migrate=False)
    store = await SqlSessionStore.open(database)
    query = SqlQuery(store)
    for scope in (None, Scope(tenant="acme")):
        request = GetSessionRequest(scope=scope, session_id="ses_1")
        session = (await store.get_session(request)).session
        assert (session.agent_id, session.incarnation, session.last_sequence) == ("a1", "first", 2)
        page = await store.get_events(GetEventsRequest(scope=scope, session_id="ses_1"))
        assert [each.message_streamed.text for each in page.events] == ["kept"]
        assert (page.head, page.pruned_through) == (2, 1)
        runs = await store.list_runs(ListRunsRequest(scope=scope, session_id="ses_1"))
        assert [(each.id, each.queue_key) for each in runs.runs] == [("run_1", 3)]
        claim = ClaimAgentRequest(scope=scope, session_id="ses_1", owner="h", ticket_id="t", lease_ms=1)
        assert (await store.claim_agent(claim)).epoch == 8
        event = Event(id="evt_2", session_id="ses_1", time_us=1, type=EventType.EVENT_TYPE_MESSAGE_STREAMED)
        event.message_streamed.text = "kept"
        known = await store.append_events(
            AppendEventsRequest(scope=scope, events=[event], fence=Fence(epoch=8), strict_duplicates=True)
        )
        assert known.results[0].duplicate
        tagged = await query.search_sessions(SearchSessionsRequest(scope=scope, tags=["ß"]))
        assert [each.id for each in tagged.sessions] == ["ses_1"]
        usage = await query.get_usage_summary(GetUsageSummaryRequest(scope=scope, provider="p"))
        assert usage.totals.total_tokens == (1 << 40) + 2
        counted = CountEventsRequest(scope=scope, filter=EventFilter(since_us=1))
        assert (await query.count_events(counted)).event_count == 1
        if revision >= "0002":
            load = LoadStateRequest(scope=scope, agent_id="a1", conversation_id="ses_1")
            found = await store.agent_persistence.load_state(load)
            assert found.snapshot.state_json == '{"n":1}'
        if revision >= "0003":
            kept = await store.upkeep().answer(scope.tenant if scope else "", "t")
            assert kept == (b"f", b"r")
    await store.close()
    await (await SqlSessionStore.open(database, migrate=False)).close()


async def test_the_schema_of_a_postgresql_database_is_what_its_revisions_make() -> None:
    server = postgres.server()
    made, migrated = server.new_database(), server.new_database()
    await (await SqlSessionStore.open(made)).close()
    async with writing(migrated) as write:
        await write(schema.alembic_version.create)
        await write(migrations.bring_up_to_date)
    assert server.dump_schema(made) == server.dump_schema(migrated)


async def test_a_newer_or_foreign_postgresql_database_is_refused_and_left_alone() -> None:
    server = postgres.server()
    url = server.new_database()
    await (await SqlSessionStore.open(url)).close()
    server.sql("UPDATE alembic_version SET version_num = '9999'", url=url)
    with pytest.raises(TurndockError, match="9999, which is newer than") as refusal:
        await SqlSessionStore.open(url)
    assert refusal.value.reason == "MIGRATION_REQUIRED"
    assert server.sql("SELECT * FROM alembic_version", url=url) == "9999"
    foreign = server.new_database()
    server.sql("CREATE TABLE theirs (x int)", url=foreign)
    with pytest.raises(TurndockError, match="tables of something else"):
        await SqlSessionStore.open(foreign)
