"""The connections to a database: one that writes, and a few that read.

Reads and writes are plain functions over a SQLAlchemy connection. Two lanes carry them, and share all else:

- threads (a path, `sqlite://`): one hop for a transaction of many statements, where a driver that hops for every call
  costs several times as much;
- asynchronous (`postgresql://`, `sqlite+aiosqlite://`): the same functions through SQLAlchemy's asynchronous engine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine

from turndock.errors import TurndockError
from turndock_server.stores.sql import postgresql
from turndock_server.stores.sql.failures import REPORTED, storage_error
from turndock_server.stores.sql.products import Product

T = TypeVar("T")

_RETRY_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 0.5


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


class Database:
    """The connections to one database."""

    def __init__(self, product: Product, *, busy_timeout_ms: int, readers: int) -> None:
        self._product = product
        self._busy_timeout_ms = busy_timeout_ms
        self._lane = product.lane(readers)

    async def open(self) -> None:
        """Open the database, and let readers and writers work side by side from now on. Raises `TurndockError`."""
        await self.patiently(lambda: self._lane.writer.run(self._product.prepare))

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until the busy timeout is over: a file that several processes open for the first time may refuse at once.

        Raises `TurndockError` for whatever the database reports.
        """
        deadline = self._deadline()
        while True:
            try:
                return await attempt()
            except (*REPORTED, TurndockError) as error:
                failure = storage_error(error)
                if failure.reason != "STORAGE_BUSY" or time.monotonic() > deadline:
                    raise failure from error
            await asyncio.sleep(_RETRY_SECONDS)

    def now_us(self) -> int:
        """The time of day of the database's machine, in microseconds since the Unix epoch."""
        return self._product.now_us()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """The result of reading. Raises `TurndockError` for whatever the database reports."""
        try:
            return await self._again_and_again(lambda: self._lane.read(work), lambda: False)
        except REPORTED as error:
            raise storage_error(error) from error

    def write(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """The result of writing in one transaction, committed. Raises what the database reports, unchanged.

        A transaction that was undone for no fault of its own is made again, so the function may be called repeatedly.
        STORAGE_CONNECTION_FAILED if nobody can say whether it was committed.
        """
        is_committing = False

        def write(connection: Connection) -> T:
            nonlocal is_committing
            is_committing = False
            with connection.begin():
                self._product.begin(connection)
                result = work(connection)
                is_committing = True
            return result

        return self._again_and_again(lambda: self._lane.writer.run(write), lambda: is_committing)

    async def _again_and_again(
        self, attempt: Callable[[], Awaitable[T]], is_committing: Callable[[], bool]
    ) -> T:
        deadline = self._deadline()
        pause = _RETRY_SECONDS
        while True:
            try:
                return await attempt()
            except REPORTED as error:
                is_over = time.monotonic() > deadline
                if is_over or not self._product.may_try_again(error, was_committing=is_committing()):
                    if is_committing() and postgresql.is_lost(error):
                        raise postgresql.outcome_unknown(error) from error
                    raise
            await asyncio.sleep(random.uniform(0, pause))  # so that two that collided do not collide again
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _deadline(self) -> float:
        return time.monotonic() + self._busy_timeout_ms / 1000

    def lookout(self) -> Lookout:
        """Somebody who sees what other processes do."""
        return Lookout(self._product, self._lane.lookout())

    def line(self) -> Line:
        """A connection that is kept. It reads; whatever is locked by it itself is locked until it is closed."""
        return self._lane.lookout()

    @property
    def writer(self) -> Line:
        """The connection that writes, for whoever has the database to himself."""
        return self._lane.writer

    def log_bytes(self) -> int:
        """Size of the log that has to be kept small."""
        return self._product.log_bytes()

    async def empty_log(self) -> bool:
        """Make that log empty. False if a reader was in the way. Raises what the database reports, unchanged."""
        return await self._lane.writer.run(self._product.empty_log)

    async def close(self) -> None:
        """Wait for what is under way, then close every connection."""
        await self._lane.close()


class Lookout:
    """Sees that a database has changed, relative to what its connection saw before."""

    def __init__(self, product: Product, line: Line) -> None:
        self._product = product
        self._line = line
        self._version: Hashable = None

    async def has_changed(self) -> bool:
        """Whether another connection has committed anything since the last look. Raises `TurndockError`."""
        try:
            version = await self._line.run(self._product.version)
        except REPORTED as error:
            raise storage_error(error) from error
        self._version, before = version, self._version
        return version != before

    async def close(self) -> None:
        """Give the connection back, after the look that is under way."""
        await self._line.close()
