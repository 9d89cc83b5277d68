"""What lies in another scope answers exactly as if it did not exist: every call."""

from __future__ import annotations

from typing import Any

from turndock.conformance.claims import equal, refused, unknown
from turndock.conformance.query.suite import NOW_US, SUITE, Fixture, pages, tokens
from turndock.errors import TurndockError
from turndock.store.v1 import GetCostSummaryResponse, GetUsageSummaryResponse, SearchSessionsRequest
from turndock.types.v1 import Scope, Usage


async def _filled(fixture: Fixture) -> Fixture:
    """Another partition with a session, a run and an event of the names that cases use."""
    other = fixture.other()
    await other.save(tags=["t"])
    await other.run(provider="p", usage=tokens(1, 2, 3, model="m", cost_usd=1.0), after=1)
    await other.append(other.event(run_id="run_1", provider="p", correlation_id="c"))
    return other


@SUITE.case("P-13", "Query.Scope")
async def searches_find_nothing_of_another_scope(fixture: Fixture) -> None:
    """SearchSessions, SearchRuns, SearchEvents and CountEvents find nothing there, by whichever filter."""
    await _filled(fixture)
    by_session: list[dict[str, Any]] = [{}, {"provider": "p"}, {"tags": ["t"]}, {"agent_id": "agent-1"}]
    by_run: list[dict[str, Any]] = [{"provider": "p"}, {"session_id": "ses_1"}, {"min_tokens": 1}]
    by_event: list[dict[str, Any]] = [
        {"session_ids": ["ses_1"]},
        {"run_ids": ["run_1"]},
        {"correlation_id": "c"},
        {"providers": ["p"]},
    ]
    for _ in range(2):  # in a partition nothing was ever stored in, and in one of its own
        for filters in by_session:
            found = [session.id for session in (await fixture.sessions(**filters)).sessions]
            equal([name for name in found if name != "mine"], [], f"Sessions by {filters}.")
        for filters in by_run:
            runs = await fixture.runs(**filters)
            equal((len(runs.runs), runs.total_count), (0, 0), f"Runs by {filters}.")
        for filters in by_event:
            for order in (0, 2, 3):
                equal(len((await fixture.events(order=order, **filters)).events), 0, f"Events by {filters}.")
            equal(await fixture.count(**filters), 0, f"Count by {filters}.")
        await fixture.save("mine", agent_id="me")
        equal((await fixture.sessions()).total_count, 1, "Only what is one's own is counted.")


@SUITE.case("P-13", "Query.Scope")
async def sums_have_nothing_of_another_scope(fixture: Fixture) -> None:
    """GetUsageSummary and GetCostSummary add up nothing of another scope, also when its session is named."""
    await _filled(fixture)
    for filters in ({}, {"session_id": "ses_1"}, {"provider": "p"}):
        equal(await fixture.usage(**filters), GetUsageSummaryResponse(totals=Usage()), f"Usage by {filters}.")
        equal(await fixture.costs(**filters), GetCostSummaryResponse(), f"Costs by {filters}.")
    equal(await fixture.costs(agent_id="agent-1"), GetCostSummaryResponse(), "Costs by agent.")


@SUITE.case("P-13", "Query.Scope")
async def what_is_anothers_is_unknown(fixture: Fixture) -> None:
    """GetSessionStats and ExportSession answer for another scope's session as for one that does not exist."""
    await _filled(fixture)
    for call, name in ((fixture.stats, "Stats"), (fixture.export, "Export")):
        foreign = await unknown(call("ses_1"), "SESSION_NOT_FOUND", f"{name} of a foreign session.")
        missing = await unknown(call("nobodys"), "SESSION_NOT_FOUND", f"{name} of an unknown session.")
        same = foreign.message.replace("ses_1", "nobodys") == missing.message
        equal(same, True, f"{name} says the same of both: {foreign.message!r}, {missing.message!r}.")


@SUITE.case("Query.Scope")
async def the_unscoped_partition_is_one_of_its_own(fixture: Fixture) -> None:
    """Without a scope nothing of a scope is found; an empty tenant is VALIDATION_ERROR naming it."""
    await _filled(fixture)
    await fixture.save("scoped")
    everything = await pages(lambda cursor: fixture.query.search_sessions(_unscoped(cursor)), most=100_000)
    found = [session for page in everything for session in page.sessions]
    equal([session.id for session in found if session.HasField("scope")], [], "Nothing there has a scope.")
    empty = SearchSessionsRequest(scope=Scope(tenant=""))
    await refused(
        fixture.query.search_sessions(empty), "VALIDATION_ERROR", "It is refused.", field="scope.tenant"
    )


@SUITE.case("Query.Scope")
async def found_sessions_have_their_scope_and_nothing_passed_on_with_it(fixture: Fixture) -> None:
    """A found session shows its tenant; what the caller passes on in `opaque` plays no part and is not stored."""
    await fixture.save(updated_at_us=NOW_US)
    request = SearchSessionsRequest(scope=Scope(tenant=fixture.scope.tenant, opaque=b"user-7"))
    (found,) = (await fixture.query.search_sessions(request)).sessions
    equal(found.scope, fixture.scope, "The scope is the tenant alone.")


@SUITE.case("Query.Scope")
async def a_question_has_no_effect(fixture: Fixture) -> None:
    """Questions about what does not exist leave nothing behind: asked again, they are answered the same."""
    for _ in range(2):
        equal((await fixture.sessions()).total_count, 0, "There is no session.")
        equal(await fixture.count(session_ids=["x"]), 0, "There is no event.")
        try:
            await fixture.export("x")
        except TurndockError as error:
            equal(error.reason, "SESSION_NOT_FOUND", "There is nothing to export.")


def _unscoped(cursor: str) -> SearchSessionsRequest:
    request = SearchSessionsRequest(include_deleted=True)
    request.page.limit = 1000
    request.page.cursor = cursor
    return request
