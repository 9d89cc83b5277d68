"""Concurrency: many writers and readers at once."""

from __future__ import annotations

import asyncio

from turndock.conformance.claims import equal, holds
from turndock.conformance.session_store.suite import SUITE, Fixture, together
from turndock.errors import TurndockError
from turndock.store.v1 import AppendResult
from turndock.types.v1 import Session


def succeeded(answers: list[AppendResult | TurndockError], what: str) -> list[AppendResult]:
    """The answers, all of which must be successes."""
    refusals = [str(answer) for answer in answers if isinstance(answer, TurndockError)]
    equal(refusals, [], f"No caller sees an error: {what}.")
    return [answer for answer in answers if isinstance(answer, AppendResult)]


@SUITE.case("PF-B09")
async def a_new_session_is_appended_to_by_many_at_once(fixture: Fixture) -> None:
    """Forty first appends to one new session at the same time get the numbers 1 to 40, and nobody an error."""
    answers = await together(fixture.append_one(fixture.event()) for _ in range(40))
    results = succeeded(answers, "forty first appends")
    equal(sorted(result.event.sequence for result in results), list(range(1, 41)), "Dense, each number once.")
    equal(len({result.event.incarnation for result in results}), 1, "It is one session.")
    equal(await fixture.numbers(), list(range(1, 41)), "All of them are in the log.")


@SUITE.case("S-15")
async def batches_at_the_same_time_stay_whole(fixture: Fixture) -> None:
    """Each of ten batches of five appended at once has five consecutive numbers in its input order."""
    batches = [[fixture.event(f"{batch}-{index}") for index in range(5)] for batch in range(10)]
    answers = await asyncio.gather(*(fixture.append(*batch) for batch in batches))
    for batch, results in zip(batches, answers, strict=True):
        equal(
            [result.event.id for result in results], [event.id for event in batch], "Results in input order."
        )
        first = results[0].event.sequence
        numbers = [result.event.sequence for result in results]
        equal(numbers, list(range(first, first + 5)), "A batch has consecutive numbers.")
    equal(await fixture.numbers(), list(range(1, 51)), "Fifty events, numbers 1 to 50 in order.")


@SUITE.case("PF-E31", "S-09")
async def retries_at_the_same_time_store_one(fixture: Fixture) -> None:
    """The same event appended by twenty callers at once is stored once; all get its number, one as the first."""
    event = fixture.event()
    results = succeeded(await together(fixture.append_one(event) for _ in range(20)), "twenty retries")
    equal([result.event.sequence for result in results], [1] * 20, "All get the one number.")
    equal([result.duplicate for result in results].count(False), 1, "One of them stored it.")
    holds(not any(result.payload_differs for result in results), "Nothing differs.")
    equal(await fixture.head(), 1, "One number is used.")


@SUITE.case("PF-E31")
async def writers_that_expect_the_same_head_do_not_both_win(fixture: Fixture) -> None:
    """Of appends that expect the same last_sequence at the same time, one is stored, the others conflict."""
    answers = await together(
        fixture.append_one(fixture.event(), expected={"last_sequence": 0}) for _ in range(10)
    )
    refusals = [answer.reason for answer in answers if isinstance(answer, TurndockError)]
    equal(refusals, ["SEQUENCE_CONFLICT"] * 9, "Nine of ten conflict.")
    equal(await fixture.numbers(), [1], "One is stored.")


@SUITE.case("PF-B11")
async def checking_and_appending_goes_on_beside_a_reader(fixture: Fixture) -> None:
    """Eight writers that each check and append, duplicates among it, and a reader of pages: dense, no error."""
    is_over = False

    async def write(writer: int) -> None:
        for number in range(25):
            event = fixture.event(f"{writer}-{number}")
            await fixture.head()
            await fixture.append_one(event)
            if number % 5 == 0:
                result = await fixture.append_one(event)
                holds(result.duplicate, "The event is known at once.")

    async def read() -> None:
        while not is_over:
            await asyncio.sleep(0)  # a store in memory may answer without giving way to the writers
            events = await fixture.whole_log()
            numbers = [event.sequence for event in events]
            equal(
                numbers, list(range(1, len(numbers) + 1)), "A reader never sees a number before a lower one."
            )

    async with asyncio.TaskGroup() as group:
        reader = group.create_task(read())
        await asyncio.wait([group.create_task(write(writer)) for writer in range(8)])
        is_over = True
    reader.result()
    events = await fixture.whole_log()
    equal([event.sequence for event in events], list(range(1, 201)), "200 events, dense.")
    for writer in range(8):
        mine = [event.id for event in events if event.id.startswith(f"{writer}-")]
        equal(mine, [f"{writer}-{number}" for number in range(25)], "Each writer's events are in its order.")


@SUITE.case("PF-E05", "S-07")
async def saving_a_session_never_lowers_its_counter(fixture: Fixture) -> None:
    """Stale saves of a session beside appends lose no event, repeat no number and lower no counter."""
    stale = await fixture.save(fixture.session())
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(fixture.append(fixture.event()))
            group.create_task(fixture.save(stale))
    equal(await fixture.numbers(), list(range(1, 21)), "20 events, dense.")
    equal((await fixture.read_session()).last_sequence, 20, "The session's counter is the log's.")
    equal(await fixture.head(), 20, "GetLatestSequence is the log's.")


@SUITE.case("SaveSession")
async def one_of_many_agents_wins_a_name(fixture: Fixture) -> None:
    """Of ten sessions saved at once with a live agent of one name, one is stored."""
    sessions = [fixture.agent_session(f"ses_{number}", "ann") for number in range(10)]
    answers = await together(fixture.save(session) for session in sessions)
    refusals = [answer.reason for answer in answers if isinstance(answer, TurndockError)]
    equal(refusals, ["ALREADY_EXISTS"] * 9, "Nine of ten are told that the name is taken.")
    stored = [answer.id for answer in answers if isinstance(answer, Session)]
    listed = (await fixture.list_sessions()).sessions
    equal([session.id for session in listed], stored, "One session is stored.")


@SUITE.case("S-07")
async def many_sessions_count_for_themselves(fixture: Fixture) -> None:
    """Batches over overlapping sessions at the same time deadlock nobody; each session's numbers are dense."""
    names = [f"s{number}" for number in range(10)]

    def batch(start: int) -> list[str]:
        return [names[(start + step * (1 if start % 2 else -1)) % 10] for step in range(10)]

    await asyncio.gather(
        *(fixture.append(*(fixture.event(session_id=name) for name in batch(start))) for start in range(20))
    )
    for name in names:
        equal(await fixture.numbers(name), list(range(1, 21)), f"{name} has 20 events, dense.")
