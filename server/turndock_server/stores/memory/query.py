"""`MemoryQuery`: the contract's calls over what a `MemorySessionStore` holds, each by looking at all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from turndock.errors import not_found
from turndock.ports import ArtifactStore
from turndock.store.v1 import (
    ArtifactBatch,
    CountEventsRequest,
    CountEventsResponse,
    EventFilter,
    EventOrder,
    ExportEnd,
    ExportSessionRequest,
    ExportSessionResponse,
    GetCostSummaryRequest,
    GetCostSummaryResponse,
    GetSessionStatsRequest,
    GetSessionStatsResponse,
    GetUsageSummaryRequest,
    GetUsageSummaryResponse,
    RunBatch,
    RunOrder,
    RunStatusCount,
    SearchEventsRequest,
    SearchEventsResponse,
    SearchRunsRequest,
    SearchRunsResponse,
    SearchSessionsRequest,
    SearchSessionsResponse,
    SessionOrder,
)
from turndock.types.v1 import Artifact, Event, EventBatch, Page, Run, Session
from turndock_server.stores import checks, query_checks, spending
from turndock_server.stores.artifacts import rows_of_session
from turndock_server.stores.cursors import Place
from turndock_server.stores.memory.database import Database, Record, copy_of, in_mailbox_order
from turndock_server.stores.query_checks import Cursors
from turndock_server.stores.spending import Account, PriceList, Spent

M = TypeVar("M", bound=Message)


class MemoryQuery:
    """Searches what a `MemorySessionStore` holds."""

    def __init__(self, database: Database, artifacts: ArtifactStore | None = None) -> None:
        """`artifacts` is where the session's artifacts are; without one no session has any."""
        self._database = database
        self._artifacts = artifacts

    async def search_sessions(self, request: SearchSessionsRequest) -> SearchSessionsResponse:
        tenant, wanted = checks.partition(request), query_checks.search_sessions(request)
        cursors = Cursors("SearchSessions", tenant, wanted, (int, str))
        by_change = wanted.order == SessionOrder.SESSION_ORDER_UPDATED_AT_DESC
        rows = [
            session
            for record in self._records(tenant)
            if (session := record.visible_session()) is not None and _is_wanted(session, record, wanted)
        ]
        sessions, cursor = _page(
            rows,
            lambda session: (session.updated_at_us if by_change else session.created_at_us, session.id),
            cursors,
            wanted.page,
            is_descending=wanted.order != SessionOrder.SESSION_ORDER_CREATED_AT_ASC,
        )
        return SearchSessionsResponse(sessions=sessions, next_cursor=cursor, total_count=len(rows))

    async def get_session_stats(self, request: GetSessionStatsRequest) -> GetSessionStatsResponse:
        record = self._saved(request, request.session_id)
        totals = Spent()
        for run in record.runs.values():
            totals = totals.plus(spending.of_run(run))
        events = record.stored_events()
        statuses = Counter(run.status for run in record.runs.values())
        return GetSessionStatsResponse(
            event_count=len(events),
            run_count=len(record.runs),
            token_totals=totals.usage(),
            providers_used=sorted({run.provider for run in record.runs.values()} - {""}),
            first_event_at_us=events[0].message().time_us if events else None,
            last_event_at_us=events[-1].message().time_us if events else None,
            status_counts=[
                RunStatusCount(status=status, run_count=count) for status, count in sorted(statuses.items())
            ],
        )

    async def search_runs(self, request: SearchRunsRequest) -> SearchRunsResponse:
        tenant, wanted = checks.partition(request), query_checks.search_runs(request)
        cursors = Cursors("SearchRuns", tenant, wanted, (int, str, str))
        by_tokens = wanted.order == RunOrder.RUN_ORDER_TOKEN_USAGE_DESC
        rows = [run for run in self._runs(tenant, wanted.session_id) if _is_wanted_run(run, wanted)]
        runs, cursor = _page(
            rows,
            lambda run: (_tokens(run) if by_tokens else run.started_at_us, run.id, run.session_id),
            cursors,
            wanted.page,
            is_descending=wanted.order != RunOrder.RUN_ORDER_STARTED_AT_ASC,
        )
        return SearchRunsResponse(runs=runs, next_cursor=cursor, total_count=len(rows))

    async def get_usage_summary(self, request: GetUsageSummaryRequest) -> GetUsageSummaryResponse:
        query_checks.check_texts(request)
        return spending.usage_summary(self._accounts(request))

    async def get_cost_summary(self, request: GetCostSummaryRequest) -> GetCostSummaryResponse:
        query_checks.check_texts(request)
        prices = PriceList(request.pricing_table)
        return spending.cost_summary(self._accounts(request, request.agent_id), prices)

    async def search_events(self, request: SearchEventsRequest) -> SearchEventsResponse:
        tenant, wanted = checks.partition(request), query_checks.search_events(request)
        by_number = wanted.order == EventOrder.EVENT_ORDER_SEQUENCE_ASC
        cursors = Cursors("SearchEvents", tenant, wanted, (int, str) if by_number else (int, int, str))

        def place(event: Event) -> Place:
            number = (event.sequence, event.session_id)
            return number if by_number else (event.time_us, *number)

        events, cursor = _page(
            list(self._events(tenant, wanted.filter)),
            place,
            cursors,
            wanted.page,
            is_descending=wanted.order == EventOrder.EVENT_ORDER_TIME_DESC,
            default=query_checks.DEFAULT_EVENTS,
        )
        return SearchEventsResponse(events=events, next_cursor=cursor)

    async def count_events(self, request: CountEventsRequest) -> CountEventsResponse:
        query_checks.check_texts(request)
        query_checks.check_filter(request.filter)
        events = self._events(checks.partition(request), request.filter)
        return CountEventsResponse(event_count=sum(1 for _ in events))

    async def export_session(self, request: ExportSessionRequest) -> AsyncGenerator[ExportSessionResponse]:
        record = self._saved(request, request.session_id)
        runs, stored = (
            [copy_of(run) for run in in_mailbox_order(record.runs.values())],
            record.stored_events(),
        )
        session = record.visible_session()
        artifacts: list[Artifact] = []
        if request.include_artifacts and self._artifacts is not None:
            scope = request.scope if request.HasField("scope") else None
            artifacts = [row async for row in rows_of_session(self._artifacts, scope, request.session_id)]
        yield ExportSessionResponse(session=session)
        for batch in _batches(runs):
            yield ExportSessionResponse(runs=RunBatch(runs=batch))
        for events in _batches(each.message() for each in stored):
            yield ExportSessionResponse(events=EventBatch(events=events))
        for rows in _batches(artifacts):
            yield ExportSessionResponse(artifacts=ArtifactBatch(artifacts=rows))
        end = ExportEnd(
            run_count=len(runs),
            event_count=len(stored),
            artifact_count=len(artifacts),
            head=session.last_sequence if session is not None else 0,
        )
        yield ExportSessionResponse(end=end)

    # --- What the calls share --------------------------------------------------------------------------------------

    def _records(self, tenant: str) -> Iterator[Record]:
        return (record for key, record in self._database.records.items() if key[0] == tenant)

    def _saved(self, request: checks.Scoped, session_id: str) -> Record:
        checks.check_session_id(session_id)
        record = self._database.records.get((checks.partition(request), session_id))
        if record is None or record.session is None:
            raise not_found("session", session_id)
        return record

    def _runs(self, tenant: str, session_id: str = "", agent_id: str = "") -> Iterator[Run]:
        for record in self._records(tenant):
            is_agents = record.session is not None and record.session.agent_id == agent_id
            if session_id in {"", record.key[1]} and (not agent_id or is_agents):
                yield from record.runs.values()

    def _accounts(
        self, request: GetUsageSummaryRequest | GetCostSummaryRequest, agent_id: str = ""
    ) -> Iterator[Account]:
        """Each run as an account of its own."""
        between = query_checks.started_between(request)
        for run in self._runs(checks.partition(request), request.session_id, agent_id):
            if request.provider in {"", run.provider} and (
                between is None or between[0] <= run.started_at_us <= between[1]
            ):
                spent = spending.of_run(run)
                has_price = spent.input_tokens is not None or spent.output_tokens is not None
                yield Account(
                    run.provider,
                    run.usage.model,
                    1,
                    spent,
                    run.started_at_us,
                    min(spent.cached_input_tokens or 0, spent.input_tokens or 0),
                    0 if has_price else 1,
                )

    def _events(self, tenant: str, wanted: EventFilter) -> Iterator[Event]:
        sessions, runs = set(wanted.session_ids), set(wanted.run_ids)
        types, providers = set(wanted.types), set(wanted.providers)
        for record in self._records(tenant):
            if sessions and record.key[1] not in sessions:
                continue
            for stored in record.stored_events():
                if (types and stored.type not in types) or (runs and stored.run_id not in runs):
                    continue
                event = stored.message()
                if (
                    (not providers or event.provider in providers)
                    and wanted.correlation_id in {"", event.correlation_id}
                    and not (wanted.HasField("since_us") and event.time_us < wanted.since_us)
                    and not (wanted.HasField("until_us") and event.time_us > wanted.until_us)
                ):
                    yield event


