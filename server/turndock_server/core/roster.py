"""The live agents of this host: who is claimed, who works, who leaves.

An agent in memory is a claim in the store. It has a task only while it has work. Whatever goes wrong with it, it is
dropped and its rows speak; a sweep offers again what nobody does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from turndock import events
from turndock.errors import TurndockError
from turndock.store.v1 import (
    Claim,
    ClaimAgentRequest,
    ListOrphansRequest,
    ReleaseIfEmptyRequest,
    RenewClaimsRequest,
)
from turndock.types.v1 import Failure, Fence, Page, Response, Run
from turndock_server.core.agent import Agent
from turndock_server.core.dispatcher import Dispatcher, Signal, Ticket
from turndock_server.core.environment import AgentEnds, Environment
from turndock_server.core.feed import AgentKey
from turndock_server.core.lifecycle import Kill
from turndock_server.core.locks import KeyedLocks

log = logging.getLogger(__name__)

LEASE_MS = 30_000
RENEW_EVERY_S = 10.0
SWEEP_EVERY_S = 2.0
_CLAIMS_PER_RENEWAL = 500

RunWaiter = asyncio.Future[tuple[Run, Response | None]]


class Roster:
    """Claims agents, runs their loops, and lets them go."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        host_id: str,
        sole_host: bool,
        on_agent_ends: Callable[[Agent, Failure], object],
    ) -> None:
        self.env: Environment
        """Set by the host before `start`: the environment refers to the roster and the roster to it."""
        self.host_id = host_id
        self.dispatcher = dispatcher
        self._sole_host = sole_host
        self._on_agent_ends = on_agent_ends
        self._agents: dict[AgentKey, Agent] = {}
        self._names: dict[tuple[str | None, str], AgentKey] = {}
        self._loops: dict[AgentKey, asyncio.Task[None]] = {}
        self.doors: KeyedLocks[AgentKey] = KeyedLocks()
        """One at a time: claiming, leaving and stopping of one agent."""
        self._dropped: set[AgentKey] = set()
        self._waiters: defaultdict[tuple[AgentKey, str], set[RunWaiter]] = defaultdict(set)
        self._upkeep: set[asyncio.Task[None]] = set()
        self._winding_down = False

    # --- Life of the host ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over what dead owners left, settle it, then begin to deliver and sweep."""
        await self.dispatcher.start(self._on_ticket, self._on_signal)
        async for key in self._orphans():
            await self._take_over(key)
        for upkeep in (self._renew(), self._sweep(), self._let_idle_agents_go()):
            task = asyncio.create_task(upkeep)
            self._upkeep.add(task)

    async def _take_over(self, key: AgentKey) -> None:
        """Claim an orphan and settle its interrupted run before anything else; then let it work."""
        agent = await self.claimed(key)
        await agent.settle_lost_runs()
        self.wake(agent)

    async def stop(self, grace_s: float) -> None:
        """Let turns come to their end within the grace, kill the others, give every claim up."""
        self._winding_down = True
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        await self.dispatcher.stop()
        for agent in self._agents.values():
            agent.wind_down()
        if self._loops:
            _, late = await asyncio.wait(self._loops.values(), timeout=grace_s)
            if late:
                for agent in list(self._agents.values()):
                    agent.kill(Kill.SHUTDOWN)
                await asyncio.wait(late)
        await asyncio.gather(*(self.leave(agent, "host_stopping") for agent in list(self._agents.values())))

    # --- Agents --------------------------------------------------------------------------------------------------

    @property
    def agents(self) -> Iterable[Agent]:
        """The live agents."""
        return self._agents.values()

    def get(self, key: AgentKey) -> Agent | None:
        """The agent if it is live here."""
        return self._agents.get(key)

    def key_of(self, tenant: str | None, agent_name: str) -> AgentKey | None:
        """The key of the agent of that name if it is live here."""
        return self._names.get((tenant, agent_name))

    async def claimed(self, key: AgentKey) -> Agent:
        """The agent, claimed now if it was not live. Raises CLAIM_CONFLICT, SESSION_NOT_FOUND, AGENT_STOPPED."""
        agent = self._agents.get(key)
        if agent is not None:
            return agent
        async with self.doors.hold(key):
            agent = self._agents.get(key)
            return agent if agent is not None else await self.claim(key)

    async def claim(self, key: AgentKey, *, backend_ready: bool = False) -> Agent:
        """Claim an agent. The caller holds its door."""
        if self._winding_down:
            raise TurndockError("SERVER_STOPPING", "the host is stopping")
        request = ClaimAgentRequest(
            scope=key.scope,
            session_id=key.session_id,
            owner=self.host_id,
            ticket_id=events.new_id(),
            lease_ms=LEASE_MS,
            sole_host=self._sole_host,
        )
        granted = await self.env.journal.claim_agent(request)
        if granted.session.agent.stopped:
            await self.release(key, granted.epoch, force=True)
            raise TurndockError("AGENT_STOPPED", "the agent has been stopped")
        agent = Agent(self.env, key, granted, backend_ready=backend_ready)
        await agent.load_notifications()
        self._agents[key] = agent
        self._names[_name(agent)] = key
        return agent

    async def run_enqueued(self, key: AgentKey, run: Run, *, interrupts: bool = False) -> None:
        """A run was put into a mailbox: have its agent look, wherever it lives."""
        agent = self._agents.get(key)
        if agent is None:
            await self.dispatcher.offer(key)
            return
        agent.mailbox.put(run)
        if interrupts and agent.current_run_id:
            await self.dispatcher.signal(key, Signal(Kill.INTERRUPT, agent.current_run_id))
        self.wake(agent)

    @asynccontextmanager
    async def holding_mailbox(self, key: AgentKey) -> AsyncGenerator[Agent | None]:
        """Keep waiting runs from beginning while one of them is changed; the agent if it lives here."""
        async with self.doors.hold(key):
            agent = self._agents.get(key)
            if agent is None:
                yield None
                return
            async with agent.begin_lock:
                yield agent

    def wake(self, agent: Agent) -> None:
        """Let the agent's loop run if it has something to do and does not run already."""
        agent.touch()
        if agent.key not in self._loops and agent.has_work and not self._winding_down:
            self._loops[agent.key] = asyncio.create_task(
                self._loop(agent), name=f"agent {agent.key.session_id}"
            )

    async def _loop(self, agent: Agent) -> None:
        try:
            while agent.has_work and not agent.stopping:
                await agent.work()
        except AgentEnds as ends:
            self._loops.pop(agent.key, None)
            self._on_agent_ends(agent, ends.failure)
        except TurndockError as error:
            log.warning("agent %s was dropped: %s", agent.key.session_id, error)
            self._drop(agent)
        except Exception:
            log.exception("agent %s was dropped: its loop failed", agent.key.session_id)
            self._drop(agent)
        finally:
            # No await between the last look at the work and this line: a wake-up cannot fall in between.
            self._loops.pop(agent.key, None)

    async def loop_ended(self, agent: Agent) -> None:
        """Wait until the agent's loop does not run."""
        loop = self._loops.get(agent.key)
        if loop is not None:
            await asyncio.wait((loop,))

    async def leave(self, agent: Agent, reason: str) -> None:
        """Take an agent out of memory: DORMANT. If work came meanwhile it is offered anew."""
        async with self.doors.hold(agent.key):
            if self._agents.get(agent.key) is not agent:
                return
            if not self._winding_down and (agent.has_work or agent.key in self._loops):
                return
            try:
                await agent.say_goodbye(reason)
            except TurndockError as error:
                log.warning("agent %s left without a word: %s", agent.key.session_id, error)
            self.forget(agent)
            released = await self.release(agent.key, agent.epoch, force=self._winding_down)
        if not released:
            await self.dispatcher.offer(agent.key)

    def forget(self, agent: Agent) -> None:
        """Take an agent out of memory without a word."""
        if self._agents.get(agent.key) is agent:
            del self._agents[agent.key]
            self._names.pop(_name(agent), None)
            agent.notices.abandon()

    def _drop(self, agent: Agent) -> None:
        self.forget(agent)
        self._dropped.add(agent.key)

    async def release(self, key: AgentKey, epoch: int, *, force: bool) -> bool:
        """Give a claim up; True if it is gone, False if there is work."""
        request = ReleaseIfEmptyRequest(
            scope=key.scope, session_id=key.session_id, fence=Fence(epoch=epoch), force=force
        )
        try:
            return (await self.env.journal.release_if_empty(request)).released
        except TurndockError as error:
            log.info("the claim of %s could not be given up: %s", key.session_id, error)
            return True

    # --- Callers that wait ---------------------------------------------------------------------------------------

    def wait_for_run(self, key: AgentKey, run_id: str) -> RunWaiter:
        """Done when the run has ended here; give it back with `stop_waiting`."""
        waiter: RunWaiter = asyncio.get_running_loop().create_future()
        self._waiters[(key, run_id)].add(waiter)
        return waiter

    def stop_waiting(self, key: AgentKey, run_id: str, waiter: RunWaiter) -> None:
        """Nobody waits on this any more."""
        waiters = self._waiters.get((key, run_id))
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[(key, run_id)]

    def settled(self, key: AgentKey, run: Run, response: Response | None) -> None:
        """A run has ended: tell whoever waits."""
        for waiter in self._waiters.pop((key, run.id), ()):
            if not waiter.done():
                waiter.set_result((run, response))

    # --- Deliveries ----------------------------------------------------------------------------------------------

    async def _on_ticket(self, ticket: Ticket) -> None:
        try:
            self.wake(await self.claimed(ticket.agent))
        except TurndockError as error:
            log.info("the ticket for %s leads nowhere: %s", ticket.agent.session_id, error)
        await ticket.done()

    async def _on_signal(self, key: AgentKey, signal: Signal) -> None:
        agent = self._agents.get(key)
        if agent is not None:
            agent.kill(signal.kill, signal.run_id)

    # --- Upkeep --------------------------------------------------------------------------------------------------

    async def _orphans(self) -> AsyncIterator[AgentKey]:
        cursor = ""
        while True:
            page = await self.env.journal.list_orphans(
                ListOrphansRequest(owner=self.host_id, sole_host=self._sole_host, page=Page(cursor=cursor))
            )
            for session in page.sessions:
                yield AgentKey.of(session.scope if session.HasField("scope") else None, session.id)
            cursor = page.next_cursor
            if not cursor:
                return

    async def _sweep(self) -> None:
        """Offer again what nobody does."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            dropped, self._dropped = self._dropped, set()
            try:
                for key in [*dropped, *[key async for key in self._orphans()]]:
                    if key not in self._agents:
                        await self.dispatcher.offer(key)
            except TurndockError as error:
                self._dropped |= dropped
                log.warning("the sweep failed and will be repeated: %s", error)

    async def _renew(self) -> None:
        """Prolong every lease; drop what was lost."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            agents = list(self._agents.values())
            for first in range(0, len(agents), _CLAIMS_PER_RENEWAL):
                try:
                    await self._renew_some(agents[first : first + _CLAIMS_PER_RENEWAL])
                except TurndockError as error:
                    log.warning("leases could not be renewed: %s", error)

    async def _renew_some(self, agents: list[Agent]) -> None:
        claims = [
            Claim(scope=agent.key.scope, session_id=agent.key.session_id, epoch=agent.epoch)
            for agent in agents
        ]
        answer = await self.env.journal.renew_claims(
            RenewClaimsRequest(owner=self.host_id, claims=claims, lease_ms=LEASE_MS)
        )
        for claim in answer.lost:
            agent = self._agents.get(
                AgentKey.of(claim.scope if claim.HasField("scope") else None, claim.session_id)
            )
            if agent is not None and agent.epoch == claim.epoch:
                log.warning("agent %s was claimed by another host", agent.key.session_id)
                self.forget(agent)
                agent.kill(Kill.STORAGE)

    async def _let_idle_agents_go(self) -> None:
        """Idle shutdown: one timer for all, none per agent."""
        while True:
            now = time.monotonic()
            due = [self._idle_deadline(agent) for agent in self._agents.values()]
            next_due = min((at for at in due if at is not None), default=now + 1.0)
            await asyncio.sleep(min(max(next_due - now, 0.02), 1.0))
            now = time.monotonic()
            for agent in list(self._agents.values()):
                deadline = self._idle_deadline(agent)
                if deadline is not None and deadline <= now:
                    await self.leave(agent, "inactivity")

    def _idle_deadline(self, agent: Agent) -> float | None:
        after_ms = agent.session.agent.definition.limits.idle_shutdown_ms
        if not after_ms or agent.key in self._loops:
            return None
        return agent.last_activity + after_ms / 1000


def _name(agent: Agent) -> tuple[str | None, str]:
    return agent.key.tenant, agent.session.agent_id
