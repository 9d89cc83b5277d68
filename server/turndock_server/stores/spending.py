"""What runs spend: token counts added up, and what they cost. Pure: every Query of this package adds up by it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from turndock.errors import invalid
from turndock.store.v1 import (
    GetCostSummaryResponse,
    GetUsageSummaryResponse,
    ModelCost,
    ModelPrice,
    ProviderCost,
    ProviderUsage,
)
from turndock.types.v1 import Run, Usage

Number = TypeVar("Number", int, float)

UNKNOWN: Final = "unknown"
"""How answers call a provider or a model that a run does not name."""

MAX_TOKENS: Final = 1 << 50
"""No run spends more; a report above it counts as this much, so that no sum overflows."""

MAX_PRICES: Final = 1_000

ALWAYS: Final = -(1 << 63)
"""When a price began to hold that does not say so."""

_MILLION: Final = 1_000_000

Count = Literal["input_tokens", "output_tokens", "total_tokens", "cached_input_tokens", "reasoning_tokens"]
COUNTS: Final[tuple[Count, ...]] = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cached_input_tokens",
    "reasoning_tokens",
)
"""The token counts of a usage report, in the order of their fields."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What one run reported, or several together. None = not reported by any."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def is_reported(self) -> bool:
        """Whether there is any count."""
        return any(getattr(self, name) is not None for name in COUNTS)

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
            _sum(self.total_tokens, other.total_tokens),
            _sum(self.cached_input_tokens, other.cached_input_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
            _sum(self.cost_usd, other.cost_usd),
        )

    def usage(self) -> Usage:
        """The counts as answers carry them."""
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            total_tokens=self.total_tokens,
            cached_input_tokens=self.cached_input_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )


def of_run(run: Run) -> Spent:
    """What a run spent. Where it reported no total, its input and output together are its total."""
    reported = {name: _reported(run.usage, name) for name in COUNTS}
    if reported["total_tokens"] is None:
        reported["total_tokens"] = _sum(reported["input_tokens"], reported["output_tokens"])
    costs = (source.cost_usd for source in (run, run.usage) if source.HasField("cost_usd"))
    return Spent(**reported, cost_usd=next(filter(math.isfinite, costs), None))


def _reported(usage: Usage, name: Count) -> int | None:
    if not usage.HasField(name):
        return None
    count: int = getattr(usage, name)
    return min(max(count, 0), MAX_TOKENS)


def _sum(one: Number | None, other: Number | None) -> Number | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


@dataclass(frozen=True, slots=True)
class Account:
    """Runs of one provider and model that are alike in whether they carry their own cost."""

    provider: str
    model: str
    run_count: int
    spent: Spent
    started_at_us: int = 0
    """An instant at which the same prices held as when they started."""
    cached_input_tokens: int = 0
    """Those of the input tokens that came from a cache: no run counts more of them than it has input."""
    priceless_runs: int = 0
    """Of the runs without a cost of their own, those that reported tokens, but neither input nor output."""


class PriceList:
    """What tokens cost."""

    def __init__(self, prices: Iterable[ModelPrice], field: str = "pricing_table") -> None:
        """Raises VALIDATION_ERROR, naming the price, for one that cannot be, and for two of the same tokens."""
        self._prices: dict[tuple[str, str], dict[int, ModelPrice]] = {}
        for index, price in enumerate(prices):
            if index >= MAX_PRICES:
                raise invalid(field, f"holds more than {MAX_PRICES} prices")
            _check_price(price, f"{field}[{index}]")
            since = price.since_us if price.HasField("since_us") else ALWAYS
            held = self._prices.setdefault((price.provider, price.model), {})
            if since in held:
                raise invalid(f"{field}[{index}]", f"is the second price of {_named(price)}")
            held[since] = price

    @property
    def turns(self) -> list[int]:
        """The instants at which a price begins to hold, first one first."""
        return sorted({since for held in self._prices.values() for since in held} - {ALWAYS})

    def price_of(self, provider: str, model: str, at_us: int) -> ModelPrice | None:
        """The price that fits and holds: of provider and model, of the model, of the provider, of anything."""
        for key in ((provider, model), ("", model), (provider, ""), ("", "")):
            since = max((since for since in self._prices.get(key, ()) if since <= at_us), default=None)
            if since is not None:
                return self._prices[key][since]
        return None


