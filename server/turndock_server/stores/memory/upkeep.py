"""`Upkeep` of the store in memory: every call is one step of the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from turndock_server.stores import rules
from turndock_server.stores.maintenance.policy import PROTECTED, Policy, is_free
from turndock_server.stores.maintenance.upkeep import Ids, Mismatch, Place, Spare, Spares
from turndock_server.stores.memory.database import Database, Record, StoredEvent, copy_of


class MemoryUpkeep:
    """A store in memory from the side of whoever keeps it small and sound."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.now_us = database.now_us

    async def partitions(self) -> Sequence[str]:
        return sorted({partition for partition, _ in self._database.records})

    # --- Sessions ------------------------------------------------------------------------------------------------

    async def expired(self, partition: str, policy: Policy, now_us: int, after: str, limit: int) -> Ids:
        return self._ids(partition, after, limit, lambda record: self._has_expired(record, policy, now_us))

    async def soft_delete(
        self, partition: str, session_ids: Sequence[str], policy: Policy, now_us: int
    ) -> Sequence[str]:
        marked: list[str] = []
        for session_id in session_ids:
            record = self._database.record((partition, session_id))
            if record.session is not None and self._has_expired(record, policy, now_us):
                session = copy_of(record.session)
                session.deleted_at_us = self._database.now_us()
                self._database.put_session(record, session)
                marked.append(session_id)
        return marked

    async def condemned(self, partition: str, before_us: int, after: str, limit: int) -> Ids:
        return self._ids(partition, after, limit, lambda record: self._is_condemned(record, before_us))

    async def hard_delete(self, partition: str, session_id: str, before_us: int) -> bool:
        record = self._database.record((partition, session_id))
        is_condemned = self._is_condemned(record, before_us)
        if is_condemned:
            self._database.delete(record.key)
        return is_condemned

    # --- Events --------------------------------------------------------------------------------------------------

    async def count_events(self, partition: str, session_id: str | None = None) -> int:
        return sum(
            len(record.log)
            for record in self._records(partition)
            if session_id is None or record.key[1] == session_id
        )

    async def long_logs(self, partition: str, above: int, after: str, limit: int) -> Ids:
        return self._ids(partition, after, limit, lambda record: len(record.log) > above)

    async def floor(self, partition: str, session_id: str) -> int:
        return self._database.record((partition, session_id)).pruned_through

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
        def place(record: Record, event: StoredEvent) -> Place:
            return (event.sequence,) if session_id else (event.stored_at_us, record.key[1], event.sequence)

        found = [
            (place(record, event), record, event)
            for record in self._records(partition)
            if session_id is None or record.key[1] == session_id
            for event in record.log.values()
            if (event.type in policy.first_types) is first and _may_be_pruned(record, event)
        ]
        later = sorted((each for each in found if after is None or each[0] > after), key=lambda each: each[0])
        page = later[:limit]
        spared = [
            Spare(record.key[1], record.incarnation, event.sequence, len(event.body))
            for _, record, event in page
        ]
        return Spares(spared, page[-1][0] if len(page) < len(later) else None)

    async def bodies(self, partition: str, events: Sequence[Spare]) -> Sequence[bytes]:
        return [event.body for event in self._still_there(partition, events)]

    async def prune(self, partition: str, events: Sequence[Spare]) -> int:
        removed = 0
        for spare in events:
            record = self._database.record((partition, spare.session_id))
            for event in list(self._still_there(partition, (spare,))):
                if _may_be_pruned(record, event):
                    self._database.prune(record, event.sequence)
                    removed += 1
        return removed

    # --- What fits nothing ---------------------------------------------------------------------------------------

    async def saved(self, partition: str, session_ids: Sequence[str]) -> frozenset[str]:
        return frozenset(
            session_id
            for session_id in session_ids
            if self._database.record((partition, session_id)).session is not None
        )

    async def idle_counters(self, partition: str, after: str, limit: int) -> Ids:
        return self._ids(partition, after, limit, self._is_idle)

    async def remove_counter(self, partition: str, session_id: str) -> bool:
        record = self._database.records.get((partition, session_id))
        is_idle = record is not None and self._is_idle(record) and not record.log
        if is_idle:
            self._database.delete((partition, session_id))
        return is_idle

    async def orphaned_events(self, partition: str) -> int:
        return sum(len(record.log) for record in self._records(partition) if record.session is None)

    async def orphaned_runs(self, partition: str) -> int:
        return sum(len(record.runs) for record in self._records(partition) if record.session is None)

    async def mismatches(self, partition: str) -> Sequence[Mismatch]:
        found = [
            Mismatch(record.key[1], record.head, max(record.log))
            for record in self._records(partition)
            if record.log and record.head < max(record.log)
        ]
        return sorted(found, key=lambda each: each.session_id)

    # --- Retry tokens --------------------------------------------------------------------------------------------

    async def answer(self, partition: str, request_id: str) -> tuple[bytes, bytes] | None:
        return self._database.maintenance_answers.get((partition, request_id))

    async def remember(self, partition: str, request_id: str, fingerprint: bytes, response: bytes) -> None:
        self._database.maintenance_answers.setdefault((partition, request_id), (fingerprint, response))

    # --- What the calls share ------------------------------------------------------------------------------------

    def _records(self, partition: str) -> Iterator[Record]:
        return (record for (owner, _), record in self._database.records.items() if owner == partition)

    def _ids(self, partition: str, after: str, limit: int, matches: Callable[[Record], bool]) -> Ids:
        later = sorted(
            record.key[1] for record in self._records(partition) if record.key[1] > after and matches(record)
        )
        page = later[:limit]
        return Ids(page, page[-1] if len(page) < len(later) else None)

    def _has_expired(self, record: Record, policy: Policy, now_us: int) -> bool:
        session = record.session
        return session is not None and policy.has_expired(session, now_us) and self._is_left_alone(record)

    def _is_condemned(self, record: Record, before_us: int) -> bool:
        session = record.session
        return (
            session is not None
            and session.HasField("deleted_at_us")
            and session.deleted_at_us < before_us
            and is_free(session)
            and self._is_left_alone(record)
        )

    def _is_left_alone(self, record: Record) -> bool:
        """Whether nobody works for a session."""
        ownership = self._database.ownership(record.key)
        return not record.open_runs and not ownership.is_claimed(self._database.now_us())

    def _is_idle(self, record: Record) -> bool:
        """Whether a record is nothing but a log, or what is left of one."""
        return record.session is None and not record.runs and self._is_left_alone(record)

    def _still_there(self, partition: str, spares: Sequence[Spare]) -> Iterator[StoredEvent]:
        """Those of the events that are stored, in the life of their session that they were found in."""
        for spare in spares:
            record = self._database.record((partition, spare.session_id))
            event = record.log.get(spare.sequence)
            if event is not None and record.incarnation == spare.incarnation:
                yield event


def _may_be_pruned(record: Record, event: StoredEvent) -> bool:
    return (
        event.type not in PROTECTED
        and event.run_id not in record.open_runs
        and not _is_unapplied(record, event)
    )


def _is_unapplied(record: Record, event: StoredEvent) -> bool:
    """Whether an event is a notification that its session's agent has still to apply."""
    session = record.session
    return (
        session is not None
        and session.HasField("agent")
        and event.sequence > session.agent.notified_sequence
        and event.message().custom.name == rules.NOTIFIED
    )
