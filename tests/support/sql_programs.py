"""Processes that share an SQL store: `python sql_programs.py <name> <path> <arguments>`.

A program says "ready", waits for a line on its standard input, does its work, and tells the outcome as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

from turndock import events
from turndock.errors import TurndockError
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventWithSequenceRequest,
    GetEventsRequest,
    GetLatestSequenceRequest,
    GetRunRequest,
    GetSessionRequest,
)
from turndock.types.v1 import Event
from turndock_server.stores.sql import SqlSessionStore


def event(session_id: str, run_id: str = "", size: int = 100) -> Event:
    """An event that can be appended."""
    made = events.text("x" * size)
    made.id, made.session_id, made.run_id, made.time_us = events.new_id(), session_id, run_id, events.now_us()
    return made


async def first_use(path: str, session_id: str, tasks: str) -> list[int]:
    """Tasks whose first action is an append: half of them open the store themselves, half share one."""
    count = int(tasks)
    shared = asyncio.ensure_future(SqlSessionStore.open(path))

    async def alone() -> int:
        async with opened(path) as store:
            return await _append(store, session_id)

    async def together() -> int:
        return await _append(await shared, session_id)

    numbers = await asyncio.gather(*(alone() if task % 2 else together() for task in range(count)))
    await (await shared).close()
    return numbers


async def busy_writers(path: str, session_id: str, tasks: str, rounds: str) -> list[int]:
    """Tasks that look and then append, again and again."""

    async def one(store: SqlSessionStore) -> list[int]:
        numbers: list[int] = []
        for _ in range(int(rounds)):
            seen = await store.get_latest_sequence(GetLatestSequenceRequest(session_id=session_id))
            numbers.append(await _append(store, session_id))
            assert numbers[-1] > seen.sequence
        return numbers

    async with opened(path) as store:
        numbers = await asyncio.gather(*(one(store) for _ in range(int(tasks))))
    return sorted(chain.from_iterable(numbers))


async def read(path: str, session_id: str, run_id: str) -> dict[str, Any]:
    """What another process sees of a session."""
    async with opened(path) as store:
        page = await store.get_events(GetEventsRequest(session_id=session_id))
        session = await _or_reason(store.get_session(GetSessionRequest(session_id=session_id)))
        run = await _or_reason(store.get_run(GetRunRequest(session_id=session_id, run_id=run_id)))
    return {
        "session": session if isinstance(session, str) else session.session.status,
        "run": run if isinstance(run, str) else run.run.status,
        "numbers": [each.sequence for each in page.events],
        "head": page.head,
    }


async def append_once(path: str, session_id: str) -> int:
    """One append."""
    async with opened(path) as store:
        await store.append_event(AppendEventRequest(event=event(session_id)))
    return 1


@asynccontextmanager
async def opened(path: str) -> AsyncGenerator[SqlSessionStore]:
    """The store, closed at the end."""
    store = await SqlSessionStore.open(path)
    try:
        yield store
    finally:
        await store.close()


async def _append(store: SqlSessionStore, session_id: str) -> int:
    request = AppendEventWithSequenceRequest(event=event(session_id))
    return (await store.append_event_with_sequence(request)).result.event.sequence


async def _or_reason(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except TurndockError as error:
        return error.reason


PROGRAMS: dict[str, Callable[..., Awaitable[Any]]] = {
    "first_use": first_use,
    "busy_writers": busy_writers,
    "read": read,
    "append_once": append_once,
}


def main() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    name, *arguments = sys.argv[1:]
    print(json.dumps(asyncio.run(_run(PROGRAMS[name], arguments))), flush=True)


async def _run(program: Callable[..., Awaitable[Any]], arguments: list[str]) -> Any:
    return await program(*arguments)


if __name__ == "__main__":
    main()
