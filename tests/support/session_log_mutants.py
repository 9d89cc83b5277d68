"""Session stores whose logs break one sentence of the contract each: appending, reading, waiting, streaming."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from google.protobuf.message import Message

from turndock.errors import TurndockError
from turndock.store.v1 import (
    AppendEventsRequest,
    AppendEventsResponse,
    AppendEventWithSequenceRequest,
    AppendEventWithSequenceResponse,
    GetActiveRunRequest,
    GetActiveRunResponse,
    GetEventsRequest,
    GetEventsResponse,
    GetLatestSequenceRequest,
    GetLatestSequenceResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    SaveSessionRequest,
    SaveSessionResponse,
    WatchEventsRequest,
    WatchEventsResponse,
)
from turndock.types.v1 import Event, Page
from turndock_server.stores.memory import MemorySessionStore

M = TypeVar("M", bound=Message)


def changed(message: M, change: Callable[[M], object]) -> M:
    """A changed copy of a message."""
    copy = type(message)()
    copy.CopyFrom(message)
    change(copy)
    return copy


# --- Appending -------------------------------------------------------------------------------------------------------


class UsesNumbersForFailures(MemorySessionStore):
    """A refused append takes a number."""

    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        try:
            return await super().append_events(request)
        except TurndockError:
            if request.events and request.events[0].session_id:
                hole = Event(id=f"hole-{id(request)}", session_id=request.events[0].session_id, time_us=1)
                hole.type = request.events[0].type
                await super().append_events(AppendEventsRequest(scope=request.scope, events=[hole]))
            raise

    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        response = await super().get_events(request)
        kept = [event for event in response.events if not event.id.startswith("hole-")]
        del response.events[:]
        response.events.extend(kept)
        return response


class StoresDuplicates(MemorySessionStore):
    """A known id is stored again."""

    async def append_event_with_sequence(
        self, request: AppendEventWithSequenceRequest
    ) -> AppendEventWithSequenceResponse:
        self._database.events.clear()
        return await super().append_event_with_sequence(request)

    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        self._database.events.clear()
        return await super().append_events(request)


class StoresBatchesOneByOne(MemorySessionStore):
    """A batch that fails in the middle leaves its beginning."""

    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        response = AppendEventsResponse()
        for event in request.events:
            single = changed(request, lambda copy: copy.ClearField("events"))
            single.events.append(event)
            response.results.extend((await super().append_events(single)).results)
        return response


class KeepsPresetNumbers(MemorySessionStore):
    """Believes the sequence number a writer puts into an event."""

    async def append_event_with_sequence(
        self, request: AppendEventWithSequenceRequest
    ) -> AppendEventWithSequenceResponse:
        response = await super().append_event_with_sequence(request)
        response.result.event.sequence = request.event.sequence or response.result.event.sequence
        return response


class IgnoresExpected(MemorySessionStore):
    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        return await super().append_events(changed(request, lambda copy: copy.ClearField("expected")))


class IgnoresStrictDuplicates(MemorySessionStore):
    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        return await super().append_events(
            changed(request, lambda copy: copy.ClearField("strict_duplicates"))
        )


class IgnoresRequestIds(MemorySessionStore):
    async def save_session(self, request: SaveSessionRequest) -> SaveSessionResponse:
        return await super().save_session(changed(request, lambda copy: copy.ClearField("request_id")))


class GivesUpTheTurnBeforeItWrites(MemorySessionStore):
    """Looks whether an event is known, lets others go first, and then writes what it has decided."""

    async def append_event_with_sequence(
        self, request: AppendEventWithSequenceRequest
    ) -> AppendEventWithSequenceResponse:
        is_known = (request.scope.tenant, request.event.id) in self._database.events
        await asyncio.sleep(0)
        if not is_known:
            self._database.events.pop((request.scope.tenant, request.event.id), None)
        return await super().append_event_with_sequence(request)


class DropsWhatItDoesNotKnow(MemorySessionStore):
    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        return await super().append_events(changed(request, lambda copy: copy.DiscardUnknownFields()))


class ParsesJson(MemorySessionStore):
    """Keeps free-form data as objects, not as text."""

    async def append_event_with_sequence(
        self, request: AppendEventWithSequenceRequest
    ) -> AppendEventWithSequenceResponse:
        def parse(copy: AppendEventWithSequenceRequest) -> None:
            if copy.event.data_json:
                copy.event.data_json = json.dumps(json.loads(copy.event.data_json))

        return await super().append_event_with_sequence(changed(request, parse))


# --- Reading ---------------------------------------------------------------------------------------------------------


class TakesBoundsAsInclusive(MemorySessionStore):
    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        def widen(copy: GetEventsRequest) -> None:
            copy.after_sequence = max(0, copy.after_sequence - 1)

        return await super().get_events(changed(request, widen))


class LimitsBeforeItFilters(MemorySessionStore):
    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        def unfiltered(copy: GetEventsRequest) -> None:
            copy.ClearField("types")
            copy.ClearField("run_id")

        response = await super().get_events(changed(request, unfiltered))
        kept = [
            event
            for event in response.events
            if (not request.types or event.type in request.types) and request.run_id in {"", event.run_id}
        ]
        del response.events[:]
        response.events.extend(kept)
        return response


class SortsByTime(MemorySessionStore):
    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        response = await super().get_events(request)
        by_time = sorted(response.events, key=lambda event: (event.time_us, event.id))
        del response.events[:]
        response.events.extend(by_time)
        return response


class LowersTheCounter(MemorySessionStore):
    """A saved session's last_sequence becomes the counter."""

    def __init__(self) -> None:
        super().__init__()
        self._counters: dict[str, int] = {}

    async def save_session(self, request: SaveSessionRequest) -> SaveSessionResponse:
        self._counters[request.session.id] = request.session.last_sequence
        return await super().save_session(request)

    async def get_latest_sequence(self, request: GetLatestSequenceRequest) -> GetLatestSequenceResponse:
        response = await super().get_latest_sequence(request)
        response.sequence = self._counters.get(request.session_id) or response.sequence
        return response


