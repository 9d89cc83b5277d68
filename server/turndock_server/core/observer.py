"""Shows a turn's events to its behavior while the turn goes on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from turndock.types.v1 import Event

MAX_SHOWN_BYTES = 1 << 20
"""Most bytes shown at once; an event above it is shown alone."""
MAX_BEHIND_BYTES = 16 << 20
"""How far a behavior may be behind before the turn waits for it."""


class Observer:
    """Every event once, in order, with as many at once as are ready. A slow behavior does not hold up the log."""

    def __init__(self, show: Callable[[Sequence[Event]], Awaitable[None]]) -> None:
        self._show = show
        self._unseen: deque[Event] = deque()
        self._behind = 0
        self._showing: asyncio.Task[None] | None = None

    def see(self, events: Sequence[Event]) -> None:
        """Show these after all before."""
        self._unseen.extend(events)
        self._behind += sum(event.ByteSize() for event in events)
        if self._showing is None:
            self._showing = asyncio.create_task(self._show_all())

    @property
    def is_far_behind(self) -> bool:
        """Whether the turn should wait with `finish`."""
        return self._behind > MAX_BEHIND_BYTES

    async def finished_within(self, seconds: float) -> bool:
        """Wait until everything is shown, but no longer than that; whether it is."""
        if self._showing is not None:
            await asyncio.wait((self._showing,), timeout=seconds)
        return self._showing is None

    async def finish(self) -> None:
        """Wait until everything is shown."""
        while self._showing is not None:
            await asyncio.wait((self._showing,))

    async def _show_all(self) -> None:
        try:
            while self._unseen:
                await self._show(self._take())
        finally:
            self._showing = None

    def _take(self) -> list[Event]:
        taken: list[Event] = []
        size = 0
        while self._unseen:
            more = self._unseen[0].ByteSize()
            if taken and size + more > MAX_SHOWN_BYTES:
                break
            taken.append(self._unseen.popleft())
            size += more
        self._behind -= size
        return taken
