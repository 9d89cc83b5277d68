"""Maintenance that breaks one sentence of its contract each, and the case that must find out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from google.protobuf.message import Message

from turndock.store.v1 import (
    CleanOrphanedArtifactsRequest,
    CleanOrphanedArtifactsResponse,
    ExecuteRequest,
    ExecuteResponse,
    HardDeleteExpiredSessionsRequest,
    PruneSessionEventsRequest,
    PruneSessionEventsResponse,
)
from turndock_server.stores.maintenance import StoreMaintenance
from turndock_server.stores.maintenance.archive import Archive
from turndock_server.stores.maintenance.policy import DAY_US, Policy
from turndock_server.stores.maintenance.port import Repeatable
from turndock_server.stores.maintenance.upkeep import Mismatch, Place, Spare, Spares
from turndock_server.stores.memory.database import Record, copy_of
from turndock_server.stores.memory.upkeep import MemoryUpkeep

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)


def changed(request: M, **fields: Any) -> M:
    copy = copy_of(request)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


# --- What happens to the rows ----------------------------------------------------------------------------------------


class UsesNumbersAgain(MemoryUpkeep):
    """The counter falls back to what is left."""

    async def prune(self, partition: str, events: Sequence[Spare]) -> int:
        removed = await super().prune(partition, events)
        for event in events:
            record = self._database.record((partition, event.session_id))
            record.head = max(record.log, default=0)
        return removed


class KeepsNoFloor(MemoryUpkeep):
    async def prune(self, partition: str, events: Sequence[Spare]) -> int:
        removed = await super().prune(partition, events)
        for event in events:
            self._database.record((partition, event.session_id)).pruned_through = 0
        return removed


class PrunesWhatIsOpen(MemoryUpkeep):
    """A run's status plays no part."""

    def _records(self, partition: str) -> Any:
        for record in super()._records(partition):
            bare = replace(record)
            bare.open_runs = {}
            yield bare

    async def prune(self, partition: str, events: Sequence[Spare]) -> int:
        for event in events:
            self._database.prune(self._database.record((partition, event.session_id)), event.sequence)
        return len(events)


class PrunesNotifications(PrunesWhatIsOpen):
    """Whether a notification was applied plays no part."""

    def _records(self, partition: str) -> Any:
        for record in super()._records(partition):
            record.session = None
            yield record


class PrunesByTheWritersTime(MemoryUpkeep):
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
        found = await super().spares(partition, session_id, policy, first=first, after=None, limit=1_000_000)
        times = {
            (record.key[1], event.sequence): event.message().time_us
            for record in self._records(partition)
            for event in record.log.values()
        }
        return Spares(sorted(found.events, key=lambda each: times[each.session_id, each.sequence]), None)


class ExpiresByAge(MemoryUpkeep):
    """When a session was made counts, not when it was changed."""

    def _has_expired(self, record: Record, policy: Policy, now_us: int) -> bool:
        if record.session is None:
            return False
        aged = copy_of(record.session)
        aged.updated_at_us = min(aged.updated_at_us, aged.created_at_us)
        return policy.has_expired(aged, now_us) and self._is_left_alone(record)


class TakesWhatIsInUse(MemoryUpkeep):
    def _is_left_alone(self, record: Record) -> bool:
        return True


class MarksWithoutASecondLook(MemoryUpkeep):
    """What had expired when it was looked for is marked, whatever has happened since."""

    async def soft_delete(
        self, partition: str, session_ids: Sequence[str], policy: Policy, now_us: int
    ) -> Sequence[str]:
        await asyncio.sleep(0)
        for session_id in session_ids:
            session = self._database.record((partition, session_id)).session
            if session is not None:
                session.deleted_at_us = now_us
        return session_ids


class DeletesTheRecordOnly(MemoryUpkeep):
    async def hard_delete(self, partition: str, session_id: str, before_us: int) -> bool:
        record = self._database.record((partition, session_id))
        if not self._is_condemned(record, before_us):
            return False
        record.session = None
        return True


class TakesHolesForDamage(MemoryUpkeep):
    """A counter that is not the highest number stored is an issue."""

    async def mismatches(self, partition: str) -> Sequence[Mismatch]:
        return [
            Mismatch(record.key[1], record.head, max(record.log, default=0))
            for record in self._records(partition)
            if record.head != max(record.log, default=0)
        ]


# --- What the calls do -----------------------------------------------------------------------------------------------


class LooksAtThePolicyLater(StoreMaintenance):
    """A policy whose archive does not exist is carried out without one."""

    async def execute(self, request: ExecuteRequest) -> ExecuteResponse:
        if request.policy.archive_store not in self._archives:
            request = copy_of(request)
            request.policy.ClearField("archive_store")
            request.policy.ClearField("archive_before_prune")
        return await super().execute(request)


