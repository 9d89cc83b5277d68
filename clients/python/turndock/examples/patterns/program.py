"""What the programs have in common: how they begin, and how agents come and go."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from turndock import jsontext
from turndock.agent.v1 import AgentStatus
from turndock.client import DEFAULT_ENDPOINT, AgentHandle, Client
from turndock.ports import Backend, Behavior
from turndock.serving import ENDPOINT_VARIABLE, serve

Story = Callable[[Client], Awaitable[object]]


@asynccontextmanager
async def agent(client: Client, name: str, **definition: Any) -> AsyncGenerator[AgentHandle]:
    """An agent for as long as the block lasts; it is stopped when the block is left."""
    started = await client.start_agent(name, **definition)
    try:
        yield started
    finally:
        await started.stop()


async def until(agent: AgentHandle, holds: Callable[[AgentStatus], bool]) -> AgentStatus:
    """Wait until an agent's status is as it should be."""
    async with agent.watch(frames=True, with_status=True) as frames:
        async for frame in frames:
            if frame.HasField("status") and holds(frame.status):
                return frame.status
    raise RuntimeError(f"agent {agent.name} ended before that")


async def state(agent: AgentHandle) -> dict[str, Any]:
    """What an agent's behavior keeps."""
    return jsontext.parse_object((await agent.status()).state_json, "state_json")


def main(
    name: str, story: Story, *, behavior: Behavior | None = None, backend: Backend | None = None
) -> None:
    """Serve as a plug-in if a server has started this process; otherwise tell the story and print what came of it."""
    parser = argparse.ArgumentParser(prog=f"python -m turndock.examples.patterns.{name}")
    parser.add_argument("--server", default=DEFAULT_ENDPOINT, help="where the server listens")
    parser.add_argument("--endpoint", help="serve as a plug-in at this address instead")
    options = parser.parse_args()
    if options.endpoint or ENDPOINT_VARIABLE in os.environ:
        asyncio.run(
            serve(name=name, version="1.0", behavior=behavior, backend=backend, endpoint=options.endpoint)
        )
    else:
        asyncio.run(_tell(story, options.server))


async def _tell(story: Story, server: str) -> None:
    async with Client(server) as client:
        print(jsontext.canonical(await story(client)))
