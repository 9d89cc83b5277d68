"""SearchEvents and CountEvents."""

from __future__ import annotations

from typing import Any

from turndock.conformance.claims import equal, refused
from turndock.conformance.query.suite import NOW_US, SECOND_US, SUITE, Fixture, pages
from turndock.store.v1 import EventOrder
from turndock.types.v1 import Event, EventType, MessageStreamed, RunStarted

STREAMED, RECEIVED = EventType.EVENT_TYPE_MESSAGE_STREAMED, EventType.EVENT_TYPE_MESSAGE_RECEIVED
TIME_ASC, TIME_DESC = EventOrder.EVENT_ORDER_TIME_ASC, EventOrder.EVENT_ORDER_TIME_DESC


async def _two_sessions(fixture: Fixture) -> None:
    """Seven events in two logs, alike in pairs."""
    await fixture.append(
        fixture.event("ses_1", after=1, run_id="run_1", provider="claude", correlation_id="corr_1"),
        fixture.event(
            "ses_1", after=2, run_id="run_1", type=STREAMED, message_streamed=MessageStreamed(text="a")
        ),
        fixture.event("ses_1", after=3, run_id="run_2", provider="codex"),
        fixture.event("ses_2", after=4, run_id="run_1", provider="claude"),
        fixture.event("ses_2", after=5, type=STREAMED, message_streamed=MessageStreamed(text="b")),
        fixture.event("ses_2", after=6, run_id="run_2", correlation_id="corr_2"),
        fixture.event("ses_2", after=7),
    )


@SUITE.case("Q-07")
async def events_are_found_by_what_they_are_and_counted_alike(fixture: Fixture) -> None:
    """Each filter selects its events, all must hold, and CountEvents counts what SearchEvents finds."""
    await _two_sessions(fixture)
    one, two = "ses_1", "ses_2"
    filters: list[tuple[dict[str, Any], list[tuple[str, int]]]] = [
        ({}, [(one, 1), (one, 2), (one, 3), (two, 1), (two, 2), (two, 3), (two, 4)]),
        ({"session_ids": [one]}, [(one, 1), (one, 2), (one, 3)]),
        ({"session_ids": [one, two, "unknown"], "types": [STREAMED]}, [(one, 2), (two, 2)]),
        ({"session_ids": ["unknown"]}, []),
        ({"run_ids": ["run_1"]}, [(one, 1), (one, 2), (two, 1)]),
        ({"run_ids": ["run_1", "run_2"], "session_ids": [two]}, [(two, 1), (two, 3)]),
        ({"run_ids": ["unknown"]}, []),
        ({"types": [STREAMED]}, [(one, 2), (two, 2)]),
        ({"types": [RECEIVED]}, [(one, 1), (one, 3), (two, 1), (two, 3), (two, 4)]),
        ({"types": [RECEIVED, STREAMED], "run_ids": ["run_2"]}, [(one, 3), (two, 3)]),
        ({"types": [EventType.EVENT_TYPE_RUN_FAILED]}, []),
        ({"providers": ["claude"]}, [(one, 1), (two, 1)]),
        ({"providers": ["claude", "codex"]}, [(one, 1), (one, 3), (two, 1)]),
        ({"providers": ["unknown"]}, []),
        ({"correlation_id": "corr_1"}, [(one, 1)]),
        ({"correlation_id": "unknown"}, []),
        ({"since_us": NOW_US + 5 * SECOND_US}, [(two, 2), (two, 3), (two, 4)]),
        ({"until_us": NOW_US + 2 * SECOND_US}, [(one, 1), (one, 2)]),
        ({"since_us": NOW_US + 3 * SECOND_US, "until_us": NOW_US + 3 * SECOND_US}, [(one, 3)]),
        ({"since_us": NOW_US + SECOND_US, "types": [RECEIVED], "providers": ["codex"]}, [(one, 3)]),
    ]
    for order in (EventOrder.EVENT_ORDER_SEQUENCE_ASC, TIME_ASC, TIME_DESC):
        for selected, expected in filters:
            for limit in (2, 1000):
                found = await fixture.all_events(limit, order=order, **selected)
                equal(sorted(found), expected, f"Filters {selected}, order {order}, pages of {limit}.")
    for selected, expected in filters:
        equal(await fixture.count(**selected), len(expected), f"CountEvents with filters {selected}.")


@SUITE.case("Q-07")
async def types_nobody_knows_are_refused(fixture: Fixture) -> None:
    """UNSPECIFIED and numbers no release knows are VALIDATION_ERROR in a filter of events, also for counting."""
    for number in (0, 77):
        for ask in (fixture.events, fixture.count):
            await refused(
                ask(types=[RECEIVED, number]), "VALIDATION_ERROR", f"Type {number} is refused.", field="types"
            )


@SUITE.case("Query.SearchEvents")
async def events_are_ordered_by_number_over_all_sessions(fixture: Fixture) -> None:
    """SEQUENCE_ASC has all first events first; equal numbers are ordered by session."""
    for session, count in (("b", 3), ("a", 1), ("c", 40)):
        await fixture.append(*(fixture.event(session) for _ in range(count)))
    expected = [("a", 1), ("b", 1), ("c", 1), ("b", 2), ("c", 2), ("b", 3)]
    expected += [("c", number) for number in range(3, 41)]
    for limit in (1, 4, 1000):
        equal(await fixture.all_events(limit), expected, f"Pages of {limit}.")


