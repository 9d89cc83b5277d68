"""Reading a log: filters, limits, pages, both directions."""

from __future__ import annotations

from typing import Any

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.session_store.suite import NOW_US, SUITE, Fixture, pages
from turndock.store.v1 import GetLatestSequenceRequest
from turndock.types.v1 import Event, EventType, MessageReceived, Page

RECEIVED = EventType.EVENT_TYPE_MESSAGE_RECEIVED
STREAMED = EventType.EVENT_TYPE_MESSAGE_STREAMED
MESSAGE_BYTES = 4 << 20
"""What gRPC carries by default."""


@SUITE.case("S-17")
async def bounds_are_exclusive_and_filters_combine(fixture: Fixture) -> None:
    """GetEvents takes both bounds exclusive, applies every filter, and the limit last."""
    for number in range(1, 6):
        run_id = "run2" if number == 3 else "run1"
        await fixture.append(fixture.event(run_id=run_id, type=STREAMED if number == 5 else RECEIVED))
    equal(await fixture.numbers(after_sequence=1), [2, 3, 4, 5], "after_sequence is exclusive.")
    equal(await fixture.numbers(before_sequence=3), [1, 2], "before_sequence is exclusive.")
    equal(await fixture.numbers(after_sequence=1, before_sequence=3), [2], "Both bounds are exclusive.")
    equal(await fixture.numbers(after_sequence=2, before_sequence=3), [], "Nothing lies between 2 and 3.")
    equal(await fixture.numbers(after_sequence=0), [1, 2, 3, 4, 5], "After 0 is from the beginning.")
    equal(await fixture.numbers(before_sequence=0), [], "Nothing lies before 0.")
    equal(await fixture.numbers(run_id="run1"), [1, 2, 4, 5], "Only that run's.")
    equal(await fixture.numbers(types=[STREAMED]), [5], "Only that type's.")
    equal(await fixture.numbers(types=[STREAMED, RECEIVED], limit=2), [1, 2], "Several types match any.")
    combined = await fixture.numbers(after_sequence=1, run_id="run1", types=[RECEIVED], limit=2)
    equal(combined, [2, 4], "The limit counts events that match, not those that were looked at.")
    equal(await fixture.numbers("unknown"), [], "An unknown session is an empty list.")


@SUITE.case("S-17")
async def since_is_exclusive_and_by_the_stores_clock(fixture: Fixture) -> None:
    """since_us selects events stored after that instant, whatever time their writers gave them."""
    results = await fixture.append(*(fixture.event(time_us=NOW_US * 2 - number) for number in range(3)))
    stored = [result.event.stored_at_us for result in results]
    equal(await fixture.numbers(since_us=stored[0] - 1), [1, 2, 3], "Events stored after that instant.")
    later = [number for number, instant in enumerate(stored, 1) if instant > stored[0]]
    equal(await fixture.numbers(since_us=stored[0]), later, "since_us is exclusive.")
    equal(await fixture.numbers(since_us=stored[-1]), [], "Nothing was stored after the last event.")


@SUITE.case("GetEvents")
async def a_read_refuses_a_limit_out_of_bounds(fixture: Fixture) -> None:
    """limit is 1 to 10,000 and 1,000 by default; wait_ms is 0 to 60,000."""
    await fixture.append(*fixture.events(1_002))
    for limit in (0, -1, 10_001):
        await refused(
            fixture.log(limit=limit), "VALIDATION_ERROR", f"limit = {limit} is refused.", field="limit"
        )
    for wait_ms in (-1, 60_001):
        call = fixture.log(wait_ms=wait_ms)
        await refused(call, "VALIDATION_ERROR", f"wait_ms = {wait_ms} is refused.", field="wait_ms")
    equal(len((await fixture.log()).events), 1_000, "The default limit is 1,000.")
    equal(len((await fixture.log(limit=10_000)).events), 1_002, "10,000 is accepted.")
    equal(await fixture.numbers(limit=1), [1], "1 is accepted.")


@SUITE.case("GetEvents")
async def descending_reads_the_last_ones(fixture: Fixture) -> None:
    """With descending the highest numbers come first, and the limit keeps the last events of the log."""
    await fixture.append(*fixture.events(5))
    equal(await fixture.numbers(descending=True), [5, 4, 3, 2, 1], "The highest number comes first.")
    equal(await fixture.numbers(descending=True, limit=2), [5, 4], "The limit keeps the last ones.")
    equal(await fixture.numbers(descending=True, limit=2, before_sequence=4), [3, 2], "Before 4, downwards.")
    equal(await fixture.numbers(descending=True, after_sequence=3), [5, 4], "Bounds mean the same.")


@SUITE.case("GetEvents")
async def a_page_tells_where_the_log_stands(fixture: Fixture) -> None:
    """GetEvents returns head, oldest, incarnation and how far it read, also when nothing matches."""
    unknown = await fixture.log("unknown", after_sequence=3)
    equal((unknown.head, unknown.oldest, unknown.incarnation), (0, 0, ""), "Nothing is known of it.")
    saved = await fixture.save(fixture.session())
    empty = await fixture.log()
    equal(
        (empty.head, empty.oldest, empty.incarnation), (0, 0, saved.incarnation), "A session without events."
    )
    await fixture.append(*fixture.events(5))
    page = await fixture.log(limit=2)
    equal(
        (page.head, page.oldest, page.scanned_through),
        (5, 1, 2),
        "A full page was read up to its last event.",
    )
    equal(page.pruned_through, 0, "Nothing was pruned.")
    rest = await fixture.log(after_sequence=2)
    equal((rest.head, rest.scanned_through), (5, 5), "The rest was read up to the head.")
    nothing = await fixture.log(types=[STREAMED])
    equal(
        (len(nothing.events), nothing.scanned_through), (0, 5), "A filter that matches nothing read it all."
    )
    ahead = await fixture.log(after_sequence=9)
    holds(ahead.scanned_through >= 9, "A reader beyond the head is not sent back.")
    latest = await fixture.store.get_latest_sequence(
        GetLatestSequenceRequest(scope=fixture.scope, session_id="ses_1")
    )
    equal((latest.sequence, latest.incarnation), (5, saved.incarnation), "GetLatestSequence tells the same.")


