"""The host: every verb on agents, over the roster of those that live and the rows of all others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from turndock import events, jsontext
from turndock.agent.v1 import (
    AgentStatus,
    InterruptOutcome,
    InterruptRequest,
    InterruptResponse,
    ListAgentsResponse,
    NotifyRequest,
    NotifyResponse,
    ResolveApprovalRequest,
    StopAgentRequest,
    WatchRequest,
)
from turndock.errors import TurndockError, not_found
from turndock.ports import ArtifactStore, Backend, Behavior
from turndock.store.v1 import (
    AppendEventsRequest,
    GetSessionRequest,
    Lifecycle,
    ListRunsRequest,
    ListSessionsRequest,
)
from turndock.types.v1 import (
    AgentLimits,
    Event,
    EventType,
    Failure,
    Page,
    RunStatus,
    Session,
    SessionChanged,
    SessionStatus,
)
from turndock_server.core import repeats, transcript
from turndock_server.core.agent import Agent
from turndock_server.core.behavior_calls import Patience
from turndock_server.core.dispatcher import Dispatcher
from turndock_server.core.environment import Environment
from turndock_server.core.feed import AgentKey
from turndock_server.core.finishing import to_its_end
from turndock_server.core.journal import Journal
from turndock_server.core.lifecycle import Kill, Phase, is_terminal
from turndock_server.core.locks import KeyedLocks
from turndock_server.core.offload import Offloader
from turndock_server.core.persistence import Persistence
from turndock_server.core.quota import AgentQuota
from turndock_server.core.roster import AGENT_TERMINATED, Roster
from turndock_server.core.status import status_of
from turndock_server.core.watch import ReadLog, WatchContext, watch

log = logging.getLogger(__name__)

MAX_PAGE = 1_000

_REFUSED = frozenset(("VALIDATION_ERROR", "APPROVAL_NOT_FOUND", "APPROVAL_RESOLVED", "IDEMPOTENCY_CONFLICT"))
"""Errors of a call that has changed nothing."""


@dataclass(frozen=True, slots=True)
class Located:
    """An agent found by its name or its session's id."""

    key: AgentKey
    session: Session
    live: Agent | None


