"""An agent's desk: the approvals that wait for a person, and the one place where they are decided.

Only the agent's owner decides, under one lock and its fence, and stores a decision before anybody hears of it: so the
first answer wins, and whoever comes later is shown it. A request waits either inside a turn that is kept open, and is
gone with it, or with a parked turn, whose row keeps it over every restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turndock import events
from turndock.agent.v1 import ResolveApprovalRequest
from turndock.errors import TurndockError
from turndock.types.v1 import (
    Event,
    ParkedTurn,
    Run,
    RunStatus,
    SessionStatus,
    ToolApprovalDecided,
    ToolApprovalRequested,
)
from turndock_server.core import approvals, history, transcript
from turndock_server.core.feed import AgentKey
from turndock_server.core.finishing import to_its_end
from turndock_server.core.journal import Journal
from turndock_server.core.lifecycle import Outcome
from turndock_server.core.session_writer import SessionWriter
from turndock_server.core.status import parked_approvals

if TYPE_CHECKING:
    from turndock_server.core.turn import Turn


@dataclass(frozen=True, slots=True)
class Question:
    """A request that waits inside a turn."""

    desk: Desk
    event: Event
    """The event that says so, as stored."""
    asked_id: str
    """What the backend calls it."""
    decided: asyncio.Future[ToolApprovalDecided]

    @property
    def request(self) -> ToolApprovalRequested:
        """What is shown."""
        return self.event.tool_approval_requested

    async def answer(self) -> ToolApprovalDecided:
        """Wait for the decision, as the backend gets it. Cancelled when the turn ends first."""
        left_s = None
        if self.request.HasField("expires_at_us"):
            left_s = max(self.request.expires_at_us - events.now_us(), 0) / 1e6
        await asyncio.wait((self.decided,), timeout=left_s)
        while not self.decided.done():
            await self.desk.expire()
            await asyncio.wait((self.decided,), timeout=0.05)  # Two clocks: it may have been too early.
        return for_backend(self.decided.result(), self.asked_id)


def for_backend(decided: ToolApprovalDecided, asked_id: str) -> ToolApprovalDecided:
    """A decision under the name its backend gave the request."""
    told = ToolApprovalDecided()
    told.CopyFrom(decided)
    told.approval_id = asked_id
    told.ClearField("request_sha256")
    return told


class Desk:
    """One agent's."""

    __slots__ = (
        "_changed",
        "_is_open",
        "_journal",
        "_key",
        "_lock",
        "_questions",
        "_run",
        "_waits",
        "_writer",
    )

    def __init__(
        self,
        journal: Journal,
        key: AgentKey,
        writer: SessionWriter,
        *,
        waits: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._key = key
        self._writer = writer
        self._waits = waits
        """Called when a turn that is kept open waits, before anybody is told."""
        self._changed = changed
        """Called when what waits has changed."""
        self._lock = asyncio.Lock()
        self._questions: dict[str, Question] = {}
        self._run: Run | None = None
        """The run whose turn may ask, or has left requests behind."""
        self._is_open: Callable[[], bool] = bool
        """Whether answers still reach the turn under way."""

    # --- A turn's side -------------------------------------------------------------------------------------------

    async def attend(self, run: Run, turn: Turn) -> Outcome:
        """Let a turn run that may ask; what it leaves undecided is closed with it."""
        self._run, self._is_open = run, lambda: not turn.over
        try:
            outcome = await turn.run()
        except BaseException:
            self._take_questions()  # At once: whoever holds the lock may wait for a store that does not answer.
            raise
        outcome.open_approvals = await self.close()
        return outcome

    @asynccontextmanager
    async def parking(self, run: Run) -> AsyncGenerator[None]:
        """While the turn of this run is being parked nobody decides; then what its row says waits."""
        async with self._lock:
            yield
            self.hold(run)

    def hold(self, run: Run) -> None:
        """The turn of this run is parked: what its row says waits."""
        self._run, self._is_open = run, lambda: True

    @to_its_end
    async def ask(self, request: ToolApprovalRequested) -> Question:
        """Store a request that came through `approvals.checked`; `show` it then. Raises `Rejected` if it cannot be."""
        async with self._lock:
            if len(self._questions) >= approvals.MAX_PENDING:
                raise approvals.too_many()
            if any(question.asked_id == request.approval_id for question in self._questions.values()):
                raise approvals.asked_twice(request.approval_id)
            event = await self.record(self._run_of_turn(), request)
            decided: asyncio.Future[ToolApprovalDecided] = asyncio.get_running_loop().create_future()
            question = Question(self, event, request.approval_id, decided)
            self._questions[question.request.approval_id] = question
        return question

    async def show(self, question: Question) -> None:
        """Tell everybody that a request waits that was stored by `ask`."""
        if not question.decided.done():
            await self._waits()
        self._changed()

    async def record(self, run: Run, request: ToolApprovalRequested) -> Event:
        """Store the event of a request, under an id that none had before; as stored."""
        for approval_id in approvals.free_ids(request.approval_id, run.id):
            shown = ToolApprovalRequested()
            shown.CopyFrom(request)
            shown.approval_id = approval_id
            event = approvals.requested_event(transcript.intake_of(run), self._key.session_id, shown)
            result = await self._writer.append_once(event)
            if not result.duplicate:
                return result.event
        raise TurndockError("INTERNAL_ERROR", f"no id is free for approval {request.approval_id!r}")

    async def close(self) -> list[ToolApprovalRequested]:
        """The turn under way has ended: nothing of it can be answered any more. What was left undecided."""
        async with self._lock:
            return [question.request for question in self._take_questions()]

    def _take_questions(self) -> list[Question]:
        """Let nobody wait any more."""
        left = list(self._questions.values())
        self._questions.clear()
        for question in left:
            question.decided.cancel()
        return left

    # --- Deciding --------------------------------------------------------------------------------------------------

    def pending(self) -> list[ToolApprovalRequested]:
        """What waits for a decision, the oldest first."""
        if not self._is_open():
            return []
        waiting = [question.request for question in self._questions.values() if not question.decided.done()]
        return waiting or parked_approvals(self._writer.session)

    async def resolve(self, request: ResolveApprovalRequest, principal: str) -> None:
        """Decide, all or nothing, and store it. A repeated call changes nothing.

        Raises VALIDATION_ERROR, APPROVAL_NOT_FOUND, APPROVAL_RESOLVED, IDEMPOTENCY_CONFLICT.
        """
        approvals.check_answers(request)
        async with self._lock:
            await self._expire()
            pending = {each.approval_id: each for each in self.pending()}
            late = [answer.approval_id for answer in request.answers if answer.approval_id not in pending]
            if late and await self._is_repeat(request, late):
                return
            decided = [
                approvals.decide(answer, pending[answer.approval_id], index, principal)
                for index, answer in enumerate(request.answers)
            ]
            for each in decided:
                each.request_sha256 = approvals.fingerprint(request)
            await self._store(decided, request.request_id)
        self._changed()

    @to_its_end
    async def expire(self) -> None:
        """Decide on every request whose time is over."""
        async with self._lock:
            await self._expire()
        self._changed()

    async def _expire(self) -> None:
        now_us = events.now_us()
        over = [each for each in self.pending() if approvals.has_expired(each, now_us)]
        if over:
            await self._store([approvals.verdict(each, approvals.EXPIRED) for each in over], "")

    async def _is_repeat(self, request: ResolveApprovalRequest, late: Sequence[str]) -> bool:
        """Whether this very call was answered before. Raises what else is wrong with one that comes too late."""
        known = await history.approvals_decided(self._journal, self._key, late)
        digest = approvals.fingerprint(request)
        own = approvals.decided_event_id(self._key.session_id, request.request_id, 0)[:-1]
        by_this_call = [event for event in known.values() if own and event.id.startswith(own)]
        if any(event.tool_approval_decided.request_sha256 != digest for event in by_this_call):
            raise TurndockError(
                "IDEMPOTENCY_CONFLICT",
                f"request_id {request.request_id!r} was used for other answers",
                metadata={"request_id": request.request_id},
            )
        if by_this_call:
            return True
        withdrawn = self._withdrawn(late[0])
        raise approvals.too_late(late[0], known.get(late[0]) or withdrawn)

    def _withdrawn(self, approval_id: str) -> Event | None:
        """What will be said of a request whose turn has just ended."""
        question = self._questions.get(approval_id)
        if question is None:
            return None
        decided = approvals.verdict(question.request, approvals.WITHDRAWN)
        return approvals.decided_event(transcript.intake_of(self._run_of_turn()), decided)

    async def _store(self, decided: Sequence[ToolApprovalDecided], request_id: str) -> None:
        """Store decisions and let them take effect. The caller holds the lock."""
        run = self._run_of_turn()
        intake = transcript.intake_of(run)
        session_id = self._key.session_id
        written = [
            approvals.decided_event(intake, each, approvals.decided_event_id(session_id, request_id, index))
            for index, each in enumerate(decided)
        ]
        if self._writer.session.agent.HasField("parked"):
            await self._store_parked(run, written, decided)
            return
        await self._writer.append_checked(written)
        for each in decided:
            question = self._questions.pop(each.approval_id)
            question.decided.set_result(each)

    async def _store_parked(
        self, run: Run, written: Sequence[Event], decided: Sequence[ToolApprovalDecided]
    ) -> None:
        """In one transaction: the decisions, and, if they are all, that the session goes on."""
        session = self._writer.session
        before = ParkedTurn()
        before.CopyFrom(session.agent.parked)
        by_id = {each.approval_id: each for each in decided}
        for parked in session.agent.parked.approvals:
            if parked.request.approval_id in by_id:
                parked.decision.CopyFrom(by_id[parked.request.approval_id])
        settle_wake(session.agent.parked)
        if not parked_approvals(session):
            session.status = SessionStatus.SESSION_STATUS_ACTIVE
        try:
            await self._writer.flush(run, written, expected=RunStatus.RUN_STATUS_RUNNING)
        except TurndockError:
            session.agent.parked.CopyFrom(before)
            session.status = SessionStatus.SESSION_STATUS_PAUSED
            raise

    def _run_of_turn(self) -> Run:
        if self._run is None:
            raise RuntimeError("no turn has begun")
        return self._run


def settle_wake(parked: ParkedTurn) -> None:
    """Note when the first undecided request expires, in place."""
    times = [
        each.request.expires_at_us
        for each in parked.approvals
        if not each.HasField("decision") and each.request.HasField("expires_at_us")
    ]
    parked.ClearField("wake_at_us")
    if times:
        parked.wake_at_us = min(times)
