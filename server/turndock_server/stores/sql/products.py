"""The databases there are: how each is connected to, and what is asked of it that SQL has no common words for."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError

from turndock import events
from turndock.errors import invalid
from turndock_server.stores.sql import postgresql, sqlite
from turndock_server.stores.sql.engine_threads import ThreadLane

if TYPE_CHECKING:
    from turndock_server.stores.sql.engine import Lane

_POSTGRESQL: Final = frozenset({"postgresql", "postgresql+asyncpg", "postgres"})
_CLOCK_LASTS_SECONDS: Final = 60.0


class Product(Protocol):
    """A database as the store sees it."""

    def lane(self, readers: int) -> Lane:
        """The connections, of which `readers` read."""
        ...

    def prepare(self, connection: Connection) -> None:
        """Make the database ready, before anything else is done over the connection that writes."""
        ...

    def begin(self, connection: Connection) -> None:
        """What is due at the beginning of a transaction that writes."""
        ...

    def now_us(self) -> int:
        """The time of day that every process on this database shares, in microseconds since the Unix epoch."""
        ...

    def version(self, connection: Connection) -> Hashable:
        """Differs from what this connection was told before if another one has committed anything since."""
        ...

    def may_try_again(self, error: Exception, *, was_committing: bool) -> bool:
        """Whether nothing of a transaction was done, and the same one may well succeed."""
        ...

    def log_bytes(self) -> int:
        """Size of a log that the store has to keep small; 0 where the database sees to it itself."""
        ...

    def empty_log(self, connection: Connection) -> bool:
        """Make that log empty. False if somebody was in the way."""
        ...


class Sqlite:
    """A file."""

    def __init__(self, url: URL, synchronous: sqlite.Synchronous, busy_timeout_ms: int) -> None:
        self._url = url
        self._synchronous: sqlite.Synchronous = synchronous
        self._busy_timeout_ms = busy_timeout_ms

    def lane(self, readers: int) -> Lane:
        lane: Lane
        if self._url.get_driver_name() == "aiosqlite":
            from turndock_server.stores.sql.engine_async import AsyncLane

            lane = AsyncLane(
                self._url,
                writing=sqlite.writing_options(self._busy_timeout_ms),
                reading=sqlite.reading_options(self._busy_timeout_ms, readers),
                readers=readers,
            )
        else:
            lane = ThreadLane(self._url, busy_timeout_ms=self._busy_timeout_ms, readers=readers)
        sqlite.set_up(lane.writing, lane.reading, self._synchronous)
        return lane

    def prepare(self, connection: Connection) -> None:
        sqlite.use_wal(connection)

    def begin(self, connection: Connection) -> None:
        """Nothing: BEGIN IMMEDIATE has locked the file."""

    def now_us(self) -> int:
        return events.now_us()

    def version(self, connection: Connection) -> Hashable:
        return sqlite.data_version(connection)

    def may_try_again(self, error: Exception, *, was_committing: bool) -> bool:
        return False  # it has waited for as long as it may

    def log_bytes(self) -> int:
        return sqlite.wal_bytes(self._url)

    def empty_log(self, connection: Connection) -> bool:
        return sqlite.truncate_wal(connection, self._busy_timeout_ms)


class PostgreSQL:
    """A server that several machines share."""

    def __init__(self, url: str, password: str | None, busy_timeout_ms: int) -> None:
        """`url` is as libpq takes it."""
        self._url = url
        self._password = password
        self._busy_timeout_ms = busy_timeout_ms
        self._ahead_us = 0
        self._look_at_clock_at = 0.0

    def lane(self, readers: int) -> Lane:
        from turndock_server.stores.sql.engine_async import AsyncLane

        if importlib.util.find_spec("asyncpg") is None:
            raise invalid("url", 'needs a driver that is not installed: pip install "turndock[postgres]"')
        timeout = self._busy_timeout_ms
        return AsyncLane(
            make_url(postgresql.ENGINE_URL),
            writing=postgresql.options(self._url, self._password, lock_timeout_ms=timeout, read_only=False),
            reading=postgresql.reading_options(
                self._url, self._password, lock_timeout_ms=timeout, readers=readers
            ),
            readers=readers,
        )

    def prepare(self, connection: Connection) -> None:
        with connection.begin():
            self.begin(connection)

    def begin(self, connection: Connection) -> None:
        """See once in a while how far the server's clock is ahead of this machine's, as leases are by that one."""
        if time.monotonic() >= self._look_at_clock_at:
            before = events.now_us()
            theirs = postgresql.clock_us(connection)
            self._ahead_us = theirs - (before + events.now_us()) // 2
            self._look_at_clock_at = time.monotonic() + _CLOCK_LASTS_SECONDS

    def now_us(self) -> int:
        return events.now_us() + self._ahead_us

    def version(self, connection: Connection) -> Hashable:
        return postgresql.committed(connection)

    def may_try_again(self, error: Exception, *, was_committing: bool) -> bool:
        return postgresql.is_transient(error) or (postgresql.is_lost(error) and not was_committing)

    def log_bytes(self) -> int:
        return 0

    def empty_log(self, connection: Connection) -> bool:
        return True


def product_of(
    target: str | Path, *, password: str | None, synchronous: sqlite.Synchronous, busy_timeout_ms: int
) -> Product:
    """The database at a path or URL. Raises VALIDATION_ERROR for what names none."""
    if isinstance(target, str) and "://" in target:
        scheme, _, rest = target.partition("://")
        if scheme in _POSTGRESQL:
            return PostgreSQL(f"postgresql://{rest}", password, busy_timeout_ms)
        try:
            url = make_url(target)
        except ArgumentError:
            raise invalid("url", "is no database URL") from None
        if url.drivername not in sqlite.DRIVERS:
            known = sorted(sqlite.DRIVERS | _POSTGRESQL)
            raise invalid("url", f"names {url.drivername!r}; a path or one of {known} is needed")
    else:
        url = URL.create("sqlite", database=str(target))
    if not url.database or url.database == ":memory:":
        raise invalid("url", "must name a file: several connections share the database")
    return Sqlite(url, synchronous, busy_timeout_ms)
