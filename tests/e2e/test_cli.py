"""The command line against a real server: what a person and what a script see."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support import commands
from support.commands import Finished, Server

FREE = ("--listen", "127.0.0.1:0")
SLOW = '{"delay_ms": 60000}'
"""An echo that would take a minute for each word: a turn that is under way until somebody ends it."""


class Shell:
    """A person's terminal, with the server's address in the environment."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self._directory = directory

    async def run(self, *arguments: str, stdin: bytes = b"", **variables: str) -> Finished:
        """Run a command to its end."""
        where = {"TURNDOCK_SERVER": self.server.address, **variables}
        return await commands.run(*arguments, cwd=self._directory, variables=where, stdin=stdin)

    async def ok(self, *arguments: str, stdin: bytes = b"", **variables: str) -> str:
        """What a command prints that succeeds."""
        ended = await self.run(*arguments, stdin=stdin, **variables)
        assert ended.code == 0, ended
        return ended.out

    async def json(self, *arguments: str, **variables: str) -> Any:
        """What a command prints with --json."""
        return json.loads(await self.ok(*arguments, "--json", stdin=b"", **variables))

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start a command that goes on."""
        return await commands.start(
            *arguments, cwd=self._directory, variables={"TURNDOCK_SERVER": self.server.address}
        )


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    """A shell beside a fresh server."""
    async with commands.serving(tmp_path, *FREE) as server:
        yield Shell(server, tmp_path)


async def line(process: asyncio.subprocess.Process) -> str:
    """The next line a command prints."""
    assert process.stdout is not None
    async with asyncio.timeout(commands.LIMIT_S):
        return (await process.stdout.readline()).decode()


async def event(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The next event a `watch --json` prints."""
    parsed: dict[str, Any] = json.loads(await line(process))
    return parsed


async def test_an_agent_from_its_start_to_its_end(shell: Shell) -> None:
    started = await shell.json("agents", "start", "ann", "-b", "echo", "--tag", "x", "--limit", "max_turns=9")
    assert started["definition"]["limits"]["max_turns"] == "9"
    listed = await shell.ok("agents", "list")
    assert listed.splitlines()[1].split()[:3] == ["ann", "idle", "0"]

    assert await shell.ok("ask", "--agent", "ann", "Hello there") == "Hello there\n"
    assert await shell.ok("ask", "--agent", "ann", "--no-stream", "Whole") == "Whole\n"
    assert await shell.ok("ask", "-", TURNDOCK_AGENT="ann", stdin=b"From a pipe\n") == "From a pipe\n\n"
    outcome = await shell.json("ask", "--agent", "ann", "Data", "--request-id", "r-1")
    assert outcome["response"]["text"] == "Data"
    assert outcome["run"]["id"] == "r-1"

    run = (await shell.ok("tell", "--agent", "ann", "Later")).strip()
    assert "completed" in await shell.ok("runs", "show", "ann", run, "--wait", "30")
    runs = await shell.json("runs", "list", "ann")
    assert [one["prompt"] for one in runs] == ["Hello there", "Whole", "From a pipe\n", "Data", "Later"]
    assert len(await shell.json("runs", "list", "ann", "--limit", "2")) == 2

    assert (await shell.json("agents", "show", "ann"))["turn_count"] == "5"
    assert "stopped" in await shell.ok("agents", "stop", "ann", "--reason", "done")
    assert await shell.json("agents", "list") == []
    gone = await shell.run("ask", "--agent", "ann", "Still there?")
    assert gone.code == 1
    assert "agent 'ann' not found" in gone.err
    assert "turndock agents start" in gone.err


async def test_a_prompt_is_safe_to_repeat_with_its_request_id(shell: Shell) -> None:
    await shell.ok("agents", "start", "ann", "-b", "echo")
    for _ in range(2):
        assert await shell.ok("ask", "--agent", "ann", "--request-id", "once", "Hello") == "Hello\n"
    assert len(await shell.json("runs", "list", "ann")) == 1
    conflict = await shell.run("ask", "--agent", "ann", "--request-id", "once", "Other")
    assert conflict.code == 1
    assert "IDEMPOTENCY_CONFLICT" in conflict.err


