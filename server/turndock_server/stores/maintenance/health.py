"""HealthCheck: rows that do not fit together, found and never touched."""

from __future__ import annotations

from collections.abc import Sequence

from turndock.store.v1 import HealthCheckRequest, HealthCheckResponse, HealthIssue
from turndock_server.stores import checks
from turndock_server.stores.cursors import PageCodec
from turndock_server.stores.maintenance.orphans import OrphanedArtifacts
from turndock_server.stores.maintenance.upkeep import Mismatch, Upkeep

_CALL = "HealthCheck"


async def sorted_issues(
    upkeep: Upkeep, orphans: OrphanedArtifacts, partitions: Sequence[str]
) -> list[HealthIssue]:
    """All that is wrong in some partitions, by kind, then by session."""
    issues: list[HealthIssue] = []
    for partition in partitions:
        counts = (
            (HealthIssue.KIND_ORPHANED_EVENTS, "events", await upkeep.orphaned_events(partition)),
            (HealthIssue.KIND_ORPHANED_RUNS, "runs", await upkeep.orphaned_runs(partition)),
            (HealthIssue.KIND_ORPHANED_ARTIFACTS, "artifacts", await orphans.count(partition)),
        )
        issues += [_orphaned(partition, kind, what, count) for kind, what, count in counts if count]
        issues += [_mismatch(partition, each) for each in await upkeep.mismatches(partition)]
    return sorted(issues, key=_place)


def page_of(issues: Sequence[HealthIssue], request: HealthCheckRequest) -> HealthCheckResponse:
    """The page of the issues that a request asks for."""
    limit = checks.page_limit(request.page)
    codec = PageCodec(_CALL, checks.partition(request), request)
    after = codec.decode(request.page.cursor)
    rest = [issue for issue in issues if after is None or _place(issue) > after]
    page = rest[:limit]
    return HealthCheckResponse(
        issues=page, next_cursor=codec.encode(_place(page[-1])) if len(page) < len(rest) else ""
    )


def _place(issue: HealthIssue) -> tuple[int, str, str]:
    return (issue.kind, issue.session_id, issue.scope.tenant)


def _orphaned(partition: str, kind: HealthIssue.Kind.ValueType, what: str, count: int) -> HealthIssue:
    return HealthIssue(
        kind=kind,
        message=f"{count} {what} reference non-existent sessions",
        count=count,
        scope=checks.scope_of(partition),
    )


def _mismatch(partition: str, found: Mismatch) -> HealthIssue:
    return HealthIssue(
        kind=HealthIssue.KIND_SEQUENCE_MISMATCH,
        session_id=found.session_id,
        message=f"the counter of session {found.session_id!r} is {found.counter}, and the highest number stored is"
        f" {found.max_sequence}",
        count=1,
        counter=found.counter,
        max_sequence=found.max_sequence,
        scope=checks.scope_of(partition),
    )
