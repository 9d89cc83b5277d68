"""Searching, adding up and exporting at a real server: by the clients and by the command line."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from support import commands
from support.commands import Server
from support.servers import a_server, beside
from turndock import exports, wire
from turndock.client import Client, SyncClient
from turndock.errors import TurndockError, is_not_offered
from turndock.store.v1 import (
    ExportSessionRequest,
    GetCostSummaryRequest,
    GetSessionStatsRequest,
    GetUsageSummaryRequest,
    ModelPrice,
    SearchEventsRequest,
    SearchRunsRequest,
    SearchSessionsRequest,
)
from turndock.types.v1 import Event, Scope
from turndock_server.stores.memory import MemorySessionStore

PRICES = """
[[prices]]
provider = "echo"
input_usd_per_million = 1000000
output_usd_per_million = 0
"""


@pytest.fixture
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    """A server with prices of its own."""
    (tmp_path / "prices.toml").write_text(PRICES)
    (tmp_path / "turndock.toml").write_text(
        f'[store]\nkind = "{getattr(request, "param", "sqlite")}"\n[pricing]\npath = "prices.toml"\n'
    )
    async with commands.serving(tmp_path, "--listen", "127.0.0.1:0") as running:
        yield running


@pytest.mark.parametrize("server", ["sqlite", "memory"], indirect=True)
async def test_a_server_answers_for_what_its_agents_did(server: Server) -> None:
    async with Client(server.address) as client:
        agent = await client.start_agent("ann", backend="echo", tags=["demo"])
        await agent.ask("one two three")
        query = client.query()
        (session,) = (
            await query.search_sessions(SearchSessionsRequest(tags=["demo"], provider="echo"))
        ).sessions
        assert session.agent_id == "ann"
        stats = await query.get_session_stats(GetSessionStatsRequest(session_id=session.id))
        assert (stats.run_count, stats.token_totals.input_tokens) == (1, 3)
        (run,) = (await query.search_runs(SearchRunsRequest(provider="echo"))).runs
        assert run.usage.output_tokens == 3
        costs = await query.get_cost_summary(GetCostSummaryRequest())
        assert (costs.total_cost_usd, costs.unmapped_runs) == (3.0, 0)
        own = ModelPrice(provider="other", input_usd_per_million=1, output_usd_per_million=1)
        costs = await query.get_cost_summary(GetCostSummaryRequest(pricing_table=[own]))
        assert (costs.total_cost_usd, costs.unmapped_runs) == (0.0, 1)
        parts = query.export_session(ExportSessionRequest(session_id=session.id))
        read = [exports.parse_line(line, 1) async for line in exports.json_lines(parts)]
        log = (await query.search_events(SearchEventsRequest())).events
        assert [each for each in read if isinstance(each, Event)] == list(log)
        elsewhere = Scope(tenant="elsewhere")
        assert (await query.search_sessions(SearchSessionsRequest(scope=elsewhere))).total_count == 0
        with pytest.raises(TurndockError) as foreign:
            await query.get_session_stats(GetSessionStatsRequest(scope=elsewhere, session_id=session.id))
        assert foreign.value.reason == "SESSION_NOT_FOUND"


async def test_the_blocking_client_asks_the_same(server: Server) -> None:
    def ask() -> tuple[int, int, list[str | None]]:
        with SyncClient(server.address) as client:
            client.start_agent("ann", backend="echo").ask("one two")
            query = client.query()
            (session,) = query.search_sessions(SearchSessionsRequest()).sessions
            parts = query.export_session(ExportSessionRequest(session_id=session.id))
            usage = query.get_usage_summary(GetUsageSummaryRequest())
            return usage.run_count, usage.totals.input_tokens, [part.WhichOneof("part") for part in parts]

    assert await asyncio.to_thread(ask) == (1, 2, ["session", "runs", "events", "end"])


async def test_health_knows_the_query(server: Server) -> None:
    async with wire.connect(wire.parse_endpoint(server.address)) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer = await check(health_pb2.HealthCheckRequest(service="turndock.store.v1.Query"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_command_line_searches_and_adds_up(server: Server, tmp_path: Path) -> None:
    async def ok(*arguments: str) -> str:
        ended = await commands.run(*arguments, cwd=tmp_path, variables={"TURNDOCK_SERVER": server.address})
        assert ended.code == 0, ended
        return ended.out

    async def parsed(*arguments: str) -> Any:
        return json.loads(await ok(*arguments, "--json"))

    await ok("agents", "start", "ann", "--backend", "echo", "--tag", "demo")
    await ok("ask", "--agent", "ann", "one two three")
    (session,) = await parsed("sessions", "search", "--tag", "demo", "--since", "1h", "--order", "oldest")
    assert await parsed("sessions", "search", "--until", "1h") == []
    stats = await parsed("sessions", "stats", session["id"])
    assert stats["token_totals"]["input_tokens"] == "3"
    assert "completed 1" in await ok("sessions", "stats", session["id"])
    assert (await parsed("usage", "--provider", "echo"))["run_count"] == "1"
    assert "echo" in await ok("usage", "--session", session["id"])
    assert (await parsed("usage", "--cost", "--agent", "ann"))["total_cost_usd"] == 3.0
    (tmp_path / "others.toml").write_text(PRICES.replace('"echo"', '"other"'))
    table = await ok("usage", "--cost", "--prices", "others.toml")
    assert "1 run has tokens, but neither a cost nor a price" in table


@pytest.mark.parametrize("is_searchable", [True, False])
async def test_a_store_that_is_a_plug_in_is_searched_by_its_own_query(
    is_searchable: bool, tmp_path: Path
) -> None:
    store = MemorySessionStore()
    endpoint = f"unix:{tmp_path / 'store'}"
    config = f'[store]\nkind = "plugin:store"\n[plugins.store]\nendpoint = "{endpoint}"'
    query = store.query() if is_searchable else None
    async with (
        beside(endpoint, session_store=store, query=query),
        a_server(tmp_path, config) as server,
        Client(server.endpoint) as client,
    ):
        await (await client.start_agent("ann", backend="echo")).ask("hello")
        search = client.query().search_sessions(SearchSessionsRequest(provider="echo"))
        if is_searchable:
            assert [session.agent_id for session in (await search).sessions] == ["ann"]
        else:
            with pytest.raises(TurndockError) as absent:
                await search
            assert is_not_offered(absent.value)
    await store.close()


@pytest.mark.parametrize(
    ("prices", "complaint"),
    [
        ("[[prices]]\nprovider = 'p'\n", "prices[0].input_usd_per_million"),
        (None, "cannot be read"),
    ],
)
async def test_a_server_with_prices_that_cannot_be_does_not_start(
    prices: str | None, complaint: str, tmp_path: Path
) -> None:
    if prices is not None:
        (tmp_path / "prices.toml").write_text(prices)
    (tmp_path / "turndock.toml").write_text('[pricing]\npath = "prices.toml"\n')
    ended = await commands.run("serve", "--listen", "127.0.0.1:0", cwd=tmp_path)
    assert ended.code != 0
    assert complaint in ended.err
    assert "prices.toml" in ended.err
