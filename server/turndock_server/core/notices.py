"""Callers that wait until the effect of their notification is stored."""

from __future__ import annotations

import asyncio

from turndock.errors import TurndockError


class Notices:
    """Waiters by the number of the notification they wait for."""

    __slots__ = ("_abandoned", "_waiters")

    def __init__(self) -> None:
        self._abandoned = False
        # None while nobody waits: an idle agent must cost next to nothing.
        self._waiters: list[tuple[int, asyncio.Future[None]]] | None = None

    @property
    def awaited(self) -> bool:
        """Whether anybody waits."""
        return self._waiters is not None

    def wait_for(self, sequence: int) -> asyncio.Future[None]:
        """Done when the effect of that notification is stored."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._abandoned:
            waiter.set_exception(_left_memory())
            return waiter
        self._waiters = [*(self._waiters or ()), (sequence, waiter)]
        return waiter

    def applied_through(self, sequence: int) -> None:
        """The effect of every notification up to this number is stored."""
        left: list[tuple[int, asyncio.Future[None]]] = []
        for waits_for, waiter in self._waiters or ():
            if waits_for > sequence:
                left.append((waits_for, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = left or None

    def abandon(self) -> None:
        """The agent is out of memory: whoever waits must ask again."""
        self._abandoned = True
        for _, waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_exception(_left_memory())
        self._waiters = None


def _left_memory() -> TurndockError:
    return TurndockError("UNAVAILABLE", "the agent left memory; ask again")
