"""The server's query for code without an event loop."""

from __future__ import annotations

from collections.abc import Iterator

from turndock.client.loop_thread import LoopThread
from turndock.remote import RemoteQuery
from turndock.store.v1 import (
    CountEventsRequest,
    CountEventsResponse,
    ExportSessionRequest,
    ExportSessionResponse,
    GetCostSummaryRequest,
    GetCostSummaryResponse,
    GetSessionStatsRequest,
    GetSessionStatsResponse,
    GetUsageSummaryRequest,
    GetUsageSummaryResponse,
    SearchEventsRequest,
    SearchEventsResponse,
    SearchRunsRequest,
    SearchRunsResponse,
    SearchSessionsRequest,
    SearchSessionsResponse,
)
from turndock.wire import close_stream


class SyncQuery:
    """`RemoteQuery`, each of whose calls blocks until it has its answer."""

    def __init__(self, loop: LoopThread, query: RemoteQuery) -> None:
        self._loop = loop
        self._query = query

    def search_sessions(self, request: SearchSessionsRequest) -> SearchSessionsResponse:
        """See `ports.Query`; likewise the other calls."""
        return self._loop.run(self._query.search_sessions(request))

    def get_session_stats(self, request: GetSessionStatsRequest) -> GetSessionStatsResponse:
        """Add up one session."""
        return self._loop.run(self._query.get_session_stats(request))

    def search_runs(self, request: SearchRunsRequest) -> SearchRunsResponse:
        """Find runs."""
        return self._loop.run(self._query.search_runs(request))

    def get_usage_summary(self, request: GetUsageSummaryRequest) -> GetUsageSummaryResponse:
        """Add up token counts."""
        return self._loop.run(self._query.get_usage_summary(request))

    def get_cost_summary(self, request: GetCostSummaryRequest) -> GetCostSummaryResponse:
        """Add up costs."""
        return self._loop.run(self._query.get_cost_summary(request))

    def search_events(self, request: SearchEventsRequest) -> SearchEventsResponse:
        """Find events."""
        return self._loop.run(self._query.search_events(request))

    def count_events(self, request: CountEventsRequest) -> CountEventsResponse:
        """Count events."""
        return self._loop.run(self._query.count_events(request))

    def export_session(self, request: ExportSessionRequest) -> Iterator[ExportSessionResponse]:
        """Stream a session. Leaving the iteration ends the call."""
        parts = self._query.export_session(request)
        try:
            yield from self._loop.iterate(parts)
        finally:
            self._loop.run(close_stream(parts))
