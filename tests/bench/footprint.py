"""What an agent, a watcher and a start cost."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import time
import tracemalloc
from pathlib import Path

import grpc.aio

from bench.harness import HERE, Row, percentile, process, server
from turndock import events
from turndock.agent.v1 import WatchRequest, WatchResponse
from turndock.store.v1 import ClaimAgentResponse
from turndock.types.v1 import AgentDefinition, AgentRecord, Cursor, Session
from turndock_server.backends.echo import EchoBackend
from turndock_server.core.accounts import DEFAULT_LIMITS
from turndock_server.core.agent import Agent
from turndock_server.core.environment import Environment
from turndock_server.core.feed import AgentKey, Feed
from turndock_server.core.journal import Journal
from turndock_server.core.live import REST_AFTER_S, LiveAgents
from turndock_server.core.offload import Offloader
from turndock_server.stores.memory import MemorySessionStore

SETTLED_S = 3.0
"""After this time every agent that has nothing to do rests."""


def resident_bytes(pid: int) -> int:
    """What a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def memory() -> list[Row]:
    """A live idle agent, an evicted one, an idle watcher: resident bytes of the host's process, per piece."""
    async with server() as bench:
        pid = int((bench.data / "turndock.db.lock").read_text(encoding="ascii"))
        # The first ones fill what the process keeps for later; what counts is what each further one adds at rest.
        await bench.start_agents(2_000, backend="echo")
        await asyncio.sleep(SETTLED_S)
        before = resident_bytes(pid)
        agents = await bench.start_agents(4_000, backend="echo")
        await asyncio.sleep(SETTLED_S)
        per_agent = (resident_bytes(pid) - before) / 4_000
        before = resident_bytes(pid)
        calls: list[grpc.aio.UnaryStreamCall[WatchRequest, WatchResponse]] = []
        for _, session_id in agents[:500]:
            call = bench.stub.Watch(WatchRequest(cursors=[Cursor(session_id=session_id)]))
            await call.read()
            await call.read()
            calls.append(call)
        per_watcher = (resident_bytes(pid) - before) / 500
        for call in calls:
            call.cancel()
    at_rest = await _agent_at_rest_bytes()
    figures = {
        "live_idle_agent_bytes": at_rest,
        # With the pages that SQLite keeps of the rows that were written, and what the allocator keeps for later.
        "resident_growth_per_agent_bytes": per_agent,
        "idle_watcher_bytes": per_watcher,
    }
    met = at_rest <= 1024 and per_watcher <= 20 * 1024
    return [Row("memory", figures, "live idle agent <= 1 KiB, idle watcher <= 20 KiB", met)]


async def _agent_at_rest_bytes() -> float:
    """What one agent at rest adds to the host's own objects, as the interpreter counts them."""
    count, store = 5_000, MemorySessionStore()
    feed = Feed()
    env = Environment(
        journal=Journal(store, store, feed),
        offloader=Offloader(None),
        backends={"echo": EchoBackend()},
        behaviors={},
        settled=lambda key, run, response: None,
        publish_status=lambda agent: None,
    )
    live = LiveAgents(lambda key, claim, ready: Agent(env, key, claim, backend_ready=ready))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for index in range(count):
        session_id, name = events.new_id(), f"agent-{index}"
        definition = AgentDefinition(agent_name=name, backend="echo", limits=DEFAULT_LIMITS)
        record = AgentRecord(ready=True, definition=definition)
        claim = ClaimAgentResponse(
            epoch=1, session=Session(id=session_id, agent_id=name, incarnation="0" * 16, agent=record)
        )
        agent = Agent(env, AgentKey(None, session_id), claim)
        agent.last_activity -= REST_AFTER_S + 1
        live.add(agent)
    live.rest(busy=lambda agent: False)
    gc.collect()
    size = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    assert len(live) == count
    return size


async def cold_start() -> list[Row]:
    """From exec to SERVING on an empty store, without plug-ins."""
    times: list[float] = []
    for _ in range(7):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            async with process(str(HERE / "bare_server.py"), folder):
                times.append(time.perf_counter() - began)
    figures = {"p50_s": percentile(times, 0.5), "max_s": max(times)}
    return [Row("cold start", figures, "< 1 s", figures["p50_s"] < 1)]
