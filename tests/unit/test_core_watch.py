"""Watches over logs with holes, logs that were cut, deleted and made anew."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from turndock.agent.v1 import AgentStatus, End, WatchRequest, WatchResponse
from turndock.errors import TurndockError
from turndock.types.v1 import Cursor, Event, EventType, MessageStreamed
from turndock_server.core.feed import AgentKey, Feed, LogPage, encode_frame
from turndock_server.core.watch import WatchContext, watch

KEY = AgentKey(None, "ses_1")
TEXT = EventType.EVENT_TYPE_MESSAGE_STREAMED
DONE = EventType.EVENT_TYPE_RUN_COMPLETED


@dataclass
class Log:
    """A log in memory, with holes if a test makes some."""

    events: dict[int, Event] = field(default_factory=dict[int, Event])
    head: int = 0
    pruned_through: int = 0
    incarnation: str = "first"
    page: int = 3
    """Most events of a page, so that small tests turn pages too."""
    reads: int = 0

    def add(self, count: int = 1, *, run_id: str = "", event_type: EventType.ValueType = TEXT) -> list[Event]:
        added: list[Event] = []
        for _ in range(count):
            self.head += 1
            text = MessageStreamed(text=str(self.head))
            event = Event(sequence=self.head, type=event_type, run_id=run_id, message_streamed=text)
            self.events[self.head] = event
            added.append(event)
        return added

    def prune(self, *numbers: int) -> None:
        for number in numbers:
            del self.events[number]
        self.pruned_through = max(self.pruned_through, *numbers)

    async def read(self, key: AgentKey, after: int, limit: int) -> LogPage:
        self.reads += 1
        if key != KEY:
            return LogPage((), 0, 0, after, "", 0)
        found = [event for number, event in sorted(self.events.items()) if number > after]
        page = found[: min(limit, self.page)]
        through = page[-1].sequence if len(page) < len(found) else self.head
        oldest = min(self.events, default=0)
        frames = [encode_frame(event) for event in page]
        return LogPage(frames, self.head, oldest, through, self.incarnation, self.pruned_through)


class Watching:
    """A watch, told in short: numbers for batches, tuples for skipped ranges, names for the rest."""

    def __init__(self, log: Log, feed: Feed | None = None, **fields: Any) -> None:
        self.log = log
        self.feed = feed or Feed()
        self.stopping = asyncio.Event()
        self.ended_runs: set[str] = set()
        self.cursor = Cursor()
        context = WatchContext(self.feed, log.read, self._has_ended, self._status, self.stopping)
        cursors = fields.pop("cursors", [Cursor(session_id="ses_1", after_sequence=fields.pop("after", 0))])
        self.frames: AsyncGenerator[bytes] = watch(context, None, WatchRequest(cursors=cursors, **fields))

    async def _has_ended(self, _: AgentKey, run_id: str) -> bool:
        return run_id in self.ended_runs

    async def _status(self, _: AgentKey) -> AgentStatus:
        return AgentStatus(agent_name="a1")

    async def next(self) -> Any:
        """The next frame; it must come within a moment."""
        async with asyncio.timeout(5):
            frame = WatchResponse.FromString(await anext(self.frames))
        self.cursor = frame.cursor
        match frame.WhichOneof("frame"):
            case "batch":
                return [event.sequence for event in frame.batch.events]
            case "skipped":
                return (frame.skipped.from_sequence, frame.skipped.to_sequence)
            case "end":
                return End.Reason.Name(frame.end.reason).removeprefix("REASON_")
            case name:
                return name

    async def until(self, last: object) -> list[Any]:
        """The frames up to that one, without it."""
        told: list[Any] = []
        while (frame := await self.next()) != last:
            told.append(frame)
        return told

    async def all(self) -> list[Any]:
        """The frames up to the end of the stream."""
        told: list[Any] = []
        try:
            while True:
                told.append(await self.next())
        except StopAsyncIteration:
            return told

    async def waits(self) -> bool:
        """Whether nothing comes; the watch goes on."""
        asking = asyncio.ensure_future(self.next())
        for _ in range(20):
            await asyncio.sleep(0)
        waiting = not asking.done()
        self.pending = asking
        return waiting


async def test_the_frames_of_a_quiet_log() -> None:
    log = Log()
    log.add(5)
    watching = Watching(log)
    async with aclosing(watching.frames):
        assert await watching.next() == "created"
        assert watching.cursor == Cursor(session_id="ses_1", incarnation="first")
        assert await watching.next() == [1, 2, 3]
        assert watching.cursor.after_sequence == 3
        assert await watching.until("caught_up") == [[4, 5]]
        assert await watching.waits()
        watching.feed.publish(KEY, log.add(2))
        assert await watching.pending == [6, 7]


async def test_live_events_come_from_the_tail_and_not_from_the_store() -> None:
    log = Log()
    watching = Watching(log)
    async with aclosing(watching.frames):
        assert await watching.until("caught_up") == ["created"]
        reads = log.reads
        for number in range(1, 30):
            watching.feed.publish(KEY, log.add())
            assert await watching.next() == [number]
        assert log.reads == reads


async def test_a_watcher_that_lags_falls_back_to_the_store() -> None:
    log = Log(page=100)
    watching = Watching(log)
    async with aclosing(watching.frames):
        assert await watching.until("caught_up") == ["created"]
        watching.feed.publish(KEY, log.add(3))
        log.add(3)  # committed, but not told here
        watching.feed.publish(KEY, log.add(2))
        told: list[int] = []
        while len(told) < 8:
            told += await watching.next()
        assert told == list(range(1, 9))


async def test_holes_are_named() -> None:
    log = Log()
    log.add(12)
    log.prune(2, 3, 6, 11, 12)
    watching = Watching(log)
    async with aclosing(watching.frames):
        assert await watching.until("caught_up") == [
            "created",
            [1],
            (2, 3),
            [4, 5],
            (6, 6),
            [7, 8, 9],
            [10],
            (11, 12),
        ]
        assert watching.cursor.after_sequence == 12
        watching.feed.publish(KEY, log.add())
        assert await watching.next() == [13]


async def test_PF_B39_a_cursor_below_the_floor_gets_what_is_left_after_it() -> None:
    log = Log()
    log.add(10)
    log.prune(1, 2, 3, 5, 6)
    survivor = Watching(log, after=3)
    async with aclosing(survivor.frames):
        assert await survivor.until("caught_up") == ["created", [4], (5, 6), [7, 8], [9, 10]]


async def test_PF_B39_a_cursor_below_the_floor_with_nothing_left_there_is_told_so() -> None:
    log = Log()
    log.add(10)
    log.prune(1, 2, 3, 4, 5)
    for after in (0, 4):
        watching = Watching(log, after=after)
        with pytest.raises(TurndockError) as caught:
            await watching.next()
        assert caught.value.reason == "SEQUENCE_COMPACTED"
        assert caught.value.metadata == {"oldest": "6", "pruned_through": "5"}
    at_the_floor = Watching(log, after=5)
    async with aclosing(at_the_floor.frames):
        assert await at_the_floor.until("caught_up") == ["created", [6, 7, 8], [9, 10]]


async def test_a_log_of_which_nothing_is_left() -> None:
    log = Log()
    log.add(3)
    log.prune(1, 2, 3)
    with pytest.raises(TurndockError, match="SEQUENCE_COMPACTED"):
        await Watching(log).next()
    watching = Watching(log, after=3)
    async with aclosing(watching.frames):
        assert await watching.until("caught_up") == ["created"]
        watching.feed.publish(KEY, log.add())
        assert await watching.next() == [4]


async def test_what_is_committed_while_the_store_is_read_is_not_skipped() -> None:
    """A store that read its events before its head must not make a watch jump over what came in between."""
    log = Log()
    log.add(3)
    log.prune(3)
    read, late = log.read, log.add

    async def slow_read(key: AgentKey, after: int, limit: int) -> LogPage:
        page = await read(key, after, limit)
        if after == 2 and log.head == 3:
            watching.feed.publish(KEY, late())
            page = LogPage(page.frames, log.head, page.oldest, page.scanned_through, page.incarnation, 3)
        return page

    log.read = slow_read  # type: ignore[method-assign]  # as a store with two statements behaves
    watching = Watching(log)
    async with aclosing(watching.frames):
        told = [await watching.next() for _ in range(5)]
    assert told == ["created", [1, 2], (3, 3), "caught_up", [4]]


@pytest.mark.parametrize(
    ("cursor", "reason"),
    [
        (Cursor(session_id="ses_1", after_sequence=4), "SEQUENCE_IN_FUTURE"),
        (Cursor(session_id="ses_1", incarnation="second"), "SESSION_RECREATED"),
        (Cursor(session_id="ses_2"), "SESSION_NOT_FOUND"),
    ],
)
async def test_a_cursor_that_fits_nothing_is_refused(cursor: Cursor, reason: str) -> None:
    log = Log()
    log.add(3)
    watching = Watching(log, cursors=[cursor])
    with pytest.raises(TurndockError) as caught:
        await watching.next()
    assert caught.value.reason == reason
    assert not watching.feed.watched(KEY)


async def test_a_run_that_has_ended_is_replayed_and_the_watch_ends() -> None:
    log = Log()
    log.add(2, run_id="r1")
    log.add(1, run_id="r2")
    log.add(1, run_id="r1", event_type=DONE)
    log.add(4, run_id="r2")
    assert await Watching(log, run_id="r1", until_terminal=True).all() == ["created", [1, 2], [4], "TERMINAL"]


async def test_a_run_under_way_is_watched_to_its_end() -> None:
    log = Log()
    log.add(1, run_id="r1")
    watching = Watching(log, run_id="r1", until_terminal=True)
    assert await watching.until("caught_up") == ["created", [1]]
    watching.feed.publish(KEY, log.add(2, run_id="r2"))
    watching.feed.publish(KEY, log.add(1, run_id="r2", event_type=DONE))
    watching.feed.publish(
        KEY, [*log.add(1, run_id="r1"), *log.add(1, run_id="r1", event_type=DONE), *log.add(1)]
    )
    assert await watching.all() == [[5, 6], "TERMINAL"]
    assert watching.cursor.after_sequence == 6


async def test_a_run_whose_terminal_was_pruned_ends_the_watch_all_the_same() -> None:
    log = Log()
    log.add(1, run_id="r1")
    log.add(1, run_id="r1", event_type=DONE)
    log.prune(2)
    watching = Watching(log, run_id="r1", until_terminal=True)
    watching.ended_runs.add("r1")
    assert await watching.all() == ["created", [1], (2, 2), "caught_up", "TERMINAL"]


async def test_types_that_are_not_wanted_still_move_the_cursor() -> None:
    log = Log()
    log.add(4)
    log.add(1, event_type=DONE)
    log.add(4)
    watching = Watching(log, types=[DONE])
    async with aclosing(watching.frames):
        assert await watching.until("caught_up") == ["created", [5]]
        assert watching.cursor.after_sequence == 9


async def test_a_deleted_session_ends_its_watch() -> None:
    log = Log()
    log.add(1)
    watching = Watching(log)
    assert await watching.until("caught_up") == ["created", [1]]
    watching.feed.deleted(KEY)
    assert await watching.all() == ["SESSION_DELETED"]


async def test_a_session_that_was_made_anew_meanwhile_ends_its_watch() -> None:
    log = Log()
    log.add(5)
    watching = Watching(log)
    assert await watching.next() == "created"
    log.incarnation = "second"
    assert await watching.all() == ["SESSION_DELETED"]


async def test_a_host_that_stops_ends_every_watch_with_its_cursor() -> None:
    log = Log()
    log.add(2)
    watching = Watching(log)
    assert await watching.until("caught_up") == ["created", [1, 2]]
    watching.stopping.set()
    watching.feed.wake_all()
    assert await watching.all() == ["SERVER_STOPPING"]
    assert watching.cursor == Cursor(session_id="ses_1", incarnation="first", after_sequence=2)


async def test_a_sign_of_life_comes_when_nothing_else_does() -> None:
    log = Log()
    log.add(1)
    watching = Watching(log, progress_interval_ms=100)
    async with aclosing(watching.frames):
        assert await watching.until("progress") == ["created", [1], "caught_up"]
        assert watching.cursor.after_sequence == 1


async def test_a_slow_reader_sees_the_latest_status_alone() -> None:
    log = Log()
    watching = Watching(log, with_status=True)
    async with aclosing(watching.frames):
        assert await watching.until("status") == ["created", "caught_up"]
        for name in ("b", "c", "d"):
            watching.feed.publish_status(KEY, lambda name=name: AgentStatus(agent_name=name))  # type: ignore[misc]  # bound now
        frame = WatchResponse.FromString(await anext(watching.frames))
        assert frame.status.agent_name == "d"
        assert await watching.waits()
        watching.pending.cancel()
        await asyncio.wait((watching.pending,))


async def test_a_packed_watch_has_as_many_frames_in_a_message_as_are_ready() -> None:
    feed = Feed()
    keys = [AgentKey(None, f"ses_{number}") for number in range(3)]

    async def read(key: AgentKey, after: int, limit: int) -> LogPage:
        return LogPage((), 0, 0, after, "first", 0)

    context = WatchContext(feed, read, _never, _never, asyncio.Event())
    cursors = [Cursor(session_id=key.session_id) for key in keys]
    frames = watch(context, None, WatchRequest(cursors=cursors, packed=True))

    async def message() -> list[WatchResponse]:
        async with asyncio.timeout(5):
            first = WatchResponse.FromString(await anext(frames))
        more = list(first.more)
        assert not any(each.more for each in more)
        return [first, *more]

    async with aclosing(frames):
        for key in keys:
            (created,) = await message()
            assert (created.cursor.session_id, created.WhichOneof("frame")) == (key.session_id, "created")
        caught_up = await message()
        assert [frame.WhichOneof("frame") for frame in caught_up] == ["caught_up"] * 3
        asking = asyncio.ensure_future(message())
        await asyncio.sleep(0)
        for number, key in enumerate(reversed(keys), 1):
            events = [Event(sequence=each, type=TEXT) for each in range(1, number + 1)]
            feed.publish(key, events)
        batches = await asking
        assert [frame.cursor.session_id for frame in batches] == ["ses_2", "ses_1", "ses_0"]
        assert [frame.cursor.after_sequence for frame in batches] == [1, 2, 3]
        assert [len(frame.batch.events) for frame in batches] == [1, 2, 3]
        assert {frame.cursor.incarnation for frame in batches} == {"first"}


async def test_a_packed_message_is_no_larger_than_a_batch_may_be() -> None:
    log = Log(page=1)
    log.add(3)
    for event in log.events.values():
        event.message_streamed.text = "x" * (300 << 10)
    watching = Watching(log, packed=True)
    async with aclosing(watching.frames):
        assert await watching.until([3]) == ["created", [1], [2]]


async def test_a_fresh_watch_asks_the_store_nothing() -> None:
    log = Log()
    log.add(2)
    feed = Feed()
    context = WatchContext(feed, log.read, _never, _never, asyncio.Event())
    cursor = Cursor(session_id="ses_1", incarnation="first", after_sequence=2)
    request = WatchRequest(cursors=[cursor], run_id="r1", until_terminal=True)
    with feed.watching(KEY):
        feed.publish(KEY, log.add(2, run_id="r1"))
        async with asyncio.timeout(5), aclosing(watch(context, None, request, is_fresh=True)) as messages:
            first = WatchResponse.FromString(await anext(messages))
            assert [event.sequence for event in first.batch.events] == [3, 4]
            assert first.cursor == Cursor(session_id="ses_1", incarnation="first", after_sequence=4)
            feed.publish(KEY, log.add(1, run_id="r1", event_type=DONE))
            rest = [WatchResponse.FromString(message) async for message in messages]
    assert [frame.WhichOneof("frame") for frame in rest] == ["batch", "end"]
    assert log.reads == 0


async def _never(*_: Any) -> Any:
    raise AssertionError("nobody asked for it")
