"""Which role each call needs. A call without a row here is refused wherever callers have to say who they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from turndock_server.access import Role

OPEN: Final = frozenset({"grpc.health.v1.Health"})
"""Services that answer everybody. Health: whatever starts, balances or watches servers has no credentials, and all it
learns is whether this one serves."""

ROLES: Final[Mapping[str, Mapping[Role, tuple[str, ...]]]] = {
    "turndock.agent.v1.AgentHost": {
        Role.OBSERVER: ("GetAgent", "ListAgents", "GetRun", "ListRuns", "Watch", "GetServerInfo"),
        Role.CONTROLLER: (
            "StartAgent",
            "StopAgent",
            "Ask",
            "Tell",
            "Prompt",
            "UpdateQueuedRun",
            "CancelRun",
            "Notify",
            "Interrupt",
            "Unhalt",
            "ResolveApproval",
            "Touch",
            "ForkSession",
        ),
    },
    "turndock.store.v1.SessionStore": {
        Role.OBSERVER: (
            "GetSession",
            "ListSessions",
            "GetRun",
            "ListRuns",
            "GetActiveRun",
            "GetEvents",
            "GetLatestSequence",
            "WatchEvents",
        ),
        Role.CONTROLLER: (
            "SaveSession",
            "DeleteSession",
            "SaveRun",
            "AppendEvent",
            "AppendEventWithSequence",
            "AppendEvents",
            "Flush",
            "EnqueueRun",
            "EditRun",
            "CancelRun",
        ),
        # For hosts, which take agents away from each other.
        Role.ADMIN: ("ClaimAgent", "RenewClaims", "ReleaseIfEmpty", "ListOrphans"),
    },
    "turndock.store.v1.ArtifactStore": {
        Role.OBSERVER: ("Get", "Head", "List"),
        Role.CONTROLLER: ("Put", "Delete"),
    },
    "turndock.store.v1.Query": {
        Role.OBSERVER: (
            "SearchSessions",
            "GetSessionStats",
            "SearchRuns",
            "GetUsageSummary",
            "GetCostSummary",
            "SearchEvents",
            "CountEvents",
            "ExportSession",
        ),
    },
    "turndock.store.v1.Maintenance": {
        Role.OBSERVER: ("HealthCheck",),
        Role.ADMIN: (
            "Execute",
            "PruneSessionEvents",
            "SoftDeleteExpiredSessions",
            "HardDeleteExpiredSessions",
            "CleanOrphanedArtifacts",
        ),
    },
    "turndock.store.v1.AgentPersistence": {
        Role.OBSERVER: ("LoadState",),
        Role.CONTROLLER: ("PersistState", "SetInterrupted"),
    },
    # Shows no more than the published protos, but to nobody who has no business here.
    "grpc.reflection.v1alpha.ServerReflection": {Role.OBSERVER: ("ServerReflectionInfo",)},
}
"""Service → role → the calls that need it. A higher role may make the calls of those below it as well."""


def _rows() -> Iterator[tuple[str, Role]]:
    for service, calls in ROLES.items():
        for role, names in calls.items():
            for name in names:
                yield f"/{service}/{name}", role


_NEEDED: Final = dict(_rows())


def is_open(method: str) -> bool:
    """Whether a call, named `/package.Service/Call`, needs no credentials."""
    return method[1:].partition("/")[0] in OPEN


def needed_role(method: str) -> Role | None:
    """The role that a call, named `/package.Service/Call`, needs; None = there is no row for it."""
    return _NEEDED.get(method)
