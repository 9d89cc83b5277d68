"""Queries that break one sentence of their contract each, and the case that must find out."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from turndock.errors import TurndockError, invalid
from turndock.store.v1 import (
    CountEventsRequest,
    CountEventsResponse,
    ExportEnd,
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
from turndock.types.v1 import Event, EventBatch, Usage
from turndock_server.stores.memory.query import MemoryQuery

M = TypeVar("M", bound=Message)


def changed(message: M, **fields: object) -> M:
    """A copy with other fields."""
    result = type(message)()
    result.CopyFrom(message)
    for name, value in fields.items():
        if value is None:
            result.ClearField(name)
        else:
            setattr(result, name, value)
    return result


# --- Pages -----------------------------------------------------------------------------------------------------------


class CountsThePage(MemoryQuery):
    """total_count is that of the page."""

    async def search_sessions(self, request: SearchSessionsRequest) -> SearchSessionsResponse:
        answer = await super().search_sessions(request)
        return changed(answer, total_count=len(answer.sessions))


class ForgetsTheLastCursor(MemoryQuery):
    """The last page has no cursor."""

    async def search_sessions(self, request: SearchSessionsRequest) -> SearchSessionsResponse:
        answer = await super().search_sessions(request)
        following = await super().search_sessions(_behind(request, answer.next_cursor))
        return answer if following.sessions else changed(answer, next_cursor="")


class PagesByOffset(MemoryQuery):
    """A cursor is a number of rows."""

    async def search_sessions(self, request: SearchSessionsRequest) -> SearchSessionsResponse:
        cursor = request.page.cursor
        try:
            offset = int(base64.b64decode(cursor)) if cursor else 0
        except ValueError:
            raise invalid("page.cursor", "is no cursor", reason="INVALID_CURSOR") from None
        everything = changed(request)
        everything.page.limit, everything.page.cursor = 1000, ""
        answer = await super().search_sessions(everything)
        rows = answer.sessions[offset : offset + (request.page.limit or 50)]
        following = base64.b64encode(str(offset + len(rows)).encode()).decode() if rows else ""
        return SearchSessionsResponse(sessions=rows, next_cursor=following, total_count=answer.total_count)


class TakesAnyLimit(MemoryQuery):
    """A limit out of bounds is brought within them."""

    async def search_runs(self, request: SearchRunsRequest) -> SearchRunsResponse:
        taken = changed(request)
        if taken.page.HasField("limit"):
            taken.page.limit = min(max(taken.page.limit, 1), 1000)
        return await super().search_runs(taken)


class IgnoresFiltersInCursors(MemoryQuery):
    """A cursor fits other filters."""

    async def search_events(self, request: SearchEventsRequest) -> SearchEventsResponse:
        plain = changed(request, filter=None)
        plain.page.limit = 1000
        answer = await super().search_events(plain)
        return changed(answer)


class Unpickles(MemoryQuery):
    """A cursor is a pickled object."""

    async def search_runs(self, request: SearchRunsRequest) -> SearchRunsResponse:
        inner = changed(request)
        if request.page.cursor:
            inner.page.cursor = pickle.loads(base64.urlsafe_b64decode(request.page.cursor))
        answer = await super().search_runs(inner)
        if not answer.next_cursor:
            return answer
        return changed(
            answer, next_cursor=base64.urlsafe_b64encode(pickle.dumps(answer.next_cursor)).decode()
        )


class TrustsCursors(MemoryQuery):
    """A cursor has no checksum."""

    async def search_events(self, request: SearchEventsRequest) -> SearchEventsResponse:
        inner = changed(request)
        if request.page.cursor:
            try:
                inner.page.cursor = json.loads(base64.urlsafe_b64decode(request.page.cursor))["cursor"]
            except (ValueError, KeyError, TypeError):
                inner.page.cursor = ""
        answer = await super().search_events(inner)
        if not answer.next_cursor:
            return answer
        text = json.dumps({"cursor": answer.next_cursor})
        return changed(answer, next_cursor=base64.urlsafe_b64encode(text.encode()).decode())


# --- Filters and orders ----------------------------------------------------------------------------------------------


class TakesAnyTag(MemoryQuery):
    """One of the tags is enough."""

    async def search_sessions(self, request: SearchSessionsRequest) -> SearchSessionsResponse:
        if len(request.tags) < 2:
            return await super().search_sessions(request)
        return await super().search_sessions(changed(request, tags=None))


class ShowsDeletedSessions(MemoryQuery):
    """Soft-deleted sessions are found without being asked for."""

    async def search_sessions(self, request: SearchSessionsRequest) -> SearchSessionsResponse:
        return await super().search_sessions(changed(request, include_deleted=True))


class TakesBoundsAsExclusive(MemoryQuery):
    """Bounds in time are exclusive."""

    async def search_runs(self, request: SearchRunsRequest) -> SearchRunsResponse:
        narrowed = changed(request)
        if narrowed.HasField("started_after_us"):
            narrowed.started_after_us += 1
        return await super().search_runs(narrowed)


class IgnoresUnknownTypes(MemoryQuery):
    """Types nobody knows are left out of the filter."""

    async def count_events(self, request: CountEventsRequest) -> CountEventsResponse:
        known = changed(request)
        del known.filter.types[:]
        known.filter.types.extend(number for number in request.filter.types if 0 < number < 29)
        return await super().count_events(known)


class CountsMoreThanItFinds(MemoryQuery):
    """CountEvents knows no providers."""

    async def count_events(self, request: CountEventsRequest) -> CountEventsResponse:
        wider = changed(request)
        wider.filter.ClearField("providers")
        return await super().count_events(wider)


# --- Sums ------------------------------------------------------------------------------------------------------------


class ReportsZeros(MemoryQuery):
    """A count no run reported is 0."""

    async def get_usage_summary(self, request: GetUsageSummaryRequest) -> GetUsageSummaryResponse:
        answer = await super().get_usage_summary(request)
        totals = Usage(input_tokens=0, output_tokens=0, total_tokens=0)
        totals.MergeFrom(answer.totals)
        result = changed(answer)
        result.totals.CopyFrom(totals)
        return result


class HasUnmappedRunsForFree(MemoryQuery):
    """Runs without a price cost nothing, and nobody hears of them."""

    async def get_cost_summary(self, request: GetCostSummaryRequest) -> GetCostSummaryResponse:
        return changed(await super().get_cost_summary(request), unmapped_runs=0)


class MakesUpSessions(MemoryQuery):
    """An unknown session has stats of nothing."""

    async def get_session_stats(self, request: GetSessionStatsRequest) -> GetSessionStatsResponse:
        try:
            return await super().get_session_stats(request)
        except TurndockError:
            return GetSessionStatsResponse()


class AddsUpEveryScope(MemoryQuery):
    """Usage is that of every scope."""

    async def get_usage_summary(self, request: GetUsageSummaryRequest) -> GetUsageSummaryResponse:
        answers = GetUsageSummaryResponse(totals=Usage())
        for tenant in {key[0] for key in self._database.records}:
            elsewhere = changed(request)
            elsewhere.scope.tenant = tenant
            part = await super().get_usage_summary(elsewhere)
            answers.run_count += part.run_count
            answers.totals.input_tokens += part.totals.input_tokens
            answers.by_provider.extend(part.by_provider)
        return answers


# --- Export ----------------------------------------------------------------------------------------------------------


class ExportsWhatComesSince(MemoryQuery):
    """Events that are written while an export is read are part of it."""

    async def export_session(self, request: ExportSessionRequest) -> AsyncGenerator[ExportSessionResponse]:
        record = self._saved(request, request.session_id)
        async for part in super().export_session(request):
            if part.HasField("events"):
                part = ExportSessionResponse(  # noqa: PLW2901 - what it becomes
                    events=EventBatch(events=[each.message() for each in record.stored_events()])
                )
            if part.HasField("end"):
                part.end.event_count = len(record.stored_events())
            yield part


class ExportsWhatItKnows(MemoryQuery):
    """What this release does not know is left out."""

    async def export_session(self, request: ExportSessionRequest) -> AsyncGenerator[ExportSessionResponse]:
        async for part in super().export_session(request):
            kept = [_known(event) for event in part.events.events]
            yield ExportSessionResponse(events=EventBatch(events=kept)) if kept else part


class BreaksOff(MemoryQuery):
    """An export ends when there are no more events, without a word."""

    async def export_session(self, request: ExportSessionRequest) -> AsyncGenerator[ExportSessionResponse]:
        async for part in super().export_session(request):
            if not part.HasField("end"):
                yield part


class EndsWithoutFigures(MemoryQuery):
    """The end of an export says nothing."""

    async def export_session(self, request: ExportSessionRequest) -> AsyncGenerator[ExportSessionResponse]:
        async for part in super().export_session(request):
            yield ExportSessionResponse(end=ExportEnd()) if part.HasField("end") else part


def _known(event: Event) -> Event:
    event.DiscardUnknownFields()
    return event


def _behind(request: SearchSessionsRequest, cursor: str) -> SearchSessionsRequest:
    result = changed(request)
    result.page.cursor = cursor
    return result


@dataclass(frozen=True)
class Mutant:
    """A broken Query, and the case that must fail."""

    query: type[MemoryQuery]
    fails: str


MUTANTS: tuple[Mutant, ...] = (
    Mutant(CountsThePage, "the_total_knows_neither_limit_nor_cursor"),
    Mutant(ForgetsTheLastCursor, "the_last_change_comes_first_and_an_empty_page_ends"),
    Mutant(PagesByOffset, "untouched_sessions_are_seen_once_while_others_change"),
    Mutant(TakesAnyLimit, "limits_are_from_1_to_1000"),
    Mutant(IgnoresFiltersInCursors, "a_cursor_fits_only_its_call_its_order_its_filters_and_its_scope"),
    Mutant(Unpickles, "a_cursor_that_was_tampered_with_is_refused"),
    Mutant(TrustsCursors, "a_cursor_that_was_tampered_with_is_refused"),
    Mutant(TakesAnyTag, "sessions_are_found_by_all_their_tags"),
    Mutant(ShowsDeletedSessions, "deleted_sessions_are_hidden_unless_asked_for"),
    Mutant(TakesBoundsAsExclusive, "runs_are_found_by_what_they_are"),
    Mutant(IgnoresUnknownTypes, "types_nobody_knows_are_refused"),
    Mutant(CountsMoreThanItFinds, "events_are_found_by_what_they_are_and_counted_alike"),
    Mutant(ReportsZeros, "counts_that_were_not_reported_are_unset_and_totals_are_made_up_for"),
    Mutant(HasUnmappedRunsForFree, "tokens_without_a_price_are_counted_not_free"),
    Mutant(MakesUpSessions, "an_unknown_session_has_no_stats"),
    Mutant(AddsUpEveryScope, "sums_have_nothing_of_another_scope"),
    Mutant(ExportsWhatComesSince, "an_export_is_of_the_moment_it_began"),
    Mutant(ExportsWhatItKnows, "nothing_is_lost_or_changed_on_the_way"),
    Mutant(BreaksOff, "an_export_is_the_session_its_runs_and_its_events"),
    Mutant(EndsWithoutFigures, "an_export_is_the_session_its_runs_and_its_events"),
)