def _is_wanted(session: Session, record: Record, wanted: SearchSessionsRequest) -> bool:
    return (
        wanted.agent_id in {"", session.agent_id}
        and (not wanted.statuses or session.status in wanted.statuses)
        and (not wanted.provider or any(run.provider == wanted.provider for run in record.runs.values()))
        and set(wanted.tags) <= set(session.tags)
        and not (wanted.HasField("created_after_us") and session.created_at_us < wanted.created_after_us)
        and not (wanted.HasField("created_before_us") and session.created_at_us > wanted.created_before_us)
        and (wanted.include_deleted or not session.HasField("deleted_at_us"))
    )


def _is_wanted_run(run: Run, wanted: SearchRunsRequest) -> bool:
    is_bound = wanted.HasField("started_after_us") or wanted.HasField("started_before_us")
    return (
        wanted.provider in {"", run.provider}
        and (not wanted.statuses or run.status in wanted.statuses)
        and not (is_bound and run.started_at_us <= 0)
        and not (wanted.HasField("started_after_us") and run.started_at_us < wanted.started_after_us)
        and not (wanted.HasField("started_before_us") and run.started_at_us > wanted.started_before_us)
        and not (wanted.HasField("min_tokens") and _tokens(run) < wanted.min_tokens)
    )


def _tokens(run: Run) -> int:
    return spending.of_run(run).total_tokens or 0


def _page(
    rows: Iterable[M],
    place: Callable[[M], Place],
    cursors: Cursors,
    page: Page,
    *,
    is_descending: bool,
    default: int = checks.DEFAULT_ROWS,
) -> tuple[list[M], str]:
    """The rows of a page, and the cursor of the next one."""
    limit = query_checks.page_limit(page, default)
    after = cursors.after(page.cursor)
    behind = (
        row for row in rows if after is None or (place(row) < after if is_descending else place(row) > after)
    )
    ordered = sorted(behind, key=place, reverse=is_descending)[:limit]
    taken = list(next(_batches(ordered), ()))
    return taken, cursors.next(place(taken[-1]) if taken else None)


def _batches(messages: Iterable[M]) -> Iterator[Sequence[M]]:
    """Messages in pieces of a page's bytes; none is empty."""
    batch: list[M] = []
    size = 0
    for message in messages:
        size += message.ByteSize()
        if batch and size > checks.MAX_PAGE_BYTES:
            yield batch
            batch, size = [], message.ByteSize()
        batch.append(message)
    if batch:
        yield batch
