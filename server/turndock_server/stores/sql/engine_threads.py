"""The lane of threads: a function runs as a whole on a thread of its connection's, over Python's own driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine

from turndock_server.stores.sql import sqlite

T = TypeVar("T")


class ThreadLane:
    """A `Lane`: one thread writes, and a few read."""

    def __init__(self, url: URL, *, busy_timeout_ms: int, readers: int) -> None:
        self.writing = create_engine(url, **sqlite.writing_options(busy_timeout_ms))
        self.reading = create_engine(url, **sqlite.reading_options(busy_timeout_ms, readers))
        self.writer = ThreadLine(self.writing, "turndock-store-writer")
        self._readers = ThreadPoolExecutor(readers, "turndock-store-reader")

    def read(self, work: Callable[[Connection], T]) -> asyncio.Future[T]:
        def read() -> T:
            with self.reading.connect() as connection:
                return work(connection)

        return _on(self._readers, read)

    def lookout(self) -> ThreadLine:
        return ThreadLine(self.reading, "turndock-store-lookout")

    async def close(self) -> None:
        await asyncio.to_thread(self._readers.shutdown)
        await self.writer.close()
        await asyncio.to_thread(self._dispose)

    def _dispose(self) -> None:
        self.writing.dispose()
        self.reading.dispose()


class ThreadLine:
    """A `Line`: a connection with a thread."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, name)
        self._connection: Connection | None = None

    def run(self, work: Callable[[Connection], T]) -> asyncio.Future[T]:
        return _on(self._thread, lambda: work(self._connected()))

    async def close(self) -> None:
        await asyncio.to_thread(self._end)

    def _connected(self) -> Connection:
        self._connection = self._connection or self._engine.connect()
        return self._connection

    def _end(self) -> None:
        self._thread.shutdown()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _on(threads: Executor, work: Callable[[], T]) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(threads, work)
