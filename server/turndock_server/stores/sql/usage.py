"""GetSessionStats, GetUsageSummary and GetCostSummary: what runs add up to."""

from __future__ import annotations

from collections import Counter
from typing import Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    and_,
    case,
    cast,
    func,
    literal_column,
    select,
)

from turndock.errors import not_found
from turndock.store.v1 import (
    GetCostSummaryRequest,
    GetCostSummaryResponse,
    GetSessionStatsResponse,
    GetUsageSummaryRequest,
    GetUsageSummaryResponse,
    RunStatusCount,
)
from turndock.types.v1 import Event
from turndock_server.stores import query_checks, spending
from turndock_server.stores.spending import Account, PriceList, Spent
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.schema import events, runs, sessions
from turndock_server.stores.sql.searches import RUNS_AND_SESSIONS, of_partition


def _total(counts: ColumnElement[int]) -> ColumnElement[int]:
    """Their sum as the integer it is: PostgreSQL's sum of such is a decimal."""
    return cast(func.sum(counts), BigInteger)


_SUMS: Final = (
    *(_total(runs.c[name]).label(name) for name in spending.COUNTS),
    func.sum(runs.c.cost_usd).label("cost_usd"),
)
_IS_REPORTED: Final = func.coalesce(*(runs.c[name] for name in spending.COUNTS)).is_not(None)
_KIND: Final = case(
    (runs.c.cost_usd.is_not(None), literal_column("2", Integer)),
    (_IS_REPORTED, literal_column("1", Integer)),
    else_=literal_column("0", Integer),
)
"""Whether a run carries its own cost, reported tokens without one, or nothing."""

_INPUT: Final = func.coalesce(runs.c.input_tokens, 0)
_CACHED: Final = case(
    (runs.c.cached_input_tokens > _INPUT, _INPUT), else_=func.coalesce(runs.c.cached_input_tokens, 0)
)
_IS_PRICELESS: Final = and_(runs.c.input_tokens.is_(None), runs.c.output_tokens.is_(None), _IS_REPORTED)


def session_stats(
    connection: Connection, partition: Partition | None, session_id: str
) -> GetSessionStatsResponse:
    """GetSessionStats. Raises SESSION_NOT_FOUND."""
    found = None
    if partition is not None:
        of_session = events.c.session == sessions.c.key
        body = select(events.c.body).where(of_session).limit(1)
        found = connection.execute(
            select(
                sessions.c.key,
                select(func.count()).select_from(events).where(of_session).scalar_subquery(),
                body.order_by(events.c.sequence.asc()).scalar_subquery(),
                body.order_by(events.c.sequence.desc()).scalar_subquery(),
            ).where(
                sessions.c.scope == partition.key,
                sessions.c.id == session_id,
                sessions.c.body.is_not(None),
            )
        ).first()
    if found is None:
        raise not_found("session", session_id)
    key, event_count, first, last = found
    totals, statuses, providers = Spent(), Counter[int](), set[str]()
    for row in connection.execute(
        select(runs.c.status, runs.c.provider, func.count().label("run_count"), *_SUMS)
        .where(runs.c.session == key)
        .group_by(runs.c.status, runs.c.provider)
    ):
        totals = totals.plus(Spent(*row[3:]))
        statuses[row.status] += row.run_count
        providers.add(row.provider)
    return GetSessionStatsResponse(
        event_count=event_count,
        run_count=statuses.total(),
        token_totals=totals.usage(),
        providers_used=sorted(providers - {""}),
        first_event_at_us=_time_of(first),
        last_event_at_us=_time_of(last),
        status_counts=[
            RunStatusCount(status=status, run_count=count)  # type: ignore[arg-type]  # numbers newer than ours, too
            for status, count in sorted(statuses.items())
        ],
    )


def _time_of(body: bytes | None) -> int | None:
    return None if body is None else Event.FromString(body).time_us


def usage_summary(
    connection: Connection, partition: Partition | None, request: GetUsageSummaryRequest
) -> GetUsageSummaryResponse:
    """GetUsageSummary."""
    if partition is None:
        return spending.usage_summary(())
    rows = connection.execute(
        select(runs.c.provider, func.count().label("run_count"), *_SUMS)
        .select_from(RUNS_AND_SESSIONS)
        .where(*_wanted(partition, request))
        .group_by(runs.c.provider)
    )
    return spending.usage_summary(Account(row.provider, "", row.run_count, Spent(*row[2:])) for row in rows)


def cost_summary(
    connection: Connection, partition: Partition | None, request: GetCostSummaryRequest, prices: PriceList
) -> GetCostSummaryResponse:
    """GetCostSummary."""
    if partition is None:
        return spending.cost_summary((), prices)
    wanted = _wanted(partition, request)
    if request.agent_id:
        wanted.append(sessions.c.agent_id == request.agent_id)
    turns = prices.turns
    since = case(*((runs.c.started_at >= turn, turn) for turn in reversed(turns)), else_=0) if turns else None
    period = literal_column("0", BigInteger) if since is None else since
    rows = connection.execute(
        select(
            runs.c.provider,
            runs.c.model,
            period.label("period"),
            func.count().label("run_count"),
            _total(_CACHED).label("cached"),
            func.sum(case((_IS_PRICELESS, 1), else_=0)).label("priceless"),
            *_SUMS,
        )
        .select_from(RUNS_AND_SESSIONS)
        .where(*wanted)
        .group_by(runs.c.provider, runs.c.model, _KIND, "period")
    )
    return spending.cost_summary(
        (
            Account(
                row.provider,
                row.model,
                row.run_count,
                Spent(*row[6:]),
                row.period,
                row.cached,
                row.priceless,
            )
            for row in rows
        ),
        prices,
    )


def _wanted(
    partition: Partition, request: GetUsageSummaryRequest | GetCostSummaryRequest
) -> list[ColumnElement[bool]]:
    wanted = of_partition(partition, request.session_id)
    if request.provider:
        wanted.append(runs.c.provider == request.provider)
    between = query_checks.started_between(request)
    if between is not None:
        wanted.append(runs.c.started_at.between(*between))
    return wanted
