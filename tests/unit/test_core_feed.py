"""Live tails: what was committed lately, shared by all watchers of a session."""

import hypothesis.strategies as st
from hypothesis import given

from turndock.agent.v1 import AgentStatus, Batch
from turndock.types.v1 import EVENT_TYPE_MESSAGE_STREAMED, Event, MessageStreamed, Scope
from turndock_server.core import feed
from turndock_server.core.feed import (
    AgentKey,
    Block,
    Feed,
    Tail,
    blocks_of,
    encode_frame,
    take_batch,
)
from turndock_server.core.wireformat import element, elements, varint

KEY = AgentKey("red", "ses_1")


def committed(first: int, last: int, *, size: int = 1) -> list[Event]:
    return [
        Event(
            id=str(number),
            sequence=number,
            type=EVENT_TYPE_MESSAGE_STREAMED,
            session_id="ses_1",
            run_id="r1",
            message_streamed=MessageStreamed(text="x" * size),
        )
        for number in range(first, last + 1)
    ]


def numbers(chunks: bytes) -> list[int]:
    return [event.sequence for event in Batch.FromString(chunks).events]


def tail_of(*pushes: list[Event]) -> Tail:
    tail = Tail()
    for pushed in pushes:
        tail.push(blocks_of(pushed))
    return tail


def all_after(tail: Tail, after: int) -> list[int]:
    """What a watcher gets from the tail, batch by batch."""
    got: list[int] = []
    while tail.covers(after):
        chunks, after = tail.batch(after)
        got += numbers(chunks)
    return got


def test_a_frame_is_an_element_of_a_batch_byte_for_byte() -> None:
    events = [*committed(1, 3), *committed(4, 4, size=70_000)]
    assert elements(encode_frame(event)[3] for event in events) == Batch(events=events).SerializeToString()
    [event] = committed(7, 7, size=300)
    assert list(Batch.FromString(element(event.SerializeToString())).events) == [event]


def test_a_block_is_what_protobuf_makes_of_its_events() -> None:
    block = Block.of(committed(1, 3))
    assert block.chunks == Batch(events=committed(1, 3)).SerializeToString()
    assert elements(frame[3] for frame in block.frames()) == block.chunks


def test_varints() -> None:
    assert [varint(number) for number in (0, 127, 128, 300, 1 << 21)] == [
        b"\x00",
        b"\x7f",
        b"\x80\x01",
        b"\xac\x02",
        b"\x80\x80\x80\x01",
    ]


@given(st.lists(st.integers(1, 6), max_size=8), st.integers(0, 50))
def test_a_watcher_gets_everything_after_its_cursor_wherever_it_stands(sizes: list[int], after: int) -> None:
    tail, head = Tail(), 0
    for size in sizes:
        tail.push(blocks_of(committed(head + 1, head + size)))
        head += size
    assert tail.head == head
    after = min(after, head)
    assert all_after(tail, after) == list(range(after + 1, head + 1))
    if tail.covers(after):
        frames = tail.frames(after)
        assert [frame[0] for frame in frames] == list(range(after + 1, frames[-1][0] + 1))


def test_a_watcher_within_a_block_gets_the_rest_of_it() -> None:
    tail = tail_of(committed(1, 4), committed(5, 6))
    chunks, last = tail.batch(2)
    assert (numbers(chunks), last) == ([3, 4], 4)
    assert [frame[0] for frame in tail.frames(2)] == [3, 4]


def test_a_tail_covers_only_what_follows_without_a_gap() -> None:
    tail = tail_of(committed(5, 6))
    assert [tail.covers(after) for after in (3, 4, 5, 6)] == [False, True, True, False]


def test_a_gap_makes_the_tail_forget_and_nothing_else() -> None:
    tail = tail_of(committed(1, 5), committed(8, 9))
    assert not tail.covers(0)
    assert not tail.covers(5)
    assert all_after(tail, 7) == [8, 9]
    assert tail.head == 9


def test_what_comes_late_is_left_to_the_store() -> None:
    tail = tail_of(committed(6, 8), committed(1, 5))
    assert tail.head == 8
    tail.push(blocks_of(committed(9, 9)))
    assert not tail.covers(0)
    assert all_after(tail, 5) == [6, 7, 8, 9]


