"""Processes that share an SQL store: `python sql_programs.py <name> <database> <arguments>`.

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
    AppendEventsRequest,
    AppendEventWithSequenceRequest,
    ClaimAgentRequest,
    EnqueueRunRequest,
    GetEventsRequest,
    GetLatestSequenceRequest,
    GetRunRequest,
    GetSessionRequest,
    MailboxLimits,
    ReleaseIfEmptyRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import AgentRecord, Event, Fence, Run, Session, SessionStatus
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


async def crossing(path: str, first: str, rounds: str) -> dict[str, list[int]]:
    """Writes to ten sessions at once, many of them to several; each process begins with another one of them."""
    names = [f"ses_{(int(first) + 7 * number) % 10}" for number in range(10)]
    numbers: dict[str, list[int]] = {name: [] for name in names}

    async def write(store: SqlSessionStore, wanted: list[str]) -> None:
        request = AppendEventsRequest(events=[event(name) for name in wanted])
        for name, result in zip(wanted, (await store.append_events(request)).results, strict=True):
            numbers[name].append(result.event.sequence)

    async with opened(path) as store:
        for _ in range(int(rounds)):
            several = [names[at:] + names[:at] for at in range(0, 10, 3)]
            await asyncio.gather(*(write(store, each) for each in (*several, *([name] for name in names))))
    return {name: sorted(each) for name, each in numbers.items()}


async def enqueue(path: str, session_id: str, first: str, count: str, most: str) -> list[str]:
    """Fills a mailbox with runs of its own, all at once. Returns what became of each."""
    async with opened(path) as store:

        def run(number: int) -> EnqueueRunRequest:
            made = Run(id=f"run_{number}", session_id=session_id, prompt="x", request_sha256=b"x" * 32)
            return EnqueueRunRequest(run=made, limits=MailboxLimits(max_count=int(most), max_bytes=1 << 20))

        numbers = range(int(first), int(first) + int(count))
        return await asyncio.gather(*(_reason(store.enqueue_run(run(number))) for number in numbers))


async def claim(path: str, session_id: str, owner: str, rounds: str) -> list[int]:
    """Takes a session and gives it up, again and again. Returns the epochs it was granted."""
    epochs: list[int] = []
    async with opened(path) as store:
        while len(epochs) < int(rounds):
            request = ClaimAgentRequest(session_id=session_id, owner=owner, ticket_id=owner, lease_ms=60_000)
            granted = await _or_reason(store.claim_agent(request))
            if granted == "CLAIM_CONFLICT":
                continue
            epochs.append(granted.epoch)
            fence = Fence(epoch=granted.epoch)
            batch = [event(session_id) for _ in range(3)]
            await store.append_events(AppendEventsRequest(events=batch, fence=fence))
            release = ReleaseIfEmptyRequest(session_id=session_id, fence=fence, force=True)
            await store.release_if_empty(release)
    return epochs


async def same_ids(path: str, session_id: str, count: str) -> list[int]:
    """Appends events that have the same ids in every process. Returns their numbers."""
    async with opened(path) as store:

        def request(number: int) -> AppendEventWithSequenceRequest:
            made = event(session_id)
            made.id, made.time_us = f"evt_{number}", 1
            return AppendEventWithSequenceRequest(event=made, strict_duplicates=True)

        answers = await asyncio.gather(
            *(store.append_event_with_sequence(request(number)) for number in range(int(count)))
        )
    return [each.result.event.sequence for each in answers]


async def names(path: str, prefix: str, count: str) -> list[str]:
    """Starts agents that are called the same in every process. Returns what became of each."""
    async with opened(path) as store:

        def request(number: int) -> SaveSessionRequest:
            session = Session(id=f"{prefix}_{number}", agent_id=f"agent_{number}", agent=AgentRecord())
            session.status = SessionStatus.SESSION_STATUS_ACTIVE
            return SaveSessionRequest(session=session)

        return await asyncio.gather(*(_reason(store.save_session(request(n))) for n in range(int(count))))


async def write_for_ever(path: str, session_id: str) -> None:
    """Appends until it is killed; says when the first commit is made."""
    async with opened(path) as store:
        await _append(store, session_id)
        print("begun", flush=True)
        while True:
            await asyncio.gather(*(_append(store, session_id) for _ in range(50)))


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


async def _reason(call: Awaitable[Any]) -> str:
    try:
        await call
    except TurndockError as error:
        return error.reason
    return "OK"


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
    "crossing": crossing,
    "enqueue": enqueue,
    "claim": claim,
    "same_ids": same_ids,
    "names": names,
    "write_for_ever": write_for_ever,
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
