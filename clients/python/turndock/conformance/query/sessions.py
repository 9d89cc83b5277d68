"""SearchSessions: filters, order, totals."""

from __future__ import annotations

import asyncio

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.query.suite import NOW_US, SECOND_US, SUITE, Fixture
from turndock.store.v1 import SessionOrder
from turndock.types.v1 import SessionStatus

ACTIVE, PAUSED = SessionStatus.SESSION_STATUS_ACTIVE, SessionStatus.SESSION_STATUS_PAUSED
COMPLETED = SessionStatus.SESSION_STATUS_COMPLETED


@SUITE.case("Q-01")
async def the_total_knows_neither_limit_nor_cursor(fixture: Fixture) -> None:
    """A page of 2 of 5 sessions says that there are 5, and so does the next one; filters count."""
    for number in range(5):
        await fixture.save(f"ses_{number}", status=ACTIVE if number else PAUSED)
    page = await fixture.sessions(2)
    equal((len(page.sessions), page.total_count), (2, 5), "The total is that of all pages.")
    page = await fixture.sessions(2, page.next_cursor)
    equal((len(page.sessions), page.total_count), (2, 5), "The total is the same on every page.")
    equal((await fixture.sessions(2, statuses=[ACTIVE])).total_count, 4, "The total is that of the filters.")


@SUITE.case("Q-01")
async def fifty_sessions_are_a_page_unless_it_says_otherwise(fixture: Fixture) -> None:
    """Without a limit a page has 50 sessions."""
    await asyncio.gather(*(fixture.save(f"ses_{number}") for number in range(51)))
    page = await fixture.sessions()
    equal((len(page.sessions), page.total_count), (50, 51), "The limit is 50 unless it is set.")


@SUITE.case("Q-02")
async def limits_are_from_1_to_1000(fixture: Fixture) -> None:
    """A limit of 0, below, or above 1,000 is VALIDATION_ERROR in every search; 1,000 is taken."""
    for limit in (-1, 0, 1001, 100_000):
        for search in (fixture.sessions, fixture.runs, fixture.events):
            await refused(search(limit), "VALIDATION_ERROR", f"A limit of {limit} is refused.", field="limit")
    for search in (fixture.sessions, fixture.runs, fixture.events):
        equal((await search(1000)).next_cursor, "", "A limit of 1,000 is taken.")


@SUITE.case("Q-03")
async def the_last_change_comes_first_and_an_empty_page_ends(fixture: Fixture) -> None:
    """Pages of 1 over three sessions: newest, middle, oldest, then a page without rows and without a cursor."""
    for second, name in ((20, "middle"), (10, "oldest"), (30, "newest")):
        await fixture.save(name, updated_at_us=NOW_US + second * SECOND_US)
    cursor = ""
    for name in ("newest", "middle", "oldest"):
        page = await fixture.sessions(1, cursor)
        equal(
            [session.id for session in page.sessions], [name], "The order is that of the changes, last first."
        )
        cursor = page.next_cursor
        holds(cursor, "A page with rows has a cursor, also when it is the last.")
    page = await fixture.sessions(1, cursor)
    equal((len(page.sessions), page.next_cursor), (0, ""), "A page without rows has no cursor.")


@SUITE.case("Query.SearchSessions")
async def sessions_are_ordered_by_creation_either_way(fixture: Fixture) -> None:
    """CREATED_AT_ASC and CREATED_AT_DESC order by the making; those made at the same instant by id, the same way."""
    for name, second in (("d", 1), ("b", 3), ("a", 2), ("c", 2)):
        await fixture.save(name, created_at_us=NOW_US + second * SECOND_US)
    for limit in (1, 2, 1000):
        upwards = await fixture.all_sessions(limit, order=SessionOrder.SESSION_ORDER_CREATED_AT_ASC)
        equal(upwards, ["d", "a", "c", "b"], "First made first.")
        downwards = await fixture.all_sessions(limit, order=SessionOrder.SESSION_ORDER_CREATED_AT_DESC)
        equal(downwards, ["b", "c", "a", "d"], "Last made first.")


@SUITE.case("Query.SearchSessions")
async def sessions_of_one_instant_are_ordered_by_id(fixture: Fixture) -> None:
    """Sessions that changed at the same instant are ordered by id, highest first where the last change is first."""
    names = [f"ses_{number:02}" for number in range(12)]
    for name in reversed(names):
        await fixture.save(name, updated_at_us=NOW_US)
    for limit in (1, 5, 1000):
        equal(await fixture.all_sessions(limit), names[::-1], "The id decides, in the order's direction.")


@SUITE.case("Q-06")
async def sessions_are_found_by_status(fixture: Fixture) -> None:
    """One status or several select the sessions that have one of them; one said twice counts once."""
    for name, status in (("a", ACTIVE), ("b", PAUSED), ("c", COMPLETED)):
        await fixture.save(name, status=status)
    for statuses, expected in (
        ([PAUSED], ["b"]),
        ([ACTIVE, COMPLETED], ["a", "c"]),
        ([PAUSED, PAUSED], ["b"]),
        ([], ["a", "b", "c"]),
    ):
        equal(sorted(await fixture.found(statuses=statuses)), expected, f"Statuses {statuses}.")


@SUITE.case("Q-06")
async def statuses_nobody_knows_are_refused(fixture: Fixture) -> None:
    """UNSPECIFIED and numbers no release knows are VALIDATION_ERROR in statuses and in orders, naming the field."""
    for status in (0, 77):
        for search in (fixture.sessions, fixture.runs):
            call = search(statuses=[ACTIVE, status])
            await refused(call, "VALIDATION_ERROR", f"Status {status} is refused.", field="statuses")
    for ask in (fixture.sessions, fixture.runs, fixture.events):
        await refused(ask(order=77), "VALIDATION_ERROR", "Order 77 is refused.", field="order")


