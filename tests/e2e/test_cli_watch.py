"""`turndock watch` while its server is killed and comes back."""

import asyncio
import json
from pathlib import Path

import pytest

from support import commands
from support.servers import WAIT_S, a_server, calls
from turndock.agent.v1 import TellRequest

pytestmark = pytest.mark.slow


async def next_line(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    async with asyncio.timeout(WAIT_S):
        return (await stream.readline()).decode()


async def test_watch_says_that_the_server_is_away_and_that_it_is_back(tmp_path: Path) -> None:
    async with a_server(tmp_path) as server, calls(server) as api:
        await api.start("ann", "echo")
        await api.agents.tell(TellRequest(agent_name="ann", request_id="one", prompt="one"))
        await api.ended("ann", "one")
        where = {"TURNDOCK_SERVER": server.endpoint}
        watching = await commands.start("watch", "ann", "--json", cwd=tmp_path, variables=where)
        try:
            events = [json.loads(await next_line(watching.stdout))]
            while events[-1]["type"] != "EVENT_TYPE_RUN_COMPLETED":
                events.append(json.loads(await next_line(watching.stdout)))
            server.kill()
            await server.ended()
            assert "the connection is lost (" in (said := await next_line(watching.stderr))
            assert said.endswith("); trying again until it is back\n")
            await server.start()
            assert await next_line(watching.stderr) == "the connection is back\n"
            await api.agents.tell(TellRequest(agent_name="ann", request_id="two", prompt="two"))
            await api.ended("ann", "two")
            while [event["type"] for event in events].count("EVENT_TYPE_RUN_COMPLETED") < 2:
                events.append(json.loads(await next_line(watching.stdout)))
            assert [int(event["sequence"]) for event in events] == [*range(1, len(events) + 1)]
        finally:
            watching.kill()
            await watching.communicate()
