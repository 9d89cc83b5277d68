"""Locks by key, which exist only while somebody holds or wants them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyedLocks(Generic[K]):
    """At most one holder per key."""

    def __init__(self) -> None:
        self._locks: dict[K, asyncio.Lock] = {}
        self._users: dict[K, int] = {}

    def is_held(self, key: K) -> bool:
        """Whether somebody holds the key's lock, or waits for it."""
        return key in self._locks

    @asynccontextmanager
    async def hold(self, key: K) -> AsyncGenerator[None]:
        """Hold the key's lock for as long as the context lasts."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]
