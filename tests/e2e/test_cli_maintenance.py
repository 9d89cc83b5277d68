"""`turndock maintenance` and sessions as files, against real servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support import commands
from support.commands import Finished, Server
from turndock.conformance.maintenance.archiving import events_in

FREE = ("--listen", "127.0.0.1:0")


class Shell:
    """A terminal beside a server."""

    def __init__(self, server: Server, directory: Path) -> None:
        self._server = server
        self._directory = directory

    async def run(self, *arguments: str, stdin: bytes = b"") -> Finished:
        where = {"TURNDOCK_SERVER": self._server.address}
        return await commands.run(*arguments, cwd=self._directory, variables=where, stdin=stdin)

    async def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        ended = await self.run(*arguments, stdin=stdin)
        assert ended.code == 0, ended
        return ended.out

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.ok(*arguments, "--json"))

    async def an_agent(self, *prompts: str) -> str:
        """Session of an agent that was asked."""
        started = await self.json("agents", "start", "ann", "--backend", "echo")
        for prompt in prompts:
            await self.ok("ask", "--agent", "ann", prompt)
        session_id: str = started["session_id"]
        return session_id


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    async with commands.serving(tmp_path, *FREE) as server:
        yield Shell(server, tmp_path)


async def test_a_run_prunes_archives_and_reports(shell: Shell, tmp_path: Path) -> None:
    session_id = await shell.an_agent("one", "two", "three")
    log = await shell.json("sessions", "show", session_id)
    options = ("--max-events-per-session", "8", "--archive", "artifacts")
    rehearsed = await shell.json("maintenance", "run", "--dry-run", *options)
    assert rehearsed["dry_run"] is True
    told = await shell.ok("maintenance", "run", *options)
    assert ["events", "pruned", rehearsed["events_pruned"]] in [line.split() for line in told.splitlines()]
    again = await shell.json("maintenance", "run", *options)
    assert (again["events_pruned"], again["errors"]) == ("0", [])

    artifacts = await shell.json("artifacts", "list")
    archived: list[int] = []
    for artifact in artifacts:
        target = tmp_path / "archive"
        await shell.ok("artifacts", "get", artifact["key"], "-o", str(target))
        archived += [event.sequence for event in events_in(target.read_bytes())]
    assert len(archived) == int(rehearsed["events_pruned"])
    after = await shell.json("sessions", "show", session_id)
    assert after["last_sequence"] == log["last_sequence"]
    assert await shell.ok("maintenance", "check") == "the data is sound\n"
    assert await shell.ok("ask", "--agent", "ann", "four") == "four\n"


async def test_the_policy_is_the_files_unless_an_option_says_otherwise(shell: Shell, tmp_path: Path) -> None:
    await shell.an_agent("one", "two", "three")
    (tmp_path / "policy.toml").write_text("[maintenance]\nmax_events_per_session = 8\n")
    from_file = await shell.json("maintenance", "run", "--dry-run", "--config", "policy.toml")
    assert int(from_file["events_pruned"]) > 0
    option = ("--max-events-per-session", "unlimited")
    overruled = await shell.json("maintenance", "run", "--dry-run", "--config", "policy.toml", *option)
    assert overruled["events_pruned"] == "0"
    assert (await shell.json("maintenance", "run", "--dry-run"))["events_pruned"] == "0"


async def test_an_archive_that_is_not_there_is_named(shell: Shell) -> None:
    ended = await shell.run("maintenance", "run", "--archive", "nowhere")
    assert (ended.code, ended.out) == (1, "")
    assert "no artifact store has the name 'nowhere'; there are: artifacts" in ended.err


async def test_a_check_says_what_to_do(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    await shell.ok("artifacts", "put", "lost", str(tmp_path / "file"), "--session", "missing")
    ended = await shell.run("maintenance", "check")
    assert ended.code == 1
    assert "1 artifacts reference non-existent sessions" in ended.out
    assert "`turndock maintenance run` removes their rows" in ended.out
    issues = json.loads((await shell.run("maintenance", "check", "--json")).out)
    assert issues[0]["kind"] == "KIND_ORPHANED_ARTIFACTS"
    elsewhere = await shell.run("maintenance", "check", "--scope", "blue")
    assert elsewhere.code == 0
    assert (await shell.run("maintenance", "check", "--scope", "blue", "--every-scope")).code == 1
    assert (await shell.json("maintenance", "run", "--every-scope"))["artifacts_cleaned"] == "1"
    assert await shell.ok("maintenance", "check") == "the data is sound\n"


async def test_an_agent_moves_to_another_server(shell: Shell, tmp_path: Path) -> None:
    session_id = await shell.an_agent("one", "two")
    await shell.ok("sessions", "export", session_id, "-o", "moved.jsonl")
    chat = json.loads(await shell.ok("sessions", "export", session_id, "--format", "openai"))
    assert [message["content"] for message in chat] == ["one", "one", "two", "two"]
    again = await shell.run("sessions", "import", "moved.jsonl")
    assert again.code == 1
    assert "is there already" in again.err
    copied = await shell.json("sessions", "import", "moved.jsonl", "--session-id", "copy")
    assert copied["session"]["agent"]["stopped"] is True

    folder = tmp_path / "other"
    folder.mkdir()
    async with commands.serving(folder, *FREE) as server:
        other = Shell(server, tmp_path)
        lines = (tmp_path / "moved.jsonl").read_bytes()
        cut = await other.run("sessions", "import", "-", stdin=lines[: len(lines) // 2])
        assert cut.code == 2
        assert (await other.run("sessions", "show", session_id)).code == 1, "Nothing of it was stored."
        assert "is imported: 2 runs" in await other.ok("sessions", "import", "-", stdin=lines)
        assert await other.ok("ask", "--agent", "ann", "three") == "three\n"
        chat = json.loads(await other.ok("sessions", "export", session_id, "--format", "openai"))
        assert [message["content"] for message in chat][-2:] == ["three", "three"]
    unreadable = await shell.run("sessions", "import", "missing.jsonl")
    assert (unreadable.code, unreadable.out) == (2, "")
