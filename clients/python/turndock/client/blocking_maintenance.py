"""The server's maintenance for code without an event loop."""

from __future__ import annotations

from turndock.client.loop_thread import LoopThread
from turndock.remote import RemoteMaintenance
from turndock.store.v1 import (
    CleanOrphanedArtifactsRequest,
    CleanOrphanedArtifactsResponse,
    ExecuteRequest,
    ExecuteResponse,
    HardDeleteExpiredSessionsRequest,
    HardDeleteExpiredSessionsResponse,
    HealthCheckRequest,
    HealthCheckResponse,
    PruneSessionEventsRequest,
    PruneSessionEventsResponse,
    SoftDeleteExpiredSessionsRequest,
    SoftDeleteExpiredSessionsResponse,
)


class SyncMaintenance:
    """`RemoteMaintenance`, each of whose calls blocks until it has its answer."""

    def __init__(self, loop: LoopThread, maintenance: RemoteMaintenance) -> None:
        self._loop = loop
        self._maintenance = maintenance

    def execute(self, request: ExecuteRequest) -> ExecuteResponse:
        """See `ports.Maintenance`; likewise the other calls."""
        return self._loop.run(self._maintenance.execute(request))

    def prune_session_events(self, request: PruneSessionEventsRequest) -> PruneSessionEventsResponse:
        """Cut one session's log down."""
        return self._loop.run(self._maintenance.prune_session_events(request))

    def soft_delete_expired_sessions(
        self, request: SoftDeleteExpiredSessionsRequest
    ) -> SoftDeleteExpiredSessionsResponse:
        """Mark what has expired."""
        return self._loop.run(self._maintenance.soft_delete_expired_sessions(request))

    def hard_delete_expired_sessions(
        self, request: HardDeleteExpiredSessionsRequest
    ) -> HardDeleteExpiredSessionsResponse:
        """Delete what was marked long ago."""
        return self._loop.run(self._maintenance.hard_delete_expired_sessions(request))

    def clean_orphaned_artifacts(
        self, request: CleanOrphanedArtifactsRequest
    ) -> CleanOrphanedArtifactsResponse:
        """Remove artifact rows that belong to no session."""
        return self._loop.run(self._maintenance.clean_orphaned_artifacts(request))

    def health_check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        """Look for damage."""
        return self._loop.run(self._maintenance.health_check(request))
