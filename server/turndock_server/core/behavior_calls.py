"""How a behavior is called: within a time, and again while its process is away.

A call that did not reach the behavior, or whose answer was lost with its connection, is made again with the same
request id, so that a plug-in may be killed in the middle of a callback and decides when it is back. Every other failure
is the behavior's own answer, and counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from turndock.errors import TurndockError

log = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5
_AWAY = "PLUGIN_UNAVAILABLE"
"""The reason of a call that nobody answered."""


class BehaviorAway(Exception):
    """The behavior cannot be reached and its agent will not wait: what is due is left to the agent's next owner."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a behavior is waited for."""

    timeout_s: float = 60.0
    """Longest that one call may take."""
    wait_s: float = 30.0
    """How long its process may be away before a call to it has failed."""


class BehaviorCalls:
    """One agent's calls."""

    __slots__ = ("_ending", "_leaving", "_patience")

    def __init__(
        self, patience: Patience, *, leaving: Callable[[], bool], ending: Callable[[], bool]
    ) -> None:
        """`leaving`: the agent leaves this host, another owner goes on. `ending`: the agent ends, nobody goes on."""
        self._patience = patience
        self._leaving = leaving
        self._ending = ending

    async def make(self, call: Callable[[Q], Awaitable[A]], request: Q) -> A:
        """The answer. Raises whatever the behavior raises, TIMEOUT, PLUGIN_UNAVAILABLE, and `BehaviorAway`."""
        now = asyncio.get_running_loop().time
        deadline: float | None = None
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await self.once(call, request)
            except TurndockError as error:
                if error.reason != _AWAY:
                    raise
                if self._leaving():
                    raise BehaviorAway from error
                if deadline is None:
                    deadline = now() + self._patience.wait_s
                    log.warning("the behavior cannot be reached and is waited for: %s", error.message)
                if self._ending() or now() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def once(
        self, call: Callable[[Q], Awaitable[A]], request: Q, *, within_s: float | None = None
    ) -> A:
        """The answer to a call that is not made again. Raises as `make`, but for `BehaviorAway`."""
        longest = self._patience.timeout_s if within_s is None else min(within_s, self._patience.timeout_s)
        try:
            async with asyncio.timeout(longest):
                return await call(request)
        except TimeoutError:
            raise TurndockError("TIMEOUT", f"the behavior did not answer within {longest:g} s") from None
