"""How a server ends, by signals and otherwise, and what the next one finds."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.programs import gone, python
from support.servers import (
    PLUGIN,
    SERVING,
    WAIT_S,
    Calls,
    ServerProcess,
    Watcher,
    a_server,
    beside,
    calls,
    custom,
    of_type,
    peer,
    terminals,
    unused_port,
)
from turndock import wire
from turndock.agent.v1 import (
    AskRequest,
    End,
    GetServerInfoRequest,
    InterruptOutcome,
    InterruptRequest,
    ListAgentsRequest,
    NotifyRequest,
    PromptRequest,
    StartAgentRequest,
    StopAgentRequest,
    TellRequest,
    TouchRequest,
    UnhaltRequest,
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
    AgentPhase,
    Cursor,
    Event,
    EventType,
    HostLostPolicy,
    RunStatus,
)
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.backends.stage import RemoteStage
from turndock_server.core.transcript import AGENT_SHUTDOWN, ATTEMPT_SUPERSEDED
from turndock_server.stores.sql import SqlSessionStore

pytestmark = pytest.mark.slow

GRACE_S = 2.0
HELD: list[dict[str, Any]] = [
    {"text": "begun"},
    {"tool_use": {"id": "t"}},
    {"gate": "end"},
    {"result": "done"},
]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncGenerator[ScriptedBackend]:
    """A backend in this process, which outlives every server."""
    backend = ScriptedBackend()
    async with beside(f"unix:{tmp_path / 'backend'}", backend=backend):
        yield backend


def config(folder: Path, *, grace_s: float = GRACE_S, more: str = "") -> str:
    return f"""
        [server]
        grace_seconds = {grace_s}
        [backends.inside]
        kind = "scripted"
        [backends.beside]
        kind = "plugin"
        plugin = "beside"
        [plugins.beside]
        endpoint = "unix:{folder / "backend"}"
        {more}
    """


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


def begun(run_id: str) -> Callable[[Watcher], object]:
    """Whether a run has said its first words."""
    return lambda watcher: any(
        event.run_id == run_id and event.HasField("message_streamed") for event in watcher.events
    )


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


async def stored_after(server: ServerProcess, api: Calls, session_id: str) -> list[Event]:
    """A session's log, from the next server."""
    await server.start()
    return await api.stored(session_id)


async def test_a_server_that_starts_can_be_stopped(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, config(tmp_path, more="required = true"))
    try:
        await server.spawn()
        await server.said("plugins.beside")
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0
    finally:
        await server.close()


# --- SIGKILL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_sigterm", [False, True])
async def test_PF_B37_after_a_kill_nothing_acknowledged_is_missing(
    tmp_path: Path, backend: ScriptedBackend, after_sigterm: bool
) -> None:
    async with a_server(tmp_path, config(tmp_path, grace_s=600)) as server, calls(server) as api:
        session_id = await api.start("a", "beside", HELD)
        for run_id in ("first", "second", "third"):
            await api.agents.tell(TellRequest(agent_name="a", request_id=run_id, prompt=run_id))
        noted = (await api.agents.notify(NotifyRequest(agent_name="a", payload_json='{"n":1}'))).sequence
        watcher = api.watch(Cursor(session_id=session_id))
        await watcher.until(lambda watcher: watcher.cursors[session_id].after_sequence >= noted)
        await backend.entered("end")
        if after_sigterm:
            server.signal(signal.SIGTERM)
            await watcher.ended()
        server.kill()
        assert await server.ended() == -signal.SIGKILL
        backend.release("end")

        await server.start()
        for run_id in ("second", "third"):
            run = await api.ended("a", run_id)
            assert (run.status, run.prompt) == (RunStatus.RUN_STATUS_COMPLETED, run_id)
        log = await api.stored(session_id)
        assert log[: len(watcher.events)] == watcher.events
        assert [event.sequence for event in log] == [*range(1, len(log) + 1)]
        assert {run_id: len(ends) for run_id, ends in terminals(log).items()} == {
            "first": 1,
            "second": 1,
            "third": 1,
        }
        lost = terminals(log)["first"][0].run_failed
        assert (lost.failure.reason, lost.incomplete_text) == ("host_lost", True)
        assert [heard.run_id for heard in backend.record.prompts] == ["first", "second", "third"]


