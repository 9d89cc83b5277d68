"""An event loop in a thread, for code that has none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

Result = TypeVar("Result")
Row = TypeVar("Row")


class LoopThread:
    """Runs coroutines in a loop of its own, from any thread but that one."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not been stopped."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and wait for its result. An exception that ends the wait, such as Ctrl-C, cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def iterate(self, rows: AsyncIterator[Row]) -> Iterator[Row]:
        """The rows of an asynchronous iterator."""
        try:
            while True:
                yield self.run(_next(rows))
        except _End:
            return

    def call(self, function: Any, *arguments: Any) -> None:
        """Have a plain function called in the loop, and do not wait for it."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        """End the loop and wait for the thread. Repeatable."""
        if self.running:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class _End(Exception):
    """The end of an iteration. StopAsyncIteration itself cannot be the outcome of a task."""


async def _next(rows: AsyncIterator[Row]) -> Row:
    try:
        return await anext(rows)
    except StopAsyncIteration:
        raise _End from None
