"""Sessions: saving, reading, listing."""

from __future__ import annotations

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.session_store.suite import SUITE, Fixture, pages
from turndock.types.v1 import AgentRecord, Page, Scope, SessionStatus

ACTIVE = SessionStatus.SESSION_STATUS_ACTIVE
PENDING = SessionStatus.SESSION_STATUS_PENDING
COMPLETED = SessionStatus.SESSION_STATUS_COMPLETED


async def ids(fixture: Fixture, limit: int = 2, **filters: object) -> list[str]:
    """Every session of a list, read page by page."""
    rows = await pages(lambda cursor: fixture.list_sessions(page=Page(limit=limit, cursor=cursor), **filters))
    for page in rows:
        holds(len(page.sessions) <= limit, f"A page holds {len(page.sessions)} rows; its limit is {limit}.")
    return [session.id for page in rows for session in page.sessions]


@SUITE.case("S-01")
async def saving_a_session_again_makes_no_second_one(fixture: Fixture) -> None:
    """SaveSession is repeatable, and a later save replaces the session."""
    for _ in range(3):
        await fixture.save(fixture.session(status=PENDING))
    equal(await ids(fixture), ["ses_1"], "Three saves of one session are one row.")
    equal((await fixture.read_session()).status, PENDING, "The status that was saved is read.")
    await fixture.save(fixture.session(status=ACTIVE))
    equal((await fixture.read_session()).status, ACTIVE, "A later save replaces the status.")
    equal(await ids(fixture), ["ses_1"], "A later save makes no second row.")


@SUITE.case("S-01")
async def saving_a_session_replaces_every_field_of_the_writers(fixture: Fixture) -> None:
    """SaveSession replaces all fields, also by empty ones: nothing is merged."""
    full = fixture.session(
        parent_session_id="ses_0",
        metadata_json='{"a":1}',
        context_json='{"b":2}',
        tags=["x", "y"],
        deleted_at_us=5,
        interrupted=True,
        agent=AgentRecord(state_json="{}", turn_count=3),
    )
    await fixture.save(full)
    await fixture.save(fixture.session(agent_id="agent-2", updated_at_us=7))
    stored = await fixture.read_session()
    equal(stored.agent_id, "agent-2", "agent_id is replaced.")
    equal(stored.updated_at_us, 7, "updated_at is the writer's when it is set.")
    left = (stored.parent_session_id, stored.metadata_json, stored.context_json, len(stored.tags))
    equal(left, ("", "", "", 0), "Fields the later save left empty are empty.")
    holds(not stored.HasField("deleted_at_us"), "A save without deleted_at_us takes the mark away.")
    holds(not stored.interrupted, "interrupted is replaced.")
    holds(not stored.HasField("agent"), "A save without an agent takes the agent's part away.")


@SUITE.case("S-01")
async def saving_a_session_keeps_what_is_the_stores(fixture: Fixture) -> None:
    """created_at, incarnation, last_sequence and scope of a stored session are not the writer's to change."""
    first = await fixture.save(fixture.session(created_at_us=1_000))
    await fixture.append(*fixture.events(3))
    forged = fixture.session(
        created_at_us=9_999, incarnation="forged", last_sequence=1, scope=Scope(tenant="forged")
    )
    answered = await fixture.save(forged)
    for stored in (answered, await fixture.read_session()):
        equal(stored.created_at_us, 1_000, "created_at stays as the first save had it.")
        equal(stored.incarnation, first.incarnation, "The incarnation stays.")
        equal(stored.last_sequence, 3, "last_sequence is the log's, whatever the writer put there.")
        equal(stored.scope.tenant, fixture.scope.tenant, "The scope is the request's, not the message's.")
    equal(await fixture.head(), 3, "Saving a session does not lower its counter.")


@SUITE.case("S-01")
async def the_store_sets_times_and_an_incarnation(fixture: Fixture) -> None:
    """The store sets created_at and updated_at where the writer left them 0, and names the session's life."""
    saved = await fixture.save(fixture.session())
    holds(saved.created_at_us > 0, "created_at is set on the first save.")
    holds(saved.updated_at_us >= saved.created_at_us, "updated_at is set when the writer left it 0.")
    holds(saved.incarnation, "A session has an incarnation.")
    equal(await fixture.read_session(), saved, "SaveSession answers with the session as stored.")
    other = await fixture.save(fixture.session("ses_2"))
    holds(other.incarnation != saved.incarnation, "Two sessions do not share an incarnation.")


@SUITE.case("S-02")
async def an_unknown_session_is_not_found(fixture: Fixture) -> None:
    """GetSession of an unknown id is NOT_FOUND, never an empty session with OK."""
    await refused(fixture.read_session("nope"), "SESSION_NOT_FOUND", "GetSession of an unknown id fails.")


