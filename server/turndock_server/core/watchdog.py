"""A turn's clock: how long it has run, and when that, or a silence, is too long. It rests while people think."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Watchdog:
    """Calls `expire` once the turn has used up its time. At most one timer; none while it rests."""

    __slots__ = (
        "_before_s",
        "_began",
        "_expire",
        "_limit_s",
        "_rested_s",
        "_resting",
        "_silence_s",
        "_timer",
        "last_sign",
    )

    def __init__(
        self,
        expire: Callable[[], object],
        *,
        limit_s: float | None,
        silence_s: float | None,
        before_s: float = 0.0,
    ) -> None:
        self._expire = expire
        self._limit_s = limit_s
        self._silence_s = silence_s
        self._before_s = before_s
        """What the turn had used before its backend left it for a while."""
        self._timer: asyncio.TimerHandle | None = None
        self._resting = 0
        self._rested_s = 0.0
        self._began = self.last_sign = time.monotonic()
        """When the backend last said something, by the monotonic clock."""

    @property
    def active_s(self) -> float:
        """How long the turn has run, without the time it rested."""
        now = self.last_sign if self._resting else time.monotonic()
        return self._before_s + now - self._began - self._rested_s

    def start(self) -> None:
        """Begin to watch."""
        left = self._time_left()
        if left is not None and not self._resting:
            self._timer = asyncio.get_running_loop().call_later(max(left, 0), self._look)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def rest(self) -> None:
        """The turn waits for a person. Each call needs its own `go_on`."""
        if not self._resting:
            self.stop()
            self.last_sign = time.monotonic()
        self._resting += 1

    def go_on(self) -> None:
        """It waits no more."""
        self._resting -= 1
        if not self._resting:
            now = time.monotonic()
            self._rested_s += now - self.last_sign
            self.last_sign = now
            self.start()

    def _look(self) -> None:
        left = self._time_left()
        if left is not None and left <= 0:
            self._timer = None
            self._expire()
        else:
            self.start()

    def _time_left(self) -> float | None:
        """Seconds until a limit is reached; None = never."""
        limits: list[float] = []
        if self._limit_s is not None:
            limits.append(self._limit_s - self.active_s)
        if self._silence_s is not None:
            limits.append(self.last_sign + self._silence_s - time.monotonic())
        return min(limits) if limits else None