@SUITE.case("Q-06")
async def sessions_are_found_by_all_their_tags(fixture: Fixture) -> None:
    """Tags select sessions that have every one of them, exactly as they are written."""
    odd = ["a,b", 'q"uote', "A", "%", "_", "é", "~/x"]
    await fixture.save("both", tags=["alpha", "beta", "beta"])
    await fixture.save("one", tags=["alpha"])
    await fixture.save("none")
    await fixture.save("odd", tags=odd)
    for tags, expected in (
        (["alpha"], ["both", "one"]),
        (["beta", "alpha"], ["both"]),
        (["alpha", "alpha"], ["both", "one"]),
        (["alpha", "gamma"], []),
        (["alph"], []),
        (["ALPHA"], []),
        ([], ["both", "none", "odd", "one"]),
        *(([tag], ["odd"]) for tag in odd),
        (odd, ["odd"]),
        (["a"], []),
    ):
        equal(sorted(await fixture.found(tags=tags)), expected, f"Tags {tags}.")


@SUITE.case("Q-06")
async def tags_are_those_of_the_last_save(fixture: Fixture) -> None:
    """A session that is saved with other tags is found by these, and by the old ones no more."""
    await fixture.save(tags=["old", "kept"])
    await fixture.save(tags=["kept", "new"])
    for tag, expected in (("old", []), ("kept", ["ses_1"]), ("new", ["ses_1"])):
        equal(await fixture.found(tags=[tag]), expected, f"Tag {tag!r}.")
    await fixture.save()
    equal(await fixture.found(tags=["kept"]), [], "A session saved without tags has none.")
    await fixture.save(tags=["kept"])
    await fixture.delete("ses_1")
    await fixture.save()
    equal(
        await fixture.found(tags=["kept"]), [], "A session made anew does not have the tags of the old one."
    )


@SUITE.case("Q-06")
async def sessions_are_found_by_provider(fixture: Fixture) -> None:
    """A provider selects the sessions that have a run of it, each once; one nobody used finds nothing."""
    for name in ("a", "b", "c"):
        await fixture.save(name)
    await fixture.run("run_1", "a", provider="claude")
    await fixture.run("run_2", "a", provider="claude")
    await fixture.run("run_3", "a", provider="codex")
    await fixture.run("run_1", "b", provider="codex")
    for provider, expected in (
        ("claude", ["a"]),
        ("codex", ["a", "b"]),
        ("Claude", []),
        ("", ["a", "b", "c"]),
    ):
        equal(sorted(await fixture.found(provider=provider)), expected, f"Provider {provider!r}.")
    equal((await fixture.sessions(provider="codex")).total_count, 2, "Sessions are counted, not runs.")
    await fixture.run("run_1", "b", provider="claude")
    equal(
        await fixture.found(provider="codex"), ["a"], "A run that is saved again has the provider it has now."
    )


@SUITE.case("Q-06")
async def deleted_sessions_are_hidden_unless_asked_for(fixture: Fixture) -> None:
    """Soft-deleted sessions are found only with include_deleted."""
    await fixture.save("kept")
    await fixture.save("gone", deleted_at_us=NOW_US)
    equal(await fixture.found(), ["kept"], "A soft-deleted session is hidden.")
    equal(sorted(await fixture.found(include_deleted=True)), ["gone", "kept"], "It is found when asked for.")


@SUITE.case("Query.SearchSessions")
async def sessions_are_found_by_agent_and_by_creation_and_all_filters_hold(fixture: Fixture) -> None:
    """Agent and instants of making select; bounds are inclusive; all filters must hold together."""
    for second in range(4):
        await fixture.save(
            f"s{second}", agent_id=f"agent-{second % 2}", created_at_us=NOW_US + second * SECOND_US
        )
    equal(sorted(await fixture.found(agent_id="agent-1")), ["s1", "s3"], "The agent's sessions.")
    equal(await fixture.found(agent_id="nobody"), [], "An unknown agent has none.")
    first, last = NOW_US + SECOND_US, NOW_US + 2 * SECOND_US
    equal(
        sorted(await fixture.found(created_after_us=first)),
        ["s1", "s2", "s3"],
        "The lower bound is inclusive.",
    )
    equal(
        sorted(await fixture.found(created_before_us=last)),
        ["s0", "s1", "s2"],
        "The upper bound is inclusive.",
    )
    both = await fixture.found(created_after_us=first, created_before_us=last, agent_id="agent-0")
    equal(both, ["s2"], "All filters must hold.")


@SUITE.case("Query.SearchSessions")
async def a_found_session_is_as_get_session_returns_it(fixture: Fixture) -> None:
    """A session in a page has its scope, incarnation and last number, and everything its writer gave it."""
    saved = await fixture.save(
        tags=["a", "b"], metadata_json='{"n":9007199254740993}', context_json="{}", parent_session_id="p"
    )
    (event,) = await fixture.append(fixture.event())
    (found,) = (await fixture.sessions()).sessions
    equal((found.last_sequence, found.incarnation), (1, event.incarnation), "What the store sets is set.")
    saved.last_sequence = 1
    equal(found, saved, "It is the session as it was saved.")


@SUITE.case("Query.SearchSessions")
async def a_session_nobody_saved_is_no_session(fixture: Fixture) -> None:
    """A log without a saved session is not found as a session."""
    await fixture.append(fixture.event())
    page = await fixture.sessions()
    equal((len(page.sessions), page.total_count), (0, 0), "There is no session.")
