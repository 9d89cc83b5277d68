"""Snapshots of agents as those who run a server meet them: chosen in its configuration, kept over its restarts."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.held import GRACE_S, HELD, begun, config
from support.pages import Page
from support.servers import ServerProcess, a_server, beside, calls, terminals
from support.snapshots import RecordingSnapshots
from turndock import jsontext
from turndock.agent.v1 import (
    ApprovalAnswer,
    AskRequest,
    ResolveApprovalRequest,
    StartAgentRequest,
    StopAgentRequest,
    TellRequest,
)
from turndock.client import Client
from turndock.errors import Code, TurndockError
from turndock.events import TITLE
from turndock.store.v1 import (
    DeleteSessionRequest,
    Lifecycle,
    LoadStateRequest,
    LoadStateResponse,
    PersistStateRequest,
    PersistStateResponse,
    Snapshot,
)
from turndock.types.v1 import AgentDefinition, ApprovalDecision, Cursor
from turndock_server.backends.scripted import ScriptedBackend

pytestmark = pytest.mark.slow

ON_SHUTDOWN = Lifecycle.LIFECYCLE_ON_SHUTDOWN
TITLED: list[dict[str, Any]] = [
    {"event": {"type": "EVENT_TYPE_CUSTOM", "custom": {"name": TITLE, "dataJson": '{"title":"Plans"}'}}},
    {"result": {"text": "done", "provider_session_id": "thread-1"}},
]


class SlowSnapshots(RecordingSnapshots):
    """Takes 100 ms for everything."""

    async def persist_state(self, request: PersistStateRequest) -> PersistStateResponse:
        await asyncio.sleep(0.1)
        return await super().persist_state(request)


async def loaded(server: ServerProcess, session_id: str) -> LoadStateResponse:
    """What the server's own AgentPersistence has of a session."""
    async with Client(server.endpoint) as client:
        request = LoadStateRequest(agent_id="a", conversation_id=session_id)
        return await client.agent_persistence().load_state(request)


@pytest.fixture
async def docked(tmp_path: Path) -> AsyncGenerator[SlowSnapshots]:
    """Snapshots in a plug-in; see `PLUGIN`."""
    snapshots = SlowSnapshots()
    async with beside(f"unix:{tmp_path / 'snapshots'}", agent_persistence=snapshots):
        yield snapshots


def plugin(folder: Path) -> str:
    """The configuration that uses `docked`."""
    return f"""
        [persistence]
        kind = "plugin:snapshots"
        [plugins.snapshots]
        endpoint = "unix:{folder / "snapshots"}"
    """