async def test_a_run_whose_host_died_is_tried_again_where_the_agent_asked_for_it(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    async with a_server(tmp_path, config(tmp_path)) as server, calls(server) as api:
        retry = HostLostPolicy.HOST_LOST_POLICY_RETRY
        session_id = await api.start("a", "beside", HELD, host_lost_policy=retry)
        for run_id in ("killer", "next"):
            await api.agents.tell(TellRequest(agent_name="a", request_id=run_id, prompt="?"))
        await backend.entered("end")
        await server.restart()
        await backend.entered("end", times=2)
        backend.release("end")
        run = await api.ended("a", "killer")
        assert (run.status, run.attempt) == (RunStatus.RUN_STATUS_COMPLETED, 2)
        await api.ended("a", "next")
        log = await api.stored(session_id)
        started = of_type(log, EventType.EVENT_TYPE_RUN_STARTED)
        assert [(event.run_id, event.run_started.attempt) for event in started] == [
            ("killer", 1),
            ("killer", 2),
            ("next", 1),
        ]
        (superseded,) = custom(log, ATTEMPT_SUPERSEDED)
        assert superseded.run_id == "killer"
        assert started[0].sequence < superseded.sequence < started[1].sequence
        assert [len(ends) for ends in terminals(log).values()] == [1, 1]


async def test_a_run_that_takes_every_host_with_it_is_not_tried_for_ever(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    async with a_server(tmp_path, config(tmp_path)) as server, calls(server) as api:
        retry = HostLostPolicy.HOST_LOST_POLICY_RETRY
        session_id = await api.start("a", "beside", HELD, host_lost_policy=retry)
        await api.agents.tell(TellRequest(agent_name="a", request_id="killer", prompt="?"))
        for times in (1, 2, 3):
            await backend.entered("end", times)
            await server.restart()
        run = await api.ended("a", "killer")
        assert (run.status, run.attempt, run.failure.reason) == (RunStatus.RUN_STATUS_FAILED, 3, "host_lost")
        log = await api.stored(session_id)
        assert len(custom(log, ATTEMPT_SUPERSEDED)) == 2
        assert [len(ends) for ends in terminals(log).values()] == [1]


# --- The next start --------------------------------------------------------------------------------------------------

WAKES: dict[str, Callable[[Calls, str], Awaitable[object]]] = {
    "ask": lambda api, name: api.agents.ask(AskRequest(agent_name=name, prompt="?")),
    "tell": lambda api, name: api.agents.tell(TellRequest(agent_name=name, request_id="told", prompt="?")),
    "prompt": lambda api, name: anext(
        api.agents.prompt(PromptRequest(agent_name=name, request_id="told", prompt="?"))
    ),
    "notify": lambda api, name: api.agents.notify(NotifyRequest(agent_name=name, payload_json="1")),
    "unhalt": lambda api, name: api.agents.unhalt(UnhaltRequest(agent_name=name)),
    "touch": lambda api, name: api.agents.touch(TouchRequest(agent_name=name)),
}


@pytest.mark.parametrize("killed", [False, True])
async def test_dormant_agents_are_there_after_a_restart_and_wake_at_a_call(
    tmp_path: Path, backend: ScriptedBackend, killed: bool
) -> None:
    async with a_server(tmp_path, config(tmp_path)) as server, calls(server) as api:
        names = [*WAKES, "stop", "look"]
        sessions = {name: await api.start(name, "beside", [{"result": "x"}]) for name in names}
        for name in names:
            await api.agents.ask(AskRequest(agent_name=name, request_id="before", prompt="?"))
        server.signal(signal.SIGKILL if killed else signal.SIGTERM)
        await server.ended()

        await server.start()
        listed = (await api.agents.list_agents(ListAgentsRequest())).agents
        assert {status.agent_name: status.phase for status in listed} == dict.fromkeys(
            names, AgentPhase.AGENT_PHASE_DORMANT
        )
        assert (await api.agents.get_server_info(GetServerInfoRequest())).live_agents == 0
        for name, wake in WAKES.items():
            await wake(api, name)
            if name in ("tell", "prompt"):
                await api.ended(name, "told")
            assert (await api.status(name)).phase != AgentPhase.AGENT_PHASE_DORMANT
        idle = await api.agents.interrupt(InterruptRequest(agent_name="look"))
        assert idle.outcome == InterruptOutcome.INTERRUPT_OUTCOME_IDLE
        assert (await api.status("look")).phase == AgentPhase.AGENT_PHASE_DORMANT
        stopped = await api.agents.stop_agent(StopAgentRequest(agent_name="stop"))
        assert stopped.agent.phase == AgentPhase.AGENT_PHASE_STOPPED

        await api.agents.ask(AskRequest(agent_name="touch", prompt="?"))
        log = await api.stored(sessions["touch"])
        (resumed,) = of_type(log, EventType.EVENT_TYPE_SESSION_RESUMED)
        assert resumed.session_changed.restored_backend
        assert [len(ends) for ends in terminals(log).values()] == [1, 1]
        assert backend.record.resumed == len({"ask", "tell", "prompt", "touch"})


async def test_an_agent_whose_backend_is_not_configured_any_more_does_not_keep_the_server_from_starting(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    async with a_server(tmp_path, config(tmp_path)) as server, calls(server) as api:
        await api.start("a", "beside", HELD)
        for run_id in ("first", "second"):
            await api.agents.tell(TellRequest(agent_name="a", request_id=run_id, prompt="?"))
        await backend.entered("end")
        server.kill()
        await server.ended()
        server.configure('[backends.other]\nkind = "echo"')
        await server.start()
        assert (await api.ended("a", "first")).failure.reason == "host_lost"
        failure = (await api.ended("a", "second")).failure
        assert failure.reason == "backend_start_failed"
        assert "'beside' is not one of ['other']" in failure.message


# --- A second server -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", ["port", "socket", "database", "directory"])
async def test_PF_E11_a_second_server_is_refused_and_the_first_undisturbed(
    tmp_path: Path, shared: str
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    listen = "" if shared != "port" else f"127.0.0.1:{unused_port()}"
    echo = '[backends.echo]\nkind = "echo"\n'
    async with a_server(folders[0], echo, listen=listen) as first, calls(first) as api:
        await api.start("a", "echo")
        session_id = (await api.status("a")).session_id
        watcher = api.watch(Cursor(session_id=session_id))
        await watcher.until(lambda watcher: watcher.events)
        database = f'[store]\npath = "{first.database}"\n' if shared == "database" else ""
        same_place = first.endpoint if shared in ("port", "socket") else ""
        second = ServerProcess(folders[1], echo + database, listen=same_place)
        try:
            await second.spawn(*(["--data", str(first.database.parent)] if shared == "directory" else []))
            assert await second.ended() == 1
        finally:
            await second.close()
        (said,) = [line for line in second.log.read_text().splitlines() if "cannot start" in line]
        if shared == "port":
            assert listen in said
        else:
            assert f"is held by process {first.child.pid}" in said
            assert "Stop that server, or give this one another" in said
        assert "Traceback" not in second.log.read_text()
        answer = await api.agents.ask(AskRequest(agent_name="a", request_id="r", prompt="hello"))
        assert answer.response.text == "hello"
        await watcher.until(lambda watcher: terminals(watcher.events))
        # The second one took nothing away: the first can be found, and started again, at the same place.
        async with calls(first) as again:
            assert (await again.status("a")).session_id == session_id
        await first.restart()
        assert (await api.status("a")).session_id == session_id


# --- A plug-in's end -------------------------------------------------------------------------------------------------


async def test_PF_B05_a_plugin_that_is_killed_in_a_turn_fails_that_turn_alone(tmp_path: Path) -> None:
    control = tmp_path / "control"
    config = f"""
        [backends.below]
        kind = "plugin"
        plugin = "below"
        [plugins.below]
        endpoint = "{PLUGIN} scripted --control {control}"
        required = true
    """
    async with a_server(tmp_path, config) as server, calls(server) as api:
        session_id = await api.start(
            "a", "below", [{"text": "one"}, {"text": "two"}, {"text": "three"}, *HELD[2:]]
        )
        for run_id in ("lost", "next"):
            await api.agents.tell(TellRequest(agent_name="a", request_id=run_id, prompt="?"))
        stage = RemoteStage(control)
        await stage.entered("end")
        pid = await peer(control)
        os.kill(pid, signal.SIGKILL)
        lost = await api.ended("a", "lost")
        assert (lost.status, lost.failure.reason) == (RunStatus.RUN_STATUS_FAILED, "backend_lost")

        # The next prompt waits for the plug-in instead of failing while it is away.
        log = await api.stored(session_id)
        assert [event.message_streamed.text for event in log if event.HasField("message_streamed")][:3] == [
            "one",
            "two",
            "three",
        ]
        watcher = api.watch(Cursor(session_id=session_id))
        await watcher.until(begun("next"))
        await stage.entered("end")
        second_pid = await peer(control)
        await stage.release("end")
        assert (await api.ended("a", "next")).status == RunStatus.RUN_STATUS_COMPLETED
        (plugin,) = (await api.agents.get_server_info(GetServerInfoRequest())).plugins
        assert plugin.starts == 2
        log = await api.stored(session_id)
        assert [len(ends) for ends in terminals(log).values()] == [1, 1]
        assert server.child.returncode is None
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0
        await gone(second_pid)
