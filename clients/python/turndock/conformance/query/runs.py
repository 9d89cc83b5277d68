"""SearchRuns: filters, orders, totals."""

from __future__ import annotations

import asyncio
from typing import Any

from turndock.conformance.claims import equal, refused
from turndock.conformance.query.suite import NOW_US, SECOND_US, SUITE, Fixture, tokens
from turndock.store.v1 import RunOrder
from turndock.types.v1 import RunStatus, Usage

ASC, BY_TOKENS = RunOrder.RUN_ORDER_STARTED_AT_ASC, RunOrder.RUN_ORDER_TOKEN_USAGE_DESC


@SUITE.case("Query.SearchRuns")
async def runs_are_ordered_by_start_either_way(fixture: Fixture) -> None:
    """Last started first unless asked otherwise; those that have not started are behind them, or first upwards."""
    for name, after in (("b", 2), ("a", 2), ("late", 3), ("early", 1), ("waits", None), ("also-waits", None)):
        await fixture.run(name, after=after)
    expected = ["early", "a", "b", "late"]
    for limit in (1, 3, 1000):
        upwards = [name for _, name in await fixture.all_runs(limit, order=ASC)]
        equal(upwards, ["also-waits", "waits", *expected], "First started first, equal ones by id.")
        downwards = [name for _, name in await fixture.all_runs(limit)]
        equal(downwards, [*expected[::-1], "waits", "also-waits"], "Last started first, equal ones by id.")


@SUITE.case("Query.SearchRuns")
async def runs_of_the_same_id_are_ordered_by_session(fixture: Fixture) -> None:
    """Runs of several sessions that are equal in start and id are ordered by session, and none is lost."""
    for session in ("c", "a", "b"):
        await fixture.run("same", session, after=1)
    for limit in (1, 2, 1000):
        equal([name for name, _ in await fixture.all_runs(limit)], ["c", "b", "a"], "Downwards.")
        equal([name for name, _ in await fixture.all_runs(limit, order=ASC)], ["a", "b", "c"], "Upwards.")


@SUITE.case("Query.SearchRuns")
async def runs_are_ordered_by_tokens_with_cursors(fixture: Fixture) -> None:
    """TOKEN_USAGE_DESC has most tokens first, in pages; runs that reported none count as 0."""
    await fixture.run("small", usage=tokens(1, 1, 2))
    await fixture.run("large", usage=tokens(1, 1, 900))
    await fixture.run("summed", usage=tokens(300, 200))
    await fixture.run("output-only", usage=Usage(output_tokens=7))
    await fixture.run("none")
    await fixture.run("zero", usage=tokens(0, 0, 0))
    for limit in (1, 2, 1000):
        names = [name for _, name in await fixture.all_runs(limit, order=BY_TOKENS)]
        equal(names, ["large", "summed", "output-only", "small", "zero", "none"], "Most tokens first.")


@SUITE.case("Query.SearchRuns")
async def runs_are_found_by_what_they_are(fixture: Fixture) -> None:
    """Session, provider, statuses, tokens and start select runs; bounds are inclusive; all filters must hold."""
    failed, completed = RunStatus.RUN_STATUS_FAILED, RunStatus.RUN_STATUS_COMPLETED
    await fixture.run("r1", "a", provider="claude", after=1, usage=tokens(60, 40, 100), status=completed)
    await fixture.run("r2", "a", provider="codex", after=2, usage=tokens(200, 80), status=failed)
    await fixture.run("r3", "b", provider="claude", after=3, status=failed)
    await fixture.run("r4", "b", provider="claude", status=RunStatus.RUN_STATUS_PENDING)
    second = NOW_US + 2 * SECOND_US
    searches: list[tuple[dict[str, Any], list[str]]] = [
        ({"session_id": "a"}, ["r1", "r2"]),
        ({"session_id": "unknown"}, []),
        ({"provider": "claude"}, ["r1", "r3", "r4"]),
        ({"provider": "unknown"}, []),
        ({"statuses": [failed]}, ["r2", "r3"]),
        ({"statuses": [failed, completed]}, ["r1", "r2", "r3"]),
        ({"started_after_us": second}, ["r2", "r3"]),
        ({"started_before_us": second}, ["r1", "r2"]),
        ({"started_after_us": 0}, ["r1", "r2", "r3"]),
        ({"started_after_us": second, "started_before_us": second}, ["r2"]),
        ({"min_tokens": 100}, ["r1", "r2"]),
        ({"min_tokens": 101}, ["r2"]),
        ({"min_tokens": 0}, ["r1", "r2", "r3", "r4"]),
        ({"provider": "claude", "statuses": [failed]}, ["r3"]),
        ({}, ["r1", "r2", "r3", "r4"]),
    ]
    for filters, expected in searches:
        found = await fixture.runs(**filters)
        equal(sorted(run.id for run in found.runs), expected, f"Filters {filters}.")
        equal(found.total_count, len(expected), f"The total of filters {filters}.")


@SUITE.case("Query.SearchRuns")
async def fewest_tokens_are_not_negative(fixture: Fixture) -> None:
    """A negative min_tokens is VALIDATION_ERROR."""
    await refused(fixture.runs(min_tokens=-1), "VALIDATION_ERROR", "It is refused.", field="min_tokens")


@SUITE.case("Q-01")
async def fifty_runs_are_a_page_unless_it_says_otherwise(fixture: Fixture) -> None:
    """Without a limit a page has 50 runs; the total knows neither limit nor cursor."""
    await asyncio.gather(*(fixture.run(f"r{number}", after=number) for number in range(51)))
    page = await fixture.runs()
    equal((len(page.runs), page.total_count), (50, 51), "The limit is 50 unless it is set.")
    page = await fixture.runs(2, page.next_cursor)
    equal((len(page.runs), page.total_count), (1, 51), "The total is the same on every page.")


@SUITE.case("Query.SearchRuns")
async def a_found_run_is_as_get_run_returns_it(fixture: Fixture) -> None:
    """A run in a page is the run as it was last saved, also that of a soft-deleted session."""
    await fixture.save(deleted_at_us=NOW_US)
    await fixture.run(provider="claude", usage=tokens(1, 2, 3, model="m"))
    saved = await fixture.run(provider="codex", after=5, usage=tokens(4, 5, 9, model="m2"), cost_usd=0.25)
    (found,) = (await fixture.runs()).runs
    equal(found, saved, "It is the run as it was saved.")
    equal((await fixture.runs(provider="claude")).total_count, 0, "What it was before finds it no more.")
