"""Resting agents: packed when nobody wants them, the same when somebody does."""

from __future__ import annotations

import time

from support.hosting import make_host
from turndock.store.v1 import ClaimAgentResponse
from turndock.types.v1 import AgentDefinition, AgentRecord, Run, RunStatus, Session
from turndock_server.backends.echo import EchoBackend
from turndock_server.core.agent import Agent
from turndock_server.core.feed import AgentKey
from turndock_server.core.live import REST_AFTER_S, LiveAgents
from turndock_server.stores.memory import MemorySessionStore

KEY = AgentKey("red", "session")


def claim(*runs: Run, halted: bool = False) -> ClaimAgentResponse:
    record = AgentRecord(
        definition=AgentDefinition(agent_name="ann", backend="echo"),
        ready=True,
        halted=halted,
        state_json='{"n":1}',
    )
    return ClaimAgentResponse(
        epoch=7, session=Session(id="session", agent_id="ann", last_sequence=12, agent=record), runs=runs
    )


class Home:
    """Live agents of a host."""

    def __init__(self) -> None:
        env = make_host(MemorySessionStore(), {"echo": EchoBackend()}).env
        self.live = LiveAgents(lambda key, granted, ready: Agent(env, key, granted, backend_ready=ready))
        self.env = env

    def add(self, granted: ClaimAgentResponse) -> Agent:
        agent = Agent(self.env, KEY, granted, backend_ready=True)
        agent.last_activity = time.monotonic() - REST_AFTER_S - 1
        self.live.add(agent)
        return agent


async def test_a_packed_agent_comes_back_as_it_was() -> None:
    home = Home()
    agent = home.add(claim())
    before = agent.status()
    home.live.rest(busy=lambda _: False)
    assert not home.live.has(agent)
    woken = home.live.get(KEY)
    assert woken is not None
    assert woken is not agent
    assert woken.status() == before
    assert (woken.epoch, woken.backend_ready, woken.last_activity) == (7, True, agent.last_activity)
    assert home.live.get(KEY) is woken
    assert home.live.key_of("red", "ann") == KEY


async def test_who_is_busy_or_has_something_waiting_is_not_packed() -> None:
    home = Home()
    agent = home.add(claim())
    home.live.rest(busy=lambda _: True)
    assert home.live.has(agent)
    waiting = home.add(claim(Run(id="r", status=RunStatus.RUN_STATUS_PENDING), halted=True))
    home.live.rest(busy=lambda _: False)
    assert home.live.has(waiting)


async def test_who_waits_on_an_agent_keeps_it_unpacked() -> None:
    home = Home()
    agent = home.add(claim())
    waiter = agent.notices.wait_for(99)
    home.live.rest(busy=lambda _: False)
    assert home.live.has(agent)
    agent.notices.applied_through(99)
    await waiter
    home.live.rest(busy=lambda _: False)
    assert not home.live.has(agent)


async def test_an_agent_that_left_is_gone_by_key_and_by_name() -> None:
    home = Home()
    home.add(claim())
    home.live.rest(busy=lambda _: False)
    agent = home.live.get(KEY)
    assert agent is not None
    home.live.remove(agent)
    assert home.live.get(KEY) is None
    assert home.live.key_of("red", "ann") is None
    assert len(home.live) == 0
