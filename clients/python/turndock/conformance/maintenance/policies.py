"""What a policy may say, and that a wrong one does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from turndock.conformance.claims import equal, refused
from turndock.conformance.maintenance.suite import STREAMED, SUITE, UNLIMITED, Fixture, at_most, keeping
from turndock.store.v1 import EventTypeList, RetentionBound, RetentionPolicy, SessionStatusList
from turndock.types.v1 import EventType, SessionStatus

UNSPECIFIED_STATUS = SessionStatus.SESSION_STATUS_UNSPECIFIED
UNSPECIFIED_TYPE = EventType.EVENT_TYPE_UNSPECIFIED
BOUNDS: Final = (
    "max_session_age_days",
    "max_completed_session_age_days",
    "max_events_per_session",
    "max_total_events",
    "hard_delete_after_days",
)
PROTECTED = (
    EventType.EVENT_TYPE_SESSION_CREATED,
    EventType.EVENT_TYPE_RUN_STARTED,
    EventType.EVENT_TYPE_RUN_COMPLETED,
    EventType.EVENT_TYPE_RUN_FAILED,
    EventType.EVENT_TYPE_RUN_CANCELLED,
    EventType.EVENT_TYPE_RUN_TIMEOUT,
    EventType.EVENT_TYPE_ERROR_OCCURRED,
)


def bounded(bounds: Mapping[str, RetentionBound], **fields: Any) -> RetentionPolicy:
    """A policy with these bounds, by name."""
    given: dict[str, Any] = {**bounds, **fields}
    return RetentionPolicy(**given)


def wrong_policies(archive_store: str) -> list[tuple[str, RetentionPolicy]]:
    """Policies, each with the field that is wrong in it."""
    wrong: list[tuple[str, RetentionPolicy]] = []
    for name in BOUNDS:
        for bound in (at_most(0), at_most(-1), RetentionBound(unlimited=False)):
            wrong.append((f"policy.{name}", bounded({name: bound})))
    for size in (0, -1, 10_001):
        wrong.append(("policy.batch_size", RetentionPolicy(batch_size=size)))
    statuses = SessionStatusList(statuses=[UNSPECIFIED_STATUS])
    wrong.append(("policy.exempt_statuses", RetentionPolicy(exempt_statuses=statuses)))
    for kind in (UNSPECIFIED_TYPE, *PROTECTED):
        types = EventTypeList(types=[STREAMED, kind])
        wrong.append(("policy.prune_event_types_first", RetentionPolicy(prune_event_types_first=types)))
    unknown = RetentionPolicy(archive_before_prune=True, archive_store=f"not-{archive_store}")
    wrong.append(("policy.archive_store", unknown))
    wrong.append(("policy.archive_store", RetentionPolicy(archive_before_prune=True)))
    return wrong


@SUITE.case("R-01")
async def a_wrong_policy_does_nothing(fixture: Fixture) -> None:
    """A policy is checked as a whole before anything is done: VALIDATION_ERROR naming the field."""
    await fixture.save("ses_1", days=200)
    await fixture.append("ses_1", *[STREAMED] * 3)
    for name, policy in wrong_policies(fixture.archive_store):
        given = keeping(1)
        given.MergeFrom(policy)
        what = f"Execute with a wrong {name} does nothing."
        await refused(fixture.execute(given), "VALIDATION_ERROR", what, field=name)
        await refused(fixture.soft_delete(given), "VALIDATION_ERROR", what, field=name)
        await refused(fixture.hard_delete(given), "VALIDATION_ERROR", what, field=name)
        await refused(fixture.prune("ses_1", given), "VALIDATION_ERROR", what, field=name)
    equal(await fixture.is_marked("ses_1"), False, "A refused call marks nothing.")
    equal(await fixture.numbers(), [1, 2, 3], "A refused call prunes nothing.")


@SUITE.case("R-01")
async def limits_of_a_policy_are_accepted(fixture: Fixture) -> None:
    """The smallest and the largest values a policy may have, and lists that are empty, are fine."""
    await fixture.execute(RetentionPolicy(batch_size=1, max_total_events=at_most(1)))
    largest = at_most((1 << 63) - 1)
    await fixture.execute(bounded(dict.fromkeys(BOUNDS, largest), batch_size=10_000))
    await fixture.execute(bounded(dict.fromkeys(BOUNDS, UNLIMITED)))
    await fixture.execute(bounded(dict.fromkeys(BOUNDS, RetentionBound())))


@SUITE.case("CleanOrphanedArtifacts")
async def wrong_bounds_of_a_cleaning_are_refused(fixture: Fixture) -> None:
    """batch_size is from 1 to 10,000, and min_age_ms is not negative."""
    for size in (0, 10_001):
        what = f"A batch of {size} rows is refused."
        await refused(fixture.clean(batch_size=size), "VALIDATION_ERROR", what, field="batch_size")
    what = "A negative age is refused."
    await refused(fixture.clean(min_age_ms=-1), "VALIDATION_ERROR", what, field="min_age_ms")