class Host:
    """Runs agents. `Starter` and `Prompts` are its other verbs."""

    def __init__(
        self,
        journal: Journal,
        dispatcher: Dispatcher,
        backends: Mapping[str, Backend],
        behaviors: Mapping[str, Behavior],
        *,
        host_id: str,
        sole_host: bool,
        defaults: AgentLimits,
        read_log: ReadLog,
        artifacts: ArtifactStore | None = None,
        redact_text: Callable[[str], str] = str,
        backend_defaults: Mapping[str, str] | None = None,
        behavior_defaults: Mapping[str, str] | None = None,
        backend_wait_s: float = 30.0,
        persistence: Persistence | None = None,
        behavior_patience: Mapping[str, Patience] | None = None,
        max_prompt_bytes: int = 1 << 20,
        max_agents_per_scope: int | None = None,
    ) -> None:
        self.journal = journal
        self.quota = AgentQuota(journal, max_agents_per_scope)
        self.backend_defaults = backend_defaults or {}
        """By backend: the JSON object an agent's own configuration is laid over."""
        self.behavior_defaults = behavior_defaults or {}
        """By behavior: the same."""
        self.defaults = defaults
        persistence = persistence or Persistence()
        persistence.redact_text = redact_text
        self.names: KeyedLocks[tuple[str | None, str]] = KeyedLocks()
        """Held while an agent of that name is being started."""
        self.roster = Roster(dispatcher, host_id=host_id, sole_host=sole_host, on_agent_ends=self._agent_ends)
        journal.when_gone = self.roster.waiting.session_gone
        self.env = self.roster.env = Environment(
            journal=journal,
            offloader=Offloader(artifacts, journal.redacted),
            backends=backends,
            behaviors=behaviors,
            settled=self.roster.waiting.settled,
            publish_status=lambda agent: journal.feed.publish_status(agent.key, agent.status),
            redact_text=redact_text,
            backend_wait_s=backend_wait_s,
            persistence=persistence,
            patience={} if behavior_patience is None else behavior_patience,
            max_prompt_bytes=max_prompt_bytes,
        )
        self._stopping = asyncio.Event()
        self._read_log = read_log
        self._endings: set[asyncio.Task[None]] = set()

    # --- Life of the host ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Settle what dead owners left and begin to work. Returns when the host may be called."""
        await self.roster.start()

    def end_watches(self) -> None:
        """End every watch with its cursor, and refuse new work."""
        self._stopping.set()
        self.journal.feed.wake_all()

    async def stop(self, grace_s: float) -> None:
        """Settle or interrupt the turns under way within the grace, store every agent, give up every claim."""
        self.end_watches()
        if self._endings:
            await asyncio.wait(self._endings, timeout=grace_s)
        await self.roster.stop(grace_s)

    def kill_turns(self) -> None:
        """End the turns under way without waiting for the grace to pass."""
        self.roster.kill_turns()

    @property
    def stopping(self) -> bool:
        """Whether new work is refused."""
        return self._stopping.is_set()

    def refuse_when_stopping(self) -> None:
        """Raise SERVER_STOPPING once the host stops."""
        if self.stopping:
            raise TurndockError("SERVER_STOPPING", "the server is stopping")

    # --- Finding -------------------------------------------------------------------------------------------------

    async def locate(self, tenant: str | None, agent_name: str, session_id: str = "") -> Located:
        """The agent of that name that has not stopped, or the agent of a session. Raises AGENT_NOT_FOUND, …"""
        located = await self.locate_or_none(tenant, agent_name, session_id)
        if located is None:
            raise not_found("session", session_id) if session_id else not_found("agent", agent_name)
        return located

    async def locate_or_none(
        self, tenant: str | None, agent_name: str, session_id: str = ""
    ) -> Located | None:
        """As `locate`, None if there is none."""
        if session_id:
            key = AgentKey(tenant, session_id)
        else:
            live_key = self.roster.key_of(tenant, agent_name)
            ending = self.roster.get(live_key) if live_key is not None else None
            if live_key is None or (ending is not None and ending.session.agent.stopped):
                # One that is ending is still here, but its name is free from the moment its row says so.
                return await self._locate_row(tenant, agent_name)
            key = live_key
        live = self.roster.get(key)
        if live is not None:
            return Located(key, live.session, live)
        try:
            found = await self.journal.get_session(
                GetSessionRequest(scope=key.scope, session_id=key.session_id)
            )
        except TurndockError as error:
            if error.reason == "SESSION_NOT_FOUND":
                return None
            raise
        return Located(key, found.session, None) if found.session.HasField("agent") else None

    async def _locate_row(self, tenant: str | None, agent_name: str) -> Located | None:
        scope = AgentKey(tenant, "").scope
        page = await self.journal.list_sessions(
            ListSessionsRequest(scope=scope, agent_id=agent_name, live_agents_only=True, page=Page(limit=1))
        )
        if not page.sessions:
            return None
        session = page.sessions[0]
        key = AgentKey(tenant, session.id)
        return Located(key, session, self.roster.get(key))

    async def claimed(self, located: Located) -> Agent:
        """The located agent, awake."""
        self.refuse_when_stopping()
        if located.session.agent.stopped:
            raise not_found("agent", located.session.agent_id)
        return located.live or await self.roster.claimed(located.key)

    @asynccontextmanager
    async def _awake(self, located: Located) -> AsyncGenerator[Agent]:
        """The located agent, awake; it neither leaves nor stops meanwhile."""
        self.refuse_when_stopping()
        if located.session.agent.stopped:
            raise not_found("agent", located.session.agent_id)
        async with self.roster.holding(located.key) as agent:
            yield agent

    # --- Status --------------------------------------------------------------------------------------------------

    async def status(self, located: Located) -> AgentStatus:
        """An agent's status; does not wake it."""
        if located.live is not None:
            return located.live.status()
        session = located.session
        waiting = await self.journal.list_runs(
            ListRunsRequest(
                scope=located.key.scope,
                session_id=session.id,
                statuses=[RunStatus.RUN_STATUS_PENDING],
                page=Page(limit=MAX_PAGE),
            )
        )
        phase = Phase.STOPPED if session.agent.stopped else Phase.DORMANT
        return status_of(session, phase, queued=len(waiting.runs), last_activity_us=session.updated_at_us)

    async def list_agents(self, tenant: str | None, page: Page) -> ListAgentsResponse:
        """A page of the scope's agents that have not stopped."""
        scope = AgentKey(tenant, "").scope
        found = await self.journal.list_sessions(
            ListSessionsRequest(scope=scope, live_agents_only=True, page=page)
        )
        statuses: list[AgentStatus] = []
        for session in found.sessions:
            key = AgentKey(tenant, session.id)
            statuses.append(await self.status(Located(key, session, self.roster.get(key))))
        return ListAgentsResponse(agents=statuses, next_cursor=found.next_cursor)

    # --- Verbs ---------------------------------------------------------------------------------------------------

    @to_its_end
    async def stop_agent(self, tenant: str | None, request: StopAgentRequest) -> AgentStatus:
        """End an agent for good. A retry with the same `request_id` finds it stopped and says so again."""
        located = await self.locate_or_none(tenant, request.agent_name)
        if located is None:
            return await self._stopped_before(tenant, request)
        agent = await self.claimed(located)
        agent.kill(Kill.STOP)
        await self.roster.loop_ended(agent)
        ended = await self._end(agent, request.reason or "stopped", request_id=request.request_id)
        # It may have left memory, or have been stopped by somebody else, while this waited.
        return ended or await self.stop_agent(tenant, request)

    async def notify(self, located: Located, request: NotifyRequest) -> NotifyResponse:
        """Store a notification, and let the agent hear it."""
        jsontext.parse(request.payload_json, "payload_json")
        agent, sequence = await self._notify(located, request)
        if request.wait_applied:
            await agent.applied(sequence)
        return NotifyResponse(sequence=sequence, applied=agent.session.agent.notified_sequence >= sequence)

    @to_its_end
    async def _notify(self, located: Located, request: NotifyRequest) -> tuple[Agent, int]:
        """Who will hear the notification, and its number. One at a time, so that they are heard by number."""
        async with self._awake(located) as agent:
            event = await self._store_notification(agent, request)
            self.roster.wake(agent)
            return agent, event.sequence

    async def _store_notification(self, agent: Agent, request: NotifyRequest) -> Event:
        limit = agent.session.agent.definition.limits.max_pending_notifications
        if agent.mailbox.pending_notifications >= limit:
            raise TurndockError(
                "MAX_RUNS_EXCEEDED",
                f"{limit} notifications wait already",
                metadata={"queue": "notifications", "limit": "count", "max_count": str(limit)},
            )
        request_id = request.request_id or events.new_id()
        event, duplicate = await agent.notify(
            transcript.notification(agent.key.session_id, request_id, request.payload_json)
        )
        if duplicate:
            repeats.same_kind(event, transcript.NOTIFIED, request_id)
            if event.custom.data_json != request.payload_json:
                raise repeats.conflict(request_id)
        return event

    @to_its_end
    async def interrupt(self, located: Located, request: InterruptRequest) -> InterruptResponse:
        """Kill the turn under way, wherever it runs."""
        if located.live is None and located.session.agent.HasField("parked"):
            located = Located(located.key, located.session, await self.claimed(located))
        current = located.live.current_run_id if located.live is not None else ""
        if located.live is None or not current:
            answer = InterruptResponse(outcome=InterruptOutcome.INTERRUPT_OUTCOME_IDLE)
        elif request.run_id and request.run_id != current:
            answer = InterruptResponse(outcome=InterruptOutcome.INTERRUPT_OUTCOME_NOT_CURRENT)
        else:
            answer = InterruptResponse(outcome=InterruptOutcome.INTERRUPT_OUTCOME_ACCEPTED, run_id=current)
        if request.request_id:
            event = repeats.interrupted(located.key.session_id, request, answer)
            stored, duplicate = await self._store_once(located, event)
            if duplicate:
                return repeats.answer_of(stored, request)
        if answer.run_id and located.live is not None:
            killed = located.live.kill(Kill.INTERRUPT, current)
            if not killed and not request.request_id:  # the turn has just ended by itself
                return InterruptResponse(outcome=InterruptOutcome.INTERRUPT_OUTCOME_IDLE)
            self.roster.wake(located.live)  # A parked turn is ended by the loop.
        return answer

    async def _store_once(self, located: Located, event: Event) -> tuple[Event, bool]:
        """Store an event whose id may be known, without waking the agent; as stored, and whether it was known."""
        async with self.roster.doors.hold(located.key):
            agent = self.roster.get(located.key)
            if agent is not None:
                result = await agent.writer.append_once(event)
            else:
                request = AppendEventsRequest(scope=located.key.scope, events=[event])
                result = (await self.journal.append_events(request)).results[0]
        return result.event, result.duplicate

    @to_its_end
    async def resolve_approval(
        self, located: Located, request: ResolveApprovalRequest, principal: str
    ) -> AgentStatus:
        """Decide on approvals, all or none. Raises as `Desk.resolve`."""
        async with self._awake(located) as agent:
            try:
                await agent.desk.resolve(request, principal)
            except TurndockError as error:
                if error.reason not in _REFUSED:
                    # Nobody knows what the store has kept: its rows have to say so to the next owner.
                    self.roster.drop(agent)
                    agent.kill(Kill.STORAGE)
                raise
            self.roster.wake(agent)
            return agent.status()

    @to_its_end
    async def unhalt(self, located: Located, request_id: str = "") -> AgentStatus:
        """Thaw the mailbox."""
        async with self._awake(located) as agent:
            sequence = 0
            if request_id:
                event = repeats.unhalted(agent.key.session_id, request_id)
                stored = (await agent.writer.append_once(event)).event
                repeats.same_kind(stored, transcript.UNHALTED, request_id)
                if stored.sequence <= agent.session.agent.unhalted_sequence:
                    return agent.status()
                sequence = stored.sequence
            await agent.unhalt(sequence)
            self.roster.wake(agent)
            return agent.status()

    async def touch(self, located: Located) -> None:
        """Put the idle shutdown off."""
        (await self.claimed(located)).touch()

    def watch(
        self, tenant: str | None, request: WatchRequest, *, is_fresh: bool = False
    ) -> AsyncGenerator[bytes]:
        """The encoded messages of a watch."""
        return watch(self._watch_context(), tenant, request, is_fresh=is_fresh)

    # --- Ends ----------------------------------------------------------------------------------------------------

    async def _end(
        self, agent: Agent, reason: str, *, request_id: str = "", failure: Failure | None = None
    ) -> AgentStatus | None:
        """An agent whose loop does not run any more ends. None if it does not live here any more."""
        async with self.roster.doors.hold(agent.key):
            if self.roster.get(agent.key) is not agent:
                return None
            try:
                await self._store_end(agent, reason, request_id, failure)
            except TurndockError:
                self.roster.drop(agent)
                raise
            agent.ended()
            self.roster.forget(agent)
            await self.roster.release(agent.key, agent.epoch, force=True)
            return status_of(
                agent.session, Phase.STOPPED, queued=0, last_activity_us=agent.session.updated_at_us
            )

    async def _store_end(self, agent: Agent, reason: str, request_id: str, failure: Failure | None) -> None:
        """Its name is free and its mailbox closed; then its runs end, its backend, and its log."""
        await agent.settle_lost_runs()
        await agent.end_parked(Kill.STOP)
        session = agent.session
        session.status = (
            SessionStatus.SESSION_STATUS_FAILED if failure else SessionStatus.SESSION_STATUS_COMPLETED
        )
        session.agent.stopped = True
        session.agent.stop_request_id = request_id
        await agent.writer.save()
        await self.roster.empty_mailbox(agent.key, AGENT_TERMINATED, agent)
        await agent.terminate(reason, failure)
        ended = transcript.session_event(
            session.id,
            EventType.EVENT_TYPE_SESSION_FAILED if failure else EventType.EVENT_TYPE_SESSION_COMPLETED,
            SessionChanged(reason=reason, failure=failure),
        )
        await agent.writer.append([ended])
        await agent.snapshots.save(Lifecycle.LIFECYCLE_ON_SHUTDOWN, agent)

    async def _stopped_before(self, tenant: str | None, request: StopAgentRequest) -> AgentStatus:
        scope = AgentKey(tenant, "").scope
        page = await self.journal.list_sessions(
            ListSessionsRequest(scope=scope, agent_id=request.agent_name, page=Page(limit=1))
        )
        for session in page.sessions:
            if request.request_id and session.agent.stop_request_id == request.request_id:
                return await self.status(Located(AgentKey(tenant, session.id), session, None))
        raise not_found("agent", request.agent_name)

    def _agent_ends(self, agent: Agent, failure: Failure) -> None:
        ending = asyncio.create_task(self._end_failed(agent, failure))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end_failed(self, agent: Agent, failure: Failure) -> None:
        try:
            await self._end(agent, failure.reason, failure=failure)
        except TurndockError as error:
            log.warning(
                "agent %s could not be ended and will be tried again: %s", agent.key.session_id, error
            )

    def _watch_context(self) -> WatchContext:
        return WatchContext(
            self.journal.feed, self._read_log, self._run_has_ended, self._status_by_key, self._stopping
        )

    async def _run_has_ended(self, key: AgentKey, run_id: str) -> bool:
        page = await self.journal.get_run(transcript.stored_run(key.scope, key.session_id, run_id))
        return is_terminal(page.run.status)

    async def _status_by_key(self, key: AgentKey) -> AgentStatus | None:
        located = await self.locate_or_none(key.tenant, "", key.session_id)
        return await self.status(located) if located is not None else None
