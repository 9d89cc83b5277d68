"""GetCostSummary."""

from __future__ import annotations

import math
from typing import Any

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.query.suite import NOW_US, SECOND_US, SUITE, Fixture, tokens
from turndock.store.v1 import GetCostSummaryResponse, ModelPrice
from turndock.types.v1 import Usage

MILLION = 1_000_000


def price(provider: str, model: str, input_usd: float, output_usd: float, **fields: Any) -> ModelPrice:
    """A price for a million tokens."""
    return ModelPrice(
        provider=provider,
        model=model,
        input_usd_per_million=input_usd,
        output_usd_per_million=output_usd,
        **fields,
    )


def usd(actual: float, expected: float, sentence: str) -> None:
    """Fail with the sentence unless the amounts are the same."""
    holds(math.isclose(actual, expected, abs_tol=1e-9), f"{sentence} It is {actual}, not {expected}.")


@SUITE.case("Query.GetCostSummary")
async def a_runs_own_cost_goes_before_its_report_and_that_before_a_price(fixture: Fixture) -> None:
    """A run costs its cost_usd, else that of its usage report, else its tokens at the price that fits."""
    report = tokens(MILLION, MILLION, None, model="m")
    await fixture.run("own", provider="p", usage=tokens(MILLION, 0, model="m", cost_usd=5.0), cost_usd=0.5)
    await fixture.run("reported", provider="p", usage=tokens(MILLION, 0, model="m", cost_usd=0.25))
    await fixture.run("free", provider="p", usage=tokens(MILLION, 0, model="m"), cost_usd=0.0)
    await fixture.run("priced", provider="p", usage=report)
    costs = await fixture.costs(pricing_table=[price("p", "m", 3.0, 15.0)])
    usd(costs.total_cost_usd, 18.75, "All costs are added up.")
    equal((costs.run_count, costs.unmapped_runs), (4, 0), "Every run has a cost; one of 0 is one.")


@SUITE.case("Query.GetCostSummary")
async def the_price_that_fits_best_counts(fixture: Fixture) -> None:
    """Prices fit in this order: provider and model, model alone, provider alone, neither."""
    table = [price("", "", 1, 0), price("p", "", 2, 0), price("", "m", 4, 0), price("p", "m", 8, 0)]
    await fixture.run(provider="p", usage=tokens(MILLION, 0, model="m"))
    for count, expected in ((4, 8.0), (3, 4.0), (2, 2.0), (1, 1.0)):
        costs = await fixture.costs(pricing_table=table[:count])
        usd(costs.total_cost_usd, expected, f"Of {count} prices the best counts.")
        equal(costs.unmapped_runs, 0, "It has a price.")
    for other in (price("p", "other", 9, 9), price("other", "m", 9, 9), price("", "other", 9, 9)):
        equal(
            (await fixture.costs(pricing_table=[other])).unmapped_runs,
            1,
            "A price of something else does not fit.",
        )


@SUITE.case("Query.GetCostSummary")
async def tokens_without_a_price_are_counted_not_free(fixture: Fixture) -> None:
    """Runs with tokens and without cost or price are unmapped; runs that reported nothing are not."""
    await fixture.run("priced", provider="p", usage=tokens(MILLION, 0, model="m"))
    await fixture.run("other-model", provider="p", usage=tokens(MILLION, 0, model="x"))
    await fixture.run("nameless", usage=tokens(1, 0))
    await fixture.run("nothing", provider="p")
    await fixture.run("total-only", provider="p", usage=Usage(total_tokens=10, model="m"))
    costs = await fixture.costs(pricing_table=[price("p", "m", 3, 15)])
    usd(costs.total_cost_usd, 3.0, "They add nothing to the sums.")
    equal((costs.run_count, costs.unmapped_runs), (5, 3), "They are counted.")
    equal((await fixture.costs()).unmapped_runs, 4, "Without prices all that has tokens is unmapped.")


@SUITE.case("Query.GetCostSummary")
async def input_from_a_cache_has_a_price_of_its_own(fixture: Fixture) -> None:
    """Cached input costs the cached price, or as other input when there is none; output includes reasoning."""
    usage = Usage(
        input_tokens=10 * MILLION, output_tokens=MILLION, cached_input_tokens=8 * MILLION, reasoning_tokens=7
    )
    await fixture.run(provider="p", usage=usage)
    costs = await fixture.costs(pricing_table=[price("p", "", 3, 15, cached_input_usd_per_million=0.5)])
    usd(costs.total_cost_usd, 2 * 3 + 8 * 0.5 + 15, "Cached input costs less.")
    costs = await fixture.costs(pricing_table=[price("p", "", 3, 15)])
    usd(costs.total_cost_usd, 10 * 3 + 15, "Without a price of its own it costs as other input.")
    await fixture.run(provider="p", usage=Usage(input_tokens=MILLION, cached_input_tokens=5 * MILLION))
    await fixture.run("run_2", provider="p", usage=Usage(input_tokens=4 * MILLION))
    costs = await fixture.costs(pricing_table=[price("p", "", 3, 15, cached_input_usd_per_million=0)])
    usd(costs.total_cost_usd, 12.0, "No run has more cached input than input.")


