"""Callers that wait for runs to end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection

from turndock.errors import TurndockError, not_found
from turndock.types.v1 import Response, Run
from turndock_server.core.feed import AgentKey

RunWaiter = asyncio.Future[tuple[Run, Response | None]]

Place = tuple[AgentKey, str]
"""A run, by its session and its id."""


class RunWaiters:
    """Whoever waits for a run of this host."""

    def __init__(self) -> None:
        self._waiters: defaultdict[Place, set[RunWaiter]] = defaultdict(set)

    def wait_for(self, key: AgentKey, run_id: str) -> RunWaiter:
        """Done when the run has ended here; give it back with `stop_waiting`."""
        waiter: RunWaiter = asyncio.get_running_loop().create_future()
        self._waiters[(key, run_id)].add(waiter)
        return waiter

    def stop_waiting(self, key: AgentKey, run_id: str, waiter: RunWaiter) -> None:
        """Nobody waits on this any more."""
        waiters = self._waiters.get((key, run_id))
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[(key, run_id)]

    def settled(self, key: AgentKey, run: Run, response: Response | None) -> None:
        """A run has ended: tell whoever waits."""
        for waiter in self._waiters.pop((key, run.id), ()):
            if not waiter.done():
                waiter.set_result((run, response))

    def stopping(self, but: Collection[Place] = ()) -> None:
        """Tell whoever waits for a run that will not end here; the run itself waits for the next start."""
        refusal = TurndockError("SERVER_STOPPING", "the server is stopping")
        self._refuse(lambda place: place not in but, refusal)

    def session_gone(self, key: AgentKey) -> None:
        """A session was deleted: none of its runs will end."""
        self._refuse(lambda place: place[0] == key, not_found("session", key.session_id))

    def _refuse(self, concerns: Callable[[Place], bool], refusal: TurndockError) -> None:
        for place in [place for place in self._waiters if concerns(place)]:
            for waiter in self._waiters.pop(place):
                if not waiter.done():
                    waiter.set_exception(refusal)
                    waiter.exception()  # seen: not everybody who waits looks at it
