"""How long to wait before the next try."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from `first` to `most` seconds; `jitter` is the share of each that is left to chance."""

    def __init__(self, first: float, most: float, *, jitter: float = 0.0) -> None:
        self._first = first
        self._most = most
        self._jitter = jitter
        self._next = first

    def reset(self) -> None:
        """Begin at `first` again."""
        self._next = self._first

    def next(self) -> float:
        """Seconds until the next try."""
        delay, self._next = self._next, min(self._most, 2 * self._next)
        return delay * (1 - self._jitter * random.random())