class MissesTheActiveRun(MemorySessionStore):
    """GetActiveRun without a running run is an error."""

    async def get_active_run(self, request: GetActiveRunRequest) -> GetActiveRunResponse:
        response = await super().get_active_run(request)
        if not response.HasField("run"):
            raise TurndockError("RUN_NOT_FOUND", "no run is active")
        return response


class PagesByOffset(MemorySessionStore):
    """A cursor is how many rows to leave out."""

    async def list_sessions(self, request: ListSessionsRequest) -> ListSessionsResponse:
        skipped = int(request.page.cursor) if request.page.cursor.isdecimal() else 0
        limit = request.page.limit if request.page.HasField("limit") else 50
        everything = Page(limit=1_000)
        response = await super().list_sessions(changed(request, lambda copy: copy.page.CopyFrom(everything)))
        more = len(response.sessions) > skipped + limit
        response.next_cursor = str(skipped + limit) if more else ""
        del response.sessions[skipped + limit :]
        del response.sessions[:skipped]
        return response


# --- Waiting and streaming -------------------------------------------------------------------------------------------


class EndsWaitsWithAnError(MemorySessionStore):
    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        response = await super().get_events(request)
        if request.wait_ms and not response.events:
            raise TurndockError("TIMEOUT", "no event came")
        return response


class WakesForAnything(MemorySessionStore):
    """A duplicate, or an event that does not match, ends a wait."""

    def __init__(self) -> None:
        super().__init__()
        self._any_call = asyncio.Event()

    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        response = await super().append_events(request)
        self._any_call.set()
        return response

    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        reading = asyncio.ensure_future(super().get_events(request))
        waking = asyncio.ensure_future(self._any_call.wait())
        await asyncio.wait((reading, waking), return_when=asyncio.FIRST_COMPLETED)
        self._any_call.clear()
        waking.cancel()
        if not reading.done():
            reading.cancel()
            return await super().get_events(changed(request, lambda copy: copy.ClearField("wait_ms")))
        return await reading


class WaitsUnderALock(MemorySessionStore):
    """Serves one call at a time, also while one waits."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = asyncio.Lock()

    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        async with self._lock:
            return await super().get_events(request)

    async def save_session(self, request: SaveSessionRequest) -> SaveSessionResponse:
        async with self._lock:
            return await super().save_session(request)


class MissesWakeUps(MemorySessionStore):
    """Looks for events only when the wait is over."""

    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        if request.wait_ms:
            await asyncio.sleep(request.wait_ms / 1000)
        return await super().get_events(changed(request, lambda copy: copy.ClearField("wait_ms")))


class StreamsFromTheCursorOn(MemorySessionStore):
    """A stream begins with the event its watcher has already."""

    async def watch_events(self, request: WatchEventsRequest) -> AsyncIterator[WatchEventsResponse]:
        def widen(copy: WatchEventsRequest) -> None:
            copy.after_sequence = max(0, copy.after_sequence - 1)

        async for response in super().watch_events(changed(request, widen)):
            yield response


class StreamsOnAcrossLives(MemorySessionStore):
    """A stream goes on after the last number it sent, whatever became of the session."""

    async def watch_events(self, request: WatchEventsRequest) -> AsyncIterator[WatchEventsResponse]:
        sent = request.after_sequence
        async for response in super().watch_events(request):
            fresh = [event for event in response.events if event.sequence > sent]
            if fresh:
                sent = fresh[-1].sequence
                yield WatchEventsResponse(events=fresh, head=response.head)
