"""A TCP proxy that can be cut: what a network does to a connection, on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator


class Proxy:
    """Passes bytes on between its own port and a target's, until it is cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = True
        self._refused = asyncio.Event()
        self.connections = 0
        """How many connections were made so far."""

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def cut(self) -> None:
        """Break every connection, as a network does: both ends see it reset. New ones are accepted."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def close_gate(self) -> None:
        """Break every connection, and each new one at once, until `open_gate`."""
        self._open = False
        self.cut()

    def open_gate(self) -> None:
        """Accept connections again."""
        self._open = True

    async def refused(self) -> None:
        """Wait until a connection was broken because the gate is closed."""
        await self._refused.wait()

    async def stop(self) -> None:
        """Break everything and end."""
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not self._open:
            writer.transport.abort()
            self._refused.set()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        self.connections += 1
        try:
            await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))
        finally:
            for one in (writer, far_writer):
                self._writers.discard(one)
                one.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def proxied(host: str, port: int) -> AsyncGenerator[Proxy]:
    """A proxy to a target, for as long as the block runs."""
    proxy = Proxy(host, port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
