"""People decide, over a plug-in process, the command line, kills and restarts."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support import commands, postgres
from support.desks import Desk
from support.pages import Page

pytestmark = pytest.mark.slow


class Janitors(Desk):
    """A desk whose server has the guide's janitor, told to be otherwise."""

    def __init__(self, folder: Path, repository: Path, *options: str) -> None:
        guide = Page(repository / "docs/guides/approvals.md").block("toml", "exec:")
        told = " ".join(("--folder rubbish", *options))
        super().__init__(folder, guide.replace("--folder rubbish", told))
        self.rubbish = folder / "rubbish"
        self.rubbish.mkdir()
        for name in ("a", "b", "c"):
            (self.rubbish / name).touch()

    @property
    def left(self) -> list[str]:
        """The files that are still there."""
        return sorted(file.name for file in self.rubbish.iterdir())

    async def json(self, *arguments: str) -> Any:
        """What a command prints with --json."""
        return json.loads(await self.ok(*arguments, "--json"))

    async def asked(self, prompt: str, count: int) -> tuple[str, list[dict[str, Any]]]:
        """Tell the janitor something; the run, and the requests he makes of it."""
        run = (await self.ok("tell", "-a", "jan", prompt)).strip()
        async with asyncio.timeout(commands.LIMIT_S):
            while True:
                requests = await self.json("approvals", "list", "jan")
                if len(requests) == count:
                    return run, requests

    async def decisions(self, run: str) -> list[str]:
        """What the log says was decided in a run."""
        ended = await self.turndock(
            "watch",
            "jan",
            "--run",
            run,
            "--until-terminal",
            "--json",
            "--type",
            "tool_approval_granted,tool_approval_denied",
        )
        log = [json.loads(line) for line in ended.out.splitlines()]
        return [
            event["tool_approval_decided"]["decision"].removeprefix("APPROVAL_DECISION_").lower()
            for event in log
        ]


async def test_a_person_decides_at_the_command_line(tmp_path: Path, repository: Path) -> None:
    desk = Janitors(tmp_path, repository)
    async with commands.serving(tmp_path, variables=desk.variables):
        await desk.ok("agents", "start", "jan", "-b", "janitor")
        watcher = await commands.start("watch", "jan", cwd=tmp_path, variables=desk.variables)
        run, (a, b, c) = await desk.asked("a b c", 3)
        assert a["agent_name"] == "jan"
        assert json.loads(a["arguments_json"]) == {"file": "a"}
        table = await desk.ok("approvals", "list")
        assert table.splitlines()[1].split()[:3] == [a["approval_id"], "jan", "delete_file"]
        assert (await desk.json("agents", "show", "jan"))["phase"] == "AGENT_PHASE_AWAITING_APPROVAL"

        bad = await desk.turndock("approvals", "approve", "jan", a["approval_id"], "unknown")
        assert bad.code == 1
        assert "unknown" in bad.err
        assert len(await desk.json("approvals", "list")) == 3
        left = await desk.ok("approvals", "edit", "jan", a["approval_id"], '{"file": "b"}')
        assert left == "decided; 2 more to decide\n"
        late = await desk.turndock("approvals", "reject", "jan", a["approval_id"])
        assert (late.code, "has its answer already: edit" in late.err) == (1, True)
        await desk.ok("approvals", "reject", "jan", b["approval_id"], "--feedback", "still needed")
        assert (
            await desk.ok("approvals", "approve", "jan", c["approval_id"]) == "decided; the agent goes on\n"
        )

        answer = (await desk.json("runs", "show", "jan", run, "--wait", "30"))["response"]["text"]
        assert answer.splitlines() == ['edit: {"file":"b"}', 'reject: {"file":"b"}', 'approve: {"file":"c"}']
        assert desk.left == ["a"]
        assert await desk.decisions(run) == ["edit", "reject", "approve"]
        watcher.send_signal(signal.SIGINT)
        shown = await commands.finish(watcher)
        assert f"waits: turndock approvals approve|edit|reject jan {a['approval_id']}" in shown.err
        assert "tool_approval_denied" in shown.out


async def test_a_parked_turn_outlives_the_server_and_the_plug_in(tmp_path: Path, repository: Path) -> None:
    desk = Janitors(tmp_path, repository, "--park")
    async with commands.serving(tmp_path, variables=desk.variables) as server:
        await desk.ok("agents", "start", "jan", "-b", "janitor")
        run, (a, b) = await desk.asked("a b", 2)
        await desk.ok("approvals", "approve", "jan", a["approval_id"], "--request-id", "q1")
        await server.stop(signal.SIGKILL)
    async with commands.serving(tmp_path, variables=desk.variables) as server:
        assert (await desk.json("agents", "show", "jan"))["phase"] == "AGENT_PHASE_DORMANT"
        assert await desk.json("approvals", "list", "jan") == [b]
        assert (await desk.json("runs", "show", "jan", run))["status"] == "RUN_STATUS_RUNNING"
        await desk.ok("approvals", "approve", "jan", a["approval_id"], "--request-id", "q1")
        await desk.ok("approvals", "reject", "jan", b["approval_id"])
        shown = await desk.json("runs", "show", "jan", run, "--wait", "30")
        assert shown["response"]["text"] == 'approve: {"file":"a"}\nreject: {"file":"b"}\n'
        await server.stop(signal.SIGKILL)
    async with commands.serving(tmp_path, variables=desk.variables):
        late = await desk.turndock("approvals", "approve", "jan", b["approval_id"])
        assert (late.code, "has its answer already: reject" in late.err) == (1, True)
        assert await desk.decisions(run) == ["approve", "reject"]
        assert desk.left == ["b", "c"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_parked_request_expires_while_no_server_runs(
    kind: str, tmp_path: Path, repository: Path
) -> None:
    store = ("--store", postgres.server().new_database()) if kind == "postgresql" else ()
    desk = Janitors(tmp_path, repository, "--park", "--patience 3")
    async with commands.serving(tmp_path, *store, variables=desk.variables) as server:
        await desk.ok("agents", "start", "jan", "-b", "janitor")
        run, _ = await desk.asked("a", 1)
        await server.stop(signal.SIGKILL)
    async with commands.serving(tmp_path, *store, variables=desk.variables):
        shown = await desk.json("runs", "show", "jan", run, "--wait", "30")
        assert shown["response"]["text"] == 'expired: {"file":"a"}\n'
        assert await desk.decisions(run) == ["expired"]
        assert desk.left == ["a", "b", "c"]


async def test_a_turn_that_was_kept_open_is_lost_with_its_server(tmp_path: Path, repository: Path) -> None:
    desk = Janitors(tmp_path, repository)
    async with commands.serving(tmp_path, variables=desk.variables) as server:
        await desk.ok("agents", "start", "jan", "-b", "janitor")
        run, (a,) = await desk.asked("a", 1)
        await server.stop(signal.SIGKILL)
    async with commands.serving(tmp_path, variables=desk.variables):
        shown = await desk.json("runs", "show", "jan", run, "--wait", "30")
        assert shown["failure"]["reason"] == "host_lost"
        assert await desk.json("approvals", "list") == []
        assert await desk.decisions(run) == ["withdrawn"]
        late = await desk.turndock("approvals", "approve", "jan", a["approval_id"])
        assert (late.code, "has its answer already: withdrawn" in late.err) == (1, True)
        assert desk.left == ["a", "b", "c"]
