"""Calls that go on without their callers; those who wait for an effect; locks that come and go."""

import asyncio
import logging

import pytest

from turndock.errors import TurndockError
from turndock_server.core.finishing import carried_out, to_its_end
from turndock_server.core.locks import KeyedLocks
from turndock_server.core.notices import Notices


async def test_a_call_whose_caller_goes_is_carried_out() -> None:
    half, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @to_its_end
    async def verb(answer: str) -> str:
        """A verb."""
        half.set()
        await go_on.wait()
        done.set()
        return answer

    calling = asyncio.create_task(verb("x"))
    await half.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not done.is_set()
    go_on.set()
    await done.wait()
    assert await verb("y") == "y"
    assert verb.__doc__ == "A verb."


async def test_what_goes_wrong_without_a_caller_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        raise TurndockError("STORAGE_BUSY", "told to")

    failing = to_its_end(work)
    go_on.set()
    with pytest.raises(TurndockError):
        await failing()
    assert not caplog.records
    go_on.clear()
    calling = asyncio.create_task(failing())
    await asyncio.sleep(0)
    calling.cancel()
    await asyncio.wait((calling,))
    go_on.set()
    with caplog.at_level(logging.WARNING):
        while not caplog.records:  # noqa: ASYNC110 - nobody is told when it has failed, which is the point
            await asyncio.sleep(0)
    assert "STORAGE_BUSY" in caplog.text


async def test_work_may_be_waited_for_by_several() -> None:
    task = carried_out(asyncio.sleep(0, "done"))
    assert await asyncio.shield(task) == "done"
    assert await asyncio.shield(task) == "done"


async def test_notices_are_given_by_number() -> None:
    notices = Notices()
    first, second = notices.wait_for(3), notices.wait_for(5)
    notices.applied_through(4)
    assert (first.done(), second.done()) == (True, False)
    notices.abandon()
    for waiter in (second, notices.wait_for(9)):
        with pytest.raises(TurndockError) as caught:
            await waiter
        assert caught.value.retryable


async def test_a_waiter_that_left_is_passed_over() -> None:
    notices = Notices()
    gone, stays = notices.wait_for(1), notices.wait_for(1)
    gone.cancel()
    notices.applied_through(1)
    await stays


async def test_a_lock_has_one_holder_and_exists_while_it_is_wanted() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    order: list[str] = []

    async def hold(name: str, key: str) -> None:
        async with locks.hold(key):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(hold("a", "k"), hold("b", "k"))
    assert order == ["a in", "a out", "b in", "b out"]
    waiting: asyncio.Task[None]
    async with locks.hold("k"):
        waiting = asyncio.create_task(hold("c", "k"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
    assert not locks._locks
    assert not locks._users
