"""`turndock sessions search|stats` and `turndock usage`: questions across what the server keeps."""

from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turndock_server.cli import sessions
from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.instants import instant
from turndock_server.cli.options import JsonOption, LimitOption, SessionArgument
from turndock_server.cli.output import first, hint, say, say_facts, say_json, say_rows, say_table, to_json

if TYPE_CHECKING:
    from turndock.store.v1 import GetCostSummaryRequest, ModelPrice
    from turndock.types.v1 import Session


class Order(StrEnum):
    """Which session comes first."""

    UPDATED = "updated"
    CREATED = "created"
    OLDEST = "oldest"


ProviderOption = Annotated[str, typer.Option(show_default=False, help="Only what this provider answered.")]
SinceOption = Annotated[
    int | None,
    typer.Option(
        parser=instant,
        metavar="TIME",
        show_default=False,
        help="From when on: `2026-01-31`, `2026-01-31T12:00`, or how long ago, such as `24h` or `7d`.",
    ),
]
UntilOption = Annotated[
    int | None,
    typer.Option(parser=instant, metavar="TIME", show_default=False, help="Until when, written as --since."),
]


@sessions.app.command("search")
@connected
async def search(
    host: Connection,
    *,
    agent: Annotated[str, typer.Option(show_default=False, help="Only sessions of this agent.")] = "",
    status: Annotated[
        list[sessions.Status] | None, typer.Option(show_default=False, help="Only sessions that stand so.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(show_default=False, help="Only sessions that have every one of these.")
    ] = None,
    provider: ProviderOption = "",
    since: SinceOption = None,
    until: UntilOption = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Also soft-deleted ones.")] = False,
    order: Annotated[
        Order, typer.Option(help="`updated`, `created`: the latest first. `oldest`: the first made first.")
    ] = Order.UPDATED,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """Find sessions by agent, status, tags, provider and when they were made."""
    from turndock.store.v1 import SearchSessionsRequest, SessionOrder
    from turndock.types.v1 import Page, SessionStatus
    from turndock_server.cli.rendering import SESSION_COLUMNS, session_row

    orders = {
        Order.UPDATED: SessionOrder.SESSION_ORDER_UPDATED_AT_DESC,
        Order.CREATED: SessionOrder.SESSION_ORDER_CREATED_AT_DESC,
        Order.OLDEST: SessionOrder.SESSION_ORDER_CREATED_AT_ASC,
    }
    request = SearchSessionsRequest(
        scope=host.scope,
        agent_id=agent,
        statuses=[SessionStatus.Value(f"SESSION_STATUS_{one.upper()}") for one in status or []],
        provider=provider,
        tags=tag or [],
        created_after_us=since,
        created_before_us=until,
        include_deleted=deleted,
        order=orders[order],
    )
    total = 0

    async def pages() -> "AsyncIterator[Session]":
        nonlocal total
        while True:
            answer = await host.query.search_sessions(request)
            total = answer.total_count
            for session in answer.sessions:
                yield session
            if not answer.next_cursor:
                return
            request.page.CopyFrom(Page(cursor=answer.next_cursor))

    say_rows(await first(pages(), limit), SESSION_COLUMNS, session_row, as_json=as_json)
    hint(f"Matching sessions: {total}")


@sessions.app.command("stats")
@connected
async def stats(host: Connection, *, session: SessionArgument, as_json: JsonOption = False) -> None:
    """Add up a session: its events, its runs, its tokens, who answered."""
    from turndock.store.v1 import GetSessionStatsRequest
    from turndock_server.cli.rendering import stats_facts

    request = GetSessionStatsRequest(scope=host.scope, session_id=session)
    answer = await host.query.get_session_stats(request)
    if as_json:
        say_json(to_json(answer))
    else:
        say_facts(stats_facts(answer))


@connected
async def usage(
    host: Connection,
    *,
    session: Annotated[str, typer.Option(show_default=False, help="Only runs of this session.")] = "",
    agent: Annotated[
        str, typer.Option(show_default=False, help="Only runs of this agent's sessions; with --cost.")
    ] = "",
    provider: ProviderOption = "",
    since: SinceOption = None,
    until: UntilOption = None,
    cost: Annotated[bool, typer.Option("--cost", help="Add up what it cost.")] = False,
    prices: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            show_default="the server's own",
            help="A price file; with --cost. Counts in place of the server's.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add up the tokens of runs, by provider; with --cost, what they cost, by provider and model."""
    from turndock.store.v1 import GetCostSummaryRequest, GetUsageSummaryRequest
    from turndock_server.cli.rendering import USAGE_COLUMNS, usage_rows

    if not cost and (agent or prices):
        raise typer.BadParameter("only together with --cost", param_hint="--agent" if agent else "--prices")
    if cost:
        request = GetCostSummaryRequest(
            scope=host.scope,
            session_id=session,
            agent_id=agent,
            provider=provider,
            since_us=since,
            until_us=until,
            pricing_table=_prices(prices) if prices else (),
        )
        await _say_costs(host, request, as_json=as_json)
        return
    answer = await host.query.get_usage_summary(
        GetUsageSummaryRequest(
            scope=host.scope, session_id=session, provider=provider, since_us=since, until_us=until
        )
    )
    if as_json:
        say_json(to_json(answer))
    else:
        say_table(USAGE_COLUMNS, usage_rows(answer))


async def _say_costs(host: Connection, request: "GetCostSummaryRequest", *, as_json: bool) -> None:
    from turndock_server.cli.rendering import COST_COLUMNS, cost_rows

    answer = await host.query.get_cost_summary(request)
    if as_json:
        say_json(to_json(answer))
        return
    say_table(COST_COLUMNS, cost_rows(answer))
    if answer.unmapped_runs:
        say()
        runs = "1 run has" if answer.unmapped_runs == 1 else f"{answer.unmapped_runs} runs have"
        say(f"{runs} tokens, but neither a cost nor a price: not in the sums.")


def _prices(path: Path) -> "list[ModelPrice]":
    from turndock_server.stores.price_file import read_prices

    return read_prices(path)
