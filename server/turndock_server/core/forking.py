"""Forking a session: a new one that begins with another one's history.

The history is copied through the store's own calls, so every store can do it. What is copied first is invisible: a
session is there for others when it is saved, which comes last. Every id follows from the request's, so a try that ended
half-way is taken up by the next one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

from turndock import events
from turndock.agent.v1 import ForkSessionRequest
from turndock.errors import TurndockError, not_found
from turndock.store.v1 import (
    AppendEventsRequest,
    GetEventsRequest,
    GetSessionRequest,
    SaveRunRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import (
    AgentRecord,
    BackendSession,
    Event,
    Failure,
    Run,
    RunStatus,
    Session,
    SessionStatus,
)
from turndock_server.core import history, repeats, transcript
from turndock_server.core.feed import AgentKey
from turndock_server.core.finishing import to_its_end
from turndock_server.core.host import Host
from turndock_server.core.lifecycle import Kill, Outcome
from turndock_server.core.locks import KeyedLocks

FORKED = "forked"
"""Why a run that had not ended where its session was forked is cancelled in the fork."""

_RUNS_AT_ONCE = 64


class Forker:
    """ForkSession."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._journal = host.journal
        self._locks: KeyedLocks[AgentKey] = KeyedLocks()

    @to_its_end
    async def fork(self, tenant: str | None, request: ForkSessionRequest) -> Session:
        """Make the fork, durable before this returns, or find it made. Raises as ForkSession does."""
        self._host.refuse_when_stopping()
        events.check_id(request.session_id, "session_id")
        parent = AgentKey(tenant, request.session_id)
        child = AgentKey(tenant, _session_id_for(tenant, request.request_id or events.new_id()))
        async with self._locks.hold(child):
            made = await self._session(child)
            return _checked(made, request) if made is not None else await self._fork(parent, child, request)

    async def _fork(self, parent: AgentKey, child: AgentKey, request: ForkSessionRequest) -> Session:
        session = await self._session(parent)
        if session is None:
            raise not_found("session", parent.session_id)
        at = request.at_sequence if request.HasField("at_sequence") else session.last_sequence
        if at > session.last_sequence:
            raise TurndockError(
                "SEQUENCE_IN_FUTURE",
                f"at_sequence {at} is beyond the log's head {session.last_sequence}",
                metadata={"head": str(session.last_sequence)},
            )
        runs = await self._copy_events(parent, child, at)
        settled = await self._copy_runs(parent, child, runs)
        # In this order: if nothing follows the place now, the agent's row was the place's when it was read.
        session = await self._session(parent)
        if session is None:
            raise not_found("session", parent.session_id)
        whole = settled and not await self._goes_on_after(parent, at)
        forked = _forked(session, child.session_id, at, whole=whole)
        saved = await self._journal.save_session(SaveSessionRequest(scope=child.scope, session=forked))
        return saved.session

    async def _session(self, key: AgentKey) -> Session | None:
        try:
            request = GetSessionRequest(scope=key.scope, session_id=key.session_id)
            return (await self._journal.get_session(request)).session
        except TurndockError as error:
            if error.reason == "SESSION_NOT_FOUND":
                return None
            raise

    async def _copy_events(self, parent: AgentKey, child: AgentKey, at: int) -> dict[str, bool]:
        """Give the child the parent's events 1 to `at`: the runs they speak of, and whether each ends there.

        Raises SEQUENCE_COMPACTED if one of the events is gone.
        """
        runs: dict[str, bool] = {}
        last = 0
        async for page in self._pages(parent, 0, at):
            batch: list[Event] = []
            for event in page:
                if event.sequence != last + 1:
                    raise _compacted(last + 1, event.sequence - 1)
                last = event.sequence
                batch.append(await self._own(child, event))
                if event.run_id:
                    runs[event.run_id] = event.type in events.RUN_TERMINAL
            request = AppendEventsRequest(scope=child.scope, events=batch)
            results = (await self._journal.append_events(request)).results
            if results[-1].event.sequence != last:
                raise TurndockError(
                    "SEQUENCE_CONFLICT",
                    f"the fork's log has {results[-1].event.sequence} where the parent's has {last}: "
                    "somebody else wrote into it",
                )
        if last < at:
            raise _compacted(last + 1, at)
        return runs

    async def _pages(self, key: AgentKey, after: int, through: int) -> AsyncIterator[list[Event]]:
        while after < through:
            request = GetEventsRequest(
                scope=key.scope,
                session_id=key.session_id,
                after_sequence=after,
                before_sequence=through + 1,
            )
            page = await self._journal.get_events(request)
            if page.events:
                yield list(page.events)
            if page.scanned_through <= after:
                return
            after = page.scanned_through

    async def _own(self, child: AgentKey, event: Event) -> Event:
        """The event as the child's log gets it."""
        own = Event()
        own.CopyFrom(event)
        own.id = _event_id(child, event.id)
        own.session_id = child.session_id
        for name in ("sequence", "incarnation", "stored_at_us"):
            own.ClearField(name)
        await self._host.env.offloader.copy(child.scope, own)
        return own

    async def _copy_runs(self, parent: AgentKey, child: AgentKey, runs: dict[str, bool]) -> bool:
        """Give the child the runs of its history. Whether all of them are over, with all that followed from them."""
        settled = True
        left = list(runs.items())
        for first in range(0, len(left), _RUNS_AT_ONCE):  # many at once share a commit
            some = left[first : first + _RUNS_AT_ONCE]
            copying = (self._copy_run(parent, child, run_id, ends=ends) for run_id, ends in some)
            settled &= all(await asyncio.gather(*copying))
        return settled

    async def _copy_run(self, parent: AgentKey, child: AgentKey, run_id: str, *, ends: bool) -> bool:
        """Give the child a run of its history; one that goes on in the parent ends here. Whether all of it is over."""
        request = transcript.stored_run(parent.scope, parent.session_id, run_id)
        try:
            found = (await self._journal.get_run(request)).run
        except TurndockError as error:
            if error.reason == "RUN_NOT_FOUND":
                return ends  # a log may speak of runs that nobody stored
            raise
        run = Run()
        run.CopyFrom(found)
        run.session_id = child.session_id
        run.decision_pending = False
        if not ends:
            await self._end(child, run)
        await self._journal.save_run(SaveRunRequest(scope=child.scope, run=run))
        return ends and not found.decision_pending

    async def _end(self, child: AgentKey, run: Run) -> None:
        """Close a run in the child's log, with its open tool calls, and in its row."""
        left = await history.left_by(self._journal, child, run.id)
        failure = Failure(reason=FORKED, message="the session was forked in the middle of this run")
        run.ClearField("response")
        run.failure.CopyFrom(failure)
        run.status = RunStatus.RUN_STATUS_CANCELLED
        run.ended_at_us = events.now_us()
        outcome = Outcome(
            terminal=failure,
            session=BackendSession(),
            kill=Kill.INTERRUPT,
            text=left.text,
            open_tools=left.open_tools,
            open_approvals=list(left.open_approvals.values()),
        )
        closing = transcript.closing(run, outcome)
        for number, event in enumerate(closing):
            event.id = _event_id(child, f"{run.id}/closing/{number}")
        await self._journal.append_events(AppendEventsRequest(scope=child.scope, events=closing))

    async def _goes_on_after(self, parent: AgentKey, at: int) -> bool:
        """Whether something follows in the parent's log that its backend or its behavior knows of."""
        async for page in self._pages(parent, at, (1 << 63) - 2):
            if any(event.run_id or event.custom.name == transcript.NOTIFIED for event in page):
                return True
        return False


