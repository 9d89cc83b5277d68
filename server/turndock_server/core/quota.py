"""How many agents a scope may have: counted from the store's rows, and exact however many are started at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from turndock.errors import TurndockError
from turndock.store.v1 import ListSessionsRequest
from turndock.types.v1 import Page
from turndock_server.core.feed import AgentKey
from turndock_server.core.journal import Journal
from turndock_server.core.locks import KeyedLocks

_SESSIONS_PER_PAGE: Final = 1_000


class AgentQuota:
    """A place for each agent that has not stopped, dormant or not. Without a limit nothing is counted."""

    def __init__(self, journal: Journal, most: int | None) -> None:
        self._journal = journal
        self._most = most
        self._counting: KeyedLocks[str | None] = KeyedLocks()
        self._starting: defaultdict[str | None, set[str]] = defaultdict(set)
        """Names that were given a place and may not have a row yet."""
        self._settled = 0
        """How many starts have ended, well or not."""

    @asynccontextmanager
    async def place(self, tenant: str | None, agent_name: str) -> AsyncGenerator[None]:
        """A place for an agent while it is being started. Raises MAX_SESSIONS_EXCEEDED."""
        if self._most is None:
            yield
            return
        async with self._counting.hold(tenant):
            await self._check(tenant, self._most)
            self._starting[tenant].add(agent_name)
        try:
            yield
        finally:
            self._settled += 1
            self._starting[tenant].discard(agent_name)
            if not self._starting[tenant]:
                del self._starting[tenant]

    async def _check(self, tenant: str | None, most: int) -> None:
        while True:
            settled = self._settled
            names = await self._names(tenant)
            if settled == self._settled:
                break  # Otherwise a start that ended meanwhile may be neither among the rows nor among those under way.
        current = len(names | self._starting.get(tenant, set()))
        if current >= most:
            raise TurndockError(
                "MAX_SESSIONS_EXCEEDED",
                f"the scope has {current} agents that have not stopped; at most {most} may be there",
                metadata={"limit": "max_agents_per_scope", "max": str(most), "current": str(current)},
            )

    async def _names(self, tenant: str | None) -> set[str]:
        """The names of the scope's agents; no two of them have the same."""
        names: set[str] = set()
        page = Page(limit=_SESSIONS_PER_PAGE)
        while True:
            found = await self._journal.list_sessions(
                ListSessionsRequest(scope=AgentKey(tenant, "").scope, live_agents_only=True, page=page)
            )
            names.update(session.agent_id for session in found.sessions)
            if not found.next_cursor:
                return names
            page = Page(limit=_SESSIONS_PER_PAGE, cursor=found.next_cursor)
