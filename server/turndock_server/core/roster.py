"""The live agents of this host: who is claimed, who works, who leaves.

An agent in memory is a claim in the store. It has a task only while it has work. Whatever goes wrong with it, it is
dropped and its rows speak; a sweep offers again what nobody does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from turndock import events
from turndock.errors import TurndockError
from turndock.store.v1 import (
    CancelRunRequest,
    CancelRunResponse,
    Claim,
    ClaimAgentRequest,
    EditRunRequest,
    EnqueueRunRequest,
    EnqueueRunResponse,
    ListOrphansRequest,
    ReleaseIfEmptyRequest,
    RenewClaimsRequest,
)
from turndock.types.v1 import Failure, Fence, Page, Run, RunStatus
from turndock_server.core import history, transcript
from turndock_server.core.agent import Agent
from turndock_server.core.alarms import Alarms
from turndock_server.core.behavior_calls import BehaviorAway
from turndock_server.core.dispatcher import Dispatcher, Signal, Ticket
from turndock_server.core.environment import AgentEnds, Environment
from turndock_server.core.feed import AgentKey
from turndock_server.core.finishing import to_its_end
from turndock_server.core.lifecycle import Kill, is_terminal
from turndock_server.core.live import LiveAgents
from turndock_server.core.locks import KeyedLocks
from turndock_server.core.waiting import RunWaiters

log = logging.getLogger(__name__)

LEASE_MS = 30_000
RENEW_EVERY_S = 10.0
SWEEP_EVERY_S = 2.0
_CLAIMS_PER_RENEWAL = 500
_KILLED_WITHIN_S = 1.0
"""How long agents that were told to end at once may take; then they are left to the next start, like after a crash."""

AGENT_TERMINATED = Kill.STOP.value
"""Why the runs of an agent that is stopped are cancelled."""

_NOBODYS_WORK = frozenset(("AGENT_STOPPED", "CLAIM_CONFLICT", "SERVER_STOPPING", "SESSION_NOT_FOUND"))
"""Reasons for which an agent cannot be claimed and need not be, since it has no work or another host does it."""


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
        self._agents = LiveAgents(
            lambda key, claim, backend_ready: Agent(self.env, key, claim, backend_ready=backend_ready)
        )
        self._loops: dict[Agent, asyncio.Task[None]] = {}
        self.doors: KeyedLocks[AgentKey] = KeyedLocks()
        """One at a time: claiming, leaving and stopping of one agent, and whatever else needs its claim to last."""
        self._dropped: set[AgentKey] = set()
        self.waiting = RunWaiters()
        self._upkeep: set[asyncio.Task[None]] = set()
        self._alarms = Alarms(self._ring)
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
        try:
            agent = await self.claimed(key)
        except TurndockError as error:
            log.warning("agent %s cannot come back and will be tried again: %s", key.session_id, error)
            return
        try:
            await agent.settle_lost_runs(hurried=True)
        except TurndockError as error:
            log.warning("agent %s was dropped: %s", key.session_id, error)
            self.drop(agent)
        except BehaviorAway:
            log.warning("agent %s is taken up again soon: its behavior cannot be reached", key.session_id)
            self.drop(agent)
        else:
            self.wake(agent)

    async def stop(self, grace_s: float) -> None:
        """Let turns come to their end within the grace, kill the others, give every claim up."""
        self._winding_down = True
        for task in self._upkeep:
            task.cancel()
        self._alarms.stop()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        await self.dispatcher.stop()
        for agent in self._agents:
            agent.wind_down()
        self.waiting.stopping(but=[(agent.key, agent.current_run_id) for agent in self._agents])
        if self._loops:
            _, late = await asyncio.wait(self._loops.values(), timeout=grace_s)
            if late:
                self.kill_turns()
                await self._abandon(late)
        self.waiting.stopping()
        self.env.persistence.hurry()
        await asyncio.gather(*(self.leave(agent, "host_stopping") for agent in list(self._agents)))

    def kill_turns(self) -> None:
        """End every turn under way, for a host that stops."""
        self.env.persistence.hurry()
        for agent in list(self._agents):
            agent.kill(Kill.SHUTDOWN)

    async def _abandon(self, loops: Iterable[asyncio.Task[None]]) -> None:
        """Wait for loops whose turns were killed; those that hang in somebody's code are cut off where they are."""
        _, stuck = await asyncio.wait(loops, timeout=_KILLED_WITHIN_S)
        if stuck:
            log.error("%d agents hang and are left to the next start", len(stuck))
            for loop in stuck:
                loop.cancel()
            await asyncio.wait(stuck, timeout=_KILLED_WITHIN_S)

    # --- Agents --------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many agents live here."""
        return len(self._agents)

    def size_of(self, tenant: str | None) -> int:
        """How many agents of a scope live here."""
        return sum(key.tenant == tenant for key, _ in self._agents.claims())

    def get(self, key: AgentKey) -> Agent | None:
        """The agent if it is live here."""
        return self._agents.get(key)

    def key_of(self, tenant: str | None, agent_name: str) -> AgentKey | None:
        """The key of the agent of that name if it is live here."""
        return self._agents.key_of(tenant, agent_name)

    async def claimed(self, key: AgentKey) -> Agent:
        """The agent, claimed now if it was not live. Raises CLAIM_CONFLICT, SESSION_NOT_FOUND, AGENT_STOPPED."""
        agent = self._agents.get(key)
        if agent is not None:
            return agent
        async with self.doors.hold(key):
            agent = self._agents.get(key)
            return agent if agent is not None else await self.claim(key)

    @asynccontextmanager
    async def holding(self, key: AgentKey) -> AsyncGenerator[Agent]:
        """The agent, claimed now if it was not live; it neither leaves nor stops meanwhile. Raises as `claimed`."""
        async with self.doors.hold(key):
            yield self._agents.get(key) or await self.claim(key)

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
        try:
            if granted.session.agent.stopped:
                await self.empty_mailbox(key, AGENT_TERMINATED, None)
                raise TurndockError("AGENT_STOPPED", "the agent has been stopped")
            agent = Agent(self.env, key, granted, backend_ready=backend_ready)
            await agent.load_notifications()
        except TurndockError:
            await self.release(key, granted.epoch, force=True)
            raise
        self._agents.add(agent)
        self._alarms.set(agent)
        return agent

    @to_its_end
    async def enqueue_run(
        self, key: AgentKey, request: EnqueueRunRequest, *, interrupts: bool = False
    ) -> EnqueueRunResponse:
        """Put a run into a mailbox, and have its agent look, wherever it lives. Raises as the store's call."""
        owner = self._agents.get(key)
        accepted = await self.env.journal.enqueue_run(request)
        if not accepted.duplicate:
            await self._enqueued(key, accepted.run, owner, interrupts=interrupts)
        elif not is_terminal(accepted.run.status):
            await self._look_at(key, accepted.run.id)  # An earlier try may have ended half-way.
        return accepted

    async def _enqueued(self, key: AgentKey, run: Run, owner: Agent | None, *, interrupts: bool) -> None:
        """`owner` is the agent that lived here before the run was put into its mailbox, None if none did."""
        agent = self._agents.get(key)
        if agent is None or agent is not owner:
            # It comes or goes just now, and may or may not have read its mailbox before this run was in it.
            await self._look_at(key, run.id)
            agent = self._agents.get(key)
            if agent is None:
                return
        else:
            agent.mailbox.put(run)
        if interrupts and agent.current_run_id not in ("", run.id):
            agent.interrupted_for = run.id
            await self.dispatcher.signal(key, Signal(Kill.INTERRUPT, agent.current_run_id))
        agent.publish_status()
        self.wake(agent)

    async def _look_at(self, key: AgentKey, run_id: str) -> None:
        """Have the agent look at a run that may wait for it, and that it may know, or have begun, already."""
        async with self.holding_mailbox(key) as agent:
            if agent is not None:
                request = transcript.stored_run(key.scope, key.session_id, run_id)
                run = (await self.env.journal.get_run(request)).run
                if run.status == RunStatus.RUN_STATUS_PENDING:
                    agent.mailbox.put(run)
                    self.wake(agent)
                return
        await self.dispatcher.offer(key)

    async def cancel_waiting(
        self, key: AgentKey, run: Run, reason: str, agent: Agent | None, request_id: str = ""
    ) -> Run:
        """End a waiting run; the caller keeps it from beginning meanwhile. Raises INVALID_STATUS."""
        cancelled = transcript.cancelled_run(run, reason)
        request = transcript.cancel_request(key.scope, cancelled, request_id)
        return (await self._cancel(key, request, agent)).run

    @to_its_end
    async def cancel_run(self, key: AgentKey, request: CancelRunRequest) -> CancelRunResponse:
        """End a waiting run. Raises INVALID_STATUS for one that does not wait, but for a cancelled one."""
        async with self.holding_mailbox(key) as agent:
            return await self._cancel(key, request, agent)

    async def _cancel(
        self, key: AgentKey, request: CancelRunRequest, agent: Agent | None
    ) -> CancelRunResponse:
        response = await self.env.journal.cancel_run(request)
        if agent is not None:
            agent.run_cancelled(response)
        self.waiting.settled(key, response.run, None)
        return response

    async def empty_mailbox(self, key: AgentKey, reason: str, agent: Agent | None) -> None:
        """End every run that waits; nobody may begin one meanwhile, nor put one there."""
        for run in [run async for run in history.waiting_runs(self.env.journal, key)]:
            await self.cancel_waiting(key, run, reason, agent)

    @to_its_end
    async def edit_run(self, key: AgentKey, request: EditRunRequest) -> Run:
        """Change a waiting run's prompt or place. Raises INVALID_STATUS when its turn has begun."""
        async with self.holding_mailbox(key) as agent:
            run = (await self.env.journal.edit_run(request)).run
            if agent is not None:
                agent.mailbox.put(run)
                if request.before_run_id or request.to_tail:
                    # A move may give others a new place too.
                    for moved in [run async for run in history.waiting_runs(self.env.journal, key)]:
                        agent.mailbox.put(moved)
            return run

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
        is_here = self._agents.has(agent)
        if is_here and agent not in self._loops and agent.has_work and not self._winding_down:
            self._loops[agent] = asyncio.create_task(self._loop(agent), name=f"agent {agent.key.session_id}")

    async def _loop(self, agent: Agent) -> None:
        try:
            while agent.has_work and not agent.stopping:
                await agent.work()
        except AgentEnds as ends:
            agent.kill(Kill.STOP)  # No further turn may begin until the end is stored.
            self._on_agent_ends(agent, ends.failure)
        except TurndockError as error:
            log.warning("agent %s was dropped: %s", agent.key.session_id, error)
            self.drop(agent)
        except BehaviorAway:
            log.warning("agent %s leaves its next decision to the next start", agent.key.session_id)
            self.drop(agent)
        except Exception:
            log.exception("agent %s was dropped: its loop failed", agent.key.session_id)
            self.drop(agent)
        finally:
            # No await between the last look at the work and this line: a wake-up cannot fall in between.
            del self._loops[agent]
            self._alarms.set(agent)

    def _ring(self, key: AgentKey) -> Agent | None:
        """Wake an agent; it is returned if it has nothing to do yet."""
        agent = self._agents.get(key)
        if agent is not None:
            self.wake(agent)
        return None if agent in self._loops or self._winding_down else agent

    async def loop_ended(self, agent: Agent) -> None:
        """Wait until the agent's loop does not run."""
        loop = self._loops.get(agent)
        if loop is not None:
            await asyncio.wait((loop,))

    async def leave(self, agent: Agent, reason: str) -> None:
        """Take an agent out of memory: DORMANT. If work came meanwhile it is offered anew."""
        async with self.doors.hold(agent.key):
            if not self._agents.has(agent):
                return
            if not self._winding_down and (agent.has_work or agent in self._loops):
                return
            # From here on whoever wants it claims it anew, which has to wait for this door.
            self.forget(agent)
            try:
                await agent.say_goodbye(reason)
            except TurndockError as error:
                log.warning("agent %s left without a word: %s", agent.key.session_id, error)
            released = await self.release(agent.key, agent.epoch, force=self._winding_down)
        if not released:
            await self.dispatcher.offer(agent.key)

    def forget(self, agent: Agent) -> None:
        """Take an agent out of memory without a word."""
        if self._agents.has(agent):
            self._agents.remove(agent)
            agent.notices.abandon()

    def drop(self, agent: Agent) -> None:
        """Take an agent out of memory that what is stored has to speak for, and have it claimed anew soon."""
        self.forget(agent)
        self._drop(agent.key)

    def _drop(self, key: AgentKey) -> None:
        self._dropped.add(key)

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

    # --- Deliveries ----------------------------------------------------------------------------------------------

    async def _on_ticket(self, ticket: Ticket) -> None:
        try:
            self.wake(await self.claimed(ticket.agent))
        except TurndockError as error:
            log.info("the ticket for %s leads nowhere: %s", ticket.agent.session_id, error)
            if error.reason not in _NOBODYS_WORK:
                self._drop(ticket.agent)
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
            claims = self._agents.claims()
            for first in range(0, len(claims), _CLAIMS_PER_RENEWAL):
                try:
                    await self._renew_some(claims[first : first + _CLAIMS_PER_RENEWAL])
                except TurndockError as error:
                    log.warning("leases could not be renewed: %s", error)

    async def _renew_some(self, claims: Iterable[tuple[AgentKey, int]]) -> None:
        renewed = [Claim(scope=key.scope, session_id=key.session_id, epoch=epoch) for key, epoch in claims]
        answer = await self.env.journal.renew_claims(
            RenewClaimsRequest(owner=self.host_id, claims=renewed, lease_ms=LEASE_MS)
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
        """Idle shutdown, and rest before that: one timer for all, none per agent."""
        while True:
            now = time.monotonic()
            next_due = min(self._agents.idle_deadlines(self._loops), default=(now + 1.0, None))[0]
            await asyncio.sleep(min(max(next_due - now, 0.02), 1.0))
            self._agents.rest(busy=lambda agent: agent in self._loops or self.doors.is_held(agent.key))
            now = time.monotonic()
            for key in [key for at, key in self._agents.idle_deadlines(self._loops) if at <= now]:
                agent = self._agents.get(key)
                if agent is not None:
                    await self.leave(agent, "inactivity")
