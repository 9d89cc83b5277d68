"""GetSessionStats and GetUsageSummary."""

from __future__ import annotations

from turndock.conformance.claims import equal, refused, unknown
from turndock.conformance.query.suite import NOW_US, SECOND_US, SUITE, Fixture, tokens
from turndock.store.v1 import GetUsageSummaryResponse, ProviderUsage, RunStatusCount
from turndock.types.v1 import RunStatus, Usage

COMPLETED, FAILED = RunStatus.RUN_STATUS_COMPLETED, RunStatus.RUN_STATUS_FAILED


@SUITE.case("Q-08")
async def the_stats_of_a_session_add_up(fixture: Fixture) -> None:
    """Stats have events, runs, token counts, providers, first and last event, and runs by status."""
    await fixture.save()
    await fixture.run("run_1", provider="claude", usage=tokens(100, 50, 150))
    await fixture.run(
        "run_2", provider="codex", usage=tokens(200, 80, 280, model="m", cost_usd=1.0), status=FAILED
    )
    await fixture.run("run_3", status=FAILED)
    await fixture.run("run_4", "ses_2", provider="other", usage=tokens(1, 1, 2))
    await fixture.append(fixture.event(after=5), fixture.event(after=1), fixture.event(after=3))
    await fixture.append(fixture.event("ses_2", after=9))
    stats = await fixture.stats()
    equal((stats.event_count, stats.run_count), (3, 3), "Events and runs are those of the session.")
    equal(stats.token_totals, tokens(300, 130, 430), "Token counts are added up; model and cost are not set.")
    equal(list(stats.providers_used), ["claude", "codex"], "Providers are named once, in order.")
    equal(
        (stats.first_event_at_us, stats.last_event_at_us),
        (NOW_US + 5 * SECOND_US, NOW_US + 3 * SECOND_US),
        "First and last event are those of the log, when they happened.",
    )
    equal(
        list(stats.status_counts),
        [RunStatusCount(status=COMPLETED, run_count=1), RunStatusCount(status=FAILED, run_count=2)],
        "Runs are counted by status, in the order of the statuses' numbers.",
    )


@SUITE.case("Q-08")
async def an_unknown_session_has_no_stats(fixture: Fixture) -> None:
    """Stats of an unknown session are SESSION_NOT_FOUND, also when it has a log; a soft-deleted one has stats."""
    await unknown(fixture.stats("unknown"), "SESSION_NOT_FOUND", "An unknown session is not found.")
    await fixture.append(fixture.event("only-a-log"))
    await unknown(fixture.stats("only-a-log"), "SESSION_NOT_FOUND", "A session nobody saved is not found.")
    await refused(fixture.stats(""), "VALIDATION_ERROR", "No id is refused.", field="session_id")
    await fixture.save(deleted_at_us=NOW_US)
    stats = await fixture.stats()
    equal((stats.event_count, stats.run_count), (0, 0), "A soft-deleted session has stats.")
    equal(
        stats.HasField("first_event_at_us") or stats.HasField("last_event_at_us"), False, "It has no event."
    )
    equal(stats.token_totals, Usage(), "A count that no run reported is unset.")


@SUITE.case("Q-08")
async def a_summary_adds_up_what_matches(fixture: Fixture) -> None:
    """The usage summary has totals, runs and the same by provider; session, provider and start select; bounds count."""
    await fixture.run("run_1", provider="claude", usage=tokens(100, 50, 150), after=1)
    await fixture.run("run_2", provider="codex", usage=tokens(200, 80, 280), after=2)
    await fixture.run("run_1", "ses_2", provider="claude", usage=tokens(1, 2, 3), after=3)
    await fixture.run("run_2", "ses_2", provider="claude")
    everything = await fixture.usage()
    equal(everything.totals, tokens(301, 132, 433), "All runs are added up.")
    equal(
        [(each.provider, each.run_count, each.totals.input_tokens) for each in everything.by_provider],
        [("claude", 3, 101), ("codex", 1, 200)],
        "Providers are added up, in order.",
    )
    second = NOW_US + 2 * SECOND_US
    for filters, run_count, input_tokens in (
        ({}, 4, 301),
        ({"session_id": "ses_1"}, 2, 300),
        ({"session_id": "ses_1", "provider": "claude"}, 1, 100),
        ({"provider": "claude"}, 3, 101),
        ({"since_us": second}, 2, 201),
        ({"until_us": second}, 2, 300),
        ({"since_us": second, "until_us": second}, 1, 200),
        ({"since_us": 0}, 3, 301),
    ):
        summary = await fixture.usage(**filters)
        equal(
            (summary.run_count, summary.totals.input_tokens), (run_count, input_tokens), f"Filters {filters}."
        )


