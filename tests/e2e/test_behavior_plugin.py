"""A behavior in a process of its own: killed in the middle of its callbacks, and away when its agents need it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support import behavior_plugin, commands
from support.servers import WAIT_S, Calls, ServerProcess, a_server, calls, peer, terminals
from turndock import jsontext
from turndock.agent.v1 import (
    AskRequest,
    GetRunRequest,
    GetServerInfoRequest,
    NotifyRequest,
    StartAgentRequest,
    StopAgentRequest,
    TellRequest,
)
from turndock.errors import TurndockError
from turndock.ports import BEHAVIOR_OPTIONS
from turndock.types.v1 import AgentDefinition, AgentPhase, Cursor, RunStatus

pytestmark = pytest.mark.slow

HOOKS = ["handle_response", *(name for name in BEHAVIOR_OPTIONS if name != "terminate_agent")]
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "handle_error": [{"text": "a"}, {"error": "broken"}],
    "post_run": [{"result": "halt"}],
    "pre_tool": [{"approval": {"approval_id": "ap", "tool_name": "t"}}, {"result": "end"}],
    "handle_response": [{"text": "a"}, {"result": "chain"}],
}
ENDS: dict[str, list[dict[str, Any]]] = {"handle_response": [{"result": "end"}]}


class Told:
    """Who hangs, as the plug-in says it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._change = asyncio.Event()

    async def hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines.append((await reader.readline()).decode().strip())
        self._change.set()
        writer.close()

    async def by(self, count: int) -> None:
        """Wait until so many calls hang."""
        async with asyncio.timeout(WAIT_S):
            while len(self.lines) < count:
                self._change.clear()
                await self._change.wait()


@asynccontextmanager
async def listening(path: Path) -> AsyncGenerator[Told]:
    told = Told()
    server = await asyncio.start_unix_server(told.hear, path)
    async with server:
        yield told


def config(plugin: str) -> str:
    return f"""
        [server]
        grace_seconds = 2
        [backends.scripted]
        kind = "scripted"
        [plugins.counting]
        endpoint = {json.dumps(plugin)}
        [behaviors.patient]
        kind = "plugin"
        plugin = "counting"
        wait_seconds = 60
        [behaviors.impatient]
        kind = "plugin"
        plugin = "counting"
        wait_seconds = 0.2
    """


def supervised(folder: Path) -> str:
    program = behavior_plugin.__file__
    return f"exec:{sys.executable} {program} {folder / 'heard'} {folder / 'told'}"


async def start(api: Calls, name: str, behavior: str, *scripts: Any, **behavior_config: Any) -> str:
    definition = AgentDefinition(
        agent_name=name,
        backend="scripted",
        behavior=behavior,
        backend_config_json=jsontext.canonical({"scripts": list(scripts)}),
        behavior_config_json=jsontext.canonical(behavior_config),
    )
    while True:
        try:
            started = await api.agents.start_agent(StartAgentRequest(request_id=name, definition=definition))
        except TurndockError as error:
            if (
                error.reason != "PLUGIN_UNAVAILABLE"
            ):  # it is still starting, and the server does not wait for it
                raise
            await asyncio.sleep(0.05)
        else:
            return started.agent.session_id


async def state(api: Calls, name: str) -> dict[str, Any]:
    return jsontext.parse_object((await api.status(name)).state_json, "state_json")


async def pid_of(api: Calls, server: ServerProcess) -> int:
    """The plug-in's process: what listens at the socket the server gave it."""
    [folder] = [path for path in server.log.parent.glob("turndock-*") if (path / "plugin.sock").exists()]
    return await peer(folder / "plugin.sock")


async def test_a_plug_in_killed_in_the_middle_of_every_callback_decides_once_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with (
        listening(tmp_path / "told") as told,
        a_server(tmp_path, config(supervised(tmp_path))) as server,
        calls(server) as api,
    ):
        for hook in HOOKS:
            scripts = [
                SCRIPTS.get(hook, [{"text": "a"}, {"result": "end"}]),
                *([ENDS[hook]] if hook in ENDS else []),
            ]
            await start(api, hook, "plugin:counting", *scripts, hangs_in=hook)
            await api.agents.notify(NotifyRequest(agent_name=hook, request_id="n", payload_json='"hello"'))
            await api.agents.tell(TellRequest(agent_name=hook, request_id="r", prompt="go"))
        await told.by(len(HOOKS))
        info = await api.agents.get_server_info(GetServerInfoRequest())
        assert "plugin:counting" in info.behaviors
        os.kill(await pid_of(api, server), signal.SIGKILL)

        for hook in HOOKS:
            run = await api.ended(hook, "r")
            expected = "FAILED" if hook == "handle_error" else "COMPLETED"
            assert RunStatus.Name(run.status) == f"RUN_STATUS_{expected}", hook
        chained = await api.ended("handle_response", "r/chain/1")
        assert chained.response.text == "end"
        for hook in HOOKS:
            counted = await state(api, hook)
            turns = 2 if hook == "handle_response" else 1
            assert counted.pop("hangs_in") == hook
            # Each of them took effect once for each turn, however often it was heard.
            assert counted == {
                "pre_run": 1,
                "handle_event": 1,
                "pre_turn": turns,
                "handle_stream_event": 3 if hook == "handle_response" else 1 if hook == "post_run" else 2,
                "handle_error" if hook == "handle_error" else "handle_response": turns,
                "post_turn": turns,
                **({hook: 1} if hook in ("pre_tool", "post_run") else {}),
            }, hook
            status = await api.status(hook)
            assert status.halted == (hook == "post_run")
            log = await api.stored(status.session_id)
            assert all(len(ends) == 1 for ends in terminals(log).values())
        heard = Counter((tmp_path / "heard").read_text().splitlines())
        repeated = {line for line, times in heard.items() if times > 1}
        # What hung was asked again under the same id; so may be what was on its way just then.
        assert set(told.lines) <= repeated
        assert max(heard.values()) == 2