def _forked(parent: Session, session_id: str, at: int, *, whole: bool) -> Session:
    """The fork's row: a session whose agent was stopped, for StartAgent to continue."""
    forked = Session(
        id=session_id,
        agent_id=parent.agent_id,
        status=SessionStatus.SESSION_STATUS_PENDING,
        parent_session_id=parent.id,
        forked_at_sequence=at,
        metadata_json=parent.metadata_json,
        context_json=parent.context_json,
        tags=parent.tags,
    )
    if parent.HasField("agent"):
        agent = AgentRecord(stopped=True, title=parent.agent.title, notified_sequence=at)
        agent.definition.CopyFrom(parent.agent.definition)
        if whole:
            agent.state_json = parent.agent.state_json
            agent.notified_sequence = parent.agent.notified_sequence
            agent.backend_session.CopyFrom(parent.agent.backend_session)
        forked.agent.CopyFrom(agent)
    return forked


def _checked(made: Session, request: ForkSessionRequest) -> Session:
    """What an earlier try of the request made. Raises IDEMPOTENCY_CONFLICT if it was another request."""
    moved = request.HasField("at_sequence") and request.at_sequence != made.forked_at_sequence
    if made.parent_session_id != request.session_id or moved:
        raise repeats.conflict(request.request_id)
    return made


def _compacted(first: int, last: int) -> TurndockError:
    return TurndockError(
        "SEQUENCE_COMPACTED",
        f"events {first} to {last} are not stored any more; a fork needs the whole history",
        metadata={"oldest": str(last + 1)},
    )


def _session_id_for(tenant: str | None, request_id: str) -> str:
    digest = hashlib.sha256(f"{tenant or ''}\0{request_id}".encode()).hexdigest()
    return f"fork-{digest[:32]}"


def _event_id(child: AgentKey, event_id: str) -> str:
    return f"{child.session_id}-{hashlib.sha256(event_id.encode()).hexdigest()[:32]}"
