"""What every row needs: real processes, percentiles, and a place for its figures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from turndock import events, wire
from turndock.agent.v1 import StartAgentRequest
from turndock.agent.v1.agent_host_pb2_grpc import AgentHostStub
from turndock.types.v1 import AgentDefinition, AgentLimits

HERE = Path(__file__).parent
READY = "READY"


@dataclass
class Row:
    """One measured thing."""

    name: str
    figures: dict[str, float]
    target: str
    met: bool | None = None
    """None: the row has no target of its own."""
    notes: str = ""
    setting: dict[str, str | int] = field(default_factory=dict[str, "str | int"])

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), sort_keys=True)


Benchmark = Callable[[], Coroutine[Any, Any, list[Row]]]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


@asynccontextmanager
async def process(*arguments: str, own_group: bool = True) -> AsyncGenerator[str]:
    """A Python program that prints `READY <something>` once it serves; ended with the context.

    Without a group of its own it ends with whoever ends this program's.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        start_new_session=own_group,
    )
    assert child.stdout is not None
    try:
        async for line in child.stdout:
            words = line.decode().split()
            if words[:1] == [READY]:
                yield words[1]
                return
        raise RuntimeError(f"{arguments} ended before it was ready")
    finally:
        # The whole group: a relay has a backend of its own.
        with contextlib.suppress(ProcessLookupError):
            if own_group:
                os.killpg(child.pid, signal.SIGTERM)
            else:
                child.terminate()
        await child.wait()


@dataclass
class Bench:
    """A served host with the load backend docked as a plug-in process."""

    stub: AgentHostStub
    channel: grpc.aio.Channel
    address: str
    data: Path

    async def start_agents(
        self, count: int, *, backend: str = "load", limits: AgentLimits | None = None, **config: Any
    ) -> list[tuple[str, str]]:
        """Agents that emit as `config` says: their names and session ids."""
        started: list[tuple[str, str]] = []
        for _ in range(count):
            name = events.new_id()
            definition = AgentDefinition(
                agent_name=name, backend=backend, backend_config_json=json.dumps(config), limits=limits
            )
            answer = await self.stub.StartAgent(StartAgentRequest(definition=definition))
            started.append((name, answer.agent.session_id))
        return started


@asynccontextmanager
async def server(**options: str) -> AsyncGenerator[Bench]:
    """A host process of its own over SQLite, with the load backend in another process."""
    with tempfile.TemporaryDirectory() as folder:
        settings = json.dumps({"data": folder, **options})
        async with process(str(HERE / "server.py"), settings) as address:
            channel = wire.connect(address)
            try:
                yield Bench(AgentHostStub(channel), channel, address, Path(folder))
            finally:
                await channel.close()


async def timed(work: Awaitable[object]) -> float:
    """Seconds a piece of work takes."""
    began = time.perf_counter()
    await work
    return time.perf_counter() - began
