"""Watching logs: every event once, in order, whatever happens to the connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

import grpc.aio

from turndock.agent.v1 import End, Skipped, WatchRequest, WatchResponse
from turndock.client.host import HostCalls
from turndock.client.payloads import Payloads
from turndock.client.streams import OnLost, OnResumed, ResumedStream
from turndock.errors import TurndockError
from turndock.types.v1 import Cursor, Event

Seen = TypeVar("Seen")

Locate = Callable[[], Awaitable[Iterable[Cursor]]]
"""Finds out where to begin."""

_STOPPING: Final = TurndockError("SERVER_STOPPING", "the server stops")


class Watching(ABC, AsyncIterator[Seen], Generic[Seen]):
    """What happens in one or several sessions: from any place in their logs, and on as it happens.

    A lost connection is made again where the reader stands; no event comes twice or out of order. Payloads that were
    too large for the log are read back; an event whose payload is gone comes with `offloaded`, its reference, instead.
    `async with` waits until the watch stands, and ends it. Iteration ends when the server says that nothing more will
    come (`end`), and when the watch was closed.

    Iteration raises `TurndockError`: SEQUENCE_COMPACTED, SEQUENCE_IN_FUTURE, SESSION_RECREATED, SESSION_NOT_FOUND and
    whatever else the server refuses; UNAVAILABLE after as many tries in a row as the watch was given.
    """

    def __init__(
        self,
        host: HostCalls,
        request: WatchRequest,
        locate: Locate,
        *,
        tries: int | None,
        on_lost: OnLost | None = None,
        on_resumed: OnResumed | None = None,
    ) -> None:
        self.skipped: list[Skipped] = []
        """Ranges of numbers that were pruned and cannot be delivered, as they were met."""
        self.end: End.Reason.ValueType | None = None
        """Why the server ended the watch; None = it did not."""
        self._host = host
        self._payloads = Payloads(host)
        self._request = request
        self._locate = locate
        self._places: dict[str, Cursor] = {}
        self._stream = ResumedStream(
            self._call, host.retry, tries=tries, on_lost=on_lost, on_resumed=on_resumed
        )
        self._first: WatchResponse | None = None
        self._more: deque[WatchResponse] = deque()
        """Frames that came in one message with the one before."""
        self._seen = self._see()

    @property
    def cursors(self) -> list[Cursor]:
        """Where to go on after what was yielded last, for another watch in another process; empty before it stands."""
        return [_copy(place) for place in self._places.values()]

    async def opened(self) -> Self:
        """Wait until the watch stands: whatever happens from now on will be seen. Raises as iteration does."""
        if self._first is None:
            self._first = await self._next_frame()
        return self

    def close(self) -> None:
        """Stop. Iteration ends at its next step; may be called while another task iterates."""
        self._stream.close()

    async def aclose(self) -> None:
        """Stop, and leave nothing behind. Not while another task iterates."""
        self.close()
        await self._seen.aclose()

    async def __aenter__(self) -> Self:
        return await self.opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Seen]:
        return self._seen  # one layer less for each event

    async def __anext__(self) -> Seen:
        return await anext(self._seen)

    @abstractmethod
    def _unpack(self, frame: WatchResponse, place: Cursor) -> Iterator[Seen]:
        """What the reader gets of a frame; moves `place` along."""

    async def _see(self) -> AsyncGenerator[Seen]:
        try:
            while (frame := await self._next_frame()) is not None:
                place = self._places.setdefault(frame.cursor.session_id, Cursor())
                if frame.HasField("skipped"):
                    self.skipped.append(frame.skipped)
                if frame.HasField("end") and frame.end.reason == End.REASON_SERVER_STOPPING:
                    self._more.clear()
                    self._stream.interrupt(_STOPPING)
                    continue
                if not await self._payloads.put_back(frame.batch.events, self._stream):
                    self._more.clear()
                    continue  # the frame comes again
                for seen in self._unpack(frame, place):
                    yield seen
                place.CopyFrom(frame.cursor)
                if frame.HasField("end"):
                    self.end = frame.end.reason
                    return
        finally:
            self._stream.close()

    async def _next_frame(self) -> WatchResponse | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if not self._places:
            self._places = {cursor.session_id: _copy(cursor) for cursor in await self._locate()}
        if self._more:
            return self._more.popleft()
        message = await self._stream.read()
        if message is not None and message.more:
            self._more.extend(message.more)
            del message.more[:]
        return message

    def _call(self) -> grpc.aio.UnaryStreamCall[WatchRequest, WatchResponse]:
        request = WatchRequest()
        request.CopyFrom(self._request)
        request.cursors.extend(self._places.values())
        request.packed = True
        return self._host.stub.Watch(request, metadata=self._host.metadata)


class Watch(Watching[Event]):
    """A watch that yields events."""

    def _unpack(self, frame: WatchResponse, place: Cursor) -> Iterator[Event]:
        place.incarnation = frame.cursor.incarnation
        for event in _new_events(frame, place):
            place.after_sequence = event.sequence
            yield event


class FrameWatch(Watching[WatchResponse]):
    """A watch that yields frames: as Watch does, but for events that were delivered before.

    `created` and `caught_up` come again after each lost connection; `end` because the server stops does not come.
    """

    def _unpack(self, frame: WatchResponse, place: Cursor) -> Iterator[WatchResponse]:
        if frame.HasField("batch"):
            new = list(_new_events(frame, place))
            if len(new) < len(frame.batch.events):
                frame = WatchResponse(cursor=frame.cursor)
                frame.batch.events.extend(new)
            if not new:
                return
        place.CopyFrom(frame.cursor)
        yield frame


def _new_events(frame: WatchResponse, place: Cursor) -> Iterator[Event]:
    """Events of a frame that are beyond the place, in order."""
    last = place.after_sequence
    for event in frame.batch.events:
        if event.sequence > last:
            last = event.sequence
            yield event


def _copy(cursor: Cursor) -> Cursor:
    copy = Cursor()
    copy.CopyFrom(cursor)
    return copy