async def test_a_mailbox_can_be_listed_edited_and_emptied(shell: Shell) -> None:
    await shell.ok("agents", "start", "slow", "-b", "echo", "--backend-config", SLOW)
    asking = await shell.start("ask", "--agent", "slow", "--request-id", "r-1", "A long answer")
    watching = await shell.start("watch", "slow", "--json", "--type", "run_started")
    assert (await event(watching))["run_id"] == "r-1"
    for number in ("r-2", "r-3", "r-4"):
        assert await shell.ok("tell", "--agent", "slow", "--request-id", number, number) == f"{number}\n"

    busy = await shell.run("tell", "--agent", "slow", "--busy", "reject", "Now!")
    assert busy.code == 1
    assert "AGENT_BUSY" in busy.err
    assert "cancelled" in await shell.ok("runs", "cancel", "slow", "r-3")
    await shell.ok("runs", "edit", "slow", "r-4", "--prompt", "edited", "--before", "r-2")
    waiting = await shell.json("runs", "list", "slow", "--status", "pending", "--status", "running")
    assert [(one["id"], one["prompt"]) for one in waiting] == [
        ("r-1", "A long answer"),
        ("r-4", "edited"),
        ("r-2", "r-2"),
    ]

    assert (
        await shell.ok("interrupt", "slow", "--run", "r-2")
        == "another run's turn is under way; nothing happened\n"
    )
    assert await shell.ok("interrupt", "slow") == "r-1 is being interrupted\n"
    asked = await commands.finish(asking)
    assert asked.code == 3
    assert "the turn did not succeed: interrupted" in asked.err
    assert (await event(watching))["run_id"] == "r-4"
    watching.send_signal(signal.SIGINT)
    assert (await commands.finish(watching)).code == 130
    await shell.ok("agents", "stop", "slow")


async def test_leaving_an_ask_leaves_its_run_alone(shell: Shell) -> None:
    await shell.ok("agents", "start", "slow", "-b", "echo", "--backend-config", SLOW)
    watching = await shell.start("watch", "slow", "--json", "--type", "run_started")
    asking = await shell.start("ask", "--agent", "slow", "--request-id", "r-1", "A long answer")
    await event(watching)
    asking.send_signal(signal.SIGINT)
    left = await commands.finish(asking)
    assert left.code == 130
    assert "The run goes on: turndock runs show slow r-1" in left.err
    assert (await shell.json("runs", "show", "slow", "r-1"))["status"] == "RUN_STATUS_RUNNING"
    watching.kill()
    await commands.finish(watching)


