"""The suite of `Maintenance` and what its cases get."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from turndock.conformance import artifact_store, session_store
from turndock.conformance.cases import Suite
from turndock.ports import ArtifactStore, Maintenance, SessionStore
from turndock.store.v1 import (
    CleanOrphanedArtifactsRequest,
    CleanOrphanedArtifactsResponse,
    ExecuteRequest,
    HardDeleteExpiredSessionsRequest,
    HardDeleteExpiredSessionsResponse,
    HealthCheckRequest,
    HealthIssue,
    MaintenanceReport,
    PruneSessionEventsRequest,
    PruneSessionEventsResponse,
    RetentionBound,
    RetentionPolicy,
    SoftDeleteExpiredSessionsRequest,
    SoftDeleteExpiredSessionsResponse,
)
from turndock.types.v1 import Event, EventType, Page, Run, RunStatus, Scope, Session, SessionStatus

MAILBOX: Final = "mailbox"
"""The store has claims and mailboxes."""

DAY_US: Final = 24 * 3600 * 1_000_000

COMPLETED: Final = SessionStatus.SESSION_STATUS_COMPLETED
ACTIVE: Final = SessionStatus.SESSION_STATUS_ACTIVE
STREAMED: Final = EventType.EVENT_TYPE_MESSAGE_STREAMED
RECEIVED: Final = EventType.EVENT_TYPE_MESSAGE_RECEIVED


@dataclass(frozen=True)
class Fixture:
    """A store with its maintenance, one fresh partition of it, and short ways to say what a case does."""

    maintenance: Maintenance
    store: SessionStore
    """The store that is maintained."""
    artifacts: ArtifactStore
    """The artifacts of its sessions."""
    archive: ArtifactStore
    """Where events may be archived."""
    archive_store: str
    """Its name."""
    abilities: frozenset[str]
    """Those the session store is said to have."""
    scope: Scope = field(default_factory=lambda: Scope(tenant=f"conformance-{uuid.uuid4().hex}"))

    def other(self) -> Fixture:
        """The same store in another fresh partition."""
        return replace(self, scope=Scope(tenant=f"conformance-{uuid.uuid4().hex}"))

    @property
    def sessions(self) -> session_store.Fixture:
        """The session store, in the same partition."""
        return session_store.Fixture(self.store, self.abilities, self.scope)

    @property
    def files(self) -> artifact_store.Fixture:
        """The artifact store, in the same partition."""
        return artifact_store.Fixture(self.artifacts, self.scope)

    @property
    def archived(self) -> artifact_store.Fixture:
        """The archive, in the same partition."""
        return artifact_store.Fixture(self.archive, self.scope)

    # --- Given -------------------------------------------------------------------------------------------------------

    async def save(
        self, session_id: str, *, days: float = 0, deleted_days: float | None = None, **fields: Any
    ) -> Session:
        """A session that was last changed so many days ago, and soft-deleted so many days ago."""
        fields = {"agent_id": f"agent of {session_id}", "status": COMPLETED} | fields
        if deleted_days is not None:
            fields["deleted_at_us"] = ago(deleted_days)
        session = self.sessions.session(session_id, updated_at_us=ago(days), **fields)
        return await self.sessions.save(session)

    async def append(self, session_id: str, *types: EventType.ValueType, run_id: str = "") -> list[Event]:
        """Events of these types, one after the other; as stored."""
        events = [self.sessions.event(session_id=session_id, type=kind, run_id=run_id) for kind in types]
        return [result.event for result in await self.sessions.append(*events)]

    async def ended_run(self, session_id: str, run_id: str, status: RunStatus.ValueType) -> Run:
        """A run of that status."""
        return await self.sessions.save_run(self.sessions.run(run_id, session_id, status=status))

    # --- When --------------------------------------------------------------------------------------------------------

    async def execute(self, given: RetentionPolicy | None = None, **fields: Any) -> MaintenanceReport:
        """Execute; the report."""
        request = ExecuteRequest(scope=self.scope, policy=given, **fields)
        return (await self.maintenance.execute(request)).report

    async def prune(
        self, session_id: str, given: RetentionPolicy, **fields: Any
    ) -> PruneSessionEventsResponse:
        """PruneSessionEvents."""
        request = PruneSessionEventsRequest(scope=self.scope, session_id=session_id, policy=given, **fields)
        return await self.maintenance.prune_session_events(request)

    async def soft_delete(
        self, given: RetentionPolicy | None = None, **fields: Any
    ) -> SoftDeleteExpiredSessionsResponse:
        """SoftDeleteExpiredSessions."""
        request = SoftDeleteExpiredSessionsRequest(scope=self.scope, policy=given, **fields)
        return await self.maintenance.soft_delete_expired_sessions(request)

    async def hard_delete(
        self, given: RetentionPolicy | None = None, **fields: Any
    ) -> HardDeleteExpiredSessionsResponse:
        """HardDeleteExpiredSessions."""
        request = HardDeleteExpiredSessionsRequest(scope=self.scope, policy=given, **fields)
        return await self.maintenance.hard_delete_expired_sessions(request)

    async def clean(self, **fields: Any) -> CleanOrphanedArtifactsResponse:
        """CleanOrphanedArtifacts."""
        request = CleanOrphanedArtifactsRequest(scope=self.scope, **fields)
        return await self.maintenance.clean_orphaned_artifacts(request)

    async def health(self, limit: int = 1_000) -> list[HealthIssue]:
        """HealthCheck, every page."""
        issues: list[HealthIssue] = []
        cursor = ""
        while True:
            request = HealthCheckRequest(scope=self.scope, page=Page(limit=limit, cursor=cursor))
            page = await self.maintenance.health_check(request)
            issues += page.issues
            cursor = page.next_cursor
            if not cursor:
                return issues

    # --- Then --------------------------------------------------------------------------------------------------------

    async def is_marked(self, session_id: str) -> bool:
        """Whether a session is soft-deleted."""
        return (await self.sessions.read_session(session_id)).HasField("deleted_at_us")

    async def numbers(self, session_id: str = "ses_1") -> list[int]:
        """The numbers that are stored."""
        return [event.sequence for event in await self.sessions.whole_log(session_id)]


SUITE: Final = Suite[Fixture]("Maintenance", (MAILBOX,))
"""Every case of the contract."""


def ago(days: float) -> int:
    """A time so many days ago, in microseconds since the Unix epoch."""
    return time.time_ns() // 1_000 - int(days * DAY_US)


def at_most(count: int) -> RetentionBound:
    """A bound."""
    return RetentionBound(max=count)


UNLIMITED: Final = RetentionBound(unlimited=True)


def keeping(events: int, **fields: Any) -> RetentionPolicy:
    """A policy that keeps so many events in each session."""
    return RetentionPolicy(max_events_per_session=at_most(events), **fields)


def tokens(events: Iterable[Event]) -> Sequence[bytes]:
    """Events by all they hold."""
    return [event.SerializeToString(deterministic=True) for event in events]
