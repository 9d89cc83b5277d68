"""How a server ends when it is asked to."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.held import GRACE_S, HELD, begun, config, stored_after
from support.programs import gone, python
from support.servers import (
    SERVING,
    WAIT_S,
    ServerProcess,
    a_server,
    beside,
    calls,
    custom,
    of_type,
    terminals,
)
from turndock import wire
from turndock.agent.v1 import (
    AskRequest,
    End,
    ListAgentsRequest,
    NotifyRequest,
    PromptRequest,
    StartAgentRequest,
    TellRequest,
    WatchRequest,
)
from turndock.backend.v1 import InterruptRequest as InterruptTurn
from turndock.backend.v1 import InterruptResponse as TurnInterrupted
from turndock.client import Client
from turndock.errors import Code, TurndockError
from turndock.events import RUN_TERMINAL
from turndock.serving.contracts import SESSION_STORE
from turndock.store.v1 import GetEventsRequest
from turndock.types.v1 import (
    AgentDefinition,
    Cursor,
    Event,
    EventType,
    RunStatus,
)
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.core.transcript import AGENT_SHUTDOWN
from turndock_server.stores.sql import SqlSessionStore

pytestmark = pytest.mark.slow


async def refused(call: Awaitable[object]) -> TurndockError:
    with pytest.raises(TurndockError) as caught:
        async with asyncio.timeout(WAIT_S):
            await call
    return caught.value


async def follow(endpoint: str, agent: str, run_id: str) -> list[Event]:
    """What the SDK's watch yields of an agent's log, from its beginning to a run's end, whatever happens meanwhile."""
    seen: list[Event] = []
    async with Client(endpoint) as client, client.agent(agent).watch() as watch:
        async for event in watch:
            seen.append(event)
            if event.run_id == run_id and event.type in RUN_TERMINAL:
                break
    return seen


