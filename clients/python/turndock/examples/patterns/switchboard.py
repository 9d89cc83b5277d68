"""Switchboard: one person, many agents by name, and a single inbox for all their answers.

Shows `tell` (durable at once, nobody waits), one watch over the logs of several sessions, and cursors: the inbox goes
on where it was closed, and brings nothing twice. No behavior is needed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack

from turndock.client import AgentHandle, Client
from turndock.examples.patterns.program import agent, main
from turndock.types.v1 import Cursor, EventType

ANSWERS = (EventType.EVENT_TYPE_MESSAGE_RECEIVED,)


class Switchboard:
    """Agents by name."""

    def __init__(self, client: Client, agents: Sequence[AgentHandle]) -> None:
        self._client = client
        self._agents = {each.name: each for each in agents}
        self._names: dict[str, str] = {}
        self._places: list[Cursor] = []

    async def connect(self) -> None:
        """Find every agent's log; the inbox begins at its end."""
        for name, each in self._agents.items():
            status = await each.status()
            self._names[status.session_id] = name
            self._places.append(Cursor(session_id=status.session_id, after_sequence=status.last_sequence))

    async def say(self, name: str, text: str) -> str:
        """Put a line through. Returns the run's id."""
        return (await self._agents[name].tell(text)).run.id

    async def inbox(self, count: int) -> AsyncGenerator[tuple[str, str]]:
        """The next answers, whoever is first: who, and what."""
        async with self._client.watch(*self._places, types=ANSWERS) as answers:
            async for answer in answers:
                yield self._names[answer.session_id], answer.message_received.text
                self._places = answers.cursors
                count -= 1
                if not count:
                    return


async def switchboard(client: Client, *, backend: str = "echo") -> dict[str, list[str]]:
    """What each agent answered."""
    async with AsyncExitStack() as stack:
        agents = [
            await stack.enter_async_context(agent(client, name, backend=backend))
            for name in ("ann", "bob", "cy")
        ]
        board = Switchboard(client, agents)
        await board.connect()
        heard: dict[str, list[str]] = {each.name: [] for each in agents}
        for name in heard:
            await board.say(name, f"Good morning, {name}")
        async for name, text in board.inbox(3):
            heard[name].append(text)
        await board.say("bob", "One more thing")
        async for name, text in board.inbox(1):
            heard[name].append(text)
        return heard


if __name__ == "__main__":
    main("switchboard", switchboard)
