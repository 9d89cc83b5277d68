"""Streams of committed events: WatchEvents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from turndock.conformance.claims import equal, holds
from turndock.conformance.session_store.suite import SUITE, WATCH_EVENTS, Fixture, under_way
from turndock.store.v1 import WatchEventsResponse
from turndock.types.v1 import RunStatus


async def numbers(stream: AsyncIterator[WatchEventsResponse], count: int) -> list[int]:
    """The numbers of the next events of a stream, at least `count`; then the stream is left."""
    seen: list[int] = []
    async with aclosing(cast("AsyncGenerator[WatchEventsResponse]", stream)) as batches:
        async for batch in batches:
            holds(batch.events, "A batch of a stream is never empty.")
            seen += [event.sequence for event in batch.events]
            holds(batch.head >= seen[-1], f"head is {batch.head}, yet event {seen[-1]} is there.")
            if len(seen) >= count:
                break
    return seen


@SUITE.case("WatchEvents", needs=(WATCH_EVENTS,))
async def a_stream_replays_and_goes_on_live(fixture: Fixture) -> None:
    """WatchEvents sends what lies after the given number, then what is committed, each event once."""
    await fixture.append(*fixture.events(5))
    equal(await numbers(fixture.watch(), 5), [1, 2, 3, 4, 5], "From the beginning.")
    equal(await numbers(fixture.watch(after_sequence=3), 2), [4, 5], "After 3.")
    async with asyncio.TaskGroup() as group:
        live = group.create_task(numbers(fixture.watch(after_sequence=4), 4))
        await fixture.append_one(fixture.event())
        await fixture.append(fixture.event())
        await fixture.flush(
            fixture.session(), fixture.run(status=RunStatus.RUN_STATUS_RUNNING), fixture.events(1)
        )
    equal(live.result(), [5, 6, 7, 8], "What was there and what came, whichever call stored it.")


@SUITE.case("WatchEvents", needs=(WATCH_EVENTS,))
async def a_stream_of_an_unknown_session_waits(fixture: Fixture) -> None:
    """A session that has no events yet can be watched: its first event is the stream's first."""
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(numbers(fixture.watch("later"), 1))
        await under_way(fixture)
        await fixture.append(fixture.event(session_id="ses_2"))
        await fixture.append(fixture.event(session_id="later"))
    equal(watching.result(), [1], "The first event of that session, and none of another.")


@SUITE.case("WatchEvents", needs=(WATCH_EVENTS,))
async def a_stream_ahead_of_the_log_waits_for_its_number(fixture: Fixture) -> None:
    """A stream that begins beyond the head sends nothing until the log gets there."""
    await fixture.append(*fixture.events(2))
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(numbers(fixture.watch(after_sequence=4), 1))
        await under_way(fixture)
        await fixture.append(*fixture.events(2))
        await fixture.append(fixture.event())
    equal(watching.result(), [5], "Events 3 and 4 are not sent.")


@SUITE.case("WatchEvents", needs=(WATCH_EVENTS,))
async def many_streams_see_a_busy_log_alike(fixture: Fixture) -> None:
    """Under concurrent appends, duplicates among them, every stream sees 1, 2, 3, … without gap or repeat."""
    known = fixture.event()
    await fixture.append(known)
    async with asyncio.TaskGroup() as group:
        watching = [group.create_task(numbers(fixture.watch(), 101)) for _ in range(5)]
        for _ in range(10):
            group.create_task(fixture.append(*fixture.events(5), known, *fixture.events(5)))
    for stream in watching:
        equal(stream.result(), list(range(1, 102)), "Every number once, in order.")


@SUITE.case("WatchEvents", needs=(WATCH_EVENTS,))
async def a_stream_sends_long_logs_in_messages_that_fit(fixture: Fixture) -> None:
    """A long or large log comes in several batches, each below what one message carries."""
    large = '{"a":"' + "x" * 900_000 + '"}'
    for _ in range(6):
        await fixture.append(fixture.event(data_json=large))
    await fixture.append(*fixture.events(2_500))
    seen: list[int] = []
    async with aclosing(cast("AsyncGenerator[WatchEventsResponse]", fixture.watch())) as batches:
        async for batch in batches:
            holds(
                batch.ByteSize() < 4 << 20, f"A batch has {batch.ByteSize()} bytes; a message carries 4 MiB."
            )
            seen += [event.sequence for event in batch.events]
            if len(seen) >= 2_506:
                break
    holds(seen == list(range(1, 2_507)), "Every number once, in order.")


@SUITE.case("WatchEvents", needs=(WATCH_EVENTS,))
async def a_stream_that_is_left_disturbs_nobody(fixture: Fixture) -> None:
    """A watcher that goes away leaves writers and other watchers as they are."""
    await fixture.append(fixture.event())
    async with asyncio.TaskGroup() as group:
        staying = group.create_task(numbers(fixture.watch(), 3))
        for _ in range(5):
            await numbers(fixture.watch(), 1)
        leaving = group.create_task(numbers(fixture.watch(), 99))
        await under_way(fixture)
        leaving.cancel()
        await fixture.append(*fixture.events(2))
    equal(staying.result(), [1, 2, 3], "The watcher that stayed gets everything.")


@SUITE.case("WatchEvents", needs=(WATCH_EVENTS,))
async def a_stream_goes_on_with_the_log_of_the_next_life(fixture: Fixture) -> None:
    """When a session is deleted and made again, its new log is streamed from the beginning, as another incarnation."""
    await fixture.append(*fixture.events(2))
    async with aclosing(cast("AsyncGenerator[WatchEventsResponse]", fixture.watch())) as batches:
        before = await _up_to(2, batches)
        await fixture.delete()
        await fixture.append(*fixture.events(4))
        after = await _up_to(4, batches)
    equal([number for number, _ in after], [1, 2, 3, 4], "The new log from its first number on.")
    equal(len({incarnation for _, incarnation in after}), 1, "It is one incarnation.")
    holds(after[0][1] != before[0][1], "What is made again is another incarnation.")


async def _up_to(last: int, batches: AsyncIterator[WatchEventsResponse]) -> list[tuple[int, str]]:
    """Number and incarnation of the next events, up to this number."""
    seen: list[tuple[int, str]] = []
    while not seen or seen[-1][0] < last:
        batch = await anext(batches)
        equal(len({event.incarnation for event in batch.events}), 1, "A batch is of one incarnation.")
        seen += [(event.sequence, event.incarnation) for event in batch.events]
    return seen
