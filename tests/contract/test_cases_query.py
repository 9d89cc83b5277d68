"""The acceptance cases of group Q and the public faults about searching, by their ids, on every Query there is."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy import event as engine_event

from support.harness import Harness
from support.parts import event_bytes, result, text, usage
from support.queries import QUERIES, Stored, behind_grpc
from turndock import events, exports
from turndock.conformance.query import SUITE, Fixture
from turndock.conformance.query.suite import exported_events
from turndock.ports import Query
from turndock.store.v1 import (
    AppendEventsRequest,
    CountEventsRequest,
    EventFilter,
    ExportSessionRequest,
    GetEventsRequest,
    GetSessionStatsRequest,
    GetUsageSummaryRequest,
    SaveSessionRequest,
    SearchSessionsRequest,
)
from turndock.types.v1 import Event, EventType, MessageStreamed, Session, SessionStatus
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.sql import SqlQuery, SqlSessionStore


@pytest.fixture(params=["memory", "sql", "sql-async", "sql-grpc"])
async def stored(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Stored]:
    async with QUERIES[request.param](tmp_path) as opened:
        yield opened


async def keeps(stored: Stored, requirement: str, *names: str) -> None:
    """The Query passes every case of the requirement; `names` are some that must be among them."""
    cases = [case.name for case in SUITE.for_requirement(requirement)]
    assert set(names) <= set(cases)
    report = await SUITE.run(
        lambda: Fixture(stored.query, stored.store, stored.artifacts), abilities=SUITE.abilities, only=cases
    )
    assert report.results
    assert report.is_conformant, str(report)


def query_of(host: Harness) -> Query:
    """What searches a host's store."""
    store = host.store
    if isinstance(store, SqlSessionStore):
        return SqlQuery(store, host.artifacts)
    assert isinstance(store, MemorySessionStore)
    return store.query(host.artifacts)


# --- Q ---------------------------------------------------------------------------------------------------------------


async def test_Q_01_the_total_ignores_limit_and_cursor_and_limits_have_defaults(stored: Stored) -> None:
    await keeps(
        stored,
        "Q-01",
        "the_total_knows_neither_limit_nor_cursor",
        "fifty_sessions_are_a_page_unless_it_says_otherwise",
        "fifty_runs_are_a_page_unless_it_says_otherwise",
        "a_hundred_events_are_a_page_unless_it_says_otherwise",
    )


async def test_Q_02_limits_are_from_1_to_1000(stored: Stored) -> None:
    await keeps(stored, "Q-02", "limits_are_from_1_to_1000")


async def test_Q_03_the_last_change_comes_first_and_an_empty_page_has_no_cursor(stored: Stored) -> None:
    await keeps(stored, "Q-03", "the_last_change_comes_first_and_an_empty_page_ends")


async def test_Q_06_sessions_are_found_by_status_tags_provider_and_deletion(stored: Stored) -> None:
    await keeps(
        stored,
        "Q-06",
        "sessions_are_found_by_status",
        "statuses_nobody_knows_are_refused",
        "sessions_are_found_by_all_their_tags",
        "sessions_are_found_by_provider",
        "deleted_sessions_are_hidden_unless_asked_for",
    )


async def test_Q_07_events_are_found_and_counted_by_the_same_filters(stored: Stored) -> None:
    await keeps(
        stored,
        "Q-07",
        "events_are_found_by_what_they_are_and_counted_alike",
        "types_nobody_knows_are_refused",
    )


async def test_Q_08_stats_and_usage_add_up(stored: Stored) -> None:
    await keeps(
        stored,
        "Q-08",
        "the_stats_of_a_session_add_up",
        "an_unknown_session_has_no_stats",
        "a_summary_adds_up_what_matches",
    )


async def test_Q_10_an_export_is_a_session_with_its_runs_events_and_artifacts(stored: Stored) -> None:
    await keeps(
        stored,
        "Q-10",
        "an_export_is_the_session_its_runs_and_its_events",
        "an_unknown_session_is_not_exported",
        "artifacts_are_exported_when_asked_for",
    )


async def test_P_13_every_call_answers_for_another_scope_as_for_nothing(stored: Stored) -> None:
    await keeps(
        stored,
        "P-13",
        "searches_find_nothing_of_another_scope",
        "sums_have_nothing_of_another_scope",
        "what_is_anothers_is_unknown",
    )


async def test_E_06_a_run_counts_with_its_latest_report(local_host: Harness) -> None:
    await local_host.start([usage(5, 1), usage(10, 2), text("hi"), result("hi")])
    answer = await local_host.ask("x")
    assert (answer.response.usage.input_tokens, answer.response.usage.output_tokens) == (10, 2)
    session_id = (await local_host.status()).session_id
    query = query_of(local_host)
    stats = await query.get_session_stats(GetSessionStatsRequest(session_id=session_id))
    assert (stats.token_totals.input_tokens, stats.token_totals.output_tokens) == (10, 2)
    summary = await query.get_usage_summary(GetUsageSummaryRequest(session_id=session_id))
    assert (summary.run_count, summary.totals.input_tokens) == (1, 10)


# --- Public faults ---------------------------------------------------------------------------------------------------


async def test_PF_B17_ties_in_time_read_alike_in_every_order(stored: Stored) -> None:
    await keeps(stored, "PF-B17", "ties_in_time_read_in_the_order_of_numbers")


async def test_PF_B29_pages_and_exports_are_cut_by_bytes(stored: Stored) -> None:
    await keeps(stored, "PF-B29", "pages_of_events_are_cut_by_bytes_too", "batches_are_cut_by_bytes")


