"""What is the memory store's own: how it ends, and what a stream makes of a session's next life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

import pytest

from turndock.conformance.session_store import SUITE, Fixture
from turndock.errors import TurndockError
from turndock.store.v1 import WatchEventsResponse
from turndock_server.stores.clock import Clock
from turndock_server.stores.memory import MemorySessionStore


@pytest.fixture
async def store() -> AsyncIterator[MemorySessionStore]:
    opened = MemorySessionStore()
    yield opened
    await opened.close()


@pytest.fixture
def red(store: MemorySessionStore) -> Fixture:
    return Fixture(store, SUITE.abilities)


async def test_closing_answers_the_readers_that_wait(store: MemorySessionStore, red: Fixture) -> None:
    waiting = asyncio.create_task(red.numbers(wait_ms=60_000))
    await asyncio.sleep(0)
    await store.close()
    assert await waiting == []
    assert await red.numbers(wait_ms=60_000) == []


async def test_closing_ends_the_streams(store: MemorySessionStore, red: Fixture) -> None:
    async def follow() -> list[WatchEventsResponse]:
        return [batch async for batch in red.watch()]

    await red.append(red.event())
    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(TurndockError, match="SERVER_STOPPING"):
        await following


async def test_a_stream_begins_a_sessions_next_life_at_its_beginning(red: Fixture) -> None:
    await red.append(*red.events(3))
    stream = red.watch()
    first = await anext(stream)
    assert [event.sequence for event in first.events] == [1, 2, 3]
    await red.delete()
    await red.append(*red.events(2))
    second = await anext(stream)
    assert [event.sequence for event in second.events] == [1, 2]
    assert second.events[0].incarnation != first.events[0].incarnation


async def test_nothing_is_left_of_readers_that_have_gone(store: MemorySessionStore, red: Fixture) -> None:
    for number in range(3):
        assert await red.numbers(f"quiet-{number}", wait_ms=1) == []
    await red.append(red.event())
    async with aclosing(cast("AsyncGenerator[WatchEventsResponse]", red.watch())) as stream:
        await anext(stream)
    assert store._bells == {}


def test_the_clock_goes_on_when_the_machines_is_set_back() -> None:
    wall = 1_000_000_000

    def read() -> int:
        return wall

    clock = Clock(read)
    before = clock()
    wall -= 5_000_000
    assert clock() >= before
    wall += 60_000_000
    assert clock() == wall
