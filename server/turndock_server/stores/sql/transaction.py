"""What a write gets to work with."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from turndock_server.stores.sql.wakeups import LogKey

T = TypeVar("T")


@dataclass(slots=True)
class Transaction:
    """The database while it is locked for one writer."""

    connection: AsyncConnection
    now_us: int
    """The store's time; the same for all that is written together."""
    is_careful: bool
    """Whether to look known event ids up first. Otherwise a known one fails the transaction, and it is made again."""
    grown: set[LogKey] = field(default_factory=set[LogKey])
    """The logs that have new events."""


Write = Callable[[Transaction], Awaitable[T]]
"""A write: refuses with a `TurndockError` before it has changed anything, or changes rows and answers."""


class Clock:
    """The time of day in microseconds since the Unix epoch, never going back.

    When the machine's clock is set back, this one goes on at the same pace until the other has caught up: leases still
    run out, and what is stored later is not stamped earlier.
    """

    def __init__(self, wall: Callable[[], int]) -> None:
        self._wall = wall
        self._latest = wall()
        self._measured = time.monotonic_ns()

    def __call__(self) -> int:
        """The time now."""
        measured = time.monotonic_ns()
        elapsed = (measured - self._measured) // 1000
        self._latest = max(self._wall(), self._latest + elapsed)
        self._measured = measured
        return self._latest
