"""What an agent, a watcher and a start cost."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import grpc.aio

from bench.harness import HERE, Row, percentile, process, server
from turndock.agent.v1 import WatchRequest, WatchResponse
from turndock.types.v1 import Cursor


def resident_bytes(pid: int) -> int:
    """What a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def memory() -> list[Row]:
    """A live idle agent, an evicted one, an idle watcher: resident bytes of the host's process, per piece."""
    async with server() as bench:
        pid = int((bench.data / "turndock.db.lock").read_text(encoding="ascii"))
        await bench.start_agents(200, backend="echo")
        before = resident_bytes(pid)
        agents = await bench.start_agents(2_000, backend="echo")
        per_agent = (resident_bytes(pid) - before) / 2_000
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
    figures = {"live_idle_agent_bytes": per_agent, "idle_watcher_bytes": per_watcher}
    met = per_agent <= 1024 and per_watcher <= 20 * 1024
    return [Row("memory", figures, "live idle agent <= 1 KiB, idle watcher <= 20 KiB", met)]


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
