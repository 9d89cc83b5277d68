"""HealthCheck: finds what does not fit together, and changes nothing."""

from __future__ import annotations

from turndock.conformance.claims import equal, refused
from turndock.conformance.maintenance.suite import RECEIVED, SUITE, Fixture
from turndock.store.v1 import HealthCheckRequest, HealthIssue
from turndock.types.v1 import Page, RunStatus


@SUITE.case("R-09")
async def sound_data_has_no_issues(fixture: Fixture) -> None:
    """Of a scope that was never used, and of sessions with runs, events and artifacts, the list is empty."""
    equal(await fixture.health(), [], "Nothing is sound.")
    await fixture.save("ses_1")
    await fixture.append("ses_1", *[RECEIVED] * 3)
    await fixture.ended_run("ses_1", "run_1", RunStatus.RUN_STATUS_COMPLETED)
    await fixture.files.put(b"kept", "kept", session_id="ses_1")
    await fixture.files.put(b"free", "free")
    equal(await fixture.health(), [], "All of that is sound.")


@SUITE.case("R-09")
async def what_has_no_session_is_named_and_counted(fixture: Fixture) -> None:
    """Events, runs and artifacts of sessions that do not exist are one issue each, by kind, with the count."""
    await fixture.append("ghost", RECEIVED)
    await fixture.ended_run("ghost", "run_1", RunStatus.RUN_STATUS_COMPLETED)
    for number in range(2):
        await fixture.files.put(b"lost", f"lost {number}", session_id="missing")
    issues = await fixture.health()
    found = [(issue.kind, issue.session_id, issue.message, issue.count) for issue in issues]
    expected = [
        (HealthIssue.KIND_ORPHANED_EVENTS, "", "1 events reference non-existent sessions", 1),
        (HealthIssue.KIND_ORPHANED_RUNS, "", "1 runs reference non-existent sessions", 1),
        (HealthIssue.KIND_ORPHANED_ARTIFACTS, "", "2 artifacts reference non-existent sessions", 2),
    ]
    equal(found, expected, "Each kind is one issue.")
    equal({issue.scope.tenant for issue in issues}, {fixture.scope.tenant}, "An issue names its partition.")
    equal(await fixture.health(limit=1), issues, "Page by page it is the same.")
    equal(await fixture.numbers("ghost"), [1], "Nothing was changed.")
    equal(await fixture.other().health(), [], "Another partition has none of it.")


@SUITE.case("R-09")
async def a_health_check_is_a_list_like_any_other(fixture: Fixture) -> None:
    """Limits are from 1 to 1,000, and a cursor that is none is INVALID_CURSOR."""
    for page, reason in (
        (Page(limit=0), "VALIDATION_ERROR"),
        (Page(limit=1_001), "VALIDATION_ERROR"),
        (Page(cursor="no cursor"), "INVALID_CURSOR"),
    ):
        call = fixture.maintenance.health_check(HealthCheckRequest(scope=fixture.scope, page=page))
        await refused(call, reason, "The page is refused.", field="page")
