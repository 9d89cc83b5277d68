"""When approvals of parked turns expire while their agent is in memory. Once it has left, the sweep finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from turndock import events
from turndock_server.core import parking
from turndock_server.core.agent import Agent
from turndock_server.core.feed import AgentKey


class Alarms:
    """One timer for each agent that waits for people for a limited time, none for all others."""

    def __init__(self, ring: Callable[[AgentKey], Agent | None]) -> None:
        self._ring = ring
        """Wakes the agent; returns it if that was too early."""
        self._timers: dict[AgentKey, asyncio.TimerHandle] = {}

    def set(self, agent: Agent) -> None:
        """Ring when the agent's next approval expires, if one does."""
        earlier = self._timers.pop(agent.key, None)
        if earlier is not None:
            earlier.cancel()
        wakes_us = parking.wake_at_us(agent.session)
        if wakes_us is not None:
            left_s = max(wakes_us - events.now_us(), 0) / 1e6
            self._timers[agent.key] = asyncio.get_running_loop().call_later(left_s, self._due, agent.key)

    def stop(self) -> None:
        """Ring no more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, key: AgentKey) -> None:
        del self._timers[key]
        agent = self._ring(key)
        if agent is not None:
            self.set(agent)
