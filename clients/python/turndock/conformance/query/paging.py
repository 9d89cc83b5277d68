"""Pages while things change."""

from __future__ import annotations

import asyncio

from turndock.conformance.claims import equal, holds
from turndock.conformance.query.suite import NOW_US, SECOND_US, SUITE, Fixture, pages, tokens
from turndock.store.v1 import EventOrder, RunOrder, SessionOrder


@SUITE.case("PF-E33")
async def untouched_sessions_are_seen_once_while_others_change(fixture: Fixture) -> None:
    """Between two pages sessions are touched and deleted: those left alone are there exactly once, and paging ends."""
    names = [f"ses_{number:02}" for number in range(30)]
    for number, name in enumerate(names):
        await fixture.save(name, updated_at_us=NOW_US - number * SECOND_US)
    first = await fixture.sessions(10)
    await fixture.save("ses_05", updated_at_us=NOW_US + 1)
    await fixture.save("ses_25", updated_at_us=NOW_US + 2)
    await fixture.delete("ses_15")
    rest = await pages(lambda cursor: fixture.sessions(10, cursor or first.next_cursor))
    seen = [session.id for page in (first, *rest) for session in page.sessions]
    untouched = [name for name in names if name not in {"ses_05", "ses_15", "ses_25"}]
    equal([name for name in seen if name in untouched], untouched, "Each is seen once, in order.")
    holds("ses_15" not in seen, "The deleted one is not seen.")
    holds(seen.count("ses_25") <= 1, "The touched one is missed or seen once.")


@SUITE.case("PF-E33")
async def runs_that_stay_are_seen_once_while_others_come(fixture: Fixture) -> None:
    """Runs that are added and saved again between pages do not hide those left alone, in any order."""
    for number in range(20):
        await fixture.run(f"run_{number:02}", after=number, usage=tokens(number + 10, 0))
    orders = (
        RunOrder.RUN_ORDER_STARTED_AT_DESC,
        RunOrder.RUN_ORDER_STARTED_AT_ASC,
        RunOrder.RUN_ORDER_TOKEN_USAGE_DESC,
    )
    for step, order in enumerate(orders):
        answers = [await fixture.runs(6, order=order)]
        while cursor := answers[-1].next_cursor:
            turn = f"{step}-{len(answers)}"
            if len(answers) < 4:
                await fixture.run(f"new-{turn}", after=len(answers) * 5, usage=tokens(len(answers) * 6, 0))
                await fixture.run("run_10", after=100 + len(answers), usage=tokens(100, 0))
            answers.append(await fixture.runs(6, cursor, order=order))
            holds(len(answers) < 20, "Paging ends.")
        seen = [run.id for answer in answers for run in answer.runs]
        stayed = [f"run_{number:02}" for number in range(20) if number != 10]
        equal(sorted(name for name in seen if name in stayed), stayed, f"Order {order}.")


@SUITE.case("Query.SearchEvents")
async def events_that_come_while_one_pages_neither_hide_nor_repeat_any(fixture: Fixture) -> None:
    """A reader who pages under writes sees every event once, the late ones as they come, in the order of numbers."""
    await fixture.append(*(fixture.event() for _ in range(50)))
    written = 50
    seen: list[int] = []
    cursor = ""
    while True:
        page = await fixture.events(7, cursor, session_ids=["ses_1"])
        if not page.events:
            break
        seen += [event.sequence for event in page.events]
        cursor = page.next_cursor
        if written < 80:
            await fixture.append(*(fixture.event() for _ in range(3)))
            written += 3
    equal(seen, list(range(1, written + 1)), "Every number once, in order.")


@SUITE.case("Query.Paging")
async def pages_read_beside_writers_are_whole(fixture: Fixture) -> None:
    """Readers and writers at the same time: no call fails, and what was there before is seen once by every reader."""
    for number in range(12):
        await fixture.save(f"ses_{number:02}", created_at_us=NOW_US + number)
    await fixture.append(*(fixture.event("ses_00", after=number) for number in range(30)))

    async def write(writer: int) -> None:
        for number in range(8):
            await fixture.save(f"new_{writer}_{number}", tags=[f"t{number}"])
            await fixture.run(f"run_{number}", f"new_{writer}_{number}", provider="p", after=number)
            await fixture.append(fixture.event(f"new_{writer}_{number}", after=number))

    async def read() -> None:
        found = await fixture.all_sessions(3, order=SessionOrder.SESSION_ORDER_CREATED_AT_ASC)
        equal(found[:12], [f"ses_{number:02}" for number in range(12)], "The sessions that were there.")
        events = await fixture.all_events(4, session_ids=["ses_00"], order=EventOrder.EVENT_ORDER_TIME_DESC)
        equal([number for _, number in events], list(range(30, 0, -1)), "The events that were there.")

    await asyncio.gather(*(write(writer) for writer in range(3)), *(read() for _ in range(3)))
    page = await fixture.runs(provider="p")
    equal(page.total_count, 24, "Every run that was written is counted.")
