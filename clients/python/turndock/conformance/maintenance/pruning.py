"""Pruning: what goes first, what never goes, and what is left of the numbers."""

from __future__ import annotations

from turndock.conformance.claims import equal, refused
from turndock.conformance.maintenance.policies import PROTECTED
from turndock.conformance.maintenance.suite import (
    RECEIVED,
    STREAMED,
    SUITE,
    UNLIMITED,
    Fixture,
    at_most,
    keeping,
    tokens,
)
from turndock.store.v1 import EventTypeList, RetentionPolicy
from turndock.types.v1 import Custom, EventType, RunStatus

CREATED = EventType.EVENT_TYPE_SESSION_CREATED
STARTED = EventType.EVENT_TYPE_RUN_STARTED
RUN_COMPLETED = EventType.EVENT_TYPE_RUN_COMPLETED
CUSTOM = EventType.EVENT_TYPE_CUSTOM
SENT = EventType.EVENT_TYPE_MESSAGE_SENT
USAGE = EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED


@SUITE.case("R-06")
async def the_oldest_surplus_is_pruned(fixture: Fixture) -> None:
    """As many events go as there are too many, the oldest first, and the floor rises to the last of them."""
    await fixture.append("ses_1", *[STREAMED] * 10)
    answer = await fixture.prune("ses_1", keeping(5))
    equal((answer.events_pruned, answer.pruned_through), (5, 5), "Five are too many.")
    equal(await fixture.numbers(), [6, 7, 8, 9, 10], "The newest stay.")
    log = await fixture.sessions.log()
    equal((log.head, log.oldest, log.pruned_through), (10, 6, 5), "Head, oldest and floor say it.")
    again = await fixture.prune("ses_1", keeping(5))
    equal((again.events_pruned, again.pruned_through), (0, 5), "Nothing is left to prune.")


@SUITE.case("R-06")
async def low_value_types_go_first_and_protected_ones_never(fixture: Fixture) -> None:
    """First the types of the policy, then the others, oldest first; survivors keep their numbers."""
    log = (CREATED, STREAMED, STREAMED, STARTED, RECEIVED, RECEIVED, RUN_COMPLETED)
    await fixture.append("ses_1", *log)
    answer = await fixture.prune("ses_1", keeping(3))
    equal(answer.events_pruned, 4, "Four are too many.")
    equal(await fixture.numbers(), [1, 4, 7], "What is protected is left, with its numbers.")
    equal(answer.pruned_through, 6, "The floor is the highest number removed.")
    equal((await fixture.prune("ses_1", keeping(1))).events_pruned, 0, "Protected events stay, however many.")


@SUITE.case("R-06")
async def types_that_go_first_are_the_policys(fixture: Fixture) -> None:
    """prune_event_types_first replaces the defaults; an empty list leaves the order of the log."""
    log = (STREAMED, USAGE, SENT, RECEIVED, STREAMED)
    for session_id, types, left in (
        ("given", [SENT, RECEIVED], [1, 2, 5]),
        ("empty", [], [3, 4, 5]),
        ("default", None, [3, 4, 5]),
    ):
        await fixture.append(session_id, *log)
        first = EventTypeList(types=types) if types is not None else None
        await fixture.prune(session_id, keeping(3, prune_event_types_first=first))
        equal(await fixture.numbers(session_id), left, f"With the {session_id} list this is left.")


@SUITE.case("R-06", "PF-B39")
async def every_protected_type_survives(fixture: Fixture) -> None:
    """No event of the seven protected types is ever pruned, by session or in total."""
    for session_id in ("ses_1", "ses_2"):
        await fixture.append(session_id, RECEIVED, *PROTECTED, RECEIVED)
    await fixture.prune("ses_1", keeping(1))
    await fixture.execute(RetentionPolicy(max_total_events=at_most(1)))
    for session_id in ("ses_1", "ses_2"):
        equal(await fixture.numbers(session_id), list(range(2, 9)), "What is protected stays.")