@SUITE.case("S-03")
async def sessions_are_listed_by_status_agent_and_limit(fixture: Fixture) -> None:
    """ListSessions returns only rows that match all of its filters."""
    await fixture.save(fixture.session("a1", agent_id="agent-1", status=ACTIVE))
    await fixture.save(fixture.session("a2", agent_id="agent-2", status=ACTIVE))
    await fixture.save(fixture.session("c1", agent_id="agent-1", status=COMPLETED))
    equal(sorted(await ids(fixture, statuses=[ACTIVE])), ["a1", "a2"], "Only sessions of that status.")
    equal(sorted(await ids(fixture, agent_id="agent-1")), ["a1", "c1"], "Only sessions of that agent.")
    equal(await ids(fixture, agent_id="agent-1", statuses=[COMPLETED]), ["c1"], "Filters are combined.")
    both = await ids(fixture, statuses=[ACTIVE, COMPLETED])
    equal(sorted(both), ["a1", "a2", "c1"], "Several statuses match any of them.")
    equal(await ids(fixture, agent_id="nobody"), [], "No match is an empty list.")
    equal(len((await fixture.list_sessions(page=Page(limit=1))).sessions), 1, "limit = 1 is one row.")


@SUITE.case("S-03")
async def sessions_are_listed_newest_change_first(fixture: Fixture) -> None:
    """ListSessions orders by updated_at, newest first, then by id."""
    for session_id, changed in (("b", 20), ("a", 20), ("old", 10), ("new", 30)):
        await fixture.save(fixture.session(session_id, updated_at_us=changed))
    for limit in (1, 2, 100):
        expected = ["new", "a", "b", "old"]
        equal(
            await ids(fixture, limit), expected, f"Newest change first, then by id; read {limit} by {limit}."
        )


@SUITE.case("Q-02", "S-03")
async def a_list_refuses_a_limit_out_of_bounds(fixture: Fixture) -> None:
    """A page's limit is 1 to 1,000; anything else is INVALID_ARGUMENT."""
    for limit in (0, -1, 1_001, 100_000):
        call = fixture.list_sessions(page=Page(limit=limit))
        await refused(call, "VALIDATION_ERROR", f"limit = {limit} is refused.", field="limit")
    await fixture.list_sessions(page=Page(limit=1_000))


@SUITE.case("S-03")
async def the_default_page_is_50_rows(fixture: Fixture) -> None:
    """A list without a limit returns 50 rows and the cursor of the rest."""
    for number in range(53):
        await fixture.save(fixture.session(f"s{number:02}", updated_at_us=1_000 - number))
    first = await fixture.list_sessions()
    equal(len(first.sessions), 50, "The default limit is 50.")
    rest = await fixture.list_sessions(page=Page(cursor=first.next_cursor))
    equal([session.id for session in rest.sessions], ["s50", "s51", "s52"], "The cursor leads to the rest.")
    equal(rest.next_cursor, "", "The last page has no cursor.")


@SUITE.case("INVALID_CURSOR")
async def a_cursor_fits_only_its_own_list(fixture: Fixture) -> None:
    """A cursor with other filters, of another call or scope, or made up, is INVALID_CURSOR."""
    for number in range(3):
        await fixture.save(fixture.session(f"s{number}"))
        await fixture.save_run(fixture.run(f"r{number}", "s0"))
    cursor = (await fixture.list_sessions(page=Page(limit=1))).next_cursor
    holds(cursor, "A page that is not the last carries a cursor.")
    page = Page(limit=1, cursor=cursor)
    wrong = "A cursor of another list is refused"
    await refused(
        fixture.list_sessions(page=page, agent_id="agent-1"), "INVALID_CURSOR", f"{wrong}: filters."
    )
    await refused(fixture.list_runs("s0", page=page), "INVALID_CURSOR", f"{wrong}: another call's.")
    await refused(fixture.other().list_sessions(page=page), "INVALID_CURSOR", f"{wrong}: another scope's.")
    tampered = cursor[:-2] + ("A" if cursor[-2] != "A" else "B") + cursor[-1]
    for made_up in ("1", "zzz", "💥", tampered, cursor * 2):
        call = fixture.list_sessions(page=Page(limit=1, cursor=made_up))
        await refused(call, "INVALID_CURSOR", f"The made-up cursor {made_up!r} is refused.")
    equal(
        len((await fixture.list_sessions(page=Page(limit=2, cursor=cursor))).sessions),
        2,
        "Limits may change.",
    )


