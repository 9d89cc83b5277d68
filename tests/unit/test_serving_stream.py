"""How items of many turns leave on one stream: at once when little happens, together under load, never unfairly."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from turndock.backend.v1 import PromptRequest, StreamEventsResponse
from turndock.errors import TurndockError
from turndock.serving.outbox import MAX_ITEMS
from turndock.serving.stream import EventStream, Lane

DEADLINE_S = 5.0
NEVER_S = 1000.0
"""A tick no test waits for."""


class Wire:
    """Stands for a call's context: keeps what was written, and can be stopped up."""

    def __init__(self) -> None:
        self.messages: list[StreamEventsResponse] = []
        self.written = asyncio.Condition()
        self.open = asyncio.Event()
        self.open.set()

    async def send_initial_metadata(self, _: object) -> None:
        pass

    async def write(self, encoded: bytes) -> None:
        await self.open.wait()
        async with self.written:
            self.messages.append(StreamEventsResponse.FromString(encoded))
            self.written.notify_all()

    async def count(self, messages: int) -> None:
        """Wait for so many messages."""
        async with asyncio.timeout(DEADLINE_S), self.written:
            await self.written.wait_for(lambda: len(self.messages) >= messages)

    def texts(self, token: str) -> list[str]:
        """What a turn said so far."""
        return [
            item.event.message_streamed.text
            for message in self.messages
            for turn in message.turns
            if turn.turn_token == token
            for item in turn.items
        ]


@contextlib.asynccontextmanager
async def running(delay_s: float) -> AsyncGenerator[tuple[EventStream, Wire]]:
    stream, wire = EventStream(delay_s), Wire()
    context: Any = wire
    task = asyncio.create_task(stream.run(context))
    try:
        yield stream, wire
    finally:
        task.cancel()
        await asyncio.wait([task])


def lane(stream: EventStream, token: str, **credit: int) -> Lane:
    return stream.attach(PromptRequest(turn_token=token, **credit))  # type: ignore[arg-type]  # two counts


def say(one: Lane, text: str, *, urgent: bool = False) -> None:
    one.outbox.add(len(text), urgent=urgent).event.message_streamed.text = text


async def use_up_the_burst(one: Lane, wire: Wire) -> None:
    for n in range(4):
        say(one, f"burst {n}")
        await wire.count(n + 1)


async def test_items_leave_at_once_while_little_happens() -> None:
    async with running(NEVER_S) as (stream, wire):
        await use_up_the_burst(lane(stream, "a"), wire)
        assert wire.texts("a") == ["burst 0", "burst 1", "burst 2", "burst 3"]


async def test_under_load_a_tick_gathers_what_all_turns_say() -> None:
    async with running(0.05) as (stream, wire):
        lanes = [lane(stream, token) for token in "abc"]
        await use_up_the_burst(lanes[0], wire)
        for n in range(10):
            for one in lanes:
                say(one, str(n))
            await asyncio.sleep(0)
        await wire.count(5)
        assert len(wire.messages) == 5
        assert wire.texts("b") == wire.texts("c") == [str(n) for n in range(10)]
        assert [turn.turn_token for turn in wire.messages[4].turns] == ["a", "b", "c"]


async def test_what_waits_for_an_answer_does_not_wait_for_a_tick() -> None:
    async with running(NEVER_S) as (stream, wire):
        one = lane(stream, "a")
        await use_up_the_burst(one, wire)
        say(one, "held")
        say(one, "question", urgent=True)
        await wire.count(5)
        assert wire.texts("a")[-2:] == ["held", "question"]


async def test_a_turn_without_room_does_not_wait_for_a_tick() -> None:
    async with running(NEVER_S) as (stream, wire):
        one = lane(stream, "a")
        await use_up_the_burst(one, wire)
        for n in range(MAX_ITEMS + 1):
            async with asyncio.timeout(DEADLINE_S):
                await one.outbox.room(10)
            say(one, str(n))
        assert len(wire.texts("a")) == 4 + MAX_ITEMS


async def test_a_turn_sends_no_more_items_than_it_has_credit_for() -> None:
    async with running(0) as (stream, wire):
        poor, rich = lane(stream, "poor", initial_credit_items=2), lane(stream, "rich")
        say(poor, "1")
        say(poor, "2")
        assert not poor.outbox.has_room(1)
        room = asyncio.create_task(poor.outbox.room(1))
        say(rich, "x")
        await wire.count(1)
        assert not room.done()
        poor.grant(1, 0)
        await asyncio.wait_for(room, DEADLINE_S)
        say(poor, "3")
        assert not poor.outbox.has_room(1)
        await wire.count(2)
        assert (wire.texts("poor"), wire.texts("rich")) == (["1", "2", "3"], ["x"])


async def test_a_turn_sends_one_message_s_share_as_long_as_it_has_any_byte_left() -> None:
    async with running(0) as (stream, wire):
        poor, rich = lane(stream, "poor", initial_credit_bytes=1), lane(stream, "rich")
        say(poor, "more than one byte")
        await wire.count(1)
        say(poor, "held")
        say(rich, "x")
        await wire.count(2)
        assert wire.texts("poor") == ["more than one byte"]
        poor.grant(0, 10_000)
        await wire.count(3)
        assert wire.texts("poor") == ["more than one byte", "held"]


async def test_turns_that_say_more_than_a_message_holds_take_turns() -> None:
    async with running(0) as (stream, wire):
        wire.open.clear()
        lanes = [lane(stream, str(n)) for n in range(12)]
        say(lanes[0], "first")
        await asyncio.sleep(0)
        for one in lanes:
            say(one, "x" * 200_000)
        wire.open.set()
        await wire.count(4)
        served = [turn.turn_token for message in wire.messages for turn in message.turns]
        assert sorted(served[-12:], key=int) == [str(n) for n in range(12)]
        assert all(message.ByteSize() < 1.3 * (1 << 20) for message in wire.messages)


async def test_a_lost_stream_is_told_to_its_turns_and_a_carried_one_is_not_lost() -> None:
    async with running(0) as (stream, wire):
        done, cut = lane(stream, "done"), lane(stream, "cut")
        say(done, "x")
        done.outbox.finish()
        await asyncio.wait_for(done.carried(), DEADLINE_S)
        stream.detach(done)
        assert wire.texts("done") == ["x"]
        waiting = asyncio.create_task(cut.carried())
        await asyncio.sleep(0)
    with pytest.raises(TurndockError, match="the stream that carried"):
        await waiting
