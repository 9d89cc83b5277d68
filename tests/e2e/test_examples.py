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


PATTERNS = {
    "checkpointer": {"approved": "Dear customer (shorter) (friendlier)", "stops": 3},
    "debate": [
        "Cats are clean.",
        "Dogs are loyal.",
        "Cats need no walk.",
        "A walk is good for you.",
        "Cats purr.",
        "Dogs sing.",
    ],
    "pipeline": {
        "out": {
            "letter": "Check: Shorten: Translate: Lieber Leser",
            "note": "Check: Shorten: Translate: Bitte klingeln",
        },
        "turns": 6,
    },
    "pool": {"answers": ["done"] * 8, "done": 8},
    "research": "Write a report from: Tides, in short. What causes tides? Why are there two a day? Who knew it first?",
    "retry": {"answer": "at last", "halted": True, "refused": "no_credit", "tries": 3},
    "supervisor": {
        "results": {"garden": "garden built", "roof": "roof built", "walls": "walls built"},
        "tries": {"garden": 1, "roof": 2, "walls": 1},
        "whole": "A house: walls, roof and garden.",
    },
    "switchboard": {
        "ann": ["Good morning, ann"],
        "bob": ["Good morning, bob", "One more thing"],
        "cy": ["Good morning, cy"],
    },
    "watcher": {"alerts": ["It is 31 degrees.", "It is 35 degrees."], "seen": 7},
}


async def test_the_patterns_run_on_the_server_of_their_guide(tmp_path: Path, repository: Path) -> None:
    guide = Page(repository / "docs/guides/patterns.md")
    desk = Desk(tmp_path, guide.block("toml", "exec:"))
    async with commands.serving(tmp_path, variables=desk.variables):
        assert "plugin:retry" in json.loads(await desk.ok("info", "--json"))["behaviors"]
        config = ("--behavior", "plugin:retry", "--behavior-config", '{"max_tries": 5}')
        await desk.ok("agents", "start", "eve", "--backend", "scripted", *config)
        started = json.loads(await desk.ok("agents", "show", "eve", "--json"))
        assert json.loads(started["state_json"])["max_tries"] == 5
        for name, expected in PATTERNS.items():
            told = await commands.finish(await desk.example(f"patterns.{name}"))
            assert (told.code, told.err) == (0, ""), name
            assert json.loads(told.out) == expected, name
        told = await commands.finish(await desk.example("patterns.workspace"))
        assert json.loads(told.out)["failures"] == ["pen_broken", "outside"]
