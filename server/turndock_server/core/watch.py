"""Watch: cursors over the committed logs of one or several sessions, live.

Frames are handed on encoded: a batch is the joined bytes of its events, which is what protobuf would make of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import partial

from turndock import events
from turndock.agent.v1 import (
    AgentStatus,
    CaughtUp,
    Created,
    End,
    Progress,
    Skipped,
    WatchRequest,
    WatchResponse,
)
from turndock.errors import TurndockError, not_found
from turndock.ports import SessionStore
from turndock.store.v1 import GetEventsRequest
from turndock.types.v1 import Cursor
from turndock_server.core.feed import (
    MAX_BATCH_BYTES,
    MAX_BATCH_EVENTS,
    AgentKey,
    Feed,
    Frame,
    LogPage,
    Tail,
    encode_frame,
    take_batch,
)
from turndock_server.core.wireformat import elements, varint

_CURSOR_TAG = b"\x0a"
_AFTER_TAG = b"\x18"
_BATCH_TAG = b"\x1a"
_MORE_TAG = b"\x4a"


ReadLog = Callable[[AgentKey, int, int], Awaitable[LogPage]]
"""Reads at most so many frames of a session that follow a number."""


def read_log_of(store: SessionStore) -> ReadLog:
    """Reading through the port, for a store that has no faster way."""

    async def read(key: AgentKey, after: int, limit: int) -> LogPage:
        page = await store.get_events(
            GetEventsRequest(
                scope=key.scope, session_id=key.session_id, after_sequence=after, limit=max(limit, 1)
            )
        )
        return LogPage(
            [encode_frame(event) for event in page.events] if limit else (),
            page.head,
            page.oldest,
            page.scanned_through,
            page.incarnation,
            page.pruned_through,
        )

    return read


@dataclass(frozen=True, slots=True)
class WatchContext:
    """What a watch needs of its host."""

    feed: Feed
    read_log: ReadLog
    run_has_ended: Callable[[AgentKey, str], Awaitable[bool]]
    status_of: Callable[[AgentKey], Awaitable[AgentStatus | None]]
    stopping: asyncio.Event


async def watch(
    context: WatchContext, scope_tenant: str | None, request: WatchRequest, *, is_fresh: bool = False
) -> AsyncGenerator[bytes]:
    """The messages of a watch, encoded. Raises `TurndockError` as the RPC's comment says.

    `is_fresh` says that all that matters comes after the cursors, and that the sessions were watched when those were
    made. Then nothing has to be asked of the store before the first event.
    """
    bell = Bell()
    with ExitStack() as tails:
        watches = [
            _SessionWatch(context, AgentKey(scope_tenant, cursor.session_id), cursor, request)
            for cursor in request.cursors
        ]
        for each in watches:
            each.tail = tails.enter_context(context.feed.watching(each.key, partial(bell.ring, each)))
        for each in watches:
            if is_fresh:
                each.begin()
            else:
                yield await each.open()
            bell.ring(each)
        while True:
            async with aclosing(_advance(bell)) as frames:
                async for message in _packed(frames) if request.packed else frames:
                    yield message
            if any(each.ended for each in watches):
                return
            if context.stopping.is_set():
                for each in watches:
                    yield each.end(End.REASON_SERVER_STOPPING)
                return
            if not await _wait(bell, request):
                for each in watches:
                    yield each.progress()


async def _advance(bell: Bell) -> AsyncGenerator[bytes]:
    """What those watches have to send now that were rung for, up to one batch of each."""
    for each in bell.due():
        frame = each.live()
        if frame is not None:
            yield frame
        else:
            async for frame in each.advance():
                yield frame
        if each.ended:
            return
        if each.has_more():
            bell.ring(each)


async def _packed(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The frames with as many in one message as fit."""
    message: list[bytes] = []
    size = 0
    async for frame in frames:
        if message and size + len(frame) > MAX_BATCH_BYTES:
            yield b"".join(message)
            message, size = [], 0
        message += (_MORE_TAG, varint(len(frame)), frame) if message else (frame,)
        size += len(frame)
    if message:
        yield b"".join(message)


