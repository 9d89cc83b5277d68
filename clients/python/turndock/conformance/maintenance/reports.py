"""What a call says it did: reports, rehearsals, retries, and whose data it was."""

from __future__ import annotations

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.maintenance.suite import (
    RECEIVED,
    STREAMED,
    SUITE,
    Fixture,
    at_most,
    keeping,
)
from turndock.store.v1 import MaintenanceReport, RetentionPolicy


async def furnish(fixture: Fixture) -> RetentionPolicy:
    """Something to do for every step. Returns a policy that does it."""
    await fixture.save("old", days=100)
    await fixture.save("marked", days=100, deleted_days=60)
    await fixture.append("marked", *[RECEIVED] * 9)
    await fixture.files.put(b"marked", "marked", session_id="marked")
    await fixture.append("counter", STREAMED, STREAMED)
    await fixture.save("long")
    await fixture.append("long", *[STREAMED, RECEIVED] * 5)
    await fixture.save("late")
    await fixture.append("late", *[RECEIVED] * 3)
    await fixture.files.put(b"lost", "lost", session_id="missing")
    return keeping(
        6,
        max_total_events=at_most(7),
        archive_before_prune=True,
        archive_store=fixture.archive_store,
        batch_size=3,
    )


def figures(report: MaintenanceReport) -> dict[str, int]:
    """The figures of a report."""
    names = (
        "sessions_soft_deleted",
        "sessions_hard_deleted",
        "events_pruned",
        "events_archived",
        "archives_written",
        "artifacts_cleaned",
        "orphaned_sequences_cleaned",
    )
    return {name: getattr(report, name) for name in names}


EXPECTED = {
    "sessions_soft_deleted": 1,
    "sessions_hard_deleted": 1,
    "events_pruned": 8,
    "events_archived": 8,
    "archives_written": 5,
    "artifacts_cleaned": 1,
    "orphaned_sequences_cleaned": 1,
}
"""`long` loses four for itself (two artifacts), then all lose four: two of `counter` and one of `long`, which streamed,
in one transaction, and another of `long`."""


@SUITE.case("R-09")
async def a_report_counts_every_step(fixture: Fixture) -> None:
    """Execute takes every step in its order and counts what each did."""
    policy = await furnish(fixture)
    report = await fixture.execute(policy)
    equal(figures(report), EXPECTED, "Every step has done its part.")
    holds(report.duration_us > 0, "The report says how long it took.")
    equal((len(report.errors), report.dry_run), (0, False), "Nothing went wrong, and it was in earnest.")
    equal(await fixture.numbers("long"), [4, 6, 8, 10], "This is left of the longest log.")
    again = await fixture.execute(policy)
    equal(set(figures(again).values()), {0}, "Repeated it finds nothing to do.")


@SUITE.case("dry_run")
async def a_rehearsal_counts_the_same_and_changes_nothing(fixture: Fixture) -> None:
    """With dry_run the figures are those of the call in earnest, and nothing is changed."""
    policy = await furnish(fixture)
    rehearsed = await fixture.execute(policy, dry_run=True)
    equal(rehearsed.dry_run, True, "The report says that it was a rehearsal.")
    equal(figures(rehearsed), EXPECTED, "A rehearsal counts what would be done.")
    answer = await fixture.prune("long", policy, dry_run=True)
    equal((answer.events_pruned, answer.events_archived, answer.pruned_through), (4, 4, 0), "Pruning, too.")
    equal(list((await fixture.soft_delete(dry_run=True)).session_ids), ["old"], "Soft deletion, too.")
    equal(list((await fixture.hard_delete(dry_run=True)).session_ids), ["marked"], "Hard deletion, too.")
    equal(list((await fixture.clean(dry_run=True)).keys), ["lost"], "Cleaning, too.")
    equal(await fixture.is_marked("old"), False, "Nothing was marked.")
    equal(await fixture.numbers("marked"), list(range(1, 10)), "Nothing was deleted.")
    equal(await fixture.numbers("long"), list(range(1, 11)), "Nothing was pruned.")
    equal(await fixture.sessions.head("counter"), 2, "No counter was removed.")
    archived = [key for key in await fixture.archived.keys() if key.startswith("archive/")]
    equal(archived, [], "Nothing was archived.")
    equal(await fixture.files.keys("missing"), ("lost",), "No artifact row was removed.")
    equal(figures(await fixture.execute(policy)), EXPECTED, "In earnest it does just that.")


