"""The examples of the SDK, run as their users run them."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from support import commands
from support.desks import Desk
from support.pages import Page

pytestmark = pytest.mark.slow


async def numbers(watcher: asyncio.subprocess.Process, until: str) -> list[int]:
    """The numbers a watcher prints, up to the event of a kind."""
    assert watcher.stdout is not None
    seen: list[int] = []
    async with asyncio.timeout(commands.LIMIT_S):
        while True:
            number, _, kind = (await watcher.stdout.readline()).decode().strip().partition(" ")
            seen.append(int(number))
            if kind == until:
                return seen


async def test_a_watcher_sees_each_event_once_over_restarts_of_the_server_and_its_own(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    async with commands.serving(tmp_path, variables=desk.variables) as server:
        await desk.ok("agents", "start", "ann", "-b", "echo")
        await desk.ok("ask", "-a", "ann", "one")
        watcher = await desk.example("watcher", "ann")
        seen = await numbers(watcher, until="result")
        await server.stop(signal.SIGKILL)
    async with commands.serving(tmp_path, variables=desk.variables):
        await desk.ok("ask", "-a", "ann", "two")
        seen += await numbers(watcher, until="result")
        watcher.send_signal(signal.SIGINT)
        ended = await commands.finish(watcher)
        assert (ended.code, ended.out, ended.err) == (0, "", "")

        await desk.ok("ask", "-a", "ann", "three")
        watcher = await desk.example("watcher", "ann")
        seen += await numbers(watcher, until="result")
        watcher.send_signal(signal.SIGINT)
        await commands.finish(watcher)
        agent = json.loads(await desk.ok("agents", "show", "ann", "--json"))
        assert seen == list(range(1, int(agent["last_sequence"]) + 1))


async def test_a_diary_remembers_over_a_crash_refuses_and_begins_anew_when_it_is_lost(
    tmp_path: Path, repository: Path
) -> None:
    guide = Page(repository / "docs/guides/write-a-backend.md")
    desk = Desk(tmp_path, guide.block("toml", "exec:"))
    async with commands.serving(tmp_path, variables=desk.variables) as server:
        await desk.ok("agents", "start", "dora", "--backend", "diary")
        assert await desk.ok("ask", "--agent", "dora", "It rained.") == "1. It rained.\n\n"
        await server.stop(signal.SIGKILL)
    async with commands.serving(tmp_path, variables=desk.variables) as server:
        remembered = await desk.ok("ask", "--agent", "dora", "It still rains.")
        assert remembered == "1. It rained.\n2. It still rains.\n\n"
        refused = await desk.turndock("ask", "-a", "dora", "two\nlines")
        assert (refused.code, refused.out) == (3, "")
        assert "not_one_line: a diary takes one line at a time" in refused.err
        await server.stop()
    [file] = (tmp_path / "diaries").iterdir()
    file.unlink()
    async with commands.serving(tmp_path, variables=desk.variables):
        assert await desk.ok("ask", "-a", "dora", "Sun.") == "1. Sun.\n\n"


async def test_a_transcript_is_that_of_an_agent_that_was_stopped(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    async with commands.serving(tmp_path, variables=desk.variables):
        started = json.loads(await desk.ok("agents", "start", "ann", "-b", "echo", "--json"))
        for prompt in ("one", "two words"):
            await desk.ok("ask", "-a", "ann", prompt)
        await desk.ok("agents", "stop", "ann")
        printed = await commands.finish(await desk.example("transcript", started["session_id"]))
        assert printed.out == "**one**\n\none\n\n**two words**\n\ntwo words\n\n"
        unknown = await commands.finish(await desk.example("transcript", "nobody"))
        assert (unknown.code, unknown.out) == (1, "")
        assert unknown.err.startswith("SESSION_NOT_FOUND")
