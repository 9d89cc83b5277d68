"""Agents beside each other: a host calls one behavior for all of its agents at once."""

from __future__ import annotations

import asyncio

from turndock.conformance.behavior.suite import Agent, Fixture, case

AGENTS = 20
TURNS = 5


@case("State", "Concurrency")
async def agents_at_once_do_not_mix(fixture: Fixture) -> None:
    """Twenty agents that take their turns at the same time are answered as each would be by itself."""
    agents = await asyncio.gather(*(fixture.start(f"ann-{number}") for number in range(AGENTS)))
    await asyncio.gather(*(_take_turns(agent) for agent in agents))
    for agent in agents:
        await agent.same_by_itself()


async def _take_turns(agent: Agent) -> None:
    for number in range(1, TURNS + 1):
        await agent.respond(number)