@SUITE.case("PF-B17")
async def ties_in_time_read_in_the_order_of_numbers(fixture: Fixture) -> None:
    """Events of one instant keep the order of their numbers either way; late ones go where their stamps say."""
    tied = [fixture.event(id=f"e{999 - number}", time_us=NOW_US) for number in range(60)]
    late = [fixture.event(id=f"late-{number}", time_us=NOW_US - 1 - number) for number in range(3)]
    await fixture.append(*tied)
    await fixture.append(*late)
    by_number = [("ses_1", number) for number in range(1, 64)]
    by_time = [by_number[62], by_number[61], by_number[60], *by_number[:60]]
    for order, expected in ((0, by_number), (TIME_ASC, by_time), (TIME_DESC, by_time[::-1])):
        for limit in (7, 1000):
            first, again = [await fixture.all_events(limit, order=order) for _ in range(2)]
            equal(first, expected, f"Order {order}, pages of {limit}.")
            equal(again, first, "A page is the same when it is read again.")


@SUITE.case("Query.SearchEvents")
async def ties_in_time_over_sessions_are_ordered(fixture: Fixture) -> None:
    """Events of one instant in several sessions are ordered by number, then by session, and none is lost."""
    for session in ("b", "a", "c"):
        await fixture.append(*(fixture.event(session, time_us=NOW_US) for _ in range(2)))
    expected = [(session, number) for number in (1, 2) for session in ("a", "b", "c")]
    for limit in (1, 2, 1000):
        equal(await fixture.all_events(limit, order=TIME_ASC), expected, "Upwards.")
        equal(await fixture.all_events(limit, order=TIME_DESC), expected[::-1], "Downwards.")


@SUITE.case("Q-01")
async def a_hundred_events_are_a_page_unless_it_says_otherwise(fixture: Fixture) -> None:
    """Without a limit a page has 100 events, in every order."""
    await fixture.append(*(fixture.event() for _ in range(101)))
    for order in (0, TIME_ASC, TIME_DESC):
        equal(len((await fixture.events(order=order)).events), 100, "The limit is 100 unless it is set.")


@SUITE.case("Query.SearchEvents", "PF-B33")
async def a_found_event_is_as_get_events_returns_it(fixture: Fixture) -> None:
    """An event in a page is the stored one byte for byte, with what this release does not know of."""
    odd = fixture.event(metadata_json='{"n":9007199254740993,"flag":true,"price":0.1}', correlation_id="c")
    odd.MergeFromString(b"\xc2\x3e\x03abc")  # field 1000, which no release has
    newer = fixture.event(type=101)  # a number no release has
    opened = fixture.event(
        type=EventType.EVENT_TYPE_RUN_STARTED, run_started=RunStarted(attempt=1, prompt="p")
    )
    await fixture.append(odd, newer, opened)
    for order in (0, TIME_ASC):
        found = list((await fixture.events(order=order)).events)
        equal(_bytes(found), _bytes(await fixture.log()), "They are the events of the log.")


@SUITE.case("PF-E23")
async def two_thousand_ids_are_a_filter(fixture: Fixture) -> None:
    """A filter of 2,000 ids is answered; one that is too long is VALIDATION_ERROR naming the list."""
    await fixture.append(fixture.event("ses_1", run_id="run_1", provider="p"), fixture.event("ses_2"))
    many = [f"x_{number}" for number in range(1_999)]
    selected: dict[str, Any] = {
        "session_ids": [*many, "ses_1"],
        "run_ids": [*many, "run_1"],
        "providers": [*many, "p"],
    }
    equal(await fixture.all_events(**selected), [("ses_1", 1)], "The event is found.")
    equal(await fixture.count(**selected), 1, "The event is counted.")
    too_many = {"session_ids": [f"x_{number}" for number in range(10_001)]}
    await refused(fixture.count(**too_many), "VALIDATION_ERROR", "It is refused.", field="session_ids")


@SUITE.case("Query.SearchEvents", "PF-B29")
async def pages_of_events_are_cut_by_bytes_too(fixture: Fixture) -> None:
    """Large events come in smaller pages, in every order, and none is lost."""
    text = "x" * (300 << 10)
    streamed = MessageStreamed(text=text)
    for number in range(12):
        await fixture.append(fixture.event(after=number, type=STREAMED, message_streamed=streamed))
    for order in (0, TIME_ASC, TIME_DESC):
        answers = await pages(lambda cursor, order=order: fixture.events(1000, cursor, order=order))  # type: ignore[misc]  # a default binds it
        largest = max(answer.ByteSize() for answer in answers)
        equal(largest < (2 << 20), True, f"A page has {largest} bytes.")
        numbers = [event.sequence for answer in answers for event in answer.events]
        equal(sorted(numbers), list(range(1, 13)), "Every event is there once.")


def _bytes(events: list[Event]) -> list[bytes]:
    return [event.SerializeToString() for event in events]