def _check_price(price: ModelPrice, field: str) -> None:
    for name in ("input_usd_per_million", "output_usd_per_million", "cached_input_usd_per_million"):
        amount = getattr(price, name)
        if not math.isfinite(amount) or amount < 0:
            raise invalid(f"{field}.{name}", "must be a finite number that is not negative")


def _named(price: ModelPrice) -> str:
    return f"{price.model or 'any model'!r} of {price.provider or 'any provider'!r}"


def cost_of(account: Account, price: ModelPrice) -> float:
    """What an account's tokens cost, in US dollars."""
    cached = account.cached_input_tokens
    other = (account.spent.input_tokens or 0) - cached
    cached_price = (
        price.cached_input_usd_per_million
        if price.HasField("cached_input_usd_per_million")
        else price.input_usd_per_million
    )
    amount = other * price.input_usd_per_million + cached * cached_price
    return (amount + (account.spent.output_tokens or 0) * price.output_usd_per_million) / _MILLION


def usage_summary(accounts: Iterable[Account]) -> GetUsageSummaryResponse:
    """Token counts: all, and by provider."""
    totals, run_count = Spent(), 0
    by_provider: dict[str, tuple[Spent, int]] = {}
    for account in accounts:
        totals, run_count = totals.plus(account.spent), run_count + account.run_count
        provider = account.provider or UNKNOWN
        spent, count = by_provider.get(provider, (Spent(), 0))
        by_provider[provider] = (spent.plus(account.spent), count + account.run_count)
    return GetUsageSummaryResponse(
        totals=totals.usage(),
        run_count=run_count,
        by_provider=[
            ProviderUsage(provider=provider, totals=spent.usage(), run_count=count)
            for provider, (spent, count) in sorted(by_provider.items(), key=lambda item: item[0])
        ],
    )


@dataclass(slots=True)
class _Cost:
    amounts: list[float] = field(default_factory=list[float])
    run_count: int = 0

    def add(self, amounts: Iterable[float], run_count: int) -> None:
        self.amounts += amounts
        self.run_count += run_count

    @property
    def usd(self) -> float:
        return math.fsum(self.amounts)


def cost_summary(accounts: Iterable[Account], prices: PriceList) -> GetCostSummaryResponse:
    """Costs: all, by provider, and by model.

    The runs of one account all carry their own cost, or all reported tokens without one, or reported nothing at all.
    """
    everything, unmapped_runs = _Cost(), 0
    by_provider: defaultdict[str, _Cost] = defaultdict(_Cost)
    by_model: defaultdict[tuple[str, str], _Cost] = defaultdict(_Cost)
    for account in accounts:
        amounts: list[float] = []
        if account.spent.cost_usd is not None:
            amounts.append(account.spent.cost_usd)
        elif account.spent.is_reported:
            price = prices.price_of(account.provider, account.model, account.started_at_us)
            unmapped_runs += account.run_count if price is None else account.priceless_runs
            if price is not None:
                amounts.append(cost_of(account, price))
        provider = account.provider or UNKNOWN
        for sums in (everything, by_provider[provider], by_model[provider, account.model or UNKNOWN]):
            sums.add(amounts, account.run_count)
    return GetCostSummaryResponse(
        total_cost_usd=everything.usd,
        run_count=everything.run_count,
        by_provider=[
            ProviderCost(provider=provider, cost_usd=cost.usd, run_count=cost.run_count)
            for provider, cost in sorted(by_provider.items(), key=lambda item: item[0])
        ],
        by_model=[
            ModelCost(provider=provider, model=model, cost_usd=cost.usd, run_count=cost.run_count)
            for (provider, model), cost in sorted(by_model.items(), key=lambda item: item[0])
        ],
        unmapped_runs=unmapped_runs,
    )
