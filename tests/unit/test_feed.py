"""The live tail: encoded once, shared, without a gap."""

from __future__ import annotations

from collections.abc import Sequence

from turndock.agent.v1 import AgentStatus, Batch
from turndock.types.v1 import EVENT_TYPE_MESSAGE_STREAMED, Event, MessageStreamed
from turndock_server.core.feed import (
    MAX_BATCH_BYTES,
    MAX_BATCH_EVENTS,
    MAX_BLOCK_BYTES,
    MAX_TAIL_BLOCKS,
    AgentKey,
    Block,
    Feed,
    Tail,
    blocks_of,
    frame_of,
)
from turndock_server.core.wireformat import varint

KEY = AgentKey(None, "session")


def events(first: int, last: int, size: int = 10) -> list[Event]:
    return [
        Event(
            id=str(number),
            sequence=number,
            type=EVENT_TYPE_MESSAGE_STREAMED,
            session_id="session",
            message_streamed=MessageStreamed(text="x" * size),
        )
        for number in range(first, last + 1)
    ]


def numbers(chunks: bytes) -> list[int]:
    return [event.sequence for event in Batch.FromString(chunks).events]


def tail_of(*pushes: Sequence[Event]) -> Tail:
    tail = Tail()
    for pushed in pushes:
        tail.push(blocks_of(pushed))
    return tail


def test_a_block_is_what_protobuf_makes_of_its_events() -> None:
    block = Block.of(events(1, 3))
    assert block.chunks == Batch(events=events(1, 3)).SerializeToString()
    assert b"".join(frame.chunk for frame in block.frames()) == block.chunks


def test_a_frame_is_an_element_of_a_batch() -> None:
    event = events(7, 7, size=300)[0]
    frame = frame_of(event.sequence, event.type, event.run_id, event.SerializeToString())
    assert list(Batch.FromString(frame.chunk).events) == [event]


def test_varints() -> None:
    assert [varint(number) for number in (0, 127, 128, 300, 1 << 21)] == [
        b"\x00",
        b"\x7f",
        b"\x80\x01",
        b"\xac\x02",
        b"\x80\x80\x80\x01",
    ]


def test_watchers_at_one_place_share_the_same_bytes() -> None:
    tail = tail_of(events(1, 4), events(5, 6))
    assert tail.batch(0)[0] is tail.batch(0)[0]
    assert numbers(tail.batch(0)[0]) == [1, 2, 3, 4, 5, 6]
    chunks, last = tail.batch(4)
    assert (numbers(chunks), last) == ([5, 6], 6)


def test_a_watcher_within_a_block_gets_the_rest_of_it() -> None:
    tail = tail_of(events(1, 4), events(5, 6))
    chunks, last = tail.batch(2)
    assert (numbers(chunks), last) == ([3, 4], 4)
    assert [frame.sequence for frame in tail.frames(2)] == [3, 4]


def test_a_tail_covers_only_what_follows_without_a_gap() -> None:
    tail = tail_of(events(5, 6))
    assert [tail.covers(after) for after in (3, 4, 5, 6)] == [False, True, True, False]


def test_a_gap_forgets_what_came_before_it() -> None:
    tail = tail_of(events(1, 2), events(5, 6))
    assert not tail.covers(0)
    assert tail.covers(4)
    assert tail.head == 6


def test_what_comes_late_is_left_to_the_store() -> None:
    tail = tail_of(events(3, 4), events(1, 2))
    assert tail.head == 4
    assert numbers(tail.batch(2)[0]) == [3, 4]


def test_old_blocks_make_room() -> None:
    tail = tail_of(*(events(number, number) for number in range(1, MAX_TAIL_BLOCKS + 11)))
    assert not tail.covers(9)
    assert tail.covers(10)


def test_large_writes_are_cut_into_blocks_that_fit_a_message() -> None:
    many = list(blocks_of(events(1, 2 * MAX_BATCH_EVENTS + 1)))
    assert [(block.first, block.last) for block in many] == [(1, 1024), (1025, 2048), (2049, 2049)]
    large = list(blocks_of(events(1, 8, size=MAX_BLOCK_BYTES // 3)))
    assert all(len(block.chunks) <= MAX_BLOCK_BYTES for block in large)
    assert [number for block in large for number in numbers(block.chunks)] == list(range(1, 9))


def test_small_blocks_are_joined_up_to_a_batch() -> None:
    tail = tail_of(*(events(number, number, size=MAX_BATCH_BYTES // 3) for number in range(1, 6)))
    chunks, last = tail.batch(0)
    assert (numbers(chunks), last) == ([1, 2], 2)


async def test_a_wake_up_reaches_all_who_wait_and_carries_nothing() -> None:
    feed = Feed()
    with feed.watching(KEY) as tail, feed.watching(KEY) as same:
        assert tail is same
        waits = [tail.changed(), tail.changed()]
        assert waits[0] is waits[1]
        feed.publish(KEY, events(1, 1))
        assert waits[0].done()
        assert waits[0].result() is None
    assert not feed.watched(KEY)


def test_nothing_is_made_when_nobody_watches() -> None:
    def never() -> AgentStatus:
        raise AssertionError

    feed = Feed()
    feed.publish(KEY, events(1, 1))
    feed.publish_status(KEY, never)
    assert not feed.watched(KEY)


def test_a_deleted_session_ends_its_tail_and_the_next_one_is_another() -> None:
    feed = Feed()
    with feed.watching(KEY) as tail:
        feed.deleted(KEY)
        assert tail.deleted
        with feed.watching(KEY) as anew:
            assert anew is not tail
            assert not anew.deleted
        assert not feed.watched(KEY)
