"""Waking those who wait for a log to grow. A wake-up carries no data: whoever is woken reads again.

Commits of this process ring by themselves. Those of other processes are noticed by asking the database a few times a
second whether anybody has committed anything, and only while somebody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from sqlalchemy import Connection, select, tuple_

from turndock.errors import TurndockError
from turndock_server.stores.sql.engine import Database
from turndock_server.stores.sql.schema import scopes, sessions

LogKey = tuple[str, str]
"""Partition and session id."""

LogState = tuple[str, int]
"""Incarnation and head."""

LOOK_SECONDS: Final = 0.05
"""How often another process's commits are looked for."""

_CHUNK: Final = 500


class Listener:
    """Somebody who waits for a log to change."""

    __slots__ = ("_changed", "key", "seen")

    def __init__(self, key: LogKey) -> None:
        self.key = key
        self.seen: LogState | None = None
        """The log as it was last read; None = it is being read."""
        self._changed = asyncio.Event()

    def arm(self) -> None:
        """From here on every change is noticed. Read after this."""
        self._changed.clear()
        self.seen = None

    def wake(self) -> None:
        """The log may have changed."""
        self._changed.set()

    async def changed(self, until: float | None = None) -> None:
        """Return when the log may have changed since `arm`, or at `until` by the event loop's clock."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()


class Bell:
    """Who waits for which log."""

    def __init__(self, database: Database) -> None:
        self.is_closed = False
        self._database = database
        self._listeners: dict[LogKey, set[Listener]] = {}
        self._lookout: asyncio.Task[None] | None = None

    @contextmanager
    def listening(self, key: LogKey) -> Generator[Listener]:
        """A listener for the log, for as long as the context lasts."""
        listener = Listener(key)
        self._listeners.setdefault(key, set()).add(listener)
        if self._lookout is None and not self.is_closed:
            self._lookout = asyncio.create_task(self._look_out(), name="other processes' commits")
        try:
            yield listener
        finally:
            listeners = self._listeners[key]
            listeners.remove(listener)
            if not listeners:
                del self._listeners[key]

    def ring(self, keys: Iterable[LogKey]) -> None:
        """These logs have grown."""
        for key in keys:
            for listener in self._listeners.get(key, ()):
                listener.wake()

    async def close(self) -> None:
        """Wake everybody for the last time."""
        self.is_closed = True
        self.ring(list(self._listeners))
        if self._lookout is not None:
            self._lookout.cancel()
            await asyncio.wait((self._lookout,))

    async def _look_out(self) -> None:
        try:
            while self._listeners:
                try:
                    await self._compare_versions()
                except TurndockError:
                    # The listeners meet the same trouble when they read, and report it to those who can act on it.
                    self.ring(list(self._listeners))
                    await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._lookout = None

    async def _compare_versions(self) -> None:
        lookout = self._database.lookout()
        try:
            while self._listeners:
                if await lookout.has_changed():
                    await self._compare_logs()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await lookout.close()

    async def _compare_logs(self) -> None:
        keys = list(self._listeners)
        states = await self._database.read(lambda connection: _states(connection, keys))
        for key in keys:
            state = states.get(key, ("", 0))
            for listener in self._listeners.get(key, ()):
                if listener.seen != state:
                    listener.wake()


def _states(connection: Connection, keys: Sequence[LogKey]) -> dict[LogKey, LogState]:
    states: dict[LogKey, LogState] = {}
    for first in range(0, len(keys), _CHUNK):
        chunk = keys[first : first + _CHUNK]
        for tenant, session_id, incarnation, head in connection.execute(
            select(scopes.c.tenant, sessions.c.id, sessions.c.incarnation, sessions.c.last_sequence)
            .join(scopes, scopes.c.key == sessions.c.scope)
            .where(tuple_(scopes.c.tenant, sessions.c.id).in_(chunk))
        ):
            states[tenant, session_id] = (incarnation, head)
    return states