@asynccontextmanager
async def running(folder: Path, endpoint: str) -> AsyncGenerator[None]:
    """The plug-in as a process that runs by itself; it is killed when the block is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        behavior_plugin.__file__,
        str(folder / "heard"),
        str(folder / "told"),
        env=commands.environment(TURNDOCK_PLUGIN_ENDPOINT=endpoint),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            while b"listens" not in await process.stderr.readline():
                pass
        yield
    finally:
        process.kill()
        await process.communicate()


async def test_an_agent_that_waits_for_its_behavior_can_be_stopped(tmp_path: Path) -> None:
    endpoint = f"unix:{tmp_path / 'behavior'}"
    async with a_server(tmp_path, config(endpoint)) as server, calls(server) as api:
        async with running(tmp_path, endpoint):
            await start(api, "a", "patient", [{"result": "end"}])
            await api.agents.ask(AskRequest(agent_name="a", request_id="r1", prompt="go"))
        await api.agents.tell(TellRequest(agent_name="a", request_id="r2", prompt="go"))
        stopped = await api.agents.stop_agent(StopAgentRequest(agent_name="a"))
        assert stopped.agent.phase == AgentPhase.AGENT_PHASE_STOPPED


async def test_a_behavior_that_stays_away_has_failed(tmp_path: Path) -> None:
    endpoint = f"unix:{tmp_path / 'behavior'}"
    async with a_server(tmp_path, config(endpoint)) as server, calls(server) as api:
        with pytest.raises(TurndockError) as refused:
            await api.agents.start_agent(
                StartAgentRequest(
                    definition=AgentDefinition(agent_name="a", backend="scripted", behavior="plugin:counting")
                )
            )
        assert refused.value.reason == "PLUGIN_UNAVAILABLE"
        async with running(tmp_path, endpoint):
            await start(api, "a", "impatient", [{"result": "end"}])
            await api.agents.ask(AskRequest(agent_name="a", request_id="r1", prompt="go"))
        skipped = await api.agents.ask(AskRequest(agent_name="a", request_id="r2", prompt="go"))
        assert (skipped.failure.reason, skipped.failure.message) == (
            "pre_turn_skipped",
            "the pre_turn hook failed",
        )
        async with running(tmp_path, endpoint):
            answer = await api.agents.ask(AskRequest(agent_name="a", request_id="r3", prompt="go"))
            assert answer.response.text == "end" or answer.failure.reason == "pre_turn_skipped"


async def test_a_decision_that_was_due_when_the_server_was_killed_waits_for_the_behavior(
    tmp_path: Path,
) -> None:
    endpoint = f"unix:{tmp_path / 'behavior'}"
    async with (
        listening(tmp_path / "told") as told,
        a_server(tmp_path, config(endpoint)) as server,
        calls(server) as api,
    ):
        async with running(tmp_path, endpoint):
            scripts = [{"result": "chain"}], [{"result": "end"}]
            await start(api, "a", "patient", *scripts, hangs_in="handle_response")
            await api.agents.tell(TellRequest(agent_name="a", request_id="r", prompt="go"))
            await told.by(1)
            server.kill()
            await server.ended()
        # The server serves although the behavior is away, and makes no decision without it.
        await server.start()
        run = (await api.agents.get_run(GetRunRequest(agent_name="a", run_id="r"))).run
        assert (run.status, run.decision_pending) == (RunStatus.RUN_STATUS_COMPLETED, True)
        with pytest.raises(TurndockError, match="RUN_NOT_FOUND"):
            await api.agents.get_run(GetRunRequest(agent_name="a", run_id="r/chain/1"))
        status = await api.status("a")
        watcher = api.watch(Cursor(session_id=status.session_id), with_status=True)
        async with running(tmp_path, endpoint):
            await watcher.until(lambda seen: len(terminals(seen.events)) == 2)
            assert (await api.ended("a", "r/chain/1")).response.text == "end"
            await watcher.until(lambda seen: seen.status.phase == AgentPhase.AGENT_PHASE_IDLE)
            assert (await state(api, "a"))["handle_response"] == 2