def test_the_tail_is_bounded_by_blocks_and_keeps_the_latest() -> None:
    tail = tail_of(*(committed(number, number) for number in range(1, feed.MAX_TAIL_BLOCKS + 11)))
    assert not tail.covers(9)
    assert tail.covers(10)


def test_the_tail_is_bounded_by_bytes_and_keeps_the_latest() -> None:
    tail = Tail()
    for number in range(1, 41):
        tail.push(blocks_of(committed(number, number, size=200_000)))
    assert tail._bytes <= feed.MAX_TAIL_BYTES
    assert not tail.covers(0)
    assert tail.covers(39)
    assert all_after(tail, 30) == list(range(31, 41))


def test_batches_are_bounded_and_a_large_event_travels_alone() -> None:
    tail = tail_of(*(committed(number, number, size=feed.MAX_BATCH_BYTES // 3) for number in range(1, 11)))
    chunks, last = tail.batch(0)
    assert (numbers(chunks), last) == ([1, 2], 2)
    frames = [encode_frame(event) for event in committed(1, 3, size=300_000)]
    assert [frame[0] for frame in take_batch(frames)] == [1]
    assert [frame[0] for frame in take_batch(frames[2:])] == [3]


def test_large_writes_are_cut_into_blocks_that_fit_a_message() -> None:
    many = list(blocks_of(committed(1, 2 * feed.MAX_BATCH_EVENTS + 1)))
    assert [(block.first, block.last) for block in many] == [(1, 1024), (1025, 2048), (2049, 2049)]
    large = list(blocks_of(committed(1, 20, size=200_000)))
    assert max(len(block.chunks) for block in large) <= feed.MAX_BLOCK_BYTES
    assert [number for block in large for number in numbers(block.chunks)] == list(range(1, 21))


def test_watchers_at_the_same_place_share_their_bytes() -> None:
    tail = tail_of(committed(1, 3), committed(4, 5))
    assert tail.batch(0)[0] is tail.batch(0)[0]
    assert numbers(tail.batch(0)[0]) == [1, 2, 3, 4, 5]
    assert tail.batch(3)[0] is tail.batch(3)[0]
    assert tail.batch(3)[1] == 5


def test_a_wake_up_carries_no_data_and_reaches_all() -> None:
    shown = Feed()
    woken: list[str] = []
    with shown.watching(KEY, lambda: woken.append("one")):
        with shown.watching(KEY, lambda: woken.append("other")), shown.watching(KEY):
            shown.publish(KEY, committed(1, 1))
            assert woken == ["one", "other"]
        shown.publish(KEY, committed(2, 2))
        assert woken == ["one", "other", "one"]
    assert not shown.watched(KEY)


def test_a_tail_exists_while_somebody_watches() -> None:
    shown = Feed()
    shown.publish(KEY, committed(1, 1))
    assert not shown.watched(KEY)
    with shown.watching(KEY) as tail:
        with shown.watching(KEY) as same:
            assert same is tail
            shown.publish(KEY, committed(1, 2))
            shown.publish(AgentKey(None, "ses_1"), committed(3, 3))
        assert all_after(tail, 0) == [1, 2]
        assert shown.watched(KEY)
    assert not shown.watched(KEY)


def test_a_status_is_made_only_for_watchers_and_the_latest_counts() -> None:
    shown = Feed()
    made: list[str] = []

    def status(name: str) -> AgentStatus:
        made.append(name)
        return AgentStatus(agent_name=name)

    shown.publish_status(KEY, lambda: status("nobody"))
    with shown.watching(KEY) as tail:
        shown.publish_status(KEY, lambda: status("a"))
        shown.publish_status(KEY, lambda: status("b"))
        assert tail.status is not None
        assert (tail.status.agent_name, tail.status_version) == ("b", 2)
    assert made == ["a", "b"]


def test_a_deleted_session_ends_its_watches_and_may_be_watched_anew() -> None:
    shown = Feed()
    with shown.watching(KEY) as old:
        shown.deleted(KEY)
        assert old.deleted
        with shown.watching(KEY) as new:
            assert new is not old
            assert not new.deleted
        shown.deleted(KEY)
    assert not shown.watched(KEY)


def test_the_unscoped_partition_is_one_of_its_own() -> None:
    assert AgentKey.of(None, "s") == AgentKey(None, "s") != AgentKey("red", "s")
    assert AgentKey.of(Scope(tenant="red"), "s").scope == Scope(tenant="red")
    assert AgentKey(None, "s").scope is None
