"""Public faults about watching: reconnects, fan-out, slow readers."""

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest

from support.harness import WAIT_S, Harness, numbers, refused, types
from support.parts import emit, gate, result, text
from turndock import events
from turndock.agent.v1 import End, WatchRequest, WatchResponse
from turndock.backend.v1 import (
    PromptRequest,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
)
from turndock.ports import Backend, TurnContext, TurnOutput
from turndock.types.v1 import Cursor, Event
from turndock_server.core import feed


async def twelve(host: Harness) -> str:
    """The session of an agent with exactly 12 events."""
    session_id = (await host.start([text("a"), text("b"), result()], [text("c"), result()])).agent.session_id
    await host.ask("x")
    await host.ask("y", request_id="last")
    await host.start([gate("g"), result()], name="other")
    head = (await host.log())[-1].sequence
    assert head == 13
    return session_id


async def test_PF_B01_without_a_cursor_and_with_an_empty_one_a_watch_begins_at_the_beginning(
    host: Harness,
) -> None:
    session_id = await twelve(host)
    log = await host.log()
    head = log[-1].sequence
    assert await host.watched(Cursor(session_id=session_id), upto=head) == log
    assert await host.watched(Cursor(session_id=session_id, after_sequence=0), upto=head) == log
    async with host.watching(Cursor(session_id=session_id)) as cut_off:
        saved = (await anext(cut_off)).cursor
    assert saved.after_sequence == 0
    assert await host.watched(saved, upto=head) == log


async def test_PF_B01_at_the_head_a_watch_waits_for_what_comes(host: Harness) -> None:
    session_id = await twelve(host)
    cursor = Cursor(session_id=session_id, after_sequence=13)
    async with asyncio.timeout(WAIT_S), host.watching(cursor) as frames:
        first, second = await anext(frames), await anext(frames)
        assert (first.created.head, first.created.oldest) == (13, 1)
        assert second.HasField("caught_up")
        waiting = asyncio.ensure_future(anext(frames))
        await host.notify("e")
        batch = await waiting
        assert numbers(list(batch.batch.events)) == [14]
        assert batch.cursor.after_sequence == 14


async def test_PF_B01_a_cursor_beyond_the_head_or_of_another_life_is_refused(host: Harness) -> None:
    session_id = await twelve(host)
    incarnation = (await host.status()).incarnation
    for cursor, reason in (
        (Cursor(session_id=session_id, after_sequence=14), "SEQUENCE_IN_FUTURE"),
        (Cursor(session_id=session_id, incarnation="another"), "SESSION_RECREATED"),
        (Cursor(session_id="nope"), "SESSION_NOT_FOUND"),
    ):
        with refused(reason):
            async with host.watching(cursor) as frames:
                await anext(frames)
    good = Cursor(session_id=session_id, incarnation=incarnation, after_sequence=12)
    assert numbers(await host.watched(good, upto=13)) == [13]


class Paced(Backend):
    """Emits 200 texts, one each millisecond."""

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse()

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> AsyncIterator[TurnOutput]:
        for number in range(200):
            yield str(number)
            await asyncio.sleep(0.001)
        yield events.result()

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()


async def test_PF_B03_status_and_stream_together_have_everything_once(host: Harness) -> None:
    await host.dock_backend("paced", Paced())
    session_id = (await host.start(backend="paced")).agent.session_id
    chance = random.Random(3)

    async def read(delay: float) -> list[int]:
        await asyncio.sleep(delay)
        status = await host.status()
        known = status.last_sequence
        await asyncio.sleep(chance.random() * 0.05)
        got: list[Event] = []
        async with (
            asyncio.timeout(WAIT_S),
            host.watching(Cursor(session_id=session_id, after_sequence=known)) as frames,
        ):
            while status.current_run_id and not (got and got[-1].type in events.RUN_TERMINAL):
                got += (await anext(frames)).batch.events
        assert [one.type in events.RUN_TERMINAL for one in got].count(True) <= 1
        return [*range(1, known + 1), *numbers(got)]

    for turn in range(5):
        asking = host.asking("x", request_id=f"r{turn}")
        await host.until(lambda status: status.current_run_id != "")
        read_all = await asyncio.gather(*(read(chance.random() * 0.1) for _ in range(10)))
        await asking
        head = (await host.log())[-1].sequence
        assert all(got == list(range(1, head + 1)) for got in read_all)


async def test_PF_E01_who_comes_back_misses_nothing(host: Harness) -> None:
    await host.start([text("a"), gate("g"), text("b"), gate("h"), text("c"), result()])
    session_id = (await host.status()).session_id
    asking = host.asking("x", request_id="r1")
    await host.backend.entered("g")
    start = Cursor(session_id=session_id)
    async with host.watching(start) as first, host.watching(start) as second, host.watching(start) as third:
        for frames in (first, second, third):
            await anext(frames)
        await first.aclose()
        host.backend.release("g")
        await host.backend.entered("h")
        cursor = (await anext(second)).cursor
    # Nobody watches now.
    host.backend.release("h")
    await asking
    log = await host.log()
    rest = await host.watched(cursor, upto=len(log))
    assert rest == log[cursor.after_sequence :]
    assert await host.watched(start, upto=len(log)) == log


