"""How a turn ends when nothing it says ends it: the backend raises, the host leaves, somebody interrupts."""

import asyncio
import gc

import pytest

from support.docking import (
    DEADLINE_S,
    Mode,
    Outputs,
    RecordingHost,
    ScriptedBackend,
    a_prompt,
    docked,
    every_mode,
    play,
    remote_modes,
    texts,
)
from turndock import events
from turndock.backend.v1 import InterruptRequest, InterruptResponse, PromptRequest
from turndock.errors import Code, TurndockError
from turndock.ports import Backend, BackendCrashed, TurnContext, TurnOutput
from turndock.types.v1 import BackendSession


@remote_modes
async def test_M_21_what_the_backend_raises_is_a_crash_that_names_it(
    mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        for _ in range(600):
            yield "x"
        raise LookupError("no such model" + "!" * 5000)

    said: list[TurnOutput] = []
    async with docked(ScriptedBackend(script), mode) as backend:
        with pytest.raises(BackendCrashed) as caught:
            await play(backend, said=said)
    assert texts(said) == "x" * 600
    assert str(caught.value).startswith("LookupError: no such model!!!")
    assert len(str(caught.value).encode()) <= 1024
    assert "Traceback" in caplog.text


@remote_modes
async def test_a_late_accept_is_a_fault_of_the_backend(mode: Mode) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        yield "x"
        turn.accept(BackendSession())
        yield events.result()

    async with docked(ScriptedBackend(script), mode) as backend:
        with pytest.raises(BackendCrashed, match="before the turn's first output"):
            await play(backend)


class Watched:
    """A script that waits for ever, and tells when it began and how it ended."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.how = ""

    async def script(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        try:
            yield "begun"
            self.began.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.how = "cancelled"
            raise
        finally:
            self.ended.set()


@every_mode
async def test_cancelling_the_host_s_task_cancels_the_generator(mode: Mode) -> None:
    watched = Watched()
    async with docked(ScriptedBackend(watched.script), mode) as backend:
        task = asyncio.create_task(play(backend))
        await asyncio.wait_for(watched.began.wait(), DEADLINE_S)
        task.cancel()
        await asyncio.wait_for(watched.ended.wait(), DEADLINE_S)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert watched.how == "cancelled"


@remote_modes
async def test_leaving_the_stream_cancels_the_generator(mode: Mode) -> None:
    watched = Watched()
    async with docked(ScriptedBackend(watched.script), mode) as backend:
        stream = backend.prompt(a_prompt(), RecordingHost())
        await anext(stream)
        await asyncio.wait_for(watched.began.wait(), DEADLINE_S)
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        await asyncio.wait_for(watched.ended.wait(), DEADLINE_S)
    assert watched.how == "cancelled"


@remote_modes
async def test_PF_E17_a_stream_that_is_dropped_leaves_no_turn_behind(mode: Mode) -> None:
    turns = [Watched() for _ in range(20)]

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in turns[int(request.prompt)].script(request, turn):
            yield output

    async with docked(ScriptedBackend(script), mode) as backend:
        await play_one(backend)  # opens what stays open
        before = len(asyncio.all_tasks())
        for n in range(20):
            stream = backend.prompt(a_prompt(str(n)), RecordingHost())
            await anext(stream)
            del stream
        gc.collect()
        async with asyncio.timeout(DEADLINE_S):
            for watched in turns:
                await watched.ended.wait()
            while len(asyncio.all_tasks()) > before:  # the ends of the calls themselves
                await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=0.01)


async def play_one(backend: Backend) -> None:
    stream = backend.prompt(a_prompt("0"), RecordingHost())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


@remote_modes
async def test_an_interrupt_returns_when_the_generator_has_ended(mode: Mode) -> None:
    watched = Watched()
    request = a_prompt()
    async with docked(ScriptedBackend(watched.script), mode) as backend:
        assert "interrupt" in backend.capabilities
        task = asyncio.create_task(play(backend, request=request))
        await asyncio.wait_for(watched.began.wait(), DEADLINE_S)
        await backend.interrupt(InterruptRequest(turn_token=request.turn_token, reason="interrupted"))
        assert watched.ended.is_set()
        assert texts(await task) == "begun"


@remote_modes
async def test_the_backend_s_own_interrupt_is_called_first(mode: Mode) -> None:
    watched = Watched()

    class Interruptible(ScriptedBackend):
        async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
            self.reason = request.reason
            assert not watched.ended.is_set()
            return InterruptResponse()

    served = Interruptible(watched.script)
    request = a_prompt()
    async with docked(served, mode) as backend:
        task = asyncio.create_task(play(backend, request=request))
        await asyncio.wait_for(watched.began.wait(), DEADLINE_S)
        await backend.interrupt(InterruptRequest(turn_token=request.turn_token, reason="timeout"))
        assert served.reason == "timeout"
        await task
        with pytest.raises(TurndockError) as caught:
            await backend.interrupt(InterruptRequest(turn_token=request.turn_token))
    assert (caught.value.reason, caught.value.code) == ("TURN_NOT_FOUND", Code.NOT_FOUND)
