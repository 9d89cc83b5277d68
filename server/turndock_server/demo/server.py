"""The demo's server: a process of its own on a database of its own, which can be killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections import deque
from pathlib import Path
from typing import Final

import grpc.aio
from grpc_health.v1 import health_pb2

from turndock import wire
from turndock_server.processes import Child, TooLong, base_environment, exit_text, read_lines

_WATCH_HEALTH: Final = "/grpc.health.v1.Health/Watch"
_WORDS_KEPT: Final = 15
_MAX_LINE_BYTES: Final = 2048


class DemoFailed(Exception):
    """Something did not happen that had to; the text says what."""


class DemoServer:
    """`turndock serve` in a directory, with one backend in a process beside it."""

    def __init__(self, folder: Path, backend: str) -> None:
        self.endpoint = f"unix:{folder / 'api'}"
        self.database = folder / "data" / "turndock.db"
        self._environment = base_environment() | {"TMPDIR": str(folder)}
        self._config = folder / "turndock.toml"
        self._config.write_text(_configuration(self.endpoint, backend), encoding="utf-8")
        self._child: Child | None = None
        self._listening: list[asyncio.Task[None]] = []
        self._words: deque[str] = deque(maxlen=_WORDS_KEPT)

    async def start(self) -> None:
        """Start the process and wait until it serves. Raises `DemoFailed` when it ends instead."""
        argv = [sys.executable, "-m", "turndock_server", "serve", "--config", str(self._config)]
        child = self._child = await Child.start(argv, environment=self._environment)
        self._listening = [asyncio.create_task(self._listen(out)) for out in (child.stdout, child.stderr)]
        ended = asyncio.create_task(child.wait())
        serves = asyncio.create_task(self._serves())
        try:
            await asyncio.wait((ended, serves), return_when=asyncio.FIRST_COMPLETED)
            if not serves.done():
                raise DemoFailed(f"the server {exit_text(await ended)}")
            serves.result()
        finally:
            ended.cancel()
            serves.cancel()

    async def kill(self) -> int:
        """kill -9. Returns minus the signal that ended the process."""
        return await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """Ask the process to end, and return its exit code."""
        return await self._end(signal.SIGTERM)

    async def close(self) -> None:
        """End whatever still runs."""
        if self._child is not None:
            await self._child.stop()
            await asyncio.wait(self._listening)

    def last_words(self) -> list[str]:
        """The newest lines of its log."""
        return [*self._words]

    async def _end(self, number: signal.Signals) -> int:
        if self._child is None:
            raise DemoFailed("the server was not started")
        os.kill(self._child.pid, number)
        code = await self._child.wait()
        await asyncio.wait(self._listening)
        return code

    async def _serves(self) -> None:
        # A connection of its own: a shared one may still lead to the server that was killed.
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200))
        async with wire.connect(self.endpoint, options=options) as channel:
            watch = channel.unary_stream(
                _WATCH_HEALTH,
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            try:
                async for answer in watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError as error:
                raise DemoFailed(f"the server does not say how it is: {error.details()}") from error

    async def _listen(self, output: asyncio.StreamReader) -> None:
        async for lines in read_lines(output, _MAX_LINE_BYTES):
            for line in lines:
                said = line.head if isinstance(line, TooLong) else line
                self._words.append(said.decode(errors="replace").rstrip())


def _configuration(endpoint: str, backend: str) -> str:
    plugin = shlex.join([sys.executable, "-m", "turndock_server.backends.plugin", backend])
    return f"""# Made by `turndock demo`.
data = "data"

[server]
listen = {json.dumps(endpoint)}
grace_seconds = 5

[backends.model]
kind = "plugin"
plugin = "model"

[plugins.model]
endpoint = {json.dumps(f"exec:{plugin}")}
required = true
"""
