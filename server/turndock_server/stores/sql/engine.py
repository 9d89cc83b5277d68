"""The connections to a database: one that writes, and a few that read. All that is SQLite's own is in this module.

Reads and writes are plain functions over a SQLAlchemy connection. Each runs as a whole on a thread of its connection's:
one hop for a transaction of many statements, where a driver that hops for every call costs ten times as much. (On a
server database the same functions run under `AsyncConnection.run_sync`.)

The writing connection begins every transaction with BEGIN IMMEDIATE, so that it waits for other processes before it has
read anything, and never fails because of a stale snapshot. The reading ones are in autocommit: each statement is a
transaction of its own, and nothing can keep one open.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, TypeVar, cast

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from turndock.errors import TurndockError, invalid

T = TypeVar("T")

Synchronous = Literal["full", "normal"]
"""What a commit waits for: what it wrote survives a power cut with `full`, the death of the process with `normal`."""

DRIVER: Final = "sqlite"

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

_RETRY_SECONDS: Final = 0.02
_CHECKPOINT_TIMEOUT_MS: Final = 100
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
        self._busy_timeout_ms = busy_timeout_ms
        arguments = {"timeout": busy_timeout_ms / 1000, "isolation_level": None}
        self._writing = create_engine(url, connect_args=arguments)
        self._reading = create_engine(
            url,
            connect_args=arguments,
            pool_size=readers + 1,  # one is kept by whoever looks out for other processes
            max_overflow=0,
            pool_reset_on_return=None,
            isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,
        )
        event.listen(self._writing, "begin", _begin_immediate)
        _set_at_connect(self._writing, *_WRITER_PRAGMAS, f"synchronous = {synchronous}")
        _set_at_connect(self._reading, *_READER_PRAGMAS)
        self._writer: Connection | None = None
        self._writer_thread = ThreadPoolExecutor(1, "turndock-store-writer")
        self._reader_threads = ThreadPoolExecutor(readers, "turndock-store-reader")

    async def open(self) -> None:
        """Open the file, and let readers and writers work side by side from now on. Raises `TurndockError`."""
        await self.patiently(lambda: _on(self._writer_thread, self._connect))

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until the busy timeout is over: a file that several processes open for the first time may refuse at once.

        Raises `TurndockError` for whatever the database reports.
        """
        deadline = time.monotonic() + self._busy_timeout_ms / 1000
        while True:
            try:
                return await attempt()
            except (SQLAlchemyError, sqlite3.Error, TurndockError) as error:
                failure = error if isinstance(error, TurndockError) else storage_error(error)
                if failure.reason != "STORAGE_BUSY" or time.monotonic() > deadline:
                    raise failure from error
            await asyncio.sleep(_RETRY_SECONDS)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """The result of reading. Raises `TurndockError` for whatever the database reports."""

        def read() -> T:
            with self._reading.connect() as connection:
                return work(connection)

        try:
            return await _on(self._reader_threads, read)
        except SQLAlchemyError as error:
            raise storage_error(error) from error

    def write(self, work: Callable[[Connection], T]) -> asyncio.Future[T]:
        """The result of writing in one transaction, committed. Raises what the database reports, unchanged."""

        def write() -> T:
            connection = self._opened()
            with connection.begin():
                return work(connection)

        return _on(self._writer_thread, write)

    def lookout(self) -> Lookout:
        """Somebody who sees what other processes do."""
        return Lookout(self._reading)

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
        return await _on(self._writer_thread, self._truncate_wal)

    async def close(self) -> None:
        """Wait for what is under way, then close every connection."""
        await asyncio.to_thread(self._reader_threads.shutdown)
        await asyncio.to_thread(self._writer_thread.shutdown)
        await asyncio.to_thread(self._disconnect)

    def _connect(self) -> None:
        connection = self._writer = self._writer or self._writing.connect()
        driver = _driver(connection)
        ((mode,),) = driver.execute("PRAGMA journal_mode").fetchall()
        if mode != "wal":
            driver.execute("PRAGMA journal_mode = WAL").fetchall()

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writing.dispose()
        self._reading.dispose()

    def _opened(self) -> Connection:
        if self._writer is None:
            raise TurndockError("STORAGE_CONNECTION_FAILED", "the database is not open")
        return self._writer

    def _truncate_wal(self) -> bool:
        """Readers of other processes are waited for only briefly: meanwhile nobody can write."""
        driver = _driver(self._opened())
        driver.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_TIMEOUT_MS}")
        try:
            ((is_busy, *_),) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            driver.execute(f"PRAGMA busy_timeout = {self._busy_timeout_ms}")
        return not is_busy


class Lookout:
    """A connection that stays open: a file's version is told relative to what its connection saw before."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "turndock-store-lookout")
        self._connection: Connection | None = None
        self._version: int | None = None

    async def has_changed(self) -> bool:
        """Whether another connection has committed anything since the last look. Raises `TurndockError`."""
        try:
            version = await _on(self._thread, self._look)
        except SQLAlchemyError as error:
            raise storage_error(error) from error
        self._version, before = version, self._version
        return version != before

    async def close(self) -> None:
        """Give the connection back, after the look that is under way."""
        await _on(self._thread, self._leave)
        self._thread.shutdown(wait=False)

    def _look(self) -> int:
        if self._connection is None:
            self._connection = self._engine.connect()
        version: int = self._connection.exec_driver_sql("PRAGMA data_version").scalar_one()
        return version

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()


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


def _on(threads: Executor, work: Callable[[], T]) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(threads, work)


def _driver(connection: Connection) -> sqlite3.Connection:
    """The bare connection, for the few statements that cannot be in a transaction."""
    return cast(
        "sqlite3.Connection", connection.connection.driver_connection
    )  # declared for every driver there is


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _set_at_connect(engine: Engine, *settings: str) -> None:
    def on_connect(connection: sqlite3.Connection, _record: object) -> None:
        for setting in settings:
            connection.execute(f"PRAGMA {setting}")

    event.listen(engine, "connect", on_connect)
