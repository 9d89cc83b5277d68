"""Calls that are carried out to their end although whoever made them has gone.

A caller may hang up at any moment, and gRPC then cancels its handler. Half of a verb would leave what is in memory and
what is stored apart: a run that no loop knows of, a claim without an agent.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_under_way: set[asyncio.Task[Any]] = set()
"""The loop keeps only weak references to tasks."""

_of_call: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("of_call", default=None)
"""What is carried out of the call that is being handled."""


def carried_out(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """The work as a task that nobody has to wait for. Wait for it with `asyncio.shield`, or not at all."""
    task = asyncio.create_task(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    of_call = _of_call.get()
    if of_call is not None:
        of_call.add(task)
        task.add_done_callback(of_call.discard)
    return task


@contextmanager
def finished(when_done: Callable[[], object]) -> Generator[None]:
    """Call `when_done` once the block has ended, and with it all that it has begun to carry out."""
    of_call: set[asyncio.Task[Any]] = set()
    token = _of_call.set(of_call)
    try:
        yield
    finally:
        _of_call.reset(token)
        left = set(of_call)

        def done(task: asyncio.Task[Any]) -> None:
            left.discard(task)
            if not left:
                when_done()

        for task in of_call:
            task.add_done_callback(done)
        if not left:
            when_done()


def to_its_end(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let each call of a coroutine function go on when its caller is cancelled."""

    @functools.wraps(call)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        task = carried_out(call(*args, **kwargs))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report)
            raise

    return wrapped


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.warning("a call failed after its caller had gone: %s", task.exception())
