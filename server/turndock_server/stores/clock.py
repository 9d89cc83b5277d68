"""The clock stores stamp and lease by."""

from __future__ import annotations

import time
from collections.abc import Callable


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