@SUITE.case("Query.GetCostSummary")
async def costs_are_added_up_by_provider_and_model(fixture: Fixture) -> None:
    """Costs and runs stand by provider and by model, in order, those without a cost included; no name is `unknown`."""
    await fixture.run("r1", provider="b", usage=tokens(MILLION, 0, model="y"))
    await fixture.run("r2", provider="b", usage=tokens(MILLION, 0, model="x"))
    await fixture.run("r3", provider="b", usage=tokens(0, 0, model="x"), cost_usd=1.0)
    await fixture.run("r4", provider="a", cost_usd=2.0)
    await fixture.run("r5")
    costs = await fixture.costs(pricing_table=[price("", "", 10, 0)])
    equal(
        [(each.provider, each.cost_usd, each.run_count) for each in costs.by_provider],
        [("a", 2.0, 1), ("b", 21.0, 3), ("unknown", 0.0, 1)],
        "By provider.",
    )
    equal(
        [(each.provider, each.model, each.cost_usd, each.run_count) for each in costs.by_model],
        [("a", "unknown", 2.0, 1), ("b", "x", 11.0, 2), ("b", "y", 10.0, 1), ("unknown", "unknown", 0.0, 1)],
        "By model of a provider.",
    )


@SUITE.case("Query.GetCostSummary")
async def costs_are_those_of_what_matches(fixture: Fixture) -> None:
    """Session, agent, provider and start select the runs; no match is a sum of nothing."""
    await fixture.save("ses_1", agent_id="ann")
    await fixture.save("ses_2", agent_id="bob", deleted_at_us=NOW_US)
    await fixture.run("r1", "ses_1", provider="p", cost_usd=1.0, after=1)
    await fixture.run("r2", "ses_1", provider="q", cost_usd=2.0, after=2)
    await fixture.run("r3", "ses_2", provider="p", cost_usd=4.0, after=3)
    await fixture.run("r4", "ses_2", provider="p", cost_usd=8.0)
    second = NOW_US + 2 * SECOND_US
    for filters, expected in (
        ({}, 15.0),
        ({"session_id": "ses_1"}, 3.0),
        ({"agent_id": "bob"}, 12.0),
        ({"agent_id": "ann", "provider": "p"}, 1.0),
        ({"provider": "p"}, 13.0),
        ({"since_us": second}, 6.0),
        ({"until_us": second}, 3.0),
        ({"since_us": second, "until_us": second}, 2.0),
    ):
        usd((await fixture.costs(**filters)).total_cost_usd, expected, f"Filters {filters}.")
    for filters in ({"agent_id": "nobody"}, {"session_id": "unknown"}, {"provider": "unknown"}):
        equal(await fixture.costs(**filters), GetCostSummaryResponse(), f"Filters {filters}.")


@SUITE.case("Query.GetCostSummary")
async def the_price_that_held_when_a_run_started_counts(fixture: Fixture) -> None:
    """Of several prices for the same tokens the latest that held when the run started counts, else a wider one."""
    second, later = NOW_US + 2 * SECOND_US, NOW_US + 4 * SECOND_US
    for after in (1, 2, 3, 4, 5):
        await fixture.run(f"run_{after}", provider="p", usage=tokens(MILLION, 0, model="m"), after=after)
    old, new = price("p", "m", 10, 0, since_us=second), price("p", "m", 1, 0, since_us=later)
    always = price("p", "m", 100, 0)
    costs = await fixture.costs(pricing_table=[new, old, always])
    usd(costs.total_cost_usd, 100 + 2 * 10 + 2 * 1, "Each run has the price of its time.")
    costs = await fixture.costs(pricing_table=[old, new])
    equal((costs.total_cost_usd, costs.unmapped_runs), (22.0, 1), "Before the first there is none.")
    costs = await fixture.costs(pricing_table=[old, price("", "m", 1000, 0)])
    usd(costs.total_cost_usd, 1000 + 4 * 10, "Before the first a wider one fits.")
    call = fixture.costs(pricing_table=[old, new, old])
    await refused(call, "VALIDATION_ERROR", "Two of one instant are refused.", field="pricing_table[2]")


@SUITE.case("Query.GetCostSummary")
async def prices_that_cannot_be_are_refused(fixture: Fixture) -> None:
    """A price that is negative or not finite, and a second one for the same tokens, are VALIDATION_ERROR."""
    good = price("p", "m", 1, 1)
    for bad, where in (
        (price("p", "x", -1, 1), "pricing_table[1].input_usd_per_million"),
        (price("p", "x", 1, math.inf), "pricing_table[1].output_usd_per_million"),
        (price("p", "x", 1, math.nan), "pricing_table[1].output_usd_per_million"),
        (
            price("p", "x", 1, 1, cached_input_usd_per_million=-0.1),
            "pricing_table[1].cached_input_usd_per_million",
        ),
        (good, "pricing_table[1]"),
    ):
        call = fixture.costs(pricing_table=[good, bad])
        await refused(call, "VALIDATION_ERROR", "The table is refused.", field=where)
    many = [price("p", f"m{number}", 1, 1) for number in range(1001)]
    await fixture.costs(pricing_table=many[:1000])
    call = fixture.costs(pricing_table=many)
    await refused(call, "VALIDATION_ERROR", "1,001 prices are refused.", field="pricing_table")