@SUITE.case("R-06", "PF-B39")
async def the_events_of_an_open_run_stay(fixture: Fixture) -> None:
    """Any event of a run that is not over stays; once it is over they are like any other."""
    await fixture.save("ses_1")
    await fixture.ended_run("ses_1", "open", RunStatus.RUN_STATUS_RUNNING)
    await fixture.ended_run("ses_1", "over", RunStatus.RUN_STATUS_COMPLETED)
    await fixture.append("ses_1", RECEIVED, STREAMED, run_id="open")
    await fixture.append("ses_1", RECEIVED, STREAMED, run_id="over")
    await fixture.append("ses_1", RECEIVED)
    await fixture.prune("ses_1", keeping(1))
    equal(await fixture.numbers(), [1, 2], "The events of the open run are left.")
    await fixture.ended_run("ses_1", "open", RunStatus.RUN_STATUS_FAILED)
    await fixture.prune("ses_1", keeping(1))
    equal(await fixture.numbers(), [1], "The run is over.")


@SUITE.case("R-06")
async def a_notification_stays_until_its_effect_is_stored(fixture: Fixture) -> None:
    """A notification above the agent's notified_sequence stays; other custom events and applied ones do not."""
    notified, other = Custom(name="turndock.notified"), Custom(name="mine")
    fixture_log = [
        fixture.sessions.event(type=CUSTOM, custom=payload) for payload in (notified, other, notified)
    ]
    await fixture.sessions.append(*fixture_log)
    await fixture.append("ses_1", RECEIVED)
    await fixture.save("ses_1", agent=fixture.sessions.agent_session(notified_sequence=1).agent)
    await fixture.prune("ses_1", keeping(1))
    equal(await fixture.numbers(), [3], "Only the notification that is not applied must stay.")


@SUITE.case("R-06")
async def a_log_within_the_limit_is_left_alone(fixture: Fixture) -> None:
    """Nothing is pruned under the limit, without one, by default, and in a session nobody knows."""
    await fixture.append("ses_1", *[STREAMED] * 3)
    for policy in (
        keeping(3),
        keeping(4),
        RetentionPolicy(max_events_per_session=UNLIMITED),
        RetentionPolicy(),
    ):
        answer = await fixture.prune("ses_1", policy)
        equal((answer.events_pruned, answer.pruned_through), (0, 0), "Nothing is too much.")
    answer = await fixture.prune("unknown", keeping(1))
    equal((answer.events_pruned, answer.pruned_through), (0, 0), "An unknown session has nothing to prune.")
    await refused(
        fixture.prune("", keeping(1)), "VALIDATION_ERROR", "A session has an id.", field="session_id"
    )


@SUITE.case("PF-B39")
async def no_number_is_used_again(fixture: Fixture) -> None:
    """When the last event itself is pruned, the next one gets the next number, and the data is sound."""
    await fixture.save("ses_1")
    await fixture.append("ses_1", *[RECEIVED] * 10, *[STREAMED] * 90)
    await fixture.prune("ses_1", keeping(10))
    equal(await fixture.numbers(), list(range(1, 11)), "All that streamed is gone, the last event with it.")
    equal(await fixture.sessions.head(), 100, "The counter stays where it is.")
    equal(await fixture.health(), [], "A counter above what is stored is sound.")
    equal((await fixture.append("ses_1", RECEIVED))[0].sequence, 101, "The next number is 101.")
    equal((await fixture.sessions.read_session("ses_1")).last_sequence, 101, "The session says so, too.")


