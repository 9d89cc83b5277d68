"""Waiting reads: GetEvents with `wait_ms`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from turndock.conformance.claims import equal, holds
from turndock.conformance.session_store.suite import LONG_POLL, SUITE, Fixture, under_way
from turndock.types.v1 import EventType, RunStatus

PROMPT_S = 2.0
"""What is not held up by anything takes less than this."""
SLACK_S = 3.0
"""How much later than its time a wait may end on a busy machine."""
TICK_S = 0.05
"""How much earlier, by the coarseness of clocks."""


def now() -> float:
    """Seconds, for differences."""
    return asyncio.get_running_loop().time()


@SUITE.case("S-21", needs=(LONG_POLL,))
async def a_wait_without_an_event_ends_ok_and_empty(fixture: Fixture) -> None:
    """A waiting read that gets no event answers OK and empty when its time is up; it is no DEADLINE_EXCEEDED."""
    await fixture.save(fixture.session())
    for session_id in ("ses_1", "unknown"):
        begun = now()
        response = await fixture.log(session_id, after_sequence=0, wait_ms=200)
        took = now() - begun
        equal(len(response.events), 0, f"No event came for {session_id}.")
        holds(0.2 - TICK_S <= took <= 0.2 + SLACK_S, f"A wait of 200 ms took {took:.3f} s.")


@SUITE.case("S-21", needs=(LONG_POLL,))
async def a_wait_with_events_ends_at_once(fixture: Fixture) -> None:
    """A waiting read for which events are there answers at once."""
    await fixture.append(fixture.event())
    begun = now()
    equal(await fixture.numbers(wait_ms=10_000), [1], "The event that is there is returned.")
    holds(now() - begun < PROMPT_S, "It is returned at once.")


@SUITE.case("S-21", needs=(LONG_POLL,))
async def a_wait_ends_with_the_first_matching_event(fixture: Fixture) -> None:
    """A waiting read answers as soon as a matching event is stored, by any of the calls that store events."""
    await fixture.append(*fixture.events(2))
    flushed = (fixture.session(), fixture.run(status=RunStatus.RUN_STATUS_RUNNING), fixture.events(1))
    writes: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: fixture.append(fixture.event()),
        lambda: fixture.append_one(fixture.event()),
        lambda: fixture.flush(*flushed),
    )
    for expected, write in enumerate(writes, 3):
        begun = now()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(fixture.numbers(after_sequence=expected - 1, wait_ms=4_000))
            await under_way(fixture)
            await write()
        equal(waiting.result(), [expected], "The reader gets the event it waited for.")
        holds(now() - begun < PROMPT_S, "It gets it as soon as it is stored.")


@SUITE.case("S-21", needs=(LONG_POLL,))
async def a_wait_is_not_ended_by_what_does_not_match(fixture: Fixture) -> None:
    """Events of another session, type, run or scope, and duplicates, do not end a wait."""
    known = fixture.event("known", run_id="run_1")
    await fixture.append(known)
    other = fixture.other()
    streamed = EventType.EVENT_TYPE_MESSAGE_STREAMED
    begun = now()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(
            fixture.log(
                after_sequence=1, run_id="run_1", types=[EventType.EVENT_TYPE_MESSAGE_RECEIVED], wait_ms=500
            )
        )
        await under_way(fixture)
        await fixture.append(fixture.event(session_id="ses_2", run_id="run_1"))
        await fixture.append(fixture.event(run_id="run_1", type=streamed))
        await fixture.append(fixture.event(run_id="run_2"))
        await other.append(other.event(run_id="run_1"))
        await fixture.append(known)
        await fixture.save(fixture.session())
    took = now() - begun
    equal([event.id for event in waiting.result().events], [], "Nothing that was stored matches.")
    holds(took >= 0.5 - TICK_S, f"The wait of 500 ms was ended after {took:.3f} s by what does not match.")
    equal(waiting.result().head, 3, "The answer tells the head as it is then.")


@SUITE.case("S-21", needs=(LONG_POLL,))
async def an_event_shortly_before_the_end_is_delivered(fixture: Fixture) -> None:
    """An event stored just before a wait's time is up still ends it."""
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fixture.numbers(wait_ms=1_700))
        await fixture.log("quiet", wait_ms=1_200)
        await fixture.append(fixture.event())
    equal(waiting.result(), [1], "The event came half a second before the end of the wait.")


@SUITE.case("S-21", needs=(LONG_POLL,))
async def a_waiting_reader_holds_up_nobody(fixture: Fixture) -> None:
    """While readers wait, every other call answers at once: the wait holds no lock and no connection."""
    await fixture.save(fixture.session())
    async with asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(fixture.numbers(f"ses_{number % 3}", after_sequence=1, wait_ms=20_000))
            for number in range(50)
        ]
        try:
            async with asyncio.timeout(PROMPT_S):
                await under_way(fixture)
                await fixture.save(fixture.session("ses_2"))
                await fixture.read_session("ses_2")
                await fixture.append(fixture.event(session_id="ses_9"))
                equal(await fixture.numbers("ses_9"), [1], "Another reader reads.")
        except TimeoutError:
            holds(False, f"Calls beside 50 waiting readers did not return within {PROMPT_S} s.")
        for session_id in ("ses_0", "ses_1", "ses_2"):
            await fixture.append(*fixture.events(2, session_id))
    equal([task.result() for task in waiting], [[2]] * 50, "Every one of 50 readers is woken.")


@SUITE.case("S-21", needs=(LONG_POLL,))
async def a_reader_that_leaves_leaves_nothing_behind(fixture: Fixture) -> None:
    """A wait that is cancelled disturbs neither writers nor other readers."""
    async with asyncio.TaskGroup() as group:
        leaving = [group.create_task(fixture.numbers(wait_ms=20_000)) for _ in range(10)]
        staying = group.create_task(fixture.numbers(wait_ms=20_000))
        await under_way(fixture)
        for task in leaving:
            task.cancel()
        await fixture.append(fixture.event())
    equal(staying.result(), [1], "The reader that stayed gets the event.")
    equal((await fixture.append_one(fixture.event())).event.sequence, 2, "Writing goes on.")


@SUITE.case("S-21", needs=(LONG_POLL,))
async def a_chain_of_waits_sees_every_event_once(fixture: Fixture) -> None:
    """A reader that waits again after each answer gets every event of a busy log once, in order."""

    async def follow(count: int) -> list[int]:
        seen: list[int] = []
        while len(seen) < count:
            page = await fixture.log(after_sequence=seen[-1] if seen else 0, wait_ms=10_000)
            seen += [event.sequence for event in page.events]
        return seen

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(follow(100)) for _ in range(3)]
        for _ in range(5):
            writers = [group.create_task(fixture.append(*fixture.events(2))) for _ in range(10)]
            await asyncio.gather(*writers)
    for reader in readers:
        equal(reader.result(), list(range(1, 101)), "Every number once, in order.")
