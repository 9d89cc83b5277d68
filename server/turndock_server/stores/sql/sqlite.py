"""All that is SQLite's own: settings of connections, the write-ahead log, and what errors mean.

The writing connection begins every transaction with BEGIN IMMEDIATE, so that it waits for other processes before it has
read anything, and never fails because of a stale snapshot. The reading ones are in autocommit: each statement is a
transaction of its own, and nothing can keep one open.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final, Literal

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import DBAPIError

from turndock.errors import TurndockError

Synchronous = Literal["full", "normal"]
"""What a commit waits for: what it wrote survives a power cut with `full`, the death of the process with `normal`."""

DRIVERS: Final = frozenset({"sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"})

WAL_BOUND: Final = 64 << 20
"""A write-ahead log above this size is emptied as soon as no reader is in the way."""

_WAL_KEPT: Final = 16 << 20
"""At this size the write-ahead log is moved into the database at a commit, and its file is kept for what comes next.

Pages that are written again and again are moved once, and overwriting a file is cheaper than growing it."""

_WRITER_PRAGMAS: Final = (
    "foreign_keys = ON",
    "cache_size = -16384",
    "temp_store = MEMORY",
    f"wal_autocheckpoint = {_WAL_KEPT // 4096}",
    f"journal_size_limit = {_WAL_KEPT}",
)
_READER_PRAGMAS: Final = ("query_only = ON", "cache_size = -4096", "temp_store = MEMORY")

_CHECKPOINT_TIMEOUT_MS: Final = 100
_MAX_REPORT: Final = 300


def writing_options(busy_timeout_ms: int) -> dict[str, Any]:
    """How the engine that writes is made."""
    return {"connect_args": {"timeout": busy_timeout_ms / 1000, "isolation_level": None}}


def reading_options(busy_timeout_ms: int, readers: int) -> dict[str, Any]:
    """How the engine that reads is made."""
    return {
        **writing_options(busy_timeout_ms),
        "pool_size": readers + 1,  # one is kept by whoever looks out for other processes
        "max_overflow": 0,
        "pool_reset_on_return": None,
        "isolation_level": "AUTOCOMMIT",
        "skip_autocommit_rollback": True,
    }


def set_up(writing: Engine, reading: Engine, synchronous: Synchronous) -> None:
    """Have every connection of these engines begin as it must."""
    event.listen(writing, "begin", _begin_immediate)
    _set_at_connect(writing, *_WRITER_PRAGMAS, f"synchronous = {synchronous}")
    _set_at_connect(reading, *_READER_PRAGMAS)


def use_wal(connection: Connection) -> None:
    """Let readers and writers work side by side from now on."""
    cursor = _bare_cursor(connection)
    cursor.execute("PRAGMA journal_mode")
    ((mode,),) = cursor.fetchall()
    if mode != "wal":
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.fetchall()
    cursor.close()


def truncate_wal(connection: Connection, busy_timeout_ms: int) -> bool:
    """Move the write-ahead log into the database and cut its file. False if a reader was in the way.

    Readers of other processes are waited for only briefly: meanwhile nobody can write.
    """
    cursor = _bare_cursor(connection)
    cursor.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_TIMEOUT_MS}")
    try:
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((is_busy, *_),) = cursor.fetchall()
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
        cursor.close()
    return not is_busy


def wal_bytes(url: URL) -> int:
    """Size of the write-ahead log's file."""
    try:
        return Path(f"{url.database}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def data_version(connection: Connection) -> int:
    """Differs from what this connection was told before if another one has committed anything since."""
    version: int = connection.exec_driver_sql("PRAGMA data_version").scalar_one()
    return version


def storage_error(error: BaseException) -> TurndockError:
    """What a caller is told about an error of the database."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    report = str(cause)[:_MAX_REPORT]
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return TurndockError("STORAGE_BUSY", f"the database is in use by another process: {report}")
    if primary == sqlite3.SQLITE_CANTOPEN:
        return TurndockError("STORAGE_CONNECTION_FAILED", f"the database cannot be opened: {report}")
    return TurndockError("STORAGE_ERROR", f"the database reported: {report}")


def _bare_cursor(connection: Connection) -> DBAPICursor:
    """A cursor of the driver's, for the few statements that cannot be in a transaction."""
    return connection.connection.cursor()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _set_at_connect(engine: Engine, *settings: str) -> None:
    def on_connect(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        for setting in settings:
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    event.listen(engine, "connect", on_connect)
