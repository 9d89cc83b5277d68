"""`StoreMaintenance`: the contract's calls over any store that offers `Upkeep`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from google.protobuf.message import Message

from turndock.errors import TurndockError, invalid
from turndock.ports import ArtifactStore
from turndock.store.v1 import (
    CleanOrphanedArtifactsRequest,
    CleanOrphanedArtifactsResponse,
    DeleteSessionRequest,
    ExecuteRequest,
    ExecuteResponse,
    HardDeleteExpiredSessionsRequest,
    HardDeleteExpiredSessionsResponse,
    HealthCheckRequest,
    HealthCheckResponse,
    MaintenanceReport,
    PruneSessionEventsRequest,
    PruneSessionEventsResponse,
    SoftDeleteExpiredSessionsRequest,
    SoftDeleteExpiredSessionsResponse,
)
from turndock_server.stores import checks, rules
from turndock_server.stores.maintenance import expiry
from turndock_server.stores.maintenance.archive import Archive
from turndock_server.stores.maintenance.execution import Execution
from turndock_server.stores.maintenance.health import page_of, sorted_issues
from turndock_server.stores.maintenance.orphans import OrphanedArtifacts
from turndock_server.stores.maintenance.policy import Policy, batch_size_of
from turndock_server.stores.maintenance.pruning import Pruner, Rehearsal
from turndock_server.stores.maintenance.upkeep import Upkeep

R = TypeVar("R", bound=Message)

MAX_NAMES: Final = 1_000
"""Most ids and keys an answer names."""

Repeatable = (
    ExecuteRequest
    | PruneSessionEventsRequest
    | SoftDeleteExpiredSessionsRequest
    | HardDeleteExpiredSessionsRequest
    | CleanOrphanedArtifactsRequest
)
Everywhere = (
    ExecuteRequest
    | SoftDeleteExpiredSessionsRequest
    | HardDeleteExpiredSessionsRequest
    | CleanOrphanedArtifactsRequest
    | HealthCheckRequest
)


class StoreMaintenance:
    """Keeps a store small and sound. Implements `turndock.ports.Maintenance`.

    Nothing of it happens by itself, and no store knows of it.
    """

    def __init__(
        self,
        upkeep: Upkeep,
        *,
        artifacts: ArtifactStore | None = None,
        archives: Mapping[str, ArtifactStore] | None = None,
        on_deleted: expiry.OnDeleted | None = None,
    ) -> None:
        """Maintenance of a store.

        `artifacts` has the artifacts of its sessions, `archives` are the stores that events may be archived in, by
        name, and `on_deleted` is told of every session that is hard-deleted, so that its artifacts are forgotten.
        """
        self._upkeep = upkeep
        self._artifacts = artifacts
        self._archives: Mapping[str, ArtifactStore] = {} if archives is None else archives
        self._on_deleted = on_deleted or _tell_nobody
        self._under_way: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def execute(self, request: ExecuteRequest) -> ExecuteResponse:
        policy = Policy.of(request.policy, self._archives)
        return await self._once(request, ExecuteResponse, lambda: self._execute(request, policy))

    async def prune_session_events(self, request: PruneSessionEventsRequest) -> PruneSessionEventsResponse:
        checks.check_session_id(request.session_id)
        policy = Policy.of(request.policy, self._archives)
        return await self._once(request, PruneSessionEventsResponse, lambda: self._prune(request, policy))

    async def soft_delete_expired_sessions(
        self, request: SoftDeleteExpiredSessionsRequest
    ) -> SoftDeleteExpiredSessionsResponse:
        policy = Policy.of(request.policy, self._archives)
        return await self._once(
            request, SoftDeleteExpiredSessionsResponse, lambda: self._soft_delete(request, policy)
        )

    async def hard_delete_expired_sessions(
        self, request: HardDeleteExpiredSessionsRequest
    ) -> HardDeleteExpiredSessionsResponse:
        policy = Policy.of(request.policy, self._archives)
        return await self._once(
            request, HardDeleteExpiredSessionsResponse, lambda: self._hard_delete(request, policy)
        )

    async def clean_orphaned_artifacts(
        self, request: CleanOrphanedArtifactsRequest
    ) -> CleanOrphanedArtifactsResponse:
        given = request.batch_size if request.HasField("batch_size") else None
        batch_size = batch_size_of(given, "batch_size")
        if request.min_age_ms < 0:
            raise invalid("min_age_ms", "must not be negative")
        return await self._once(
            request, CleanOrphanedArtifactsResponse, lambda: self._clean(request, batch_size)
        )

    async def health_check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        checks.page_limit(request.page)
        orphans = OrphanedArtifacts(self._upkeep, self._artifacts)
        partitions = await self._partitions(request, orphans)
        issues = await sorted_issues(self._upkeep, orphans, partitions)
        return page_of(issues, request)

    # --- The work ------------------------------------------------------------------------------------------------

    async def _execute(self, request: ExecuteRequest, policy: Policy) -> ExecuteResponse:
        begun = time.monotonic()
        report = MaintenanceReport(dry_run=request.dry_run)
        orphans = OrphanedArtifacts(self._upkeep, self._artifacts)
        for partition in await self._partitions(request, orphans):
            await Execution(
                self._upkeep,
                partition,
                request,
                policy,
                archive=self._archive(policy, partition),
                orphans=orphans,
                on_deleted=self._on_deleted,
                report=report,
            ).run()
        report.duration_us = int((time.monotonic() - begun) * 1_000_000)
        return ExecuteResponse(report=report)

    async def _prune(self, request: PruneSessionEventsRequest, policy: Policy) -> PruneSessionEventsResponse:
        partition = checks.partition(request)
        rehearsal = Rehearsal() if request.dry_run else None
        pruner = Pruner(self._upkeep, partition, policy, self._archive(policy, partition), rehearsal)
        await pruner.cut_session(request.session_id)
        return PruneSessionEventsResponse(
            events_pruned=pruner.figures.pruned,
            events_archived=pruner.figures.archived,
            pruned_through=await self._upkeep.floor(partition, request.session_id),
            archive_keys=pruner.figures.keys[:MAX_NAMES],
        )

    async def _soft_delete(
        self, request: SoftDeleteExpiredSessionsRequest, policy: Policy
    ) -> SoftDeleteExpiredSessionsResponse:
        response = SoftDeleteExpiredSessionsResponse()
        for partition in await self._partitions(request):
            marked = expiry.soft_delete(self._upkeep, partition, policy, dry_run=request.dry_run)
            async for session_id in marked:
                response.sessions_soft_deleted += 1
                if len(response.session_ids) < MAX_NAMES:
                    response.session_ids.append(session_id)
        return response

    async def _hard_delete(
        self, request: HardDeleteExpiredSessionsRequest, policy: Policy
    ) -> HardDeleteExpiredSessionsResponse:
        response = HardDeleteExpiredSessionsResponse()
        for partition in await self._partitions(request):
            deleted = expiry.hard_delete(
                self._upkeep,
                partition,
                policy,
                self._on_deleted,
                delete_artifacts=request.delete_artifacts,
                dry_run=request.dry_run,
            )
            try:
                async for session_id in deleted:
                    response.sessions_hard_deleted += 1
                    if len(response.session_ids) < MAX_NAMES:
                        response.session_ids.append(session_id)
            except TurndockError as error:
                counted = {"sessions_hard_deleted": str(response.sessions_hard_deleted)}
                error.metadata = {**error.metadata, **counted}
                raise
        return response

    async def _clean(
        self, request: CleanOrphanedArtifactsRequest, batch_size: int
    ) -> CleanOrphanedArtifactsResponse:
        response = CleanOrphanedArtifactsResponse()
        orphans = OrphanedArtifacts(self._upkeep, self._artifacts)
        before_us = self._upkeep.now_us() - request.min_age_ms * 1000 if request.min_age_ms else None
        for partition in await self._partitions(request, orphans):
            keys: AsyncIterator[str] = (
                orphans.keys(partition, stored_before_us=before_us)
                if request.dry_run
                else orphans.remove(
                    partition,
                    delete_bytes=request.delete_bytes,
                    stored_before_us=before_us,
                    batch_size=batch_size,
                )
            )
            async for key in keys:
                response.artifacts_cleaned += 1
                if len(response.keys) < MAX_NAMES:
                    response.keys.append(key)
        return response

    # --- What the calls share ------------------------------------------------------------------------------------

    async def _partitions(
        self, request: Everywhere, orphans: OrphanedArtifacts | None = None
    ) -> Sequence[str]:
        """The partitions a request is about."""
        own = checks.partition(request)
        if not request.every_scope:
            return (own,)
        stored = frozenset(await self._upkeep.partitions())
        return sorted(stored.union(await orphans.partitions() if orphans else ()))

    def _archive(self, policy: Policy, partition: str) -> Archive | None:
        if not policy.archive_store:
            return None
        return Archive(self._archives[policy.archive_store], self._upkeep, partition)

    async def _once(self, request: Repeatable, answer: type[R], work: Callable[[], Awaitable[R]]) -> R:
        """Do the work and keep what it answers, or answer a repeated call as before."""
        partition, token = checks.partition(request), request.request_id
        checks.check_request_id(token)
        if not token or request.dry_run:
            return await work()
        fingerprint = rules.fingerprint(request)
        async with self._under_way.setdefault((partition, token), asyncio.Lock()):
            known = await self._upkeep.answer(partition, token)
            if known is not None:
                if known[0] != fingerprint:
                    raise rules.token_conflict(token)
                return answer.FromString(known[1])
            response = await work()
            await self._upkeep.remember(partition, token, fingerprint, response.SerializeToString())
        return response


async def _tell_nobody(request: DeleteSessionRequest) -> None:
    """Nobody has anything of a session but the store itself."""
