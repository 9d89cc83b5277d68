"""A case's time: how long it may take, and what it waits for when that was not enough."""

from __future__ import annotations

import asyncio
import linecache
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import CoroutineType, FrameType
from typing import Any, Final

CASE_LIMIT_S: Final = 30.0
"""Seconds a case may take, unless it says otherwise: many times what one takes on an implementation that works."""

END_LIMIT_S: Final = 5.0
"""Seconds a case that was cancelled may take to end."""


class TookTooLong(Exception):
    """A case was not over in time. Its text says what it waited for."""


async def within(limit_s: float, name: str, check: Callable[[], Awaitable[None]], file: str) -> None:
    """Run a case's check, of that name and from that file, for at most so many seconds.

    Raises `TookTooLong`, also when the check withstands its cancellation, and whatever the check raises.
    """
    before = asyncio.all_tasks()
    running = asyncio.create_task(_run(check), name=f"case {name}")
    try:
        await asyncio.wait([running], timeout=limit_s)
        if running.done():
            running.result()
            return
        tasks = sorted(asyncio.all_tasks() - before - {running}, key=lambda task: task.get_name())
        places = [_place(task, file) for task in (running, *tasks)]
    except asyncio.CancelledError:
        await _end(running)
        raise
    told = [f"{name} was not over after {limit_s:g} seconds. It waited for:"]
    told += list(dict.fromkeys(f"  {place}" for place in places if place)) or [
        "  nothing: it kept the loop busy"
    ]
    if not await _end(running):
        told.append(f"It went on {END_LIMIT_S:g} seconds after it was cancelled, too.")
    raise TookTooLong("\n".join(told))


async def _run(check: Callable[[], Awaitable[None]]) -> None:
    await check()


async def _end(task: asyncio.Task[None]) -> bool:
    """Cancel a task and wait for its end, which it may be too broken to come to; whether it came."""
    task.cancel()
    await asyncio.wait([task], timeout=END_LIMIT_S)
    if task.done() and not task.cancelled():
        task.exception()  # what it says to its cancellation is of no interest
    return task.done()


def _place(task: asyncio.Task[Any], file: str) -> str:
    """Where in the case's file a task stands, and in what call; empty for tasks that are not the case's."""
    frames = list(_frames(task.get_coro()))
    own = [number for number, frame in enumerate(frames) if frame.f_code.co_filename == file]
    if not own:
        return ""
    line = linecache.getline(file, frames[own[0]].f_lineno).strip()
    place = f"{Path(file).name}:{frames[own[0]].f_lineno}: {line}"
    called = frames[own[0] + 1 :]
    return f"{place} (in {' > '.join(frame.f_code.co_qualname for frame in called)})" if called else place


def _frames(waiting: object) -> Iterator[FrameType]:
    """What a suspended coroutine stands in, from the outside in, as far as Python tells."""
    while isinstance(waiting, CoroutineType):
        if waiting.cr_frame is None:
            return
        yield waiting.cr_frame
        waiting = waiting.cr_await
