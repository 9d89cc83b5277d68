"""What a server finds that starts after another, or beside another, or whose plug-in has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.held import HELD, begun, config
from support.programs import gone
from support.servers import (
    PLUGIN,
    Calls,
    ServerProcess,
    a_server,
    calls,
    custom,
    of_type,
    peer,
    terminals,
    unused_port,
)
from turndock.agent.v1 import (
    AskRequest,
    GetServerInfoRequest,
    InterruptOutcome,
    InterruptRequest,
    ListAgentsRequest,
    NotifyRequest,
    PromptRequest,
    StopAgentRequest,
    TellRequest,
    TouchRequest,
    UnhaltRequest,
)
from turndock.types.v1 import (
    AgentPhase,
    Cursor,
    EventType,
    HostLostPolicy,
    RunStatus,
)
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.backends.stage import RemoteStage
from turndock_server.core.transcript import ATTEMPT_SUPERSEDED

pytestmark = pytest.mark.slow

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