async def test_PF_B37_every_agent_is_saved_before_the_server_ends(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    chosen = config(tmp_path, more='[persistence]\nkind = "store"')
    async with a_server(tmp_path, chosen) as server, calls(server) as api:
        idle, busy = await api.start("idle", "inside", TITLED), await api.start("busy", "beside", HELD)
        await api.agents.ask(AskRequest(agent_name="idle", prompt="?"))
        asked = asyncio.ensure_future(
            api.agents.ask(AskRequest(agent_name="busy", request_id="r", prompt="?"))
        )
        await api.watch(Cursor(session_id=busy)).until(begun("r"))
        assert (await loaded(server, idle)).lifecycle == Lifecycle.LIFECYCLE_ON_COMPLETION
        server.signal(signal.SIGTERM)
        assert (await asked).failure.reason == "host_stopping"
        assert await server.ended() == 0
        assert server.took() < GRACE_S + 1
        await server.start()
        for session_id, title in ((idle, "Plans"), (busy, "")):
            saved = await loaded(server, session_id)
            assert (saved.lifecycle, saved.snapshot.title) == (ON_SHUTDOWN, title)
        assert (await loaded(server, idle)).snapshot.provider_session_id == "thread-1"
        assert (await api.status("idle")).title == "Plans"
        assert {run: len(ends) for run, ends in terminals(await api.stored(busy)).items()} == {"r": 1}


async def test_PF_B37_slow_snapshots_of_a_plug_in_do_not_stretch_the_grace(
    tmp_path: Path, backend: ScriptedBackend, docked: SlowSnapshots
) -> None:
    async with a_server(tmp_path, config(tmp_path, more=plugin(tmp_path))) as server, calls(server) as api:
        sessions = [await api.start(f"idle-{number}", "inside") for number in range(8)]
        busy = await api.start("busy", "beside", HELD)
        asked = asyncio.ensure_future(
            api.agents.ask(AskRequest(agent_name="busy", request_id="r", prompt="?"))
        )
        await api.watch(Cursor(session_id=busy)).until(begun("r"))
        server.signal(signal.SIGTERM)
        assert (await asked).failure.reason == "host_stopping"
        assert await server.ended() == 0
        assert server.took() < GRACE_S + 1
    saved = [save.conversation_id for save in docked.saves if save.lifecycle == ON_SHUTDOWN]
    assert sorted(saved) == sorted([*sessions, busy])


async def test_PF_B37_after_a_kill_the_last_snapshot_is_there(
    tmp_path: Path, backend: ScriptedBackend, docked: SlowSnapshots
) -> None:
    async with a_server(tmp_path, config(tmp_path, more=plugin(tmp_path))) as server, calls(server) as api:
        session_id = await api.start("a", "beside", TITLED)
        await api.agents.ask(AskRequest(agent_name="a", request_id="first", prompt="?"))
        assert docked.story == ["on_title_generated", "on_completion"], "it was there before the answer"
        server.kill()
        await server.start()
        await api.agents.ask(AskRequest(agent_name="a", request_id="second", prompt="?"))
        assert docked.story[2:] == ["on_completion"], "a title is new only once"
        assert docked.saves[-1].snapshot.title == "Plans"
        assert docked.saves[-1].fence.epoch > docked.saves[0].fence.epoch
        assert (await loaded(server, session_id)).snapshot.run_id == "second"


async def test_PF_B37_an_agent_that_waits_for_people_still_does_after_a_restart(
    tmp_path: Path, backend: ScriptedBackend, docked: SlowSnapshots
) -> None:
    parks = [{"text": "may I?"}, {"paused": [{"approval_id": "a1", "tool_name": "delete"}]}]
    async with a_server(tmp_path, config(tmp_path, more=plugin(tmp_path))) as server, calls(server) as api:
        definition = AgentDefinition(
            agent_name="a",
            backend="beside",
            backend_config_json=jsontext.canonical({"scripts": [parks, [{"result": "done"}]]}),
        )
        started = await api.agents.start_agent(StartAgentRequest(definition=definition))
        session_id = started.agent.session_id
        run = (await api.agents.tell(TellRequest(agent_name="a", request_id="r", prompt="?"))).run
        await api.watch(Cursor(session_id=session_id), with_status=True).until(
            lambda watcher: watcher.status.pending_approvals
        )
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0
        assert server.took() < GRACE_S + 1
        assert docked.story == ["on_interrupt", "flag true", "on_shutdown"]
        await server.start()
        status = await api.status("a")
        assert [each.approval_id for each in status.pending_approvals] == ["a1"]
        assert (await loaded(server, session_id)).snapshot.interrupted
        await api.agents.resolve_approval(
            ResolveApprovalRequest(
                agent_name="a",
                answers=[
                    ApprovalAnswer(approval_id="a1", decision=ApprovalDecision.APPROVAL_DECISION_REJECT)
                ],
            )
        )
        assert (await api.ended("a", run.id)).response.text == "done"
        assert docked.flags == [True, False], "it was not raised again"
        assert len(terminals(await api.stored(session_id))["r"]) == 1


@pytest.fixture
async def leaving(tmp_path: Path) -> AsyncGenerator[tuple[ServerProcess, AsyncExitStack]]:
    """A server with snapshots in a plug-in, and the stack whose closing takes the plug-in away."""
    async with AsyncExitStack() as stack:
        snapshots = RecordingSnapshots()
        await stack.enter_async_context(beside(f"unix:{tmp_path / 'snapshots'}", agent_persistence=snapshots))
        async with a_server(tmp_path, plugin(tmp_path)) as server:
            yield server, stack


async def test_P_11_a_start_fails_while_the_plug_in_is_away(
    leaving: tuple[ServerProcess, AsyncExitStack],
) -> None:
    server, stack = leaving
    async with calls(server) as api:
        await stack.aclose()
        definition = AgentDefinition(agent_name="a", backend="echo")
        with pytest.raises(TurndockError) as failed:
            await api.agents.start_agent(StartAgentRequest(definition=definition))
        assert failed.value.code is Code.UNAVAILABLE
        with pytest.raises(TurndockError, match="AGENT_NOT_FOUND"):
            await api.agents.tell(TellRequest(agent_name="a", prompt="?"))


async def test_P_07_an_agent_goes_on_while_the_plug_in_is_away(
    leaving: tuple[ServerProcess, AsyncExitStack],
) -> None:
    server, stack = leaving
    async with calls(server) as api:
        await api.start("a", "echo")
        await stack.aclose()
        answer = await api.agents.ask(AskRequest(agent_name="a", prompt="hello"))
        assert answer.response.text == "hello"
        assert (await api.status("a")).persistence_failures == 1


async def test_the_program_of_the_guide_keeps_snapshots(tmp_path: Path, repository: Path) -> None:
    page = Page(repository / "docs/guides/persistence.md")
    (tmp_path / "snapshots.py").write_text(page.block("python", "class Snapshots"))
    command = f"{sys.executable} {tmp_path / 'snapshots.py'}"
    chosen = page.block("toml", "plugin:snapshots").replace("python snapshots.py", command)
    async with a_server(tmp_path, chosen) as server, calls(server) as api:
        session_id = await api.start("a", "echo")
        await api.agents.ask(AskRequest(agent_name="a", request_id="r", prompt="hello"))
        assert (await loaded(server, session_id)).snapshot.run_id == "r"
        with pytest.raises(TurndockError, match="NOT_FOUND"):
            await loaded(server, "unknown")
        assert (await api.status("a")).persistence_failures == 0


@pytest.mark.parametrize("kind", ["store", "memory"])
async def test_a_deleted_session_takes_its_snapshot_along(tmp_path: Path, kind: str) -> None:
    async with (
        a_server(tmp_path, f'persistence = {{kind = "{kind}"}}') as server,
        calls(server) as api,
        Client(server.endpoint) as client,
    ):
        session_id = await api.start("a", "echo")
        await api.agents.stop_agent(StopAgentRequest(agent_name="a"))
        assert (await loaded(server, session_id)).lifecycle == ON_SHUTDOWN
        await client.session_store().delete_session(DeleteSessionRequest(session_id=session_id))
        with pytest.raises(TurndockError, match="NOT_FOUND"):
            await loaded(server, session_id)


async def test_P_08_a_server_without_snapshots_says_so(tmp_path: Path) -> None:
    async with a_server(tmp_path) as server, calls(server) as api:
        session_id = await api.start("a", "echo")
        answer = await api.agents.ask(AskRequest(agent_name="a", prompt="hello"))
        assert answer.response.text == "hello"
        async with Client(server.endpoint) as client:
            request = PersistStateRequest(
                agent_id="a",
                conversation_id=session_id,
                lifecycle=ON_SHUTDOWN,
                snapshot=Snapshot(state_json="{}"),
            )
            with pytest.raises(TurndockError, match="CAPABILITY_NOT_SUPPORTED"):
                await client.agent_persistence().persist_state(request)
