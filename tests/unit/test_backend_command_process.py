"""The process of a command backend's turn: held up, interrupted, left, and never left behind."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from support.programs import gone
from support.speaking import running
from support.turns import Conversation
from turndock import events
from turndock.backend.v1 import InterruptRequest
from turndock.errors import TurndockError
from turndock.types.v1 import Event
from turndock_server.backends.command import CommandBackend


def backend(talk: Conversation) -> CommandBackend:
    assert isinstance(talk.backend, CommandBackend)
    return talk.backend


async def test_output_that_nobody_takes_stays_with_the_program(tmp_path: Path) -> None:
    talk = await running(
        tmp_path,
        """
os.set_blocking(1, False)
import select
line, written = json.dumps({"type": "text", "text": "x" * 4000}).encode() + b"\\n", 0
while select.select([], [1], [], 0.2)[1]:
    try: written += os.write(1, line[written % len(line):])
    except BlockingIOError: pass
os.set_blocking(1, True)
os.write(1, line[written % len(line):])
say("custom", name="written", data=written)
say("result")
""",
    )
    async with aclosing(talk.open(talk.request("a"))) as outputs:
        first = await anext(outputs)
        assert first[0] == "x" * 4000
        child = next(iter(backend(talk)._talks.values())).child
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(child.wait(), 0.3)
        rest = [output async for batch in outputs for output in batch]
    written = next(output for output in rest if isinstance(output, Event))
    assert int(written.custom.data_json) < 1 << 19


FAMILY = """
child = subprocess.Popen([sys.executable, "-I", "-S", "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"],
    stdout=subprocess.PIPE)
child.stdout.readline()
say("custom", name="pids", data=[os.getpid(), child.pid])
"""


async def family(outputs: AsyncGenerator[Any, None]) -> list[int]:
    """Numbers of a program and its child, when both are up."""
    (event,) = await anext(outputs)
    pids: list[int] = json.loads(event.custom.data_json)
    return pids


async def test_M_18_leaving_a_silent_program_kills_it_and_its_children(tmp_path: Path) -> None:
    talk = await running(tmp_path, FAMILY + "signal.pause()")
    outputs = talk.open(talk.request("a"))
    pids = await family(outputs)
    silent = asyncio.ensure_future(anext(outputs))
    await asyncio.wait([silent], timeout=0.01)
    silent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await silent
    for pid in pids:
        await gone(pid)
    await outputs.aclose()


async def test_a_program_that_answers_leaves_no_children_behind(tmp_path: Path) -> None:
    ask = "hear(); say('checkpoint', provider_session_id='s-1'); hear(); say('result')"
    talk = await running(tmp_path, FAMILY + ask)
    outputs = talk.open(talk.request("a"))
    pids = await family(outputs)
    assert [output async for output in outputs] == [[events.result()]]
    for pid in pids:
        await gone(pid)


async def test_a_program_may_finish_its_work_after_its_result(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    talk = await running(
        tmp_path, f"hear(); say('result'); sys.stdin.read(); open({str(saved)!r}, 'w').write('x')"
    )
    assert await talk.ask("a") == [events.result()]
    assert saved.read_text() == "x"


async def test_a_program_that_does_not_leave_after_its_result_is_killed(tmp_path: Path) -> None:
    talk = await running(tmp_path, "say('result', data={'pid': os.getpid()}); signal.pause()")
    (result,) = await talk.ask("a")
    await gone(json.loads(result.data_json)["pid"])  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue] - it is a result


async def test_a_program_that_closes_its_output_and_stays_ends_its_turn(tmp_path: Path) -> None:
    talk = await running(tmp_path, "say('text', text='x'); os.close(1); os.close(2); signal.pause()")
    assert await talk.ask("a") == ["x"]


async def test_interrupt_stops_the_program_before_it_returns(tmp_path: Path) -> None:
    talk = await running(tmp_path, FAMILY + "signal.pause()")
    outputs = talk.open(talk.request("a"))
    pids = await family(outputs)
    await talk.backend.interrupt(InterruptRequest(turn_token="token_1"))
    for pid in pids:
        await gone(pid)
    assert [output async for output in outputs] == [events.error("interrupted")]
    with pytest.raises(TurndockError, match="TURN_NOT_FOUND"):
        await talk.backend.interrupt(InterruptRequest(turn_token="token_1"))


async def test_fifty_interrupts_leave_nothing_behind(tmp_path: Path) -> None:
    talk = await running(tmp_path, "say('custom', name='pid', data=os.getpid()); signal.pause()")
    before = len(asyncio.all_tasks())
    for number in range(50):
        outputs = talk.open(talk.request("a"))
        (event,) = await anext(outputs)
        following = asyncio.ensure_future(anext(outputs))
        if number % 2:
            await talk.backend.interrupt(InterruptRequest(turn_token=f"token_{number + 1}"))
            assert await following == events.error("interrupted")
        else:
            following.cancel()
            await asyncio.wait([following])
        await outputs.aclose()
        await gone(int(event.custom.data_json))
    assert backend(talk)._talks == {}
    await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0))])
    assert len(asyncio.all_tasks()) == before
