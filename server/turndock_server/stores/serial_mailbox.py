"""A mailbox over the fourteen calls every SessionStore has, for a host that is the store's only one.

What a store with the mailbox ability does in one transaction is done here under one lock per session. That is enough
while no other host writes: a crash between two of the calls leaves at worst a run that was not acknowledged, or a
cancelled run without its terminal event. Epochs follow the clock, so that they rise over restarts too.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, Protocol

from turndock.errors import TurndockError
from turndock.ports import SessionStore
from turndock.store.v1 import (
    AppendEventsRequest,
    CancelRunRequest,
    CancelRunResponse,
    ClaimAgentRequest,
    ClaimAgentResponse,
    EditRunRequest,
    EditRunResponse,
    EnqueueRunRequest,
    EnqueueRunResponse,
    GetRunRequest,
    GetSessionRequest,
    ListOrphansRequest,
    ListOrphansResponse,
    ListRunsRequest,
    ListSessionsRequest,
    ReleaseIfEmptyRequest,
    ReleaseIfEmptyResponse,
    RenewClaimsRequest,
    RenewClaimsResponse,
    SaveRunRequest,
)
from turndock.types.v1 import Fence, Page, Run, RunStatus, Scope, Session, SessionStatus
from turndock_server.core.locks import KeyedLocks
from turndock_server.stores import rules

_WAITING = (RunStatus.RUN_STATUS_PENDING,)
_UNSETTLED = (RunStatus.RUN_STATUS_PENDING, RunStatus.RUN_STATUS_RUNNING)
_Key = tuple[str, str]


class SerialMailbox:
    """Mailbox for a store without one. Use exactly one per store."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._locks: KeyedLocks[_Key] = KeyedLocks()
        self._scopes: KeyedLocks[str] = KeyedLocks()
        """Taken after a session's lock, where a scope's mailboxes are bounded together."""
        self._epochs: dict[_Key, int] = {}
        self._last_epoch = 0
        self._looked_for_orphans = False

    async def enqueue_run(self, request: EnqueueRunRequest) -> EnqueueRunResponse:
        """Put a run into a mailbox."""
        scope = _scope(request)
        async with self._locks.hold(_key(request, request.run.session_id)):
            known = await self._run_or_none(scope, request.run.session_id, request.run.id)
            if known is not None:
                if known.request_sha256 != request.run.request_sha256:
                    raise rules.token_conflict(request.run.id)
                return EnqueueRunResponse(run=known, duplicate=True)
            session = await self._session(scope, request.run.session_id)
            runs = [run async for run in self._runs(scope, session.id, _UNSETTLED)]
            waiting = [run for run in runs if run.status == RunStatus.RUN_STATUS_PENDING]
            running = len(runs) > len(waiting)
            if request.only_if_idle and (runs or session.agent.halted):
                raise TurndockError("AGENT_BUSY", f"session {session.id!r} has work or is halted")
            size = sum(rules.prompt_bytes(run) for run in waiting)
            box = rules.Waiting(len(waiting), size, dispatches=not running and not session.agent.halted)
            if request.HasField("limits"):
                rules.admit(request.run, box, request.limits, front=request.front)
            async with self._admitted_to_scope(request, box):
                run = Run()
                run.CopyFrom(request.run)
                run.status = RunStatus.RUN_STATUS_PENDING
                run.created_at_us = time.time_ns() // 1000
                run.queue_key = await self._queue_key(scope, session.id, waiting, front=request.front)
                stored = await self._save(scope, run, RunStatus.RUN_STATUS_UNSPECIFIED)
            return EnqueueRunResponse(run=stored, pending_count=len(waiting) + 1)

    @asynccontextmanager
    async def _admitted_to_scope(
        self, request: EnqueueRunRequest, box: rules.Waiting
    ) -> AsyncGenerator[None]:
        """While the block runs, nobody else fills what room the scope has left. Raises MAX_RUNS_EXCEEDED.

        Costs a look into every mailbox of the scope, where its bounds are set.
        """
        if not rules.bounds_scope(request.limits):
            yield
            return
        scope = _scope(request)
        async with self._scopes.hold(_tenant(scope)):
            count = size = 0
            async for session in self._sessions(scope):
                async for run in self._runs(scope, session.id, _WAITING):
                    count, size = count + 1, size + rules.prompt_bytes(run)
            rules.admit_to_scope(request.run, box, count, size, request.limits, front=request.front)
            yield

    async def _sessions(self, scope: Scope | None) -> AsyncIterator[Session]:
        page = Page(limit=1000)
        while True:
            found = await self._store.list_sessions(ListSessionsRequest(scope=scope, page=page))
            for session in found.sessions:
                yield session
            if not found.next_cursor:
                return
            page = Page(limit=1000, cursor=found.next_cursor)

    async def claim_agent(self, request: ClaimAgentRequest) -> ClaimAgentResponse:
        """Become the owner: of a store's only host, this is always granted."""
        scope = _scope(request)
        key = _key(request, request.session_id)
        async with self._locks.hold(key):
            session = await self._session(scope, request.session_id)
            self._last_epoch = max(self._last_epoch + 1, time.time_ns() // 1000)
            self._epochs[key] = self._last_epoch
            statuses = () if session.agent.definition.behavior else _UNSETTLED
            runs = [
                run
                async for run in self._runs(scope, session.id, statuses)
                if run.status in _UNSETTLED or run.decision_pending
            ]
            return ClaimAgentResponse(epoch=self._last_epoch, session=session, runs=runs)

    async def renew_claims(self, request: RenewClaimsRequest) -> RenewClaimsResponse:
        """Without another host no claim is ever lost."""
        lost = [
            claim
            for claim in request.claims
            if self._epochs.get((_tenant(_scope(claim)), claim.session_id)) != claim.epoch
        ]
        return RenewClaimsResponse(lost=lost)

    async def release_if_empty(self, request: ReleaseIfEmptyRequest) -> ReleaseIfEmptyResponse:
        """Give a claim up if nothing waits that could be dispatched."""
        scope = _scope(request)
        key = _key(request, request.session_id)
        async with self._locks.hold(key):
            if self._epochs.get(key) != request.fence.epoch:
                raise rules.fenced(request.session_id, request.fence.epoch, self._epochs.get(key, 0))
            if not request.force and not _rests(await self._session(scope, request.session_id)):
                async for _ in self._runs(scope, request.session_id, _WAITING):
                    return ReleaseIfEmptyResponse(released=False)
            del self._epochs[key]
            return ReleaseIfEmptyResponse(released=True)

    async def edit_run(self, request: EditRunRequest) -> EditRunResponse:
        """Change a waiting run's prompt or place."""
        scope = _scope(request)
        async with self._locks.hold(_key(request, request.session_id)):
            run = await self._waiting_run(scope, request.session_id, request.run_id)
            waiting = [run async for run in self._runs(scope, request.session_id, _WAITING)]
            if request.HasField("prompt"):
                run.prompt = request.prompt
            if request.to_tail:
                run.queue_key = waiting[-1].queue_key + rules.QUEUE_STEP
            elif request.before_run_id:
                run.queue_key = await self._key_before(scope, waiting, run, request.before_run_id)
            return EditRunResponse(run=await self._save(scope, run, RunStatus.RUN_STATUS_PENDING))

    async def cancel_run(self, request: CancelRunRequest) -> CancelRunResponse:
        """End a waiting run."""
        scope = _scope(request)
        key = _key(request, request.session_id)
        async with self._locks.hold(key):
            run = await self._run(scope, request.session_id, request.run_id)
            if run.status == RunStatus.RUN_STATUS_CANCELLED:
                return CancelRunResponse(run=run)
            if run.status != RunStatus.RUN_STATUS_PENDING:
                raise rules.wrong_status(run, "pending")
            run.status = RunStatus.RUN_STATUS_CANCELLED
            run.failure.CopyFrom(request.failure)
            run.ended_at_us = time.time_ns() // 1000
            saved = await self._save(scope, run, RunStatus.RUN_STATUS_PENDING)
            append = AppendEventsRequest(scope=scope, events=[request.event])
            if key in self._epochs:
                append.fence.CopyFrom(Fence(epoch=self._epochs[key]))
            appended = await self._store.append_events(append)
            return CancelRunResponse(run=saved, result=appended.results[0])

    async def list_orphans(self, request: ListOrphansRequest) -> ListOrphansResponse:
        """What a dead host left: asked once, at the start. Later only what waits for approvals can change by itself."""
        if self._looked_for_orphans:
            return await self._expired(request)
        page = await self._store.list_sessions(
            ListSessionsRequest(every_scope=True, live_agents_only=True, page=request.page)
        )
        self._looked_for_orphans = not page.next_cursor
        orphans = [session for session in page.sessions if await self._has_work(session)]
        return ListOrphansResponse(sessions=orphans, next_cursor=page.next_cursor)

    async def _expired(self, request: ListOrphansRequest) -> ListOrphansResponse:
        """Paused sessions that somebody has to look at now, since an approval has expired."""
        page = await self._store.list_sessions(
            ListSessionsRequest(
                every_scope=True,
                live_agents_only=True,
                statuses=[SessionStatus.SESSION_STATUS_PAUSED],
                page=request.page,
            )
        )
        due = [
            session
            for session in page.sessions
            if not _waits(session) and (_tenant(_scope(session)), session.id) not in self._epochs
        ]
        return ListOrphansResponse(sessions=due, next_cursor=page.next_cursor)

    async def _has_work(self, session: Session) -> bool:
        if _waits(session):
            return False
        # The fourteen calls do not say how far notifications go: an agent that may have heard some is looked at.
        if session.agent.definition.behavior:
            return True
        statuses = (RunStatus.RUN_STATUS_RUNNING,) if session.agent.halted else _UNSETTLED
        async for _ in self._runs(_scope(session), session.id, statuses):
            return True
        return False

    async def _queue_key(
        self, scope: Scope | None, session_id: str, waiting: list[Run], *, front: bool
    ) -> int:
        if waiting:
            return (waiting[0].queue_key - 1) if front else waiting[-1].queue_key + rules.QUEUE_STEP
        highest = 0
        async for run in self._runs(scope, session_id, ()):
            highest = max(highest, run.queue_key)
        return highest + rules.QUEUE_STEP

    async def _key_before(self, scope: Scope | None, waiting: list[Run], run: Run, before_run_id: str) -> int:
        others = [other for other in waiting if other.id != run.id]
        place = next((index for index, other in enumerate(others) if other.id == before_run_id), None)
        if place is None:
            raise rules.wrong_status(await self._run(scope, run.session_id, before_run_id), "pending")
        other = others[place]
        lower = others[place - 1].queue_key if place else other.queue_key - 2 * rules.QUEUE_STEP
        if other.queue_key - lower > 1:
            return (lower + other.queue_key) // 2
        # No room between the two: spread the rest of the mailbox, from its tail on, and take the place.
        for index, later in reversed(list(enumerate(others[place:]))):
            later.queue_key += (index + 1) * rules.QUEUE_STEP
            await self._save(scope, later, RunStatus.RUN_STATUS_PENDING)
        return lower + rules.QUEUE_STEP // 2

    async def _waiting_run(self, scope: Scope | None, session_id: str, run_id: str) -> Run:
        run = await self._run(scope, session_id, run_id)
        if run.status != RunStatus.RUN_STATUS_PENDING:
            raise rules.wrong_status(run, "pending")
        return run

    async def _run(self, scope: Scope | None, session_id: str, run_id: str) -> Run:
        return (
            await self._store.get_run(GetRunRequest(scope=scope, session_id=session_id, run_id=run_id))
        ).run

    async def _run_or_none(self, scope: Scope | None, session_id: str, run_id: str) -> Run | None:
        try:
            return await self._run(scope, session_id, run_id)
        except TurndockError as error:
            if error.reason != "RUN_NOT_FOUND":
                raise
            return None

    async def _session(self, scope: Scope | None, session_id: str) -> Session:
        return (await self._store.get_session(GetSessionRequest(scope=scope, session_id=session_id))).session

    async def _runs(
        self, scope: Scope | None, session_id: str, statuses: tuple[RunStatus.ValueType, ...]
    ) -> AsyncIterator[Run]:
        cursor = ""
        while True:
            page = await self._store.list_runs(
                ListRunsRequest(
                    scope=scope,
                    session_id=session_id,
                    statuses=statuses,
                    page=Page(limit=1000, cursor=cursor),
                )
            )
            for run in page.runs:
                yield run
            cursor = page.next_cursor
            if not cursor:
                return

    async def _save(self, scope: Scope | None, run: Run, expected: RunStatus.ValueType) -> Run:
        request = SaveRunRequest(scope=scope, run=run, expected_status=expected)
        key = (_tenant(scope), run.session_id)
        if key in self._epochs:
            request.fence.CopyFrom(Fence(epoch=self._epochs[key]))
        return (await self._store.save_run(request)).run


def _waits(session: Session) -> bool:
    """Whether it has no work now, as it waits for approvals."""
    until = rules.rests_until(session)
    return until is not None and time.time_ns() // 1000 < until


def _rests(session: Session) -> bool:
    """Whether what waits in its mailbox cannot be dispatched."""
    return session.agent.halted or _waits(session)


class _Scoped(Protocol):
    """Every request, and whatever else has a scope."""

    @property
    def scope(self) -> Scope: ...
    def HasField(self, field_name: Literal["scope"], /) -> bool: ...


def _scope(request: _Scoped) -> Scope | None:
    return request.scope if request.HasField("scope") else None


def _tenant(scope: Scope | None) -> str:
    # No tenant is empty, so that the empty text can stand for the unscoped partition.
    return scope.tenant if scope is not None else ""


def _key(request: _Scoped, session_id: str) -> _Key:
    return _tenant(_scope(request)), session_id