@SUITE.case("PF-E33")
async def paging_passes_over_no_untouched_session(fixture: Fixture) -> None:
    """While sessions are changed and deleted, a reader of pages sees every untouched one exactly once."""
    for number in range(30):
        await fixture.save(fixture.session(f"s{number:02}", updated_at_us=10_000 - number))
    first = await fixture.list_sessions(page=Page(limit=10))
    await fixture.save(fixture.session("s03", updated_at_us=20_000))
    await fixture.save(fixture.session("s25", updated_at_us=20_001))
    await fixture.delete("s15")
    rest = await pages(
        lambda cursor: fixture.list_sessions(page=Page(limit=10, cursor=cursor or first.next_cursor))
    )
    seen = [session.id for page in (first, *rest) for session in page.sessions]
    untouched = [f"s{number:02}" for number in range(30) if number not in {3, 15, 25}]
    equal([name for name in seen if name in untouched], untouched, "Each untouched session once, in order.")
    holds("s15" not in seen, "A session that was deleted before its page was read is not listed.")


@SUITE.case("S-03")
async def lists_can_leave_out_deleted_and_stopped_ones(fixture: Fixture) -> None:
    """hide_deleted leaves out soft-deleted sessions, live_agents_only those without a live agent."""
    await fixture.save(fixture.session("plain"))
    await fixture.save(fixture.session("deleted", deleted_at_us=1))
    await fixture.save(fixture.agent_session("alive", "alive"))
    await fixture.save(fixture.agent_session("stopped", "stopped", stopped=True))
    everything = sorted(await ids(fixture))
    equal(everything, ["alive", "deleted", "plain", "stopped"], "By default every session is listed.")
    equal(sorted(await ids(fixture, hide_deleted=True)), ["alive", "plain", "stopped"], "hide_deleted.")
    equal(await ids(fixture, live_agents_only=True), ["alive"], "live_agents_only.")
    equal(
        (await fixture.read_session("deleted")).deleted_at_us, 1, "GetSession returns a soft-deleted session."
    )


@SUITE.case("ListSessions")
async def a_host_lists_sessions_of_every_scope(fixture: Fixture) -> None:
    """every_scope lists the sessions of all partitions, and each one's scope tells its partition."""
    other = fixture.other()
    await fixture.save(fixture.session("same", agent_id=fixture.scope.tenant))
    await other.save(other.session("same", agent_id=fixture.scope.tenant))
    page = await fixture.list_sessions(every_scope=True, agent_id=fixture.scope.tenant)
    found = sorted(session.scope.tenant for session in page.sessions)
    equal(found, sorted((fixture.scope.tenant, other.scope.tenant)), "One session of each of the two scopes.")


@SUITE.case("SaveSession")
async def two_live_agents_of_a_scope_do_not_share_a_name(fixture: Fixture) -> None:
    """A session with a live agent whose name another session's live agent has is ALREADY_EXISTS."""
    await fixture.save(fixture.agent_session("one", "ann"))
    second = fixture.agent_session("two", "ann")
    await refused(fixture.save(second), "ALREADY_EXISTS", "The second live agent of a name is refused.")
    await refused(fixture.read_session("two"), "SESSION_NOT_FOUND", "The refused session is not stored.")
    await fixture.save(fixture.agent_session("one", "ann", turn_count=1))
    other = fixture.other()
    await other.save(other.agent_session("two", "ann"))
    await fixture.save(fixture.session("three", agent_id="ann"))
    await fixture.save(fixture.agent_session("four", "ann", stopped=True))
    await fixture.save(fixture.agent_session("one", "ann", stopped=True))
    await fixture.save(second)
    call = fixture.save(fixture.agent_session("one", "ann"))
    await refused(
        call, "ALREADY_EXISTS", "An agent whose name is taken meanwhile does not come back to life."
    )
    await fixture.delete("two")
    await fixture.save(fixture.agent_session("one", "ann"))


@SUITE.case("SaveSession")
async def a_session_that_is_wrong_is_refused_by_its_field(fixture: Fixture) -> None:
    """What must not be stored is INVALID_ARGUMENT naming the field, and nothing is stored."""
    wrong = (
        ("session.id", fixture.session("")),
        ("session.agent_id", fixture.session(agent_id="")),
        ("session.status", fixture.session(status=SessionStatus.SESSION_STATUS_UNSPECIFIED)),
        ("session.metadata_json", fixture.session(metadata_json="{")),
        ("session.metadata_json", fixture.session(metadata_json="[1]")),
        ("session.metadata_json", fixture.session(metadata_json='{"a":NaN}')),
        ("session.context_json", fixture.session(context_json='{"a":1,"a":2}')),
        ("session.context_json", fixture.session(context_json='{"a":1e999}')),
        ("session.context_json", fixture.session(context_json='{"a":"\\u0000"}')),
        ("session.id", fixture.session("a\x00b")),
        ("session.id", fixture.session("x" * 129)),
    )
    for field, session in wrong:
        call = fixture.save(session)
        await refused(call, "VALIDATION_ERROR", f"This session is refused: {session}", field=field)
    equal(await ids(fixture), [], "A refused session is not stored.")
