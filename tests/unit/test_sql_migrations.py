"""The schema: the same whichever way it was made, and never touched when it is not ours."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from turndock.errors import TurndockError
from turndock_server.stores.sql import SqlSessionStore, migrations, schema


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


@pytest.mark.parametrize(
    "target", ["postgresql://host/db", "sqlite://", "sqlite:///:memory:", ":memory:", "://"]
)
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
