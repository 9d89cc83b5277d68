"""Fork and replay from the command line, on a server whose database is a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from support import commands
from support.servers import a_server

pytestmark = pytest.mark.slow

CONFIG = """
[backends.echo]
kind = "echo"
[backends.replay]
kind = "replay"
"""


async def test_a_session_is_forked_continued_and_replayed(tmp_path: Path) -> None:
    async with a_server(tmp_path, CONFIG) as server:
        where = {"TURNDOCK_SERVER": server.endpoint}

        async def say(*arguments: str, code: int = 0) -> str:
            ended = await commands.run(*arguments, cwd=tmp_path, variables=where)
            assert ended.code == code, ended
            return ended.out if not code else ended.err

        async def events(agent: str) -> list[dict[str, Any]]:
            status = json.loads(await say("agents", "show", agent, "--json"))
            arguments = ("watch", agent, "--json")
            watching = await commands.start(*arguments, cwd=tmp_path, variables=where)
            assert watching.stdout is not None
            seen: list[dict[str, Any]] = []
            while not seen or int(seen[-1]["sequence"]) < int(status["last_sequence"]):
                seen.append(json.loads(await watching.stdout.readline()))
            watching.kill()
            await watching.communicate()
            return seen

        await say("agents", "start", "ann", "--backend", "echo")
        await say("ask", "--agent", "ann", "one fish")
        session_id = json.loads(await say("agents", "show", "ann", "--json"))["session_id"]
        shared = await events("ann")
        fork = (await say("sessions", "fork", session_id, "--request-id", "f")).strip()
        assert (await say("sessions", "fork", session_id, "--request-id", "f")).strip() == fork
        assert "SEQUENCE_IN_FUTURE" in await say("sessions", "fork", session_id, "--at", "999", code=1)

        await say("agents", "start", "ben", "--backend", "echo", "--session", fork)
        assert (await say("ask", "--agent", "ben", "two fish")).strip().endswith("two fish")
        log = await events("ben")
        assert [int(one["sequence"]) for one in log] == [*range(1, len(log) + 1)]
        assert [one["type"] for one in log[: len(shared)]] == [one["type"] for one in shared]
        forked = json.loads(await say("sessions", "show", fork, "--json"))
        assert (forked["parent_session_id"], int(forked["forked_at_sequence"])) == (session_id, len(shared))

        config = json.dumps({"session_id": session_id})
        await say("agents", "start", "again", "--backend", "replay", "--backend-config", config)
        assert (await say("ask", "--agent", "again", "one fish")).strip().endswith("one fish")
        assert "replay_exhausted" in await say("ask", "--agent", "again", "more", code=3)
