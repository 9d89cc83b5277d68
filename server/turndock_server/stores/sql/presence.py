"""Being the only server of a PostgreSQL database, as the lock beside a SQLite file makes one the only server of that.

The lock is the connection's: it is free the moment its holder is gone, however it went. A server whose connection
breaks takes it again; one that finds another server in its place has to end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from turndock_server.stores.sql import postgresql
from turndock_server.stores.sql.engine import Line
from turndock_server.stores.sql.failures import REPORTED, storage_error

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""How often a server sees to it that the lock is still its own."""
_TRY_SECONDS: Final = 0.1


class Presence:
    """The lock while it is held."""

    def __init__(self, line: Line, on_lost: Callable[[], None]) -> None:
        """Use `announce`."""
        self._line = line
        self._on_lost = on_lost
        self._watch = asyncio.create_task(self._keep(), name="the only server of a database")

    @classmethod
    async def announce(cls, line: Line, *, patience_ms: int, on_lost: Callable[[], None]) -> Presence | None:
        """Take the lock over a connection that is kept for it; None if another server has it all the time.

        A server that has just ended may still be in the way, so it is tried for a while. `on_lost` is called once,
        should another server have it later. Raises `TurndockError` for what the database reports.
        """
        until = time.monotonic() + patience_ms / 1000
        try:
            while not await line.run(postgresql.take_presence):
                if time.monotonic() > until:
                    await line.close()
                    return None
                await asyncio.sleep(_TRY_SECONDS)
        except REPORTED as error:
            await line.close()
            raise storage_error(error) from error
        return cls(line, on_lost)

    async def close(self) -> None:
        """Give the lock back."""
        self._watch.cancel()
        await asyncio.wait((self._watch,))
        await self._line.close()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if not await self._line.run(postgresql.take_presence):
                    break
            except REPORTED as error:  # what is written meanwhile meets the same trouble
                log.warning("the database's lock cannot be seen to: %s", storage_error(error).message)
        log.error("another server has taken this database over")
        self._on_lost()