@SUITE.case("request_id")
async def a_repeated_call_is_answered_as_before(fixture: Fixture) -> None:
    """The same request_id with the same request returns the stored answer and does nothing."""
    await fixture.append("ses_1", *[STREAMED] * 5)
    await fixture.save("old", days=100)
    pruned = await fixture.prune("ses_1", keeping(3), request_id="one")
    marked = await fixture.soft_delete(request_id="two")
    report = await fixture.execute(keeping(3), request_id="three")
    await fixture.append("ses_1", *[STREAMED] * 5)
    await fixture.save("older", days=200)
    equal(await fixture.prune("ses_1", keeping(3), request_id="one"), pruned, "The same answer.")
    equal(await fixture.soft_delete(request_id="two"), marked, "The same answer.")
    equal(await fixture.execute(keeping(3), request_id="three"), report, "The same answer.")
    equal(len(await fixture.numbers()), 8, "Nothing was done.")
    equal(await fixture.is_marked("older"), False, "Nothing was done.")


@SUITE.case("request_id")
async def a_request_id_is_for_one_request(fixture: Fixture) -> None:
    """Another request with a used request_id is IDEMPOTENCY_CONFLICT and does nothing; a dry run ignores it."""
    await fixture.append("ses_1", *[STREAMED] * 5)
    await fixture.prune("ses_1", keeping(1), request_id="one", dry_run=True)
    equal((await fixture.prune("ses_1", keeping(4), request_id="one")).events_pruned, 1, "It was free.")
    what = "The id was used for another request."
    await refused(fixture.prune("ses_1", keeping(1), request_id="one"), "IDEMPOTENCY_CONFLICT", what)
    await refused(fixture.execute(keeping(1), request_id="one"), "IDEMPOTENCY_CONFLICT", what)
    equal(await fixture.numbers(), [2, 3, 4, 5], "Nothing was done.")
    answer = await fixture.prune("ses_1", keeping(1), request_id="one", dry_run=True)
    equal(answer.events_pruned, 3, "A rehearsal takes no notice of it.")
    elsewhere = fixture.other()
    await elsewhere.prune("ses_1", keeping(1), request_id="one")


@SUITE.case("P-13")
async def another_scope_is_left_alone(fixture: Fixture) -> None:
    """Every call works within its scope; nothing in another one is changed or counted."""
    other = fixture.other()
    policy = await furnish(other)
    equal(set(figures(await fixture.execute(policy)).values()), {0}, "There is nothing here.")
    equal((await fixture.prune("long", policy)).events_pruned, 0, "The session is another's.")
    equal((await fixture.clean()).artifacts_cleaned, 0, "The artifacts are another's.")
    equal(figures(await other.execute(policy)), EXPECTED, "There all is as it was.")


@SUITE.case("every_scope")
async def every_scope_is_every_scope(fixture: Fixture) -> None:
    """With every_scope each scope is treated by itself, and the answer is the sum."""
    other = fixture.other()
    for each in (fixture, other):
        await each.save("old", days=100)
        await each.append("ses_1", *[STREAMED] * 4)
        await each.files.put(b"lost", "lost", session_id="missing")
    nobody = fixture.other()
    report = await nobody.execute(keeping(3), every_scope=True)
    equal(list(report.errors), [], "Nothing went wrong.")
    for each in (fixture, other):
        equal(await each.is_marked("old"), True, "It is marked in every scope.")
        equal(await each.numbers(), [2, 3, 4], "Each log is cut.")
        equal(await each.files.keys("missing"), (), "Orphans are gone everywhere.")
    holds(report.sessions_soft_deleted >= 2 and report.events_pruned >= 2, "The report is the sum.")
