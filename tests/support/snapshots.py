"""Agent persistences for tests: those there are, one that records its calls, and a channel in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from turndock.errors import TurndockError
from turndock.ports import AgentPersistence
from turndock.remote import RemoteAgentPersistence
from turndock.serving import add_agent_persistence
from turndock.store.v1 import (
    Lifecycle,
    LoadStateRequest,
    LoadStateResponse,
    PersistStateRequest,
    PersistStateResponse,
    SetInterruptedRequest,
    SetInterruptedResponse,
)
from turndock.wire import bind, connect, new_server
from turndock_server.stores.memory_snapshots import MemoryAgentPersistence
from turndock_server.stores.sql import SqlSessionStore


@asynccontextmanager
async def in_memory(_: Path) -> AsyncGenerator[AgentPersistence]:
    yield MemoryAgentPersistence()


@asynccontextmanager
async def beside_sessions(target: str) -> AsyncGenerator[AgentPersistence]:
    store = await SqlSessionStore.open(target, synchronous="normal")
    try:
        yield store.agent_persistence
    finally:
        await store.close()


PERSISTENCES: dict[str, Callable[[Path], AbstractAsyncContextManager[AgentPersistence]]] = {
    "memory": in_memory,
    "sql-threads": lambda folder: beside_sessions(f"sqlite:///{folder / 'turndock.db'}"),
    "sql-async": lambda folder: beside_sessions(f"sqlite+aiosqlite:///{folder / 'turndock.db'}"),
}
"""Every implementation of this repository, by name."""


@asynccontextmanager
async def behind_grpc(persistence: AgentPersistence) -> AsyncGenerator[RemoteAgentPersistence]:
    """The same persistence with a real channel in between."""
    server = new_server()
    add_agent_persistence(server, persistence)
    endpoint = bind(server, "127.0.0.1:0")
    await server.start()
    channel = connect(endpoint)
    try:
        yield RemoteAgentPersistence(channel)
    finally:
        await channel.close()
        await server.stop(None)


class PlainSnapshots:
    """One with no more than the required calls."""

    def __init__(self) -> None:
        self._kept = MemoryAgentPersistence()
        self.persist_state = self._kept.persist_state
        self.load_state = self._kept.load_state


class RecordingSnapshots(MemoryAgentPersistence):
    """RecordingSnapshots of the acceptance cases: keeps snapshots, records its calls and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.trouble: Exception | None = None
        """Raised by every write."""
        self.load_trouble: Exception | None = None
        self.silent = False
        """Whether writes never answer."""
        self.on_write: Callable[[Any], object] = lambda _: None
        self._change = asyncio.Event()

    async def persist_state(self, request: PersistStateRequest) -> PersistStateResponse:
        await self._heard(request)
        return await super().persist_state(request)

    async def set_interrupted(self, request: SetInterruptedRequest) -> SetInterruptedResponse:
        await self._heard(request)
        return await super().set_interrupted(request)

    async def load_state(self, request: LoadStateRequest) -> LoadStateResponse:
        if self.load_trouble is not None:
            raise self.load_trouble
        return await super().load_state(request)

    @property
    def saves(self) -> list[PersistStateRequest]:
        """The PersistState calls so far."""
        return [call for call in self.calls if isinstance(call, PersistStateRequest)]

    @property
    def story(self) -> list[str]:
        """The calls so far in short: `on_completion`, `flag true`, …"""
        return [
            Lifecycle.Name(call.lifecycle).removeprefix("LIFECYCLE_").lower()
            if isinstance(call, PersistStateRequest)
            else f"flag {str(call.interrupted).lower()}"
            for call in self.calls
        ]

    @property
    def flags(self) -> list[bool]:
        """The flags of the SetInterrupted calls so far."""
        return [call.interrupted for call in self.calls if isinstance(call, SetInterruptedRequest)]

    async def told(self, lifecycle: str) -> None:
        """Wait until a snapshot has been saved at that point."""
        while lifecycle not in self.story:
            await self._change.wait()

    async def _heard(self, request: Any) -> None:
        self.calls.append(request)
        self.on_write(request)
        change, self._change = self._change, asyncio.Event()
        change.set()
        if self.silent:
            await asyncio.Event().wait()
        if self.trouble is not None:
            raise self.trouble


UNAVAILABLE = TurndockError("STORAGE_CONNECTION_FAILED", "the database cannot be reached")