@SUITE.case("PF-B39")
async def survivors_read_as_they_were(fixture: Fixture) -> None:
    """What is left is what was stored, byte for byte, in order, and pages pass over the holes."""
    stored = await fixture.append("ses_1", *[RECEIVED, STREAMED] * 20)
    await fixture.prune("ses_1", keeping(25))
    left = [event for event in stored if event.type == RECEIVED or event.sequence > 30]
    equal(tokens(await fixture.sessions.whole_log()), tokens(left), "Survivors are unchanged.")
    paged: list[int] = []
    after = 0
    while page := (await fixture.sessions.log(after_sequence=after, limit=7)).events:
        paged += [event.sequence for event in page]
        after = page[-1].sequence
    equal(paged, [event.sequence for event in left], "Pages of 7 show the same.")
    backward = await fixture.sessions.log(descending=True, limit=100)
    equal([event.sequence for event in backward.events], paged[::-1], "Backward, too.")


@SUITE.case("PF-B17")
async def order_is_by_number_also_after_pruning(fixture: Fixture) -> None:
    """Events with equal and with older times are pruned and read by number, whatever their ids and times."""
    events = [
        fixture.sessions.event(f"evt_{1_000 - number:04}", type=STREAMED, time_us=1_000)
        for number in range(60)
    ]
    late = [fixture.sessions.event(f"late_{number}", type=STREAMED, time_us=5) for number in range(3)]
    await fixture.sessions.append(*events)
    await fixture.sessions.append(*late)
    await fixture.prune("ses_1", keeping(13, batch_size=7))
    equal(await fixture.numbers(), list(range(51, 64)), "The lowest numbers went, not the oldest times.")
    last = (await fixture.sessions.whole_log())[-3:]
    equal([event.id for event in last], [event.id for event in late], "What came last is last.")


@SUITE.case("Batches")
async def batches_prune_the_same(fixture: Fixture) -> None:
    """Whatever the size of a transaction, the same events go."""
    log = (CREATED, STREAMED, RECEIVED, STREAMED, STARTED, RECEIVED, STREAMED, SENT, RUN_COMPLETED, SENT)
    for size in (1, 2, 3, 10_000):
        session_id = f"batches of {size}"
        await fixture.append(session_id, *log)
        answer = await fixture.prune(session_id, keeping(5, batch_size=size))
        equal((answer.events_pruned, answer.pruned_through), (5, 7), "Five go.")
        equal(await fixture.numbers(session_id), [1, 5, 8, 9, 10], "The same are left.")


@SUITE.case("max_total_events")
async def the_total_is_cut_across_sessions_by_time(fixture: Fixture) -> None:
    """max_total_events prunes across sessions: first the types that go first, then the others, oldest stored first."""
    await fixture.append("ses_2", RECEIVED, STREAMED)
    await fixture.append("ses_1", RECEIVED, STREAMED)
    await fixture.append("ses_2", CREATED, RECEIVED)
    await fixture.append("ses_1", STREAMED)
    policy = RetentionPolicy(max_total_events=at_most(5))
    equal((await fixture.execute(policy)).events_pruned, 2, "Two are too many.")
    found = (await fixture.numbers("ses_1"), await fixture.numbers("ses_2"))
    equal(found, ([1, 3], [1, 3, 4]), "The two that streamed first went.")
    policy = RetentionPolicy(max_total_events=at_most(2), batch_size=1)
    equal((await fixture.execute(policy)).events_pruned, 3, "Three more are too many.")
    equal(await fixture.numbers("ses_1"), [], "The last that streamed, then what was stored first:")
    equal(await fixture.numbers("ses_2"), [3, 4], "that was one of each.")


@SUITE.case("R-06")
async def execute_cuts_every_session_and_then_the_total(fixture: Fixture) -> None:
    """max_events_per_session holds for each session; the total is cut after that."""
    for session_id in ("ses_1", "ses_2", "ses_3"):
        await fixture.append(session_id, *[RECEIVED] * 4)
    await fixture.append("ses_3", RECEIVED)
    report = await fixture.execute(keeping(3, max_total_events=at_most(8)))
    equal(report.events_pruned, 5, "One, one and two go for their sessions, one for the total.")
    found = [await fixture.numbers(f"ses_{number}") for number in (1, 2, 3)]
    equal(found, [[3, 4], [2, 3, 4], [3, 4, 5]], "The oldest event of all went for the total.")
