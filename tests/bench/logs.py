"""The log: appended, fanned out, caught up with, read at its end."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from pathlib import Path

import grpc.aio

from bench.harness import Bench, Row, server
from turndock import events, wire
from turndock.agent.v1 import TellRequest, WatchRequest
from turndock.agent.v1.agent_host_pb2_grpc import AgentHostStub
from turndock.store.v1 import AppendEventsRequest, GetEventsRequest
from turndock.store.v1.session_store_pb2_grpc import SessionStoreStub
from turndock.types.v1 import Cursor, Event, EventType, MessageStreamed
from turndock_server.core.feed import AgentKey, Feed
from turndock_server.stores.sql import SqlSessionStore

BATCH = 256


def batch(session_id: str, count: int = BATCH, size: int = 200) -> list[Event]:
    """Events as a turn makes them."""
    now = events.now_us()
    return [
        Event(
            id=events.new_id(),
            type=EventType.EVENT_TYPE_MESSAGE_STREAMED,
            session_id=session_id,
            run_id="run",
            time_us=now,
            message_streamed=MessageStreamed(text="x" * size),
        )
        for _ in range(count)
    ]


async def append() -> list[Row]:
    """Appending through the port, beside raw sqlite3 with the same rows, batches and durability."""
    batches = [batch("session") for _ in range(200)]
    total = sum(map(len, batches))
    with tempfile.TemporaryDirectory() as folder:
        raw = _append_raw(Path(folder) / "raw.db", batches)
        store = await SqlSessionStore.open(Path(folder) / "store.db")
        began = time.perf_counter()
        for each in batches:
            await store.append_events(AppendEventsRequest(events=each))
        through_port = total / (time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(
            *(
                store.append_events(AppendEventsRequest(events=batch(f"s{index}", 10)))
                for index in range(1000)
            )
        )
        concurrent = 10_000 / (time.perf_counter() - began)
        await store.close()
    figures = {
        "port_events_per_s": through_port,
        "raw_events_per_s": raw,
        "share_of_raw": through_port / raw,
        "1000_callers_x_10_events_per_s": concurrent,
    }
    return [Row("append", figures, ">= 50 % of raw sqlite3", figures["share_of_raw"] >= 0.5)]


def _append_raw(path: Path, batches: list[list[Event]]) -> float:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute(
        "CREATE TABLE events (session INTEGER, sequence INTEGER, id BLOB, body BLOB,"
        " PRIMARY KEY (session, sequence)); "
    )
    database.execute("CREATE UNIQUE INDEX by_id ON events (id)")
    sequence, began = 0, time.perf_counter()
    for each in batches:
        rows: list[tuple[int, int, bytes, bytes]] = []
        for event in each:
            sequence += 1
            rows.append((1, sequence, bytes.fromhex(event.id.replace("-", "")), event.SerializeToString()))
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        database.execute("COMMIT")
    taken = time.perf_counter() - began
    database.close()
    return sequence / taken


async def tail_read() -> list[Row]:
    """The last 100 events of a session with a thousand to a million."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = await SqlSessionStore.open(Path(folder) / "store.db", synchronous="normal")
        head = 0
        for size in (1_000, 10_000, 100_000, 1_000_000):
            while head < size:
                count = min(5_000, size - head)
                await store.append_events(AppendEventsRequest(events=batch("session", count, 50)))
                head += count
            request = GetEventsRequest(session_id="session", after_sequence=head - 100)
            times: list[float] = []
            for _ in range(50):
                began = time.perf_counter()
                page = await store.get_events(request)
                times.append((time.perf_counter() - began) * 1e3)
                assert len(page.events) == 100
            figures[f"p50_ms_at_{size}"] = sorted(times)[25]
        await store.close()
    flat = figures["p50_ms_at_1000000"] / figures["p50_ms_at_1000"]
    figures["growth"] = flat
    return [Row("tail read", figures, "flat from 1,000 to 1,000,000", flat <= 1.5)]


async def catch_up() -> list[Row]:
    """A watcher that reads a long log from the store."""
    async with server() as bench:
        channel = wire.connect(bench.address)
        store = SessionStoreStub(channel)
        total = 0
        while total < 200_000:
            await store.AppendEvents(AppendEventsRequest(events=batch("log", 2_000)))
            total += 2_000
        rates: list[float] = []
        for _ in range(3):
            rates.append(await _read_all(bench.stub, total))
        await channel.close()
    figures = {"events_per_s": sorted(rates)[1]}
    return [Row("catch-up", figures, ">= 300,000 events/s", figures["events_per_s"] >= 300_000)]


async def _read_all(stub: AgentHostStub, total: int) -> float:
    call = stub.Watch(WatchRequest(cursors=[Cursor(session_id="log")]))
    began = time.perf_counter()
    try:
        async for frame in call:
            if frame.cursor.after_sequence >= total:
                return total / (time.perf_counter() - began)
    finally:
        call.cancel()
    raise RuntimeError("the watch ended early")


async def fan_out() -> list[Row]:
    """One agent's events to many watchers: what the shared log makes of it, in process and over gRPC."""
    figures: dict[str, float] = {}
    for watchers in (1, 10, 100, 1_000):
        figures[f"shared_log_deliveries_per_s_{watchers}"] = await _fan_out_in_process(watchers)
    async with server() as bench:
        for watchers in (1, 10, 100):
            figures[f"grpc_deliveries_per_s_{watchers}"] = await _fan_out_over_grpc(bench, watchers)
    met = figures["grpc_deliveries_per_s_100"] >= 1_000_000
    return [Row("fan-out", figures, ">= 1,000,000 deliveries/s to 100 watchers at full batches", met)]


async def _fan_out_in_process(watchers: int) -> float:
    """Encode once, join once, hand the same bytes to everybody."""
    key, feed = AgentKey(None, "session"), Feed()
    published = batch("session", 4_000)
    for number, event in enumerate(published, 1):
        event.sequence = number
    with feed.watching(key) as tail:
        began = time.perf_counter()
        delivered, cursors = 0, [0] * watchers
        for first in range(0, len(published), 1_000):
            feed.publish(key, published[first : first + 1_000])
            for index in range(watchers):
                while cursors[index] < tail.head:
                    chunks, last = tail.batch(cursors[index])
                    delivered += last - cursors[index]
                    cursors[index] = last
                    assert chunks
        return delivered / (time.perf_counter() - began)


def _after_sequence(frame: bytes) -> int:
    """The cursor of an encoded frame: its first field. The rest is not decoded, since one process plays all clients."""
    return Cursor.FromString(frame[2 : 2 + frame[1]]).after_sequence


async def _fan_out_over_grpc(bench: Bench, watchers: int) -> float:
    stub = bench.stub
    watch: grpc.aio.UnaryStreamMultiCallable[WatchRequest, bytes] = bench.channel.unary_stream(
        "/turndock.agent.v1.AgentHost/Watch", request_serializer=WatchRequest.SerializeToString
    )
    count = 20_000
    [(name, session_id)] = await bench.start_agents(1, events=count, size=200)

    async def drain() -> None:
        call = watch(WatchRequest(cursors=[Cursor(session_id=session_id)]))
        try:
            async for frame in call:
                if _after_sequence(frame) >= count + 4:
                    return
        finally:
            call.cancel()

    drains = [asyncio.create_task(drain()) for _ in range(watchers)]
    began = time.perf_counter()
    await stub.Tell(TellRequest(agent_name=name, prompt="go"))
    await asyncio.gather(*drains)
    return watchers * count / (time.perf_counter() - began)
