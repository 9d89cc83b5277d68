"""Rows that belong to no session."""

from __future__ import annotations

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.maintenance.suite import RECEIVED, STREAMED, SUITE, Fixture, at_most
from turndock.store.v1 import RetentionPolicy
from turndock.types.v1 import RunStatus

HOUR_MS = 3_600_000


@SUITE.case("CleanOrphanedArtifacts")
async def rows_of_missing_sessions_go_and_bytes_stay(fixture: Fixture) -> None:
    """Rows of artifacts whose session does not exist are removed; those of no session and of known ones stay."""
    await fixture.save("ses_1")
    await fixture.files.put(b"kept", "kept", session_id="ses_1")
    await fixture.files.put(b"free", "free")
    for number in range(3):
        await fixture.files.put(b"lost", f"lost {number}", session_id="missing")
    answer = await fixture.clean(batch_size=2)
    equal(sorted(answer.keys), ["lost 0", "lost 1", "lost 2"], "The answer names what was removed.")
    equal(answer.artifacts_cleaned, 3, "And counts it.")
    equal(await fixture.files.keys(), ("kept", "free"), "The others are left.")
    equal(await fixture.files.get("lost 1"), b"lost", "The bytes stay.")
    equal((await fixture.clean()).artifacts_cleaned, 0, "Nothing is left to remove.")


@SUITE.case("CleanOrphanedArtifacts")
async def bytes_of_orphans_go_when_asked_to(fixture: Fixture) -> None:
    """delete_bytes deletes the bytes, too."""
    await fixture.files.put(b"lost", "lost", session_id="missing")
    await fixture.clean(delete_bytes=True)
    await refused(fixture.files.get("lost"), "NOT_FOUND", "The bytes are gone.")


@SUITE.case("CleanOrphanedArtifacts")
async def young_artifacts_may_be_spared(fixture: Fixture) -> None:
    """min_age_ms spares what was stored within that time: its session may be about to be saved."""
    await fixture.files.put(b"new", "new", session_id="missing")
    equal((await fixture.clean(min_age_ms=HOUR_MS)).artifacts_cleaned, 0, "It is too young.")
    equal((await fixture.clean(min_age_ms=0)).artifacts_cleaned, 1, "No age spares nothing.")


@SUITE.case("R-09")
async def a_counter_without_a_session_and_events_goes(fixture: Fixture) -> None:
    """A log that was never a session's and is pruned to nothing loses its counter, and begins another life."""
    (first,) = await fixture.append("counter", STREAMED)
    await fixture.append("log", RECEIVED)
    await fixture.save("saved")
    await fixture.ended_run("run", "run_1", RunStatus.RUN_STATUS_COMPLETED)
    report = await fixture.execute(RetentionPolicy(max_total_events=at_most(1)))
    equal((report.events_pruned, report.orphaned_sequences_cleaned), (1, 1), "One counter is left behind.")
    equal(await fixture.sessions.head("counter"), 0, "It is gone.")
    equal(await fixture.numbers("log"), [1], "A log that has events stays.")
    await fixture.sessions.read_run("run_1", "run")
    (again,) = await fixture.append("counter", RECEIVED)
    equal(again.sequence, 1, "The next log begins at 1.")
    holds(again.incarnation != first.incarnation, "Under another incarnation: old cursors do not fit it.")
