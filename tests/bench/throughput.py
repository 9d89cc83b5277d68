"""How many events get through, and how long they take."""

from __future__ import annotations

import asyncio
import json
import time

from bench.harness import HERE, Bench, Row, percentile, process, server
from turndock import events, wire
from turndock.agent.v1 import AskRequest, PromptRequest, TellRequest, WatchRequest
from turndock.agent.v1.agent_host_pb2_grpc import AgentHostStub
from turndock.types.v1 import Cursor, EventType

SESSIONS = 10
STREAMED = EventType.EVENT_TYPE_MESSAGE_STREAMED


async def count_streamed(stub: AgentHostStub, session_id: str, wanted: int) -> None:
    """Watch a session until that many pieces of text have come."""
    call = stub.Watch(WatchRequest(cursors=[Cursor(session_id=session_id)]))
    seen = 0
    try:
        async for frame in call:
            seen += sum(event.type == STREAMED for event in frame.batch.events)
            if seen >= wanted:
                return
    finally:
        call.cancel()
    raise RuntimeError(f"the watch ended after {seen} of {wanted} events")


async def through_turndock(per_session: int, **options: str) -> float:
    """Events per second from a remote backend through the host to watchers."""
    async with server(**options) as bench:
        agents = await bench.start_agents(SESSIONS, events=per_session, size=200)
        watches = [
            asyncio.create_task(count_streamed(bench.stub, session_id, per_session))
            for _, session_id in agents
        ]
        began = time.perf_counter()
        for name, _ in agents:
            await bench.stub.Tell(TellRequest(agent_name=name, prompt="go"))
        await asyncio.gather(*watches)
        return SESSIONS * per_session / (time.perf_counter() - began)


async def through_relay(kind: str, per_session: int) -> float:
    """Events per second over the same two hops without Turndock."""
    async with process(str(HERE / "relay.py"), kind) as address:
        channel = wire.connect(address)
        stub = AgentHostStub(channel)
        config = json.dumps({"events": per_session, "size": 200})
        began = time.perf_counter()
        await asyncio.gather(*(count_streamed(stub, config, per_session) for _ in range(SESSIONS)))
        taken = time.perf_counter() - began
        await channel.close()
        return SESSIONS * per_session / taken


async def two_hops() -> list[Row]:
    """Remote backend → host → fsync-durable SQLite → watcher; beside it the bare path and a naive one."""
    stored: list[float] = []
    bare: list[float] = []
    memory: list[float] = []
    for _ in range(3):
        bare.append(await through_relay("bare", 10_000))
        stored.append(await through_turndock(10_000))
        memory.append(await through_turndock(10_000, store="memory"))
    naive = await through_relay("naive", 100)
    durable, ceiling = sorted(stored)[1], sorted(bare)[1]
    figures = {
        "durable_events_per_s": durable,
        "without_storage_events_per_s": ceiling,
        "memory_store_events_per_s": sorted(memory)[1],
        "naive_events_per_s": naive,
        "share_of_ceiling": durable / ceiling,
        "times_naive": durable / naive,
    }
    met = durable >= 0.5 * ceiling and durable >= 25 * naive
    return [Row("two-hop path", figures, ">= 50 % of the path without storage, >= 25 x naive", met)]


async def steady() -> list[Row]:
    """100 sessions at 50 events a second each, emit to receipt: one watch of all, and a watch for each."""
    return [
        await steady_load("100 sessions x 50 events/s", watches=1),
        await steady_load("100 sessions x 50 events/s, 100 watches", watches=100),
    ]