class IgnoresDryRun(StoreMaintenance):
    async def execute(self, request: ExecuteRequest) -> ExecuteResponse:
        response = await super().execute(changed(request, dry_run=False))
        response.report.dry_run = request.dry_run
        return response


class IgnoresRequestIds(StoreMaintenance):
    async def _once(self, request: Repeatable, answer: type[R], work: Callable[[], Awaitable[R]]) -> R:
        return await work()


class NeverArchives(StoreMaintenance):
    def _archive(self, policy: Policy, partition: str) -> Archive | None:
        return None


class ArchivesHalf(StoreMaintenance):
    """What is pruned and what is archived are not the same."""

    async def prune_session_events(self, request: PruneSessionEventsRequest) -> PruneSessionEventsResponse:
        whole = copy_of(request)
        whole.policy.ClearField("archive_before_prune")
        half = copy_of(request)
        half.policy.max_events_per_session.max += 6
        archived = await super().prune_session_events(half)
        pruned = await super().prune_session_events(whole)
        archived.events_pruned += pruned.events_pruned
        return archived


class DeletesBytes(StoreMaintenance):
    async def clean_orphaned_artifacts(
        self, request: CleanOrphanedArtifactsRequest
    ) -> CleanOrphanedArtifactsResponse:
        return await super().clean_orphaned_artifacts(changed(request, delete_bytes=True))


class SparesNothing(StoreMaintenance):
    async def clean_orphaned_artifacts(
        self, request: CleanOrphanedArtifactsRequest
    ) -> CleanOrphanedArtifactsResponse:
        return await super().clean_orphaned_artifacts(changed(request, min_age_ms=0))


class WorksEverywhere(StoreMaintenance):
    async def execute(self, request: ExecuteRequest) -> ExecuteResponse:
        return await super().execute(changed(request, every_scope=True))


class MarksAndDeletes(StoreMaintenance):
    """What an Execute marks it deletes at once."""

    async def execute(self, request: ExecuteRequest) -> ExecuteResponse:
        response = await super().execute(request)
        clock = self._upkeep.now_us
        self._upkeep.now_us = lambda: clock() + 31 * DAY_US  # type: ignore[method-assign]  # it is in a hurry
        deletion = HardDeleteExpiredSessionsRequest(scope=request.scope, policy=request.policy)
        more = await self.hard_delete_expired_sessions(deletion)
        response.report.sessions_hard_deleted += more.sessions_hard_deleted
        return response


class IgnoresTheTotal(StoreMaintenance):
    async def execute(self, request: ExecuteRequest) -> ExecuteResponse:
        request = copy_of(request)
        request.policy.ClearField("max_total_events")
        return await super().execute(request)


@dataclass(frozen=True)
class Mutant:
    kind: type[MemoryUpkeep] | type[StoreMaintenance]
    fails: str
    """Name of the case that must find out."""


MUTANTS = (
    Mutant(UsesNumbersAgain, "no_number_is_used_again"),
    Mutant(KeepsNoFloor, "the_oldest_surplus_is_pruned"),
    Mutant(PrunesWhatIsOpen, "the_events_of_an_open_run_stay"),
    Mutant(PrunesNotifications, "a_notification_stays_until_its_effect_is_stored"),
    Mutant(PrunesByTheWritersTime, "order_is_by_number_also_after_pruning"),
    Mutant(ExpiresByAge, "an_ended_session_expires_by_its_last_change"),
    Mutant(TakesWhatIsInUse, "a_session_in_use_does_not_expire"),
    Mutant(TakesWhatIsInUse, "a_claimed_session_does_not_expire"),
    Mutant(MarksWithoutASecondLook, "no_run_starts_in_a_session_that_expires"),
    Mutant(DeletesTheRecordOnly, "a_marked_session_is_deleted_with_all_it_has"),
    Mutant(TakesHolesForDamage, "no_number_is_used_again"),
    Mutant(LooksAtThePolicyLater, "a_wrong_policy_does_nothing"),
    Mutant(IgnoresDryRun, "a_rehearsal_counts_the_same_and_changes_nothing"),
    Mutant(IgnoresRequestIds, "a_repeated_call_is_answered_as_before"),
    Mutant(IgnoresRequestIds, "a_request_id_is_for_one_request"),
    Mutant(NeverArchives, "what_is_pruned_is_archived_as_stored"),
    Mutant(NeverArchives, "the_total_is_archived_by_session"),
    Mutant(ArchivesHalf, "what_is_pruned_is_archived_as_stored"),
    Mutant(DeletesBytes, "rows_of_missing_sessions_go_and_bytes_stay"),
    Mutant(SparesNothing, "young_artifacts_may_be_spared"),
    Mutant(WorksEverywhere, "another_scope_is_left_alone"),
    Mutant(MarksAndDeletes, "one_call_does_not_mark_and_delete"),
    Mutant(IgnoresTheTotal, "the_total_is_cut_across_sessions_by_time"),
)
