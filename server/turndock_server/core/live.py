"""The agents that live here, by key and by name.

One that has not been spoken to for a while rests: it is packed into its session's own bytes and a few numbers, and made
anew, without asking the store, as soon as somebody wants it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from turndock.store.v1 import ClaimAgentResponse
from turndock.types.v1 import Session
from turndock_server.core.agent import Agent
from turndock_server.core.feed import AgentKey

REST_AFTER_S = 1.0
"""How long an agent has nothing to do before it is packed: long enough for a conversation to stay unpacked."""


class _Resting:
    """A packed agent."""

    __slots__ = (
        "backend_ready",
        "body",
        "epoch",
        "idle_shutdown_ms",
        "key",
        "last_activity",
        "last_activity_us",
    )

    def __init__(self, agent: Agent) -> None:
        self.key = agent.key
        self.epoch = agent.epoch
        self.body = agent.packed()
        self.backend_ready = agent.backend_ready
        self.idle_shutdown_ms = agent.idle_shutdown_ms
        self.last_activity = agent.last_activity
        self.last_activity_us = agent.last_activity_us


class LiveAgents:
    """What the roster has claimed. `unpack` makes an agent of what a claim grants."""

    def __init__(self, unpack: Callable[[AgentKey, ClaimAgentResponse, bool], Agent]) -> None:
        self._unpack = unpack
        self._agents: dict[AgentKey, Agent | _Resting] = {}
        self._names: dict[tuple[str | None, str], AgentKey] = {}

    def __contains__(self, key: AgentKey) -> bool:
        return key in self._agents

    def __len__(self) -> int:
        return len(self._agents)

    def __iter__(self) -> Iterator[Agent]:
        """All of them, unpacked."""
        return iter([agent for key in list(self._agents) if (agent := self.get(key)) is not None])

    def get(self, key: AgentKey) -> Agent | None:
        """The agent of that key, unpacked; None if it does not live here."""
        agent = self._agents.get(key)
        if not isinstance(agent, _Resting):
            return agent
        claim = ClaimAgentResponse(epoch=agent.epoch, session=Session.FromString(agent.body))
        woken = self._unpack(agent.key, claim, agent.backend_ready)
        woken.last_activity, woken.last_activity_us = agent.last_activity, agent.last_activity_us
        self._agents[agent.key] = woken
        return woken

    def key_of(self, tenant: str | None, agent_name: str) -> AgentKey | None:
        """The key of the agent of that name; None if it does not live here."""
        return self._names.get((tenant, agent_name))

    def has(self, agent: Agent) -> bool:
        """Whether this very object is the agent. It is not once it was packed or has left."""
        return self._agents.get(agent.key) is agent

    def add(self, agent: Agent) -> None:
        """The agent lives here from now on."""
        self._agents[agent.key] = agent
        self._names[_name(agent)] = agent.key

    def remove(self, agent: Agent) -> None:
        """The agent does not live here any more; nothing happens if it is not this object that does."""
        if self.has(agent):
            del self._agents[agent.key]
            if self._names.get(_name(agent)) == agent.key:
                del self._names[_name(agent)]

    def rest(self, busy: Callable[[Agent], bool]) -> None:
        """Pack everybody who has had nothing to do for a while. `busy` says whom somebody holds on to."""
        since = time.monotonic() - REST_AFTER_S
        for key, agent in self._agents.items():
            if isinstance(agent, Agent) and agent.last_activity < since and agent.at_rest and not busy(agent):
                self._agents[key] = _Resting(agent)

    def claims(self) -> list[tuple[AgentKey, int]]:
        """Every claim with its epoch."""
        return [(key, agent.epoch) for key, agent in self._agents.items()]

    def idle_deadlines(self, working: Collection[Agent]) -> Iterator[tuple[float, AgentKey]]:
        """When each of them is due to leave memory, by the monotonic clock, unless something happens before."""
        for key, agent in self._agents.items():
            if agent.idle_shutdown_ms and agent not in working:
                yield agent.last_activity + agent.idle_shutdown_ms / 1000, key


def _name(agent: Agent) -> tuple[str | None, str]:
    return agent.key.tenant, agent.session.agent_id