async def steady_load(name: str, *, watches: int) -> Row:
    """The sessions are shared out among so many watches, all in this process."""
    async with server() as bench:
        count, rate, seconds = 100, 50, 8
        agents = await bench.start_agents(count, events=rate * seconds, size=200, rate=rate)
        sessions = [session_id for _, session_id in agents]
        latencies: list[float] = []

        async def receive(watched: list[str]) -> None:
            cursors = [Cursor(session_id=session_id) for session_id in watched]
            call = bench.stub.Watch(WatchRequest(cursors=cursors, packed=True))
            left = len(watched)
            try:
                async for message in call:
                    now = time.monotonic_ns()
                    for frame in (message, *message.more):
                        for event in frame.batch.events:
                            if event.type == STREAMED:
                                latencies.append((now - int(event.message_streamed.text[:20])) / 1e6)
                            elif event.type == EventType.EVENT_TYPE_RUN_COMPLETED:
                                left -= 1
                    if not left:
                        return
            finally:
                call.cancel()

        receiving = [asyncio.create_task(receive(sessions[first::watches])) for first in range(watches)]
        await asyncio.gather(
            *(bench.stub.Tell(TellRequest(agent_name=name, prompt="go")) for name, _ in agents)
        )
        await asyncio.gather(*receiving)
    # The first second is the start of a hundred turns at once and the last one their end, which no steady state has.
    settled = latencies[count * rate : -count * rate]
    figures = {
        "p50_ms": percentile(settled, 0.5),
        "p99_ms": percentile(settled, 0.99),
        "received": float(len(latencies)),
    }
    met = figures["p50_ms"] <= 10 and figures["p99_ms"] <= 50 and len(latencies) == count * rate * seconds
    return Row(name, figures, "p50 <= 10 ms, p99 <= 50 ms", met)


async def first_event(bench: Bench, name: str) -> float:
    """Milliseconds from a Prompt to the backend's first event."""
    began = time.perf_counter()
    call = bench.stub.Prompt(PromptRequest(agent_name=name, prompt="hello world"))
    try:
        async for frame in call:
            if any(event.type == STREAMED for event in frame.batch.events):
                return (time.perf_counter() - began) * 1e3
    finally:
        call.cancel()
    raise RuntimeError("the turn had no event")


async def first() -> list[Row]:
    """From a Prompt on an idle agent to the first event of a scripted backend."""
    async with server() as bench:
        scripts = [[{"text": "hello"}, {"result": {"text": "hello"}}]]
        [(name, _)] = await bench.start_agents(1, backend="scripted", scripts=scripts)
        times: list[float] = []
        for _ in range(200):
            times.append(await first_event(bench, name))
            await bench.stub.Ask(AskRequest(agent_name=name, prompt="settle"))
    figures = {"p50_ms": percentile(times, 0.5), "p95_ms": percentile(times, 0.95)}
    return [Row("first event", figures, "p50 <= 5 ms", figures["p50_ms"] <= 5)]


async def empty_turn() -> list[Row]:
    """A turn that says nothing, asked for and answered."""
    async with server() as bench:
        [(name, _)] = await bench.start_agents(1, backend="scripted", scripts=[[{"result": {}}]])
        times: list[float] = []
        for _ in range(300):
            began = time.perf_counter()
            await bench.stub.Ask(AskRequest(agent_name=name, prompt="hello"))
            times.append((time.perf_counter() - began) * 1e3)
    figures = {"p50_ms": percentile(times, 0.5), "p95_ms": percentile(times, 0.95)}
    return [Row("empty durable turn", figures, "p50 <= 6 ms", figures["p50_ms"] <= 6)]


async def twenty_turns() -> list[Row]:
    """20 turns at once; the backend sends one message per event."""
    async with server() as bench:
        count = 500
        agents = await bench.start_agents(20, events=count, size=200, rate=100_000)
        watches = [
            asyncio.create_task(count_streamed(bench.stub, session_id, count)) for _, session_id in agents
        ]
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(
                bench.stub.Ask(AskRequest(agent_name=name, prompt="go", request_id=events.new_id()))
                for name, _ in agents
            )
        )
        await asyncio.gather(*watches)
        taken = time.perf_counter() - began
    failed = sum(answer.HasField("failure") for answer in answers)
    figures = {"events_per_s": 20 * count / taken, "failed_turns": float(failed)}
    return [
        Row(
            "20 concurrent turns",
            figures,
            ">= 4,000 events/s, no failed turn",
            figures["events_per_s"] >= 4_000 and not failed,
        )
    ]
