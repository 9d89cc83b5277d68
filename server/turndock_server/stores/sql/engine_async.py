"""The asynchronous lane: a function runs under `AsyncConnection.run_sync`, over an asynchronous driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

T = TypeVar("T")


class AsyncLane:
    """A `Lane`: one connection writes, and a few read."""

    def __init__(
        self, url: URL, *, writing: Mapping[str, Any], reading: Mapping[str, Any], readers: int
    ) -> None:
        """`writing` and `reading` are how the two engines are made."""
        self._writing = create_async_engine(url, **writing)
        self._reading = create_async_engine(url, **reading)
        self.writing, self.reading = self._writing.sync_engine, self._reading.sync_engine
        self.writer = AsyncLine(self._writing)
        self._free_readers = asyncio.Semaphore(readers)  # who waits here waits as long as it takes
        self._reads = _UnderWay()
        self._lookouts = WeakSet[AsyncLine]()

    def read(self, work: Callable[[Connection], T]) -> asyncio.Future[T]:
        return self._reads.begin(self._read(work))

    def lookout(self) -> AsyncLine:
        line = AsyncLine(self._reading)
        self._lookouts.add(line)
        return line

    async def close(self) -> None:
        await self._reads.ended()
        for line in (
            self.writer,
            *self._lookouts,
        ):  # a pool forgets those that are out when it is disposed of
            await line.close()
        await self._writing.dispose()
        await self._reading.dispose()

    async def _read(self, work: Callable[[Connection], T]) -> T:
        async with self._free_readers, self._reading.connect() as connection:
            return await connection.run_sync(work)


class AsyncLine:
    """A `Line`: a connection with a lock."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()
        self._connection: AsyncConnection | None = None
        self._under_way = _UnderWay()

    def run(self, work: Callable[[Connection], T]) -> asyncio.Future[T]:
        return self._under_way.begin(self._run(work))

    async def close(self) -> None:
        await self._under_way.ended()
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _run(self, work: Callable[[Connection], T]) -> T:
        async with self._turn:
            connection = self._connection = self._connection or await self._engine.connect()
            try:
                return await connection.run_sync(work)
            finally:
                if connection.invalidated:  # it is lost; whoever comes next gets another
                    self._connection = None
                    await connection.close()


class _UnderWay:
    """Work that is finished also when who asked for it has gone: no statement is given up half way, as on a thread."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    async def ended(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
