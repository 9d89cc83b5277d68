"""The connections to a database: one that writes, and a few that read. All that is SQLite's own is in this module.

The writing connection begins every transaction with BEGIN IMMEDIATE, so that it waits for other processes before it has
read anything, and never fails because of a stale snapshot. The reading ones are in autocommit: each statement is a
transaction of its own, and nothing can keep one open.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import aiosqlite
from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from turndock.errors import TurndockError, invalid

Synchronous = Literal["full", "normal"]
"""What a commit waits for: what it wrote survives a power cut with `full`, the death of the process with `normal`."""

DRIVER: Final = "sqlite+aiosqlite"

WAL_BOUND: Final = 64 << 20
"""A write-ahead log above this size is emptied as soon as no reader is in the way."""

_WAL_KEPT: Final = 16 << 20
"""What is left of the write-ahead log's file for later writes: overwriting is cheaper than growing."""

_WRITER_PRAGMAS: Final = (
    "foreign_keys = ON",
    "cache_size = -16384",
    "temp_store = MEMORY",
    f"journal_size_limit = {_WAL_KEPT}",
)
_READER_PRAGMAS: Final = ("query_only = ON", "cache_size = -4096", "temp_store = MEMORY")

_RETRY_SECONDS: Final = 0.02
_MAX_REPORT: Final = 300


def url_of(target: str | Path) -> URL:
    """The URL of a database that is given by URL or by path. Raises VALIDATION_ERROR for what is no SQLite file."""
    if isinstance(target, str) and "://" in target:
        try:
            url = make_url(target)
        except ArgumentError:
            raise invalid("url", "is no database URL") from None
        if url.get_backend_name() != "sqlite":
            raise invalid("url", f"names {url.get_backend_name()!r}; a path or sqlite:///<path> is needed")
        url = url.set(drivername=DRIVER)
    else:
        url = URL.create(DRIVER, database=str(target))
    if not url.database or url.database == ":memory:":
        raise invalid("url", "must name a file: several connections share the database")
    return url


class Database:
    """The connections to one database file."""

    def __init__(self, url: URL, *, synchronous: Synchronous, busy_timeout_ms: int, readers: int) -> None:
        self._path = Path(url.database or "")
        self._busy_timeout = busy_timeout_ms / 1000
        arguments = {"timeout": self._busy_timeout, "isolation_level": None}
        # Whatever is begun on it is ended by the writer, so that nothing is left to roll back.
        self._writing = create_async_engine(
            url, connect_args=arguments, pool_size=1, max_overflow=0, pool_reset_on_return=None
        )
        self._reading = create_async_engine(
            url,
            connect_args=arguments,
            pool_size=readers,
            max_overflow=0,
            pool_reset_on_return=None,
            isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,
        )
        event.listen(self._writing.sync_engine, "begin", _begin_immediate)
        _set_at_connect(self._writing, *_WRITER_PRAGMAS, f"synchronous = {synchronous}")
        _set_at_connect(self._reading, *_READER_PRAGMAS)
        self._reads = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @asynccontextmanager
    async def reader(self) -> AsyncGenerator[AsyncConnection]:
        """A connection to read with. Raises `TurndockError` for whatever the database reports."""
        self._reads += 1
        self._quiet.clear()
        try:
            async with self._reading.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise storage_error(error) from error
        finally:
            self._reads -= 1
            if not self._reads:
                self._quiet.set()

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncConnection]:
        """The writing connection, with the database's write lock. Raises what the database reports, unchanged."""
        async with self._writing.connect() as connection, connection.begin():
            yield connection

    async def open(self) -> None:
        """Open the file, and let readers and writers work side by side from now on."""
        await self.patiently(self._turn_wal_on)

    async def patiently(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Try until the busy timeout is over: a file that several processes open for the first time may refuse at once.

        Raises `TurndockError` for whatever the database reports.
        """
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                return await attempt()
            except (SQLAlchemyError, sqlite3.Error) as error:
                failure = storage_error(error)
                if failure.reason != "STORAGE_BUSY" or time.monotonic() > deadline:
                    raise failure from error
            await asyncio.sleep(_RETRY_SECONDS)

    def wal_bytes(self) -> int:
        """Size of the write-ahead log's file."""
        try:
            return self._path.with_name(f"{self._path.name}-wal").stat().st_size
        except FileNotFoundError:
            return 0

    async def empty_wal(self) -> bool:
        """Move the write-ahead log into the database and cut its file. False if a reader was in the way.

        Raises what the database reports, unchanged.
        """
        async with self._driver() as driver:
            ((is_busy, *_),) = await driver.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
        return not is_busy

    async def close(self) -> None:
        """Wait for the reads under way, then close every connection."""
        await self._quiet.wait()
        await self._reading.dispose()
        await self._writing.dispose()

    async def _turn_wal_on(self) -> None:
        async with self._driver() as driver:
            ((mode,),) = await driver.execute_fetchall("PRAGMA journal_mode")
            if mode != "wal":
                await driver.execute_fetchall("PRAGMA journal_mode = WAL")

    @asynccontextmanager
    async def _driver(self) -> AsyncGenerator[aiosqlite.Connection]:
        """The writing connection without a transaction, for the few statements that cannot be in one."""
        async with self._writing.connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            yield driver


def storage_error(error: BaseException) -> TurndockError:
    """What a caller is told about an error of the database."""
    if isinstance(error, PoolTimeoutError):
        return TurndockError("STORAGE_BUSY", "all connections to the database are in use")
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    report = str(cause)[:_MAX_REPORT]
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return TurndockError("STORAGE_BUSY", f"the database is in use by another process: {report}")
    if primary == sqlite3.SQLITE_CANTOPEN:
        return TurndockError("STORAGE_CONNECTION_FAILED", f"the database cannot be opened: {report}")
    return TurndockError("STORAGE_ERROR", f"the database reported: {report}")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _set_at_connect(engine: AsyncEngine, *settings: str) -> None:
    def on_connect(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for setting in settings:
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    event.listen(engine.sync_engine, "connect", on_connect)