@SUITE.case("Query.GetUsageSummary")
async def no_match_is_a_sum_of_nothing(fixture: Fixture) -> None:
    """A summary of nothing has no runs, no providers and no counts, and is not an error."""
    await fixture.run(usage=tokens(1, 2, 3), provider="claude")
    for filters in ({"session_id": "unknown"}, {"provider": "unknown"}, {"since_us": NOW_US}):
        summary = await fixture.usage(**filters)
        equal(summary, GetUsageSummaryResponse(totals=Usage()), f"Filters {filters}.")


@SUITE.case("Query.GetUsageSummary", "E-06")
async def each_run_counts_once_with_its_latest_report(fixture: Fixture) -> None:
    """A run that is saved again counts with its latest report alone, under its latest provider."""
    await fixture.run(provider="claude", usage=tokens(5, 1, 6))
    await fixture.run(provider="codex", usage=tokens(10, 2, 12))
    summary = await fixture.usage()
    expected = ProviderUsage(provider="codex", run_count=1, totals=tokens(10, 2, 12))
    equal((summary.run_count, summary.totals), (1, tokens(10, 2, 12)), "The latest report counts.")
    equal(list(summary.by_provider), [expected], "The latest provider counts.")


@SUITE.case("Query.GetUsageSummary")
async def counts_that_were_not_reported_are_unset_and_totals_are_made_up_for(fixture: Fixture) -> None:
    """A count no run reported is unset, not 0; a run without a total counts input and output together."""
    await fixture.run("run_1", usage=Usage(input_tokens=10))
    await fixture.run("run_2", usage=Usage(total_tokens=7))
    equal((await fixture.usage()).totals, Usage(input_tokens=10, total_tokens=17), "No output was reported.")
    await fixture.run("run_3", usage=Usage(input_tokens=0, output_tokens=0, cached_input_tokens=0))
    await fixture.run("run_4", usage=Usage(reasoning_tokens=3))
    equal(
        (await fixture.usage()).totals,
        Usage(input_tokens=10, output_tokens=0, total_tokens=17, cached_input_tokens=0, reasoning_tokens=3),
        "A count of 0 is reported.",
    )


@SUITE.case("Query.GetUsageSummary")
async def a_provider_nobody_named_is_unknown(fixture: Fixture) -> None:
    """Runs that name no provider are added up as `unknown`; stats leave them out."""
    await fixture.save()
    await fixture.run("run_1", usage=tokens(1, 2, 3))
    await fixture.run("run_2", usage=tokens(10, 20, 30), provider="claude")
    summary = await fixture.usage()
    equal([each.provider for each in summary.by_provider], ["claude", "unknown"], "It is `unknown`.")
    equal(list((await fixture.stats()).providers_used), ["claude"], "Stats name those that are named.")


@SUITE.case("Query.GetUsageSummary", "PF-B25")
async def counts_are_exact(fixture: Fixture) -> None:
    """Counts beyond 2^53 in sum lose no digit."""
    for number in range(12):
        await fixture.run(f"run_{number}", usage=tokens((1 << 50) - 1, 1, 1 << 50))
    totals = (await fixture.usage()).totals
    equal(
        (totals.input_tokens, totals.total_tokens), (12 * ((1 << 50) - 1), 12 << 50), "Every digit is right."
    )