@SUITE.case("GetEvents")
async def a_filtering_reader_carries_on_where_the_scan_stopped(fixture: Fixture) -> None:
    """A reader that goes on after scanned_through gets each matching event once, however few there are."""
    batch = [fixture.event(type=STREAMED if number % 7 == 0 else RECEIVED) for number in range(1, 101)]
    await fixture.append(*batch)
    wanted = [number for number in range(1, 101) if number % 7 == 0]
    for limit in (1, 3, 100):
        found: list[int] = []
        after = 0
        while after < 100:
            page = await fixture.log(after_sequence=after, types=[STREAMED], limit=limit)
            holds(
                page.scanned_through > after,
                f"A read after {after} goes forward, not to {page.scanned_through}.",
            )
            found += [event.sequence for event in page.events]
            after = page.scanned_through
        equal(found, wanted, f"Read {limit} by {limit}, each matching event comes once.")
    found, before = [], 101
    while page_down := (
        await fixture.log(before_sequence=before, types=[STREAMED], limit=3, descending=True)
    ).events:
        found += [event.sequence for event in page_down]
        before = found[-1]
    equal(found, wanted[::-1], "Downwards, each matching event comes once.")


async def read_by_sevens(fixture: Fixture, *, descending: bool) -> list[Event]:
    """A whole log, in pages of 7."""
    bound = "before_sequence" if descending else "after_sequence"
    found: list[Event] = []
    place: dict[str, Any] = {}
    while page := (await fixture.log(limit=7, descending=descending, **place)).events:
        found.extend(page)
        place = {bound: found[-1].sequence}
    return found


@SUITE.case("PF-B17")
async def order_is_by_number_and_by_nothing_else(fixture: Fixture) -> None:
    """Events with equal times, falling ids or older times are read in the order they were appended, both ways."""
    await fixture.append(*(fixture.event(f"id-{9999 - number}") for number in range(1_000)))
    await fixture.append(*(fixture.event(f"id-{9999 - number}", time_us=5) for number in range(1_000, 1_003)))
    expected = [f"id-{9999 - number}" for number in range(1_003)]
    for _ in range(2):
        forward = await read_by_sevens(fixture, descending=False)
        holds([event.id for event in forward] == expected, "Pages of 7, forward: the order of the numbers.")
        backward = await read_by_sevens(fixture, descending=True)
        holds([event.id for event in backward] == expected[::-1], "Pages of 7, backward: the same order.")
        equal([event.sequence for event in forward], list(range(1, 1_004)), "Every number is there once.")


@SUITE.case("PF-B29")
async def a_page_is_cut_by_bytes(fixture: Fixture) -> None:
    """A page of large events stays below what one message carries, and the next page goes on from there."""
    text = MessageReceived(text="x" * 900_000)
    for _ in range(6):
        await fixture.append(fixture.event(message_received=text, type=RECEIVED))
    for descending in (False, True):
        found: list[int] = []
        bound: dict[str, Any] = {}
        while len(found) < 6:
            page = await fixture.log(descending=descending, **bound)
            holds(
                page.ByteSize() < MESSAGE_BYTES,
                f"A page has {page.ByteSize()} bytes; a message carries 4 MiB.",
            )
            holds(page.events, "A page that is not the last holds at least one event.")
            found += [event.sequence for event in page.events]
            equal(
                page.scanned_through,
                found[-1] if len(found) < 6 else page.scanned_through,
                "It was read so far.",
            )
            bound = {"before_sequence" if descending else "after_sequence": found[-1]}
        expected = list(range(6, 0, -1)) if descending else list(range(1, 7))
        equal(found, expected, "All events come, each once.")


@SUITE.case("PF-B29")
async def pages_of_sessions_and_runs_are_cut_by_bytes(fixture: Fixture) -> None:
    """Lists of large rows stay below what one message carries, and paging still reaches every row."""
    blob = '{"a":"' + "x" * 900_000 + '"}'
    for number in range(6):
        await fixture.save(fixture.session(f"s{number}", context_json=blob))
        await fixture.save_run(fixture.run(f"r{number}", "s0", prompt="y" * 900_000))
    sessions = await pages(lambda cursor: fixture.list_sessions(page=Page(cursor=cursor)))
    largest = max(page.ByteSize() for page in sessions)
    holds(largest < MESSAGE_BYTES, f"A page of sessions has {largest} bytes; a message carries 4 MiB.")
    equal(sum(len(page.sessions) for page in sessions), 6, "Every session is reached.")
    runs = await pages(lambda cursor: fixture.list_runs("s0", page=Page(cursor=cursor)))
    largest = max(page.ByteSize() for page in runs)
    holds(largest < MESSAGE_BYTES, f"A page of runs has {largest} bytes; a message carries 4 MiB.")
    equal(sum(len(page.runs) for page in runs), 6, "Every run is reached.")