async def _wait(bell: Bell, request: WatchRequest) -> bool:
    """Wait until a watch may have something; False when it is time for a sign of life."""
    if bell.has_due:
        return True
    try:
        async with asyncio.timeout(
            request.progress_interval_ms / 1000 if request.HasField("progress_interval_ms") else None
        ):
            await bell.rung()
    except TimeoutError:
        return False
    if request.max_delay_ms:
        await asyncio.sleep(request.max_delay_ms / 1000)
    return True


class Bell:
    """Rung for a session's watch when there may be something for it to send. For one who waits."""

    __slots__ = ("_due", "_waiter")

    def __init__(self) -> None:
        self._due: dict[_SessionWatch, None] = {}
        """In the order in which they were rung for."""
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_due(self) -> bool:
        """Whether it was rung since `due`."""
        return bool(self._due)

    def ring(self, each: _SessionWatch) -> None:
        """There may be something for this one."""
        self._due[each] = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def due(self) -> list[_SessionWatch]:
        """For whom it was rung since the last time."""
        due = list(self._due)
        self._due.clear()
        return due

    async def rung(self) -> None:
        """Wait until it is rung."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class _SessionWatch:
    """One session's part of a watch: a cursor."""

    tail: Tail

    def __init__(self, context: WatchContext, key: AgentKey, cursor: Cursor, request: WatchRequest) -> None:
        self.key = key
        self.ended = False
        self._context = context
        self._after = cursor.after_sequence
        self._incarnation = cursor.incarnation
        self._types = frozenset(request.types)
        self._run_id = request.run_id
        self._filtered = bool(self._types or self._run_id)
        self._until_terminal = request.until_terminal
        self._with_status = request.with_status
        self._status_version = -1
        self._head_at_start = 0
        self._caught_up = False
        self._cursor_head = b""

    def begin(self) -> None:
        """Take the cursor as it is."""
        self._cursor_head = Cursor(
            session_id=self.key.session_id, incarnation=self._incarnation
        ).SerializeToString()
        self._caught_up = True

    async def open(self) -> bytes:
        """Check the cursor and say where the log stands."""
        page = await self._context.read_log(self.key, self._after, 1)
        if not page.incarnation:
            raise not_found("session", self.key.session_id)
        if self._incarnation and self._incarnation != page.incarnation:
            raise TurndockError(
                "SESSION_RECREATED",
                f"session {self.key.session_id!r} was deleted and made again since the cursor was made",
                metadata={"incarnation": page.incarnation},
            )
        if self._after > page.head:
            raise TurndockError(
                "SEQUENCE_IN_FUTURE",
                f"after_sequence {self._after} is beyond the log's head {page.head}",
                metadata={"head": str(page.head)},
            )
        nothing_left = not page.frames or page.frames[0][0] > page.pruned_through
        if self._after < page.pruned_through and nothing_left:
            raise TurndockError(
                "SEQUENCE_COMPACTED",
                f"events up to {page.pruned_through} were pruned",
                metadata={"oldest": str(page.oldest), "pruned_through": str(page.pruned_through)},
            )
        self._incarnation = page.incarnation
        self._cursor_head = Cursor(
            session_id=self.key.session_id, incarnation=page.incarnation
        ).SerializeToString()
        self._head_at_start = page.head
        self.tail.head = max(self.tail.head, page.head)
        return self._frame(created=Created(head=page.head, oldest=page.oldest))

    def has_more(self) -> bool:
        """Whether `advance` would send something now."""
        return (
            self._after < self.tail.head
            or self.tail.deleted
            or not self._caught_up
            or (self._with_status and self._status_version != self.tail.status_version)
        )

    def live(self) -> bytes | None:
        """The next batch, when there is nothing to be done but to hand on what the tail has; else None."""
        tail = self.tail
        if not self._caught_up or self._filtered or tail.deleted or not tail.covers(self._after):
            return None
        chunks, self._after = tail.batch(self._after)
        return self._batch(chunks)

    async def advance(self) -> AsyncIterator[bytes]:
        """Everything there is to send now, up to one batch."""
        if self.tail.deleted:
            yield self.end(End.REASON_SESSION_DELETED)
            return
        if self._after < self.tail.head:
            async for frame in self._events():
                yield frame
            if self.ended:
                return
        if not self._caught_up and self._after >= self._head_at_start:
            self._caught_up = True
            yield self._frame(caught_up=CaughtUp(head=self.tail.head))
            if self._until_terminal and await self._context.run_has_ended(self.key, self._run_id):
                # Its terminal may have been committed since: read up to it before ending.
                page = await self._context.read_log(self.key, self._after, 1)
                self.tail.head = max(self.tail.head, page.head)
                if self._after >= page.head:
                    yield self.end(End.REASON_TERMINAL)
                    return
        if self._with_status and self._status_version != self.tail.status_version:
            status = self.tail.status or await self._context.status_of(self.key)
            self._status_version = self.tail.status_version
            if status is not None:
                yield self._frame(status=status)

    async def _events(self) -> AsyncIterator[bytes]:
        if not self._filtered and self.tail.covers(self._after):
            chunks, last = self.tail.batch(self._after)
            self._after = last
            yield self._batch(chunks)
            return
        if self.tail.covers(self._after):
            frames: Sequence[Frame] = self.tail.frames(self._after)
            through = frames[-1][0]
        else:
            page = await self._context.read_log(self.key, self._after, MAX_BATCH_EVENTS)
            if page.incarnation != self._incarnation:
                yield self.end(End.REASON_SESSION_DELETED)
                return
            frames = take_batch(page.frames)
            if not self._filtered and frames and frames[-1][0] == self._after + len(frames):
                self._after += len(frames)  # Nothing is missing and nothing left out.
                yield self._batch(elements([body for *_, body in frames]))
                return
            # No further than the store says it looked: what it committed since is still to come.
            through = frames[-1][0] if frames else page.scanned_through or page.head
        for part in self._cut_at_holes(frames, through):
            yield part

    def _cut_at_holes(self, frames: Sequence[Frame], through: int) -> Iterable[bytes]:
        """Batches of what passes the filter, and a notice for each range that is not stored any more."""
        run: list[bytes] = []
        for sequence, event_type, run_id, body in frames:
            if sequence > self._after + 1:
                if run:
                    yield self._batch(elements(run))
                    run = []
                yield self._skip_to(sequence - 1)
            self._after = sequence
            if (not self._types or event_type in self._types) and (
                not self._run_id or run_id == self._run_id
            ):
                run.append(body)
            if self._until_terminal and run_id == self._run_id and event_type in events.RUN_TERMINAL:
                if run:
                    yield self._batch(elements(run))
                yield self.end(End.REASON_TERMINAL)
                return
        if run:
            yield self._batch(elements(run))
        if through > self._after:
            yield self._skip_to(through)

    def _skip_to(self, last: int) -> bytes:
        first, self._after = self._after + 1, last
        return self._frame(skipped=Skipped(from_sequence=first, to_sequence=last))

    def progress(self) -> bytes:
        """A sign of life."""
        return self._frame(progress=Progress(head=self.tail.head))

    def end(self, reason: End.Reason.ValueType) -> bytes:
        """The last frame."""
        self.ended = True
        return self._frame(end=End(reason=reason))

    def _cursor(self) -> Cursor:
        return Cursor(
            session_id=self.key.session_id, incarnation=self._incarnation, after_sequence=self._after
        )

    def _batch(self, chunks: bytes) -> bytes:
        place = varint(self._after)
        size = varint(len(self._cursor_head) + 1 + len(place))
        return b"".join(
            (
                _CURSOR_TAG,
                size,
                self._cursor_head,
                _AFTER_TAG,
                place,
                _BATCH_TAG,
                varint(len(chunks)),
                chunks,
            )
        )

    def _frame(
        self,
        *,
        created: Created | None = None,
        skipped: Skipped | None = None,
        caught_up: CaughtUp | None = None,
        progress: Progress | None = None,
        status: AgentStatus | None = None,
        end: End | None = None,
    ) -> bytes:
        return WatchResponse(
            cursor=self._cursor(),
            created=created,
            skipped=skipped,
            caught_up=caught_up,
            progress=progress,
            status=status,
            end=end,
        ).SerializeToString()
