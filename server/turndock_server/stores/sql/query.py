"""`SqlQuery`: the contract's calls over a `SqlSessionStore`'s database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from turndock.errors import not_found
from turndock.ports import ArtifactStore
from turndock.store.v1 import (
    ArtifactBatch,
    CountEventsRequest,
    CountEventsResponse,
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
    SearchEventsRequest,
    SearchEventsResponse,
    SearchRunsRequest,
    SearchRunsResponse,
    SearchSessionsRequest,
    SearchSessionsResponse,
)
from turndock.types.v1 import Artifact, EventBatch, Run
from turndock_server.core.wireformat import elements
from turndock_server.stores import checks, query_checks
from turndock_server.stores.artifacts import rows_of_session
from turndock_server.stores.spending import PriceList
from turndock_server.stores.spool import Spool
from turndock_server.stores.sql import event_index, event_searches, exporting, searches, usage
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.store import SqlSessionStore

T = TypeVar("T")


class SqlQuery:
    """Searches what a `SqlSessionStore` keeps, which must stay open as long as this is used."""

    def __init__(self, store: SqlSessionStore, artifacts: ArtifactStore | None = None) -> None:
        """`artifacts` is where the session's artifacts are; without one no session has any."""
        self._store = store
        self._artifacts = artifacts

    async def search_sessions(self, request: SearchSessionsRequest) -> SearchSessionsResponse:
        tenant, wanted = checks.partition(request), query_checks.search_sessions(request)
        return await self._read(
            tenant,
            lambda connection, partition: searches.search_sessions(connection, tenant, partition, wanted),
        )

    async def get_session_stats(self, request: GetSessionStatsRequest) -> GetSessionStatsResponse:
        checks.check_session_id(request.session_id)
        return await self._read(
            checks.partition(request),
            lambda connection, partition: usage.session_stats(connection, partition, request.session_id),
        )

    async def search_runs(self, request: SearchRunsRequest) -> SearchRunsResponse:
        tenant, wanted = checks.partition(request), query_checks.search_runs(request)
        return await self._read(
            tenant, lambda connection, partition: searches.search_runs(connection, tenant, partition, wanted)
        )

    async def get_usage_summary(self, request: GetUsageSummaryRequest) -> GetUsageSummaryResponse:
        query_checks.check_texts(request)
        return await self._read(
            checks.partition(request),
            lambda connection, partition: usage.usage_summary(connection, partition, request),
        )

    async def get_cost_summary(self, request: GetCostSummaryRequest) -> GetCostSummaryResponse:
        query_checks.check_texts(request)
        prices = PriceList(request.pricing_table)
        return await self._read(
            checks.partition(request),
            lambda connection, partition: usage.cost_summary(connection, partition, request, prices),
        )

    async def search_events(self, request: SearchEventsRequest) -> SearchEventsResponse:
        tenant, wanted = checks.partition(request), query_checks.search_events(request)
        if event_searches.needs_index(wanted.filter, wanted.order):
            await self._index(tenant, wanted.filter.session_ids)
        return await self._read(
            tenant,
            lambda connection, partition: event_searches.search_events(connection, tenant, partition, wanted),
        )

    async def count_events(self, request: CountEventsRequest) -> CountEventsResponse:
        query_checks.check_texts(request)
        query_checks.check_filter(request.filter)
        tenant = checks.partition(request)
        if event_searches.needs_index(request.filter, EventOrder.EVENT_ORDER_UNSPECIFIED):
            await self._index(tenant, request.filter.session_ids)
        return await self._read(
            tenant,
            lambda connection, partition: event_searches.count_events(connection, partition, request),
        )

    async def export_session(self, request: ExportSessionRequest) -> AsyncGenerator[ExportSessionResponse]:
        """Streams a session. What a reader who does not read holds is a page, and at most one file without a name."""
        checks.check_session_id(request.session_id)
        tenant = checks.partition(request)
        with Spool(Run) as runs, Spool(Artifact) as artifacts:
            beginning = await self._read(
                tenant,
                lambda connection, partition: exporting.begin(
                    connection, partition, request.session_id, runs
                ),
            )
            if beginning is None:
                raise not_found("session", request.session_id)
            if request.include_artifacts and self._artifacts is not None:
                scope = request.scope if request.HasField("scope") else None
                async for artifact in rows_of_session(self._artifacts, scope, request.session_id):
                    artifacts.put(artifact)
            yield ExportSessionResponse(session=beginning.session)
            batches = runs.batches(checks.MAX_PAGE_BYTES)
            while batch := await asyncio.to_thread(_next, batches):
                yield ExportSessionResponse(runs=RunBatch(runs=batch))
            event_count, after = 0, 0
            while after < beginning.head:
                page = await self._store.read_frames(tenant, request.session_id, after=after)
                if page.incarnation != beginning.session.incarnation:
                    raise not_found("session", request.session_id)  # it was deleted meanwhile
                frames = [frame for frame in page.frames if frame[0] <= beginning.head]
                if frames:
                    event_count += len(frames)
                    yield ExportSessionResponse(events=_batch([body for *_, body in frames]))
                after = page.scanned_through
            rows = artifacts.batches(checks.MAX_PAGE_BYTES)
            while found := await asyncio.to_thread(_next, rows):
                yield ExportSessionResponse(artifacts=ArtifactBatch(artifacts=found))
            end = ExportEnd(
                run_count=runs.count,
                event_count=event_count,
                artifact_count=artifacts.count,
                head=beginning.head,
            )
            yield ExportSessionResponse(end=end)

    async def _index(self, tenant: str, session_ids: Sequence[str]) -> None:
        """Bring the index of events up to date, of a partition or of some of its sessions.

        A piece at a time, so that other writers have their turns; given up between two, it goes on with the next call.
        """
        while True:
            logs, are_all = await self._read(
                tenant, lambda connection, partition: event_index.behind(connection, partition, session_ids)
            )
            if not logs:
                return
            is_done = await self._store.write(partial(event_index.index_some, logs=logs), logs)
            if are_all and is_done:
                return

    async def _read(self, tenant: str, work: Callable[[Connection, Partition | None], T]) -> T:
        return await self._store.read(tenant, work)


def _next(batches: Iterator[list[T]]) -> list[T]:
    """The next batch; empty at the end."""
    return next(batches, list[T]())


def _batch(bodies: list[bytes]) -> EventBatch:
    """Events, parsed once."""
    return EventBatch.FromString(elements(bodies))