async def test_PF_E01_those_who_stay_miss_nothing(host: Harness) -> None:
    session_id = (await host.start([text("a"), gate("g"), emit(100), result()])).agent.session_id
    asking = host.asking("x")
    await host.backend.entered("g")
    staying = [asyncio.create_task(host.watched(Cursor(session_id=session_id), upto=107)) for _ in range(2)]
    async with host.watching(Cursor(session_id=session_id)) as leaving:
        await anext(leaving)
    host.backend.release("g")
    await asking
    log = await host.log()
    assert len(log) == 107
    for watcher in staying:
        assert await watcher == log


async def test_PF_E29_a_watch_of_an_idle_agent_is_confirmed_at_once(local_host: Harness) -> None:
    session_id = (await local_host.start([result("ok")])).agent.session_id
    began = time.monotonic()
    call = local_host.served.stub.Watch(
        WatchRequest(cursors=[Cursor(session_id=session_id, after_sequence=2)])
    )
    await call.initial_metadata()
    async for frame in call:
        assert frame.created.head == 2
        break
    assert time.monotonic() - began < 2
    call.cancel()


async def test_a_watch_of_a_run_replays_it_and_ends(host: Harness) -> None:
    await host.start([text("a"), result()], [text("b"), gate("g"), result()])
    await host.ask("x", request_id="r1")
    session_id = (await host.status()).session_id
    asking = host.asking("y", request_id="r2")
    await host.backend.entered("g")
    for run_id, release in (("r1", False), ("r2", True)):
        got: list[Event] = []
        ended = WatchResponse()
        async with (
            asyncio.timeout(WAIT_S),
            host.watching(Cursor(session_id=session_id), run_id=run_id, until_terminal=True) as frames,
        ):
            async for frame in frames:
                got += frame.batch.events
                if release and frame.HasField("caught_up"):
                    host.backend.release("g")
                ended = frame
        assert got == await host.log(run_id=run_id)
        assert ended.end.reason == End.REASON_TERMINAL
    await asking


async def test_a_watch_may_want_only_some_types(host: Harness) -> None:
    await host.start([text("a"), emit(50), result()])
    await host.ask("x")
    session_id = (await host.status()).session_id
    wanted = [events.TYPES["run_started"], events.TYPES["run_completed"]]
    head = (await host.log())[-1].sequence
    got = await host.watched(Cursor(session_id=session_id), upto=head, types=wanted)
    assert types(got) == ["run_started", "run_completed"]


async def test_one_watch_may_be_of_several_sessions(host: Harness) -> None:
    cursors = [
        Cursor(session_id=(await host.start([text(name), result()], name=name)).agent.session_id)
        for name in ("a1", "a2", "a3")
    ]
    got: dict[str, list[Event]] = {cursor.session_id: [] for cursor in cursors}
    async with asyncio.timeout(WAIT_S), host.watching(*cursors) as frames:
        for name in ("a1", "a2", "a3"):
            await host.ask("x", name)
        async for frame in frames:
            got[frame.cursor.session_id] += frame.batch.events
            if all(log and log[-1].type in events.RUN_TERMINAL for log in got.values()):
                break
    for name, cursor in zip(("a1", "a2", "a3"), cursors, strict=True):
        assert got[cursor.session_id] == await host.log(name)


@pytest.mark.slow
async def test_PF_B31_a_watcher_that_does_not_read_holds_up_nobody(local_host: Harness) -> None:
    count = 20_000
    session_id = (await local_host.start([emit(count, size=1024, batch=50), result()])).agent.session_id
    start = Cursor(session_id=session_id)
    head = count + 2 + 4  # opening of the session and of the turn, message and terminal
    async with (
        local_host.watching(start) as fast,
        local_host.watching(start) as slow,
        local_host.watching(start),
    ):
        asking = local_host.asking("x", timeout=100)
        got = 0
        sipped: list[Event] = []
        async for frame in fast:
            got += len(frame.batch.events)
            if len(sipped) < 200:
                sipped += (await anext(slow)).batch.events
            if got == head:
                break
        assert (await asking).response.coverage.observed == count + 1
        tails = local_host.served.host.journal.feed._tails
        assert len(tails) == 1
        assert all(tail._bytes <= feed.MAX_TAIL_BYTES + feed.MAX_BATCH_BYTES for tail in tails.values())
        async for frame in slow:
            sipped += frame.batch.events
            if len(sipped) == head:
                break
        assert numbers(sipped) == list(range(1, head + 1))
    rest = await local_host.watched(Cursor(session_id=session_id, after_sequence=head - 10), upto=head)
    assert numbers(rest) == list(range(head - 9, head + 1))
