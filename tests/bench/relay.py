"""The same two hops without Turndock: a relay between the load backend and a watcher.

`relay.py bare` forwards every batch as it comes and stores nothing: the ceiling. `relay.py naive` does what one writes
first: a transaction and a message for each event.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio

from bench.harness import HERE, READY, process
from turndock import events, wire
from turndock.agent.v1 import Batch, WatchRequest, WatchResponse, agent_host_pb2
from turndock.backend.v1 import PromptRequest, Result
from turndock.plugin.v1 import DescribeRequest
from turndock.remote import RemoteBackend, RemotePlugin
from turndock.serving import ENDPOINT_VARIABLE
from turndock.serving.handlers import add_port
from turndock.types.v1 import BackendSession, Event, ToolApprovalDecided, ToolApprovalRequested


class Turn:
    """A turn nobody asks anything of."""

    def accept(self, session: BackendSession) -> None:
        """The session does not matter here."""

    async def checkpoint(self, provider_session_id: str) -> None:
        """The load backend asks for none."""

    async def approval(self, request: ToolApprovalRequested) -> ToolApprovalDecided:
        """The load backend asks for none."""
        raise NotImplementedError


class Relay:
    """Watch runs a turn and forwards it. The cursor's session id is the load backend's configuration."""

    def __init__(self, backend: RemoteBackend, database: sqlite3.Connection | None) -> None:
        self._backend = backend
        self._database = database

    async def watch(self, request: WatchRequest, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Forward one turn."""
        await context.send_initial_metadata(())
        session = BackendSession(data=request.cursors[0].session_id.encode())
        prompt = PromptRequest(session=session, prompt="go", run_id="r", turn_token=events.new_id())
        async for batch in self._batches(prompt):
            if self._database is None:
                await context.write(WatchResponse(batch=Batch(events=batch)).SerializeToString())
                continue
            for event in batch:
                with self._database:
                    body = event.SerializeToString()
                    self._database.execute(
                        "INSERT INTO events (id, body) VALUES (?, ?)", (events.new_id(), body)
                    )
                await context.write(WatchResponse(batch=Batch(events=[event])).SerializeToString())

    async def _batches(self, prompt: PromptRequest) -> AsyncIterator[list[Event]]:
        async for output in self._backend.prompt(prompt, Turn()):
            outputs = output if isinstance(output, list) else [output]
            batch = [each for each in outputs if isinstance(each, Event)]
            if batch:
                yield batch
            if any(isinstance(each, Result) for each in outputs):
                return


async def main(kind: str) -> None:
    """Serve until ended."""
    async with AsyncExitStack() as stack:
        # Told where to listen as a host would tell it, so that it ends with this process, however that ends.
        os.environ[ENDPOINT_VARIABLE] = "127.0.0.1:0"
        address = await stack.enter_async_context(process(str(HERE / "load_backend.py"), own_group=False))
        channel = wire.connect(address)
        description = await RemotePlugin(channel).describe(DescribeRequest())
        backend = RemoteBackend(channel, description.contracts[0].capabilities)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        database = (
            sqlite3.connect(Path(folder) / "naive.db", isolation_level="DEFERRED")
            if kind == "naive"
            else None
        )
        if database is not None:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.execute("CREATE TABLE events (sequence INTEGER PRIMARY KEY, id TEXT UNIQUE, body BLOB)")
        server = wire.new_server()
        service = agent_host_pb2.DESCRIPTOR.services_by_name["AgentHost"]
        relay = Relay(backend, database)
        add_port(server, service, relay, own={"Watch": relay.watch}, encoded=("Watch",))
        where = wire.bind(server, "127.0.0.1:0")
        await server.start()
        print(READY, where, flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