@asynccontextmanager
async def slow_store(folder: Path, seconds: float) -> AsyncGenerator[str]:
    """A store in this process that takes its time for everything; the configuration that uses it."""
    store = await SqlSessionStore.open(folder / "slow.db")

    def slowed(call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def take_time(request: Any) -> Any:
            await asyncio.sleep(seconds)
            return await call(request)

        return take_time

    for rpc in SESSION_STORE.methods:
        name = wire.method_name(rpc.name)
        if not rpc.server_streaming:
            setattr(store, name, slowed(getattr(store, name)))
    endpoint = f"unix:{folder / 'store'}"
    try:
        async with beside(endpoint, session_store=store):
            yield f'[store]\nkind = "plugin:store"\n[plugins.store]\nendpoint = "{endpoint}"'
    finally:
        await store.close()


@pytest.fixture(params=["sqlite", "slow"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    """The configuration of a store."""
    if request.param == "sqlite":
        yield ""
        return
    async with slow_store(tmp_path, 0.1) as chosen:
        yield chosen


# --- SIGTERM ---------------------------------------------------------------------------------------------------------


async def test_PF_B37_a_stopping_server_takes_nothing_new_and_lets_turns_end(
    tmp_path: Path, backend: ScriptedBackend, store: str
) -> None:
    async with (
        a_server(tmp_path, config(tmp_path, grace_s=WAIT_S, more=store)) as server,
        calls(server) as api,
    ):
        idle, busy = await api.start("idle", "beside", HELD), await api.start("busy", "beside", HELD)
        asked = asyncio.ensure_future(
            api.agents.ask(AskRequest(agent_name="busy", request_id="first", prompt="?"))
        )
        await backend.entered("end")
        watchers = [
            api.watch(Cursor(session_id=busy), progress_interval_ms=1_000, with_status=True),
            api.watch(Cursor(session_id=busy)),
            api.watch(Cursor(session_id=idle)),
            api.watch(Cursor(session_id=busy), Cursor(session_id=idle)),
        ]
        following = asyncio.ensure_future(follow(server.endpoint, "busy", "second"))
        waiting = asyncio.ensure_future(
            api.agents.ask(AskRequest(agent_name="busy", request_id="second", prompt="?"))
        )
        await watchers[0].until(lambda watcher: watcher.status.queued == 1)
        polling = asyncio.ensure_future(api.ended("busy", "second"))
        reading = asyncio.ensure_future(
            api.store.get_events(GetEventsRequest(session_id=idle, after_sequence=2, wait_ms=30_000))
        )
        for watcher in (watchers[0], watchers[1], watchers[3]):
            await watcher.until(begun("first"))
        await begins_to_stop(server)
        for watcher in watchers:
            assert (await watcher.ended()).reason == End.REASON_SERVER_STOPPING
        assert watchers[0].cursors[busy].after_sequence == watchers[0].events[-1].sequence
        definition = AgentDefinition(agent_name="new", backend="inside")
        for call in (
            api.agents.tell(TellRequest(agent_name="idle", prompt="?")),
            api.agents.ask(AskRequest(agent_name="busy", prompt="?")),
            anext(api.agents.prompt(PromptRequest(agent_name="idle", prompt="?"))),
            api.agents.start_agent(StartAgentRequest(definition=definition)),
            api.agents.notify(NotifyRequest(agent_name="idle", payload_json="1")),
            anext(api.agents.watch(WatchRequest(cursors=[Cursor(session_id=busy)]))),
            api.agents.list_agents(ListAgentsRequest()),
            waiting,
        ):
            error = await refused(call)
            assert (error.code, error.reason) == (Code.UNAVAILABLE, "SERVER_STOPPING")
        assert not asked.done()
        backend.release("end")
        answer = await asked
        assert answer.response.text == "done"
        assert await server.ended() == 0
        assert (await polling).status == RunStatus.RUN_STATUS_PENDING
        assert len(custom((await reading).events, AGENT_SHUTDOWN)) == 1

        await server.start()
        assert (await api.ended("busy", "second")).status == RunStatus.RUN_STATUS_COMPLETED
        logs = [await api.stored(session_id) for session_id in (idle, busy)]
        for log in logs:
            assert [event.sequence for event in log] == [*range(1, len(log) + 1)]
            assert len(custom(log, AGENT_SHUTDOWN)) == 1
        assert {run: len(ends) for run, ends in terminals(logs[1]).items()} == {"first": 1, "second": 1}
        followed = await following
        assert followed == logs[1][: len(followed)]
        resumed = api.watch(watchers[0].cursors[busy])
        await resumed.until(lambda watcher: watchers[0].events + watcher.events == logs[1])
        assert [heard.run_id for heard in backend.record.prompts] == ["first", "second"]


@pytest.mark.parametrize("where", ["inside", "beside"])
async def test_PF_B37_a_turn_that_outlasts_the_grace_is_interrupted_once(
    tmp_path: Path, backend: ScriptedBackend, where: str, store: str
) -> None:
    async with a_server(tmp_path, config(tmp_path, more=store)) as server, calls(server) as api:
        sessions = [await api.start(name, where, HELD) for name in ("idle", "busy")]
        asked = asyncio.ensure_future(
            api.agents.ask(AskRequest(agent_name="busy", request_id="r", prompt="?"))
        )
        watcher = api.watch(Cursor(session_id=sessions[1]))
        await watcher.until(begun("r"))
        await api.agents.tell(TellRequest(agent_name="busy", request_id="next", prompt="?"))
        server.signal(signal.SIGTERM)
        answer = await asked
        assert (answer.failure.reason, answer.run.status) == ("host_stopping", RunStatus.RUN_STATUS_CANCELLED)
        assert await server.ended() == 0
        assert GRACE_S <= server.took() < GRACE_S + 1

        await server.start()
        idle, busy = [await api.stored(session_id) for session_id in sessions]
        assert [len(custom(log, AGENT_SHUTDOWN)) for log in (idle, busy)] == [1, 1]
        (end,) = terminals(busy)["r"]
        assert end.type == EventType.EVENT_TYPE_RUN_CANCELLED
        assert end.run_failed.failure.reason == "host_stopping"
        (closed,) = of_type(busy, EventType.EVENT_TYPE_TOOL_CALL_FAILED)
        assert (closed.tool_call_failed.tool_call_id, closed.sequence) == ("t", end.sequence - 1)
        assert (
            next(event.message_streamed.text for event in busy if event.HasField("message_streamed"))
            == "begun"
        )
        await api.watch(Cursor(session_id=sessions[1])).until(begun("next"))


async def test_a_second_signal_ends_the_grace(tmp_path: Path) -> None:
    async with a_server(tmp_path, config(tmp_path, grace_s=600)) as server, calls(server) as api:
        session_id = await api.start("a", "inside", HELD)
        await api.agents.tell(TellRequest(agent_name="a", request_id="r", prompt="?"))
        await api.watch(Cursor(session_id=session_id)).until(begun("r"))
        await begins_to_stop(server)
        server.signal(signal.SIGINT)
        assert await server.ended() == 0
        (end,) = terminals(await stored_after(server, api, session_id))["r"]
        assert end.run_failed.failure.reason == "host_stopping"


async def test_a_third_signal_ends_the_process_and_what_it_started(tmp_path: Path) -> None:
    stubborn = """
        import os, signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("pid", os.getpid())
        signal.pause()
    """
    program = shlex.join(python(tmp_path, stubborn))
    more = f"[plugins.stubborn]\nendpoint = 'exec:{program}'"
    async with a_server(tmp_path, config(tmp_path, more=more)) as server:
        pid = int((await server.said("pid ")).split("pid ")[1].split('"')[0])
        await begins_to_stop(server)
        server.signal(signal.SIGINT)
        server.signal(signal.SIGTERM)
        assert await server.ended() == 1
        await gone(pid)


async def begins_to_stop(server: ServerProcess) -> None:
    """Send SIGTERM, and wait until health says so."""
    async with server.health() as states:
        assert await anext(states) == SERVING
        server.signal(signal.SIGTERM)
        assert await anext(states) != SERVING


async def test_PF_B37_a_stubborn_backend_does_not_stretch_the_grace(tmp_path: Path) -> None:
    class Stubborn(ScriptedBackend):
        """Does not answer when it is told to stop."""

        async def interrupt(self, request: InterruptTurn) -> TurnInterrupted:
            await asyncio.Event().wait()
            raise AssertionError

    backend = Stubborn()
    async with (
        beside(f"unix:{tmp_path / 'backend'}", backend=backend),
        a_server(tmp_path, config(tmp_path, grace_s=0.1)) as server,
        calls(server) as api,
    ):
        session_id = await api.start("a", "beside", HELD)
        await api.agents.tell(TellRequest(agent_name="a", request_id="r", prompt="?"))
        await backend.entered("end")
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0
        assert server.took() < 0.1 + 1
        (end,) = terminals(await stored_after(server, api, session_id))["r"]
        assert end.run_failed.failure.reason == "host_stopping"


async def test_a_backend_that_hangs_does_not_keep_the_server(tmp_path: Path) -> None:
    hangs = asyncio.Event()

    class Hanging(ScriptedBackend):
        """Never comes back from a restart."""

        async def resume_session(self, request: Any) -> Any:
            hangs.set()
            await asyncio.Event().wait()

    async with (
        beside(f"unix:{tmp_path / 'backend'}", backend=Hanging()),
        a_server(tmp_path, config(tmp_path, grace_s=0.1)) as server,
        calls(server) as api,
    ):
        session_id = await api.start("a", "beside", [{"result": "x"}])
        await server.restart()
        await api.agents.tell(TellRequest(agent_name="a", request_id="r", prompt="?"))
        await hangs.wait()
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0
        assert terminals(await stored_after(server, api, session_id)).keys() <= {"r"}


async def test_a_server_that_starts_can_be_stopped(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, config(tmp_path, more="required = true"))
    try:
        await server.spawn()
        await server.said("plugins.beside")
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0
    finally:
        await server.close()