async def test_watch_shows_what_happened_and_what_happens_next(shell: Shell) -> None:
    await shell.ok("agents", "start", "ann", "-b", "echo")
    await shell.ok("ask", "--agent", "ann", "--request-id", "r-1", "one two")
    shown = await shell.ok("watch", "ann", "--run", "r-1", "--until-terminal")
    kinds = [row.split()[2] for row in shown.splitlines()]
    assert kinds[:2] == ["run_started", "message_sent"]
    assert kinds[-1] == "run_completed"
    numbers = [int(row.split()[0]) for row in shown.splitlines()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    after = str(numbers[-1])
    rest = await shell.start(
        "watch", "ann", "--after", after, "--json", "--types", "run_started,run_completed"
    )
    await shell.ok("ask", "--agent", "ann", "three")
    events = [await event(rest), await event(rest)]
    assert [one["type"] for one in events] == ["EVENT_TYPE_RUN_STARTED", "EVENT_TYPE_RUN_COMPLETED"]
    assert int(events[0]["sequence"]) == numbers[-1] + 1
    rest.send_signal(signal.SIGINT)
    assert (await commands.finish(rest)).code == 130


async def test_a_watcher_survives_kill_9_and_sees_every_event_once(tmp_path: Path) -> None:
    address = "unix:server.sock"
    async with commands.serving(tmp_path, "--listen", address) as first:
        shell = Shell(first, tmp_path)
        await shell.ok("agents", "start", "ann", "-b", "echo", "--backend-config", '{"delay_ms": 30}')
        watching = await shell.start("watch", "ann", "--json")
        await shell.ok("tell", "--agent", "ann", "--request-id", "r-1", " ".join(["word"] * 500))
        await shell.ok("tell", "--agent", "ann", "--request-id", "r-2", "and this")
        seen = [await event(watching) for _ in range(20)]
        first.process.kill()
        await first.process.wait()
    async with commands.serving(tmp_path, "--listen", address) as second:
        while seen[-1]["type"] != "EVENT_TYPE_RUN_COMPLETED":
            seen.append(await event(watching))
        assert (await second.stop()).code == 0
    watching.send_signal(signal.SIGINT)
    assert (await commands.finish(watching)).code == 130
    assert [int(one["sequence"]) for one in seen] == list(range(1, len(seen) + 1))
    ends = {
        one["run_id"]: one
        for one in seen
        if one["type"].startswith("EVENT_TYPE_RUN_") and "STARTED" not in one["type"]
    }
    assert ends["r-1"]["run_failed"]["failure"]["reason"] == "host_lost"
    assert ends["r-2"]["type"] == "EVENT_TYPE_RUN_COMPLETED"


async def test_a_notification_is_stored_to_the_last_digit_and_an_agent_can_be_thawed(shell: Shell) -> None:
    await shell.ok("agents", "start", "ann", "-b", "echo")
    stored = await shell.json("notify", "ann", '{"n": 9007199254740993}', "--wait")
    watching = await shell.start("watch", "ann", "--json", "--type", "custom")
    logged = await event(watching)
    assert (logged["sequence"], stored["applied"]) == (stored["sequence"], True)
    assert "9007199254740993" in logged["custom"]["data_json"]
    watching.kill()
    await commands.finish(watching)
    assert "phase" in await shell.ok("unhalt", "ann")


async def test_sessions_outlive_their_agents_until_they_are_deleted(shell: Shell) -> None:
    session = (await shell.json("agents", "start", "ann", "-b", "echo", "--tag", "x"))["session_id"]
    await shell.ok("agents", "stop", "ann")
    (listed,) = await shell.json("sessions", "list", "--agent", "ann")
    assert listed["id"] == session
    assert await shell.json("sessions", "list", "--agent", "bob") == []
    assert (await shell.json("sessions", "show", session))["tags"] == ["x"]
    again = await shell.json("agents", "start", "ann", "-b", "echo", "--session", session)
    assert again["session_id"] == session
    await shell.ok("agents", "stop", "ann")
    assert (await shell.run("sessions", "delete", session, stdin=b"n\n")).code == 1
    assert await shell.ok("sessions", "delete", session, "--yes") == f"{session} is deleted\n"
    missing = await shell.run("sessions", "show", session)
    assert missing.code == 1
    assert "SESSION_NOT_FOUND" in missing.err


async def test_artifacts_go_in_and_come_out_unchanged(shell: Shell, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    (tmp_path / "in.png").write_bytes(data)
    stored = await shell.json("artifacts", "put", "a/../b", "in.png", "--metadata", '{"n": 1}')
    assert (stored["size"], stored["media_type"]) == (str(len(data)), "image/png")
    await shell.ok("artifacts", "get", "a/../b", "-o", "out.png")
    assert (tmp_path / "out.png").read_bytes() == data
    assert "a/../b is deleted" in await shell.ok("artifacts", "delete", "a/../b")

    await shell.ok("artifacts", "put", "piped", "-", stdin=b"from a pipe")
    assert await shell.ok("artifacts", "get", "piped") == "from a pipe"
    assert [one["key"] for one in await shell.json("artifacts", "list")] == ["piped"]
    exists = await shell.run("artifacts", "put", "piped", "in.png", "--if-absent")
    assert exists.code == 1
    assert "ALREADY_EXISTS" in exists.err

    missing = await shell.run("artifacts", "get", "nothing", "-o", "nothing.bin")
    assert missing.code == 1
    assert not (tmp_path / "nothing.bin").exists()
    assert sorted(os.listdir(tmp_path)) == ["in.png", "out.png", "turndock-data"]


async def test_another_scope_is_another_world(shell: Shell) -> None:
    await shell.ok("agents", "start", "ann", "-b", "echo", "--scope", "red")
    await shell.ok("artifacts", "put", "k", "-", stdin=b"red", TURNDOCK_SCOPE="red")
    for tenant in ("", "blue"):
        assert await shell.json("agents", "list", TURNDOCK_SCOPE=tenant) == []
        assert await shell.json("sessions", "list", TURNDOCK_SCOPE=tenant) == []
        assert await shell.json("artifacts", "list", TURNDOCK_SCOPE=tenant) == []
        assert (await shell.run("ask", "--agent", "ann", "x", TURNDOCK_SCOPE=tenant)).code == 1
        assert (await shell.run("artifacts", "get", "k", TURNDOCK_SCOPE=tenant)).code == 1
    assert await shell.ok("ask", "--agent", "ann", "--scope", "red", "x") == "x\n"
    assert len(await shell.json("sessions", "list", TURNDOCK_SCOPE="red")) == 1
    assert await shell.ok("artifacts", "get", "k", "--scope", "red") == "red"


async def test_an_answer_cannot_command_the_terminal(shell: Shell) -> None:
    await shell.ok("agents", "start", "ann", "-b", "echo")
    assert await shell.ok("ask", "--agent", "ann", "\x1b[2J red") == "\\x1b[2J red\n"
    assert "\x1b" not in await shell.ok("runs", "list", "ann")


async def test_info_says_what_the_server_offers(shell: Shell) -> None:
    info = await shell.json("info")
    assert "echo" in info["backends"]
    assert (info["session_store"], info["artifact_store"]) == ("sqlite", "files")
    said = await shell.ok("info")
    assert "largest prompt    1.0 MiB" in said
    assert "services          AgentHost, SessionStore, ArtifactStore, Maintenance, Query\n" in said
    assert "snapshots in      none\n" in said
    assert "credentials       (nobody is asked for any)\n" in said
    refused = await shell.run("agents", "start", "ann", "-b", "ecko")
    assert refused.code == 1
    assert "'ecko' is not one of" in refused.err
