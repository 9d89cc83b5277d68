"""Execute: every step of a policy over one partition, each whatever became of the others."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from turndock.errors import TurndockError
from turndock.store.v1 import ExecuteRequest, MaintenanceError, MaintenanceReport, MaintenanceStep
from turndock_server.stores.checks import scope_of
from turndock_server.stores.maintenance import expiry
from turndock_server.stores.maintenance.archive import Archive, ArchiveFailed
from turndock_server.stores.maintenance.orphans import OrphanedArtifacts
from turndock_server.stores.maintenance.policy import Policy
from turndock_server.stores.maintenance.pruning import Pruner, Rehearsal
from turndock_server.stores.maintenance.upkeep import Upkeep
from turndock_server.stores.pace import paced

logger = logging.getLogger(__name__)

MAX_ERRORS: Final = 100
MAX_MESSAGE: Final = 1024
_IDS_AT_ONCE: Final = 500


class Execution:
    """The steps of one Execute in one partition."""

    def __init__(
        self,
        upkeep: Upkeep,
        partition: str,
        request: ExecuteRequest,
        policy: Policy,
        *,
        archive: Archive | None,
        orphans: OrphanedArtifacts,
        on_deleted: expiry.OnDeleted,
        report: MaintenanceReport,
    ) -> None:
        self._upkeep = upkeep
        self._partition = partition
        self._policy = policy
        self._archive = archive
        self._orphans = orphans
        self._on_deleted = on_deleted
        self._report = report
        self._deletes_artifacts = request.delete_artifacts
        self._rehearsal = Rehearsal() if request.dry_run else None

    async def run(self) -> None:
        """Take every step; what goes wrong is in the report."""
        async with self._step(MaintenanceStep.MAINTENANCE_STEP_SOFT_DELETE):
            await self._soft_delete()
        async with self._step(MaintenanceStep.MAINTENANCE_STEP_HARD_DELETE):
            await self._hard_delete()
        await self._prune()
        async with self._step(MaintenanceStep.MAINTENANCE_STEP_ORPHANED_ARTIFACTS):
            await self._clean_artifacts()
        async with self._step(MaintenanceStep.MAINTENANCE_STEP_ORPHANED_SEQUENCES):
            await self._clean_counters()

    async def _soft_delete(self) -> None:
        marked = expiry.soft_delete(
            self._upkeep, self._partition, self._policy, dry_run=self._rehearsal is not None
        )
        async for _ in marked:
            self._report.sessions_soft_deleted += 1

    async def _hard_delete(self) -> None:
        deleted = expiry.hard_delete(
            self._upkeep,
            self._partition,
            self._policy,
            self._on_deleted,
            delete_artifacts=self._deletes_artifacts,
            dry_run=self._rehearsal is not None,
        )
        async for session_id in deleted:
            self._report.sessions_hard_deleted += 1
            if self._rehearsal is not None:
                self._rehearsal.sessions.add(session_id)

    async def _prune(self) -> None:
        """Cut down each log, then all of them. Nothing more is pruned once an archive could not be written."""
        pruner = Pruner(self._upkeep, self._partition, self._policy, self._archive, self._rehearsal)
        async with self._step(MaintenanceStep.MAINTENANCE_STEP_ARCHIVE, ArchiveFailed):
            async with self._step(MaintenanceStep.MAINTENANCE_STEP_PRUNE, but_not=ArchiveFailed):
                await self._cut_sessions(pruner)
            async with self._step(MaintenanceStep.MAINTENANCE_STEP_PRUNE, but_not=ArchiveFailed):
                await pruner.cut_all()
        self._report.events_pruned += pruner.figures.pruned
        self._report.events_archived += pruner.figures.archived
        self._report.archives_written += len(pruner.figures.keys)

    async def _cut_sessions(self, pruner: Pruner) -> None:
        most = self._policy.max_events_per_session
        after: str | None = ""
        while most is not None and after is not None:
            found = await self._upkeep.long_logs(self._partition, most, after, _IDS_AT_ONCE)
            for session_id in found.ids:
                if self._rehearsal is not None and session_id in self._rehearsal.sessions:
                    continue
                step = MaintenanceStep.MAINTENANCE_STEP_PRUNE
                async with self._step(step, but_not=ArchiveFailed, session_id=session_id):
                    await pruner.cut_session(session_id)
            after = found.next

    async def _clean_artifacts(self) -> None:
        keys = (
            self._orphans.keys(self._partition, stored_before_us=None)
            if self._rehearsal is not None
            else self._orphans.remove(
                self._partition,
                delete_bytes=self._deletes_artifacts,
                stored_before_us=None,
                batch_size=self._policy.batch_size,
            )
        )
        async for _ in keys:
            self._report.artifacts_cleaned += 1

    async def _clean_counters(self) -> None:
        after: str | None = ""
        while after is not None:
            found = await self._upkeep.idle_counters(self._partition, after, _IDS_AT_ONCE)
            for session_id in found.ids:
                if await self._clean_counter(session_id):
                    self._report.orphaned_sequences_cleaned += 1
            after = found.next

    async def _clean_counter(self, session_id: str) -> bool:
        if self._rehearsal is not None:
            count = await self._upkeep.count_events(self._partition, session_id)
            return count <= self._rehearsal.pruned[session_id]
        async with paced():
            return await self._upkeep.remove_counter(self._partition, session_id)

    @asynccontextmanager
    async def _step(
        self,
        step: MaintenanceStep.ValueType,
        kind: type[Exception] = Exception,
        *,
        but_not: type[Exception] | tuple[()] = (),
        session_id: str = "",
    ) -> AsyncGenerator[None]:
        """A step whose errors of a kind go into the report."""
        try:
            yield
        except but_not:
            raise
        except kind as error:
            if not isinstance(error, TurndockError):
                logger.exception("a maintenance step failed")
                error = TurndockError(
                    "INTERNAL_ERROR", f"it raised {type(error).__name__}, which the log has"
                )
            if len(self._report.errors) < MAX_ERRORS:
                self._report.errors.append(
                    MaintenanceError(
                        step=step,
                        session_id=error.metadata.get("session_id", session_id),
                        reason=error.reason,
                        message=error.message.encode()[:MAX_MESSAGE].decode(errors="ignore"),
                        scope=scope_of(self._partition),
                    )
                )
