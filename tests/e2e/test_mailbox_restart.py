"""A mailbox is a person's to rearrange, from the command line, and is as they left it after kill -9."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support import commands
from support.held import HELD, config
from support.servers import ServerProcess, a_server, calls, terminals
from turndock.agent.v1 import TellRequest
from turndock.types.v1 import RunStatus
from turndock_server.backends.scripted import ScriptedBackend

pytestmark = pytest.mark.slow


async def runs(server: ServerProcess, folder: Path, *arguments: str) -> Any:
    """What `turndock runs` says."""
    where = {"TURNDOCK_SERVER": server.endpoint}
    ended = await commands.run("runs", *arguments, "--json", cwd=folder, variables=where)
    assert ended.code == 0, ended
    return json.loads(ended.out)


async def waiting(server: ServerProcess, folder: Path) -> list[tuple[str, str]]:
    """Ids and prompts of what waits, in order."""
    listed = await runs(server, folder, "list", "a", "--status", "pending")
    return [(run["id"], run["prompt"]) for run in listed]


async def test_a_mailbox_is_listed_edited_reordered_and_cancelled_over_restarts(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    async with a_server(tmp_path, config(tmp_path)) as server, calls(server) as api:
        session_id = await api.start("a", "beside", HELD)
        for run_id in ("first", "b", "c", "d", "e"):
            await api.agents.tell(TellRequest(agent_name="a", request_id=run_id, prompt=run_id))
        await backend.entered("end")
        await runs(server, tmp_path, "edit", "a", "e", "--before", "b")
        await runs(server, tmp_path, "edit", "a", "b", "--to-tail")
        await runs(server, tmp_path, "edit", "a", "c", "--prompt", "c, but better")
        await runs(server, tmp_path, "cancel", "a", "d", "--reason", "changed my mind")
        left = [("e", "e"), ("c", "c, but better"), ("b", "b")]
        assert await waiting(server, tmp_path) == left
        server.kill()
        assert await server.ended() == -signal.SIGKILL

        await server.start()  # "e" begins, and is held as "first" was
        await backend.entered("end", times=2)
        assert await waiting(server, tmp_path) == left[1:]
        await runs(server, tmp_path, "edit", "a", "b", "--before", "c")
        server.kill()
        await server.ended()
        backend.release("end")

        await server.start()
        for run_id in ("b", "c"):
            assert (await api.ended("a", run_id)).status == RunStatus.RUN_STATUS_COMPLETED
        heard = [prompt.prompt for prompt in backend.record.prompts]
        assert heard == ["first", "e", "b", "c, but better"]
        ends = terminals(await api.stored(session_id))
        assert {run_id: len(events) for run_id, events in ends.items()} == dict.fromkeys("bcde", 1) | {
            "first": 1
        }
        assert ends["d"][0].run_failed.failure.reason == "changed my mind"
