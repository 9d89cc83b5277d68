"""Hosts that die, and hosts that do not know that they are dead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from turndock.ports import SessionStore
from turndock_server.core.host import Host


class MortalStore:
    """A host's way to its store, which ends with the host: after its death no call arrives, and none returns.

    `lives` counts down with each call that may write; at 0 the host dies, before that call or, with `after`, after it.
    """

    def __init__(self, store: SessionStore, *, lives: int | None = None, after: bool = False) -> None:
        self._store = store
        self._lives = lives
        self._after = after
        self.died = asyncio.Event()

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        call: Callable[[Any], Awaitable[Any]] = getattr(self._store, name)

        async def mortal(request: Any) -> Any:
            is_last = self._is_last(name)
            if is_last and not self._after:
                self.died.set()
            await self._unless_dead()
            answer = await call(request)
            if is_last:
                self.died.set()
            await self._unless_dead()
            return answer

        return mortal

    def _is_last(self, name: str) -> bool:
        if self._lives is None or name.startswith(("get_", "list_")):
            return False
        self._lives -= 1
        return self._lives == 0

    async def _unless_dead(self) -> None:
        if self.died.is_set():
            await asyncio.Event().wait()


async def kill(host: Host, store: MortalStore) -> None:
    """What SIGKILL does: nothing more is written, and nobody is told."""
    store.died.set()
    await _end([*host.roster._loops.values(), *_upkeep(host)])


async def forsake(host: Host) -> None:
    """The host is cut off from its peers and goes on with what it was doing, as one that was paused and woke up."""
    await _end(_upkeep(host))


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _upkeep(host: Host) -> list[asyncio.Task[Any]]:
    dispatcher: Any = host.roster.dispatcher
    return [*host.roster._upkeep, *dispatcher._deliveries]
