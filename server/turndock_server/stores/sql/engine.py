"""The connections to a database: one that writes, and a few that read.

Reads and writes are plain functions over a SQLAlchemy connection. Two lanes carry them, and share all else:

- threads (a path, `sqlite://`): one hop for a transaction of many statements, where a driver that hops for every call
  costs several times as much;
- asynchronous (`sqlite+aiosqlite://`): the same functions through SQLAlchemy's asynchronous engine, as a server
  database needs it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from turndock.errors import TurndockError
from turndock_server.stores.sql import sqlite
from turndock_server.stores.sql.engine_threads import ThreadLane

T = TypeVar("T")

_RETRY_SECONDS: Final = 0.02


class Line(Protocol):
    """A connection that is kept. Functions run over it one after the other."""

    def run(self, work: Callable[[Connection], T]) -> asyncio.Future[T]:
        """The function's result. Once begun it runs to its end, whether or not somebody still waits for it."""
        ...

    async def close(self) -> None:
        """Wait for what is under way, then give the connection back."""
        ...


class Lane(Protocol):
    """How functions get to run over the connections to a database. Raises what the database reports, unchanged."""

    @property
    def writing(self) -> Engine: ...
    @property
    def reading(self) -> Engine: ...
    @property
    def writer(self) -> Line:
        """The one connection that writes."""
        ...

    def read(self, work: Callable[[Connection], T]) -> asyncio.Future[T]:
        """The function's result, over one of the connections that read. As `Line.run`."""
        ...

    def lookout(self) -> Line:
        """A further connection that reads."""
        ...

    async def close(self) -> None:
        """Wait for what is under way, then close every connection."""
        ...


def lane_of(url: URL, *, busy_timeout_ms: int, readers: int) -> Lane:
    """The lane that a URL's driver asks for."""
    if url.get_driver_name() == "aiosqlite":
        from turndock_server.stores.sql.engine_async import AsyncLane

        return AsyncLane(url, busy_timeout_ms=busy_timeout_ms, readers=readers)
    return ThreadLane(url, busy_timeout_ms=busy_timeout_ms, readers=readers)


class Database:
    """The connections to one database file."""

    def __init__(
        self, url: URL, *, synchronous: sqlite.Synchronous, busy_timeout_ms: int, readers: int
    ) -> None:
        self._url = url
        self._busy_timeout_ms = busy_timeout_ms
        self._lane = lane_of(url, busy_timeout_ms=busy_timeout_ms, readers=readers)
        sqlite.set_up(self._lane.writing, self._lane.reading, synchronous)

    async def open(self) -> None:
        """Open the file, and let readers and writers work side by side from now on. Raises `TurndockError`."""
        await self.patiently(lambda: self._lane.writer.run(sqlite.use_wal))

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until the busy timeout is over: a file that several processes open for the first time may refuse at once.

        Raises `TurndockError` for whatever the database reports.
        """
        deadline = time.monotonic() + self._busy_timeout_ms / 1000
        while True:
            try:
                return await attempt()
            except (SQLAlchemyError, sqlite3.Error, TurndockError) as error:
                failure = error if isinstance(error, TurndockError) else sqlite.storage_error(error)
                if failure.reason != "STORAGE_BUSY" or time.monotonic() > deadline:
                    raise failure from error
            await asyncio.sleep(_RETRY_SECONDS)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """The result of reading. Raises `TurndockError` for whatever the database reports."""
        try:
            return await self._lane.read(work)
        except SQLAlchemyError as error:
            raise sqlite.storage_error(error) from error

    def write(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """The result of writing in one transaction, committed. Raises what the database reports, unchanged."""

        def write(connection: Connection) -> T:
            with connection.begin():
                return work(connection)

        return self._lane.writer.run(write)

    def lookout(self) -> Lookout:
        """Somebody who sees what other processes do."""
        return Lookout(self._lane.lookout())

    def wal_bytes(self) -> int:
        """Size of the write-ahead log's file."""
        return sqlite.wal_bytes(self._url)

    async def empty_wal(self) -> bool:
        """Move the write-ahead log into the database and cut its file. False if a reader was in the way.

        Raises what the database reports, unchanged.
        """
        return await self._lane.writer.run(
            lambda connection: sqlite.truncate_wal(connection, self._busy_timeout_ms)
        )

    async def close(self) -> None:
        """Wait for what is under way, then close every connection."""
        await self._lane.close()


class Lookout:
    """Sees that a file has changed, relative to what its connection saw before."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._version: int | None = None

    async def has_changed(self) -> bool:
        """Whether another connection has committed anything since the last look. Raises `TurndockError`."""
        try:
            version = await self._line.run(sqlite.data_version)
        except SQLAlchemyError as error:
            raise sqlite.storage_error(error) from error
        self._version, before = version, self._version
        return version != before

    async def close(self) -> None:
        """Give the connection back, after the look that is under way."""
        await self._line.close()