async def test_PF_E23_a_filter_of_2000_ids_is_answered(stored: Stored) -> None:
    await keeps(stored, "PF-E23", "two_thousand_ids_are_a_filter")


async def test_PF_E33_untouched_rows_are_seen_once_while_others_change(stored: Stored) -> None:
    await keeps(
        stored,
        "PF-E33",
        "untouched_sessions_are_seen_once_while_others_change",
        "runs_that_stay_are_seen_once_while_others_come",
    )


async def test_PF_B23_PF_B33_an_export_of_a_turn_is_the_log_byte_for_byte(local_host: Harness) -> None:
    newer = Event()
    newer.MergeFromString(b"\x10\x65")  # type 101, which no release has
    newer.MergeFromString(b"\xa2\x0d\x04\x0a\x02hi\xc2\x3e\x03abc")  # a payload and a field no release has
    await local_host.start(
        [
            {"code_points": [0x61, 0, 0x62]},
            {"code_points": [0xD83D]},
            {"code_points": [0xDE00]},
            event_bytes(newer.SerializeToString()),
            text("end"),
            result(),
        ]
    )
    answer = await local_host.ask("x")
    session_id = (await local_host.status()).session_id
    request = ExportSessionRequest(session_id=session_id)
    parts = [part async for part in query_of(local_host).export_session(request)]
    log = (await local_host.store.get_events(GetEventsRequest(session_id=session_id))).events
    exported = exported_events(parts)
    assert [each.SerializeToString() for each in exported] == [each.SerializeToString() for each in log]
    said = [each.message_streamed.text for each in exported if each.HasField("message_streamed")]
    assert "".join(said) == answer.response.text == "a\N{REPLACEMENT CHARACTER}b\N{GRINNING FACE}end"
    # And through a file.
    read = [
        exports.parse_line(exports.to_line(record), 1)
        for part in parts
        for record in exports.records_of(part)
    ]
    kept = [each.SerializeToString() for each in read if isinstance(each, Event)]
    assert kept == [each.SerializeToString() for each in log]
    assert 101 in [each.type for each in exported]


async def test_PF_B25_digits_and_kinds_of_numbers_survive_an_export(stored: Stored) -> None:
    await keeps(stored, "PF-B25", "nothing_is_lost_or_changed_on_the_way", "counts_are_exact")
    data = '{"big":9223372036854775807,"count":7,"flag":true,"id":9007199254740993,"one":1,"price":0.1}'
    fixture = Fixture(stored.query, stored.store)
    await fixture.save(metadata_json=data)
    await fixture.append(fixture.event(data_json=data))
    stream = stored.query.export_session(ExportSessionRequest(scope=fixture.scope, session_id="ses_1"))
    lines = [json.loads(line) async for line in exports.json_lines(stream)]
    (written,) = (line["event"] for line in lines if "event" in line)
    assert written["sequence"] == 1
    assert type(written["sequence"]) is int
    assert written["data_json"] == data


async def test_PF_E07_a_reader_who_stops_reading_holds_up_nobody(tmp_path: Path) -> None:
    """No read transaction is open while an export waits for its reader: the write-ahead log can be emptied."""
    store = await SqlSessionStore.open(tmp_path / "store.db")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        await store.save_session(SaveSessionRequest(session=_session("slow")))
        for _ in range(20):
            await store.append_events(AppendEventsRequest(events=_large("slow", 8)))
        query = await stack.enter_async_context(behind_grpc(SqlQuery(store)))
        stream = query.export_session(ExportSessionRequest(session_id="slow"))
        first = await anext(aiter(stream))
        assert first.session.last_sequence == 160
        for _ in range(20):
            async with asyncio.timeout(5):
                await store.append_events(AppendEventsRequest(events=_large("fast", 8)))
        assert await store._database.empty_log()
        assert store._database.log_bytes() == 0
        rest = [part async for part in stream]
        assert [each.sequence for each in exported_events(rest)] == list(range(1, 161))
        assert rest[-1].end.event_count == 160


async def test_PF_E23_the_longest_filters_stay_below_the_databases_limit(tmp_path: Path) -> None:
    store = await SqlSessionStore.open(tmp_path / "store.db")

    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)

    engine_event.listen(store._database._lane.reading, "connect", limit)
    engine_event.listen(store._database._lane.writing, "connect", limit)
    try:
        query = SqlQuery(store)
        await store.append_events(AppendEventsRequest(events=_large("ses_1", 1)))
        many = [f"x_{number}" for number in range(9_999)]
        wanted = EventFilter(session_ids=[*many, "ses_1"], run_ids=[*many, "run_1"], providers=[*many, "p"])
        assert (await query.count_events(CountEventsRequest(filter=wanted))).event_count == 1
        await query.search_sessions(SearchSessionsRequest(tags=many))
    finally:
        await store.close()


def _session(session_id: str) -> Session:
    return Session(id=session_id, agent_id="agent", status=SessionStatus.SESSION_STATUS_ACTIVE)


def _large(session_id: str, count: int) -> list[Event]:
    return [
        Event(
            id=events.new_id(),
            session_id=session_id,
            run_id="run_1",
            provider="p",
            type=EventType.EVENT_TYPE_MESSAGE_STREAMED,
            time_us=events.now_us(),
            message_streamed=MessageStreamed(text="x" * (64 << 10)),
        )
        for _ in range(count)
    ]
