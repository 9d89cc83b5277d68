"""`Upkeep` of the SQL store: every call one statement's worth of reading, or one write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, insert, select

from turndock_server.stores.maintenance.policy import Policy
from turndock_server.stores.maintenance.upkeep import Ids, Mismatch, Place, Spare, Spares
from turndock_server.stores.sql import expiring, pruning, scopes
from turndock_server.stores.sql.graves import Undertaker
from turndock_server.stores.sql.postgresql import SessionKey
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.schema import GRAVEYARD_KEY, events, maintenance_answers, runs
from turndock_server.stores.sql.schema import scopes as scopes_table
from turndock_server.stores.sql.transaction import Transaction, Write

T = TypeVar("T")

NOTHING = Ids((), None)


class Reads(Protocol):
    """Whoever reads."""

    def __call__(self, work: Callable[[Connection], T], /) -> Awaitable[T]: ...


class Writes(Protocol):
    """Whoever writes."""

    async def write(self, work: Write[T], sessions: Collection[SessionKey] = ()) -> T: ...


class SqlUpkeep:
    """An SQL store from the side of whoever keeps it small and sound."""

    def __init__(
        self,
        read: Reads,
        writer: Writes,
        known: scopes.Scopes,
        clock: Callable[[], int],
        undertaker: Undertaker,
    ) -> None:
        self.now_us = clock
        self._read = read
        self._writer = writer
        self._scopes = known
        self._undertaker = undertaker

    async def partitions(self) -> Sequence[str]:
        wanted = select(scopes_table.c.tenant).where(scopes_table.c.key != GRAVEYARD_KEY)
        return await self._read(lambda connection: connection.execute(wanted).scalars().all())

    # --- Sessions ------------------------------------------------------------------------------------------------

    async def expired(self, partition: str, policy: Policy, now_us: int, after: str, limit: int) -> Ids:
        if policy.least_age_us is None:
            return NOTHING
        return await self._look(partition, NOTHING, expiring.expired, policy, now_us, (after, limit))

    async def soft_delete(
        self, partition: str, session_ids: Sequence[str], policy: Policy, now_us: int
    ) -> Sequence[str]:
        none: list[str] = []
        change = expiring.soft_delete
        return await self._change(partition, none, session_ids, change, session_ids, policy, now_us)

    async def condemned(self, partition: str, before_us: int, after: str, limit: int) -> Ids:
        return await self._look(
            partition, NOTHING, expiring.condemned, before_us, self.now_us(), (after, limit)
        )

    async def hard_delete(self, partition: str, session_id: str, before_us: int) -> bool:
        return await self._remove(partition, expiring.hard_delete, session_id, before_us)

    # --- Events --------------------------------------------------------------------------------------------------

    async def count_events(self, partition: str, session_id: str | None = None) -> int:
        return await self._look(partition, 0, pruning.count, session_id)

    async def long_logs(self, partition: str, above: int, after: str, limit: int) -> Ids:
        return await self._look(partition, NOTHING, pruning.long_logs, above, after, limit)

    async def floor(self, partition: str, session_id: str) -> int:
        return await self._look(partition, 0, pruning.floor, session_id)

    async def spares(
        self,
        partition: str,
        session_id: str | None,
        policy: Policy,
        *,
        first: bool,
        after: Place | None,
        limit: int,
    ) -> Spares:
        def look(connection: Connection, found: Partition) -> Spares:
            return pruning.spares(
                connection, found, session_id, policy, first=first, after=after, limit=limit
            )

        return await self._look(partition, Spares((), None), look)

    async def bodies(self, partition: str, events: Sequence[Spare]) -> Sequence[bytes]:
        none: list[bytes] = []
        return await self._look(partition, none, pruning.bodies, events)

    async def prune(self, partition: str, events: Sequence[Spare]) -> int:
        session_ids = {event.session_id for event in events}
        return await self._change(partition, 0, session_ids, pruning.prune, events)

    # --- What fits nothing ---------------------------------------------------------------------------------------

    async def saved(self, partition: str, session_ids: Sequence[str]) -> frozenset[str]:
        return await self._look(partition, frozenset[str](), expiring.saved, session_ids)

    async def idle_counters(self, partition: str, after: str, limit: int) -> Ids:
        return await self._look(partition, NOTHING, expiring.idle_counters, self.now_us(), (after, limit))

    async def remove_counter(self, partition: str, session_id: str) -> bool:
        return await self._remove(partition, expiring.remove_counter, session_id)

    async def orphaned_events(self, partition: str) -> int:
        return await self._look(partition, 0, expiring.orphaned_rows, events)

    async def orphaned_runs(self, partition: str) -> int:
        return await self._look(partition, 0, expiring.orphaned_rows, runs)

    async def mismatches(self, partition: str) -> Sequence[Mismatch]:
        none: list[Mismatch] = []
        return await self._look(partition, none, expiring.mismatches)

    # --- Retry tokens --------------------------------------------------------------------------------------------

    async def answer(self, partition: str, request_id: str) -> tuple[bytes, bytes] | None:
        def look(connection: Connection, found: Partition) -> tuple[bytes, bytes] | None:
            row = connection.execute(_answer_to(found, request_id)).first()
            return (row.fingerprint, row.response) if row else None

        return await self._look(partition, None, look)

    async def remember(self, partition: str, request_id: str, fingerprint: bytes, response: bytes) -> None:
        found = self._scopes.known(partition)
        if found is None:
            made = await self._writer.write(lambda tx: scopes.make(tx, partition))
            found = self._scopes.remember(made)
        key, answer_to = found.key, _answer_to(found, request_id)

        def write(tx: Transaction) -> None:
            if tx.connection.execute(answer_to).first() is None:
                values = {"scope": key, "request_id": request_id}
                values |= {"fingerprint": fingerprint, "response": response}
                tx.connection.execute(insert(maintenance_answers), values)

        await self._writer.write(write)

    # --- What the calls share ------------------------------------------------------------------------------------

    async def _look(self, partition: str, nothing: T, look: Callable[..., T], *arguments: Any) -> T:
        """What a function of a connection, the partition and the arguments finds; `nothing` in one never used."""

        def read(connection: Connection) -> T:
            found = self._scopes.find(connection, partition)
            return nothing if found is None else look(connection, found, *arguments)

        return await self._read(read)

    async def _change(
        self,
        partition: str,
        nothing: T,
        session_ids: Collection[str],
        change: Callable[..., T],
        *arguments: Any,
    ) -> T:
        """The same for a function of a transaction, which is one write to these sessions."""
        found = await self._read(lambda connection: self._scopes.find(connection, partition))
        if found is None:
            return nothing
        known = found
        keys = [(known.key, session_id) for session_id in session_ids]
        return await self._writer.write(lambda tx: change(tx, known, *arguments), keys)

    async def _remove(
        self, partition: str, remove: Callable[..., tuple[bool, int | None]], session_id: str, *more: Any
    ) -> bool:
        """Remove a session. It is gone with the first write; what is left of its rows goes before this returns."""
        nothing: tuple[bool, int | None] = (False, None)
        is_gone, left = await self._change(partition, nothing, [session_id], remove, session_id, *more)
        if left is not None:
            await self._undertaker.finish(left)
        return is_gone


def _answer_to(partition: Partition, request_id: str) -> Any:
    return select(maintenance_answers.c.fingerprint, maintenance_answers.c.response).where(
        maintenance_answers.c.scope == partition.key, maintenance_answers.c.request_id == request_id
    )
