"""Parked turns: what is kept of a turn that its backend has left until people have decided, and how it is taken up.

    paused ─▶ the behavior's word ─▶ requests stored ─▶ Flush: session PAUSED, `parked` in its row      all may die now
    answer ─▶ Flush: the decision in `parked`, its event; with the last one the session is ACTIVE: it has work
    resume ─▶ Flush: `parked` taken out, session_resumed ─▶ Prompt{resume}                     once, whatever dies

A host that dies after the last of these has lost a turn that was under way, like any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from turndock import events
from turndock.backend.v1 import Paused, Resume
from turndock.ports import Rejected
from turndock.store.v1 import ClaimAgentResponse
from turndock.types.v1 import (
    Event,
    EventType,
    Failure,
    ParkedApproval,
    ParkedTurn,
    Run,
    RunStatus,
    Session,
    SessionChanged,
    SessionStatus,
    ToolApprovalRequested,
)
from turndock_server.core import approvals, history, transcript
from turndock_server.core.capture import Capture, CaptureOverflow
from turndock_server.core.desk import Desk, for_backend, settle_wake
from turndock_server.core.feed import AgentKey
from turndock_server.core.journal import Journal
from turndock_server.core.lifecycle import Kill, Outcome
from turndock_server.core.session_writer import SessionWriter
from turndock_server.core.status import parked_approvals
from turndock_server.core.tool_policy import Judgement
from turndock_server.core.turn import Earlier


def told_apart(claim: ClaimAgentResponse) -> tuple[Run | None, list[Run]]:
    """Of the runs of a claim that have begun: the one whose turn is parked, if one is, and those to be settled."""
    begun = [run for run in claim.runs if run.status != RunStatus.RUN_STATUS_PENDING]
    parked_id = claim.session.agent.parked.run_id
    for run in begun:
        if run.id == parked_id and run.status == RunStatus.RUN_STATUS_RUNNING:
            return run, [other for other in begun if other is not run]
    return None, begun


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn is parked."""

    writer: SessionWriter
    desk: Desk
    capture: Capture
    judge: Callable[[ToolApprovalRequested], Awaitable[Judgement]] | None = None
    """Asks the behavior about a tool call; None = it does not want to be asked."""


@dataclass(frozen=True, slots=True)
class TakenUp:
    """What the backend is called with."""

    prompt: str
    resume: Resume | None
    earlier: Earlier


async def park(run: Run, prompt: str, outcome: Outcome, place: Place, *, not_begun: bool = False) -> bool:
    """Keep what a turn needs that ended with `paused`; False if it did not, or nobody could decide on what it asks.

    In the latter case the outcome's terminal is the failure that says so. What the behavior decides by itself nobody is
    asked about; if that is all, the turn can be taken up at once.
    """
    writer, desk, capture = place.writer, place.desk, place.capture
    if not isinstance(outcome.terminal, Paused):
        return False
    try:
        asked = approvals.checked_all(outcome.terminal.approvals)
        judged = [await _judged(place, request) for request in asked]
        for each in judged:
            _count(capture, each)
    except (Rejected, CaptureOverflow) as refused:
        outcome.terminal, outcome.said_terminal = refused.failure, False
        return False
    outcome.pending += [
        transcript.of_run(run, each.violation) for each in judged if each.violation is not None
    ]
    if outcome.pending:
        await writer.append(outcome.pending)
        outcome.pending = []
    parked = ParkedTurn(
        run_id=run.id,
        prompt="" if prompt == run.prompt else prompt,
        active_us=outcome.active_us,
        not_begun=not_begun,
    )
    # Whoever has seen a request in the log may answer at once, and is let in when the turn is parked.
    async with desk.parking(run):
        for each in judged:
            asked_id = each.call.approval_id
            if each.decided is not None:
                parked.approvals.append(
                    ParkedApproval(request=each.call, asked_id=asked_id, decision=each.decided)
                )
                continue
            event = await desk.record(run, each.call)
            parked.approvals.append(ParkedApproval(request=event.tool_approval_requested, asked_id=asked_id))
        parked.coverage.CopyFrom(capture.coverage())
        settle_wake(parked)
        session = writer.session
        session.agent.backend_session.CopyFrom(outcome.session)
        session.agent.parked.CopyFrom(parked)
        if not is_decided(session):
            session.status = SessionStatus.SESSION_STATUS_PAUSED
        changed = SessionChanged(reason="approvals_pending")
        paused = transcript.session_event(session.id, EventType.EVENT_TYPE_SESSION_PAUSED, changed)
        await writer.flush(run, [paused], expected=RunStatus.RUN_STATUS_RUNNING)
    return True


async def _judged(place: Place, request: ToolApprovalRequested) -> Judgement:
    """What the behavior says to a call, as it is stored. Raises `Rejected` if nobody could decide on what it asks."""
    if place.judge is None:
        return Judgement(request)
    judged = await place.judge(request)
    return judged if judged.decided is not None else replace(judged, call=approvals.checked(judged.call))


def _count(capture: Capture, judged: Judgement) -> None:
    """Count what a turn's response has of a call; it is read back from the log. Raises `CaptureOverflow`."""
    kind = EventType.EVENT_TYPE_TOOL_APPROVAL_REQUESTED
    counted = [judged.violation] if judged.violation is not None else []
    if judged.decided is None:
        counted.append(Event(type=kind, tool_approval_requested=judged.call))
    for event in counted:
        capture.take(events.kind(event), event.ByteSize())


def is_decided(session: Session) -> bool:
    """Whether nothing is left to wait for."""
    return not parked_approvals(session)


def has_work(session: Session) -> bool:
    """Whether a parked turn can go on now, or something in it has expired."""
    wakes = wake_at_us(session)
    return is_decided(session) or (wakes is not None and wakes <= events.now_us())


def wake_at_us(session: Session) -> int | None:
    """When a parked turn has work although nobody has called; None = never."""
    parked = session.agent.parked
    return parked.wake_at_us if parked.HasField("wake_at_us") else None


async def take_up(journal: Journal, key: AgentKey, writer: SessionWriter, run: Run, prompt: str) -> TakenUp:
    """Store that a parked turn goes on; what it goes on with. From here on it is under way."""
    left = await history.left_by(journal, key, run.id)
    parked = taken_out(writer.session)
    changed = SessionChanged(reason="approvals_decided")
    resumed = transcript.session_event(writer.session.id, EventType.EVENT_TYPE_SESSION_RESUMED, changed)
    sent = [transcript.message_sent(run, prompt)] if parked.not_begun else []
    await writer.flush(run, [resumed, *sent], expected=RunStatus.RUN_STATUS_RUNNING)
    earlier = Earlier(left, parked.active_us, parked.coverage)
    if parked.not_begun:
        return TakenUp(prompt, None, earlier)
    decisions = [for_backend(each.decision, each.asked_id) for each in parked.approvals]
    return TakenUp(prompt, Resume(decisions=decisions), earlier)


async def given_up(journal: Journal, key: AgentKey, writer: SessionWriter, run: Run, kill: Kill) -> Outcome:
    """How a parked turn ends that is not taken up. The caller stores it."""
    left = await history.left_by(journal, key, run.id)
    waited = parked_approvals(writer.session)
    parked = taken_out(writer.session)
    return Outcome(
        terminal=Failure(reason=kill.value),
        session=writer.session.agent.backend_session,
        kill=kill,
        text=left.text,
        usage=left.usage,
        open_tools=left.open_tools,
        turn_count=left.turn_count,
        duration_us=max(events.now_us() - run.started_at_us, 0),
        active_us=parked.active_us,
        open_approvals=waited,
    )


def taken_out(session: Session) -> ParkedTurn:
    """Let a session wait for nothing any more, in place; what it waited with."""
    parked = ParkedTurn()
    parked.CopyFrom(session.agent.parked)
    session.agent.ClearField("parked")
    session.status = SessionStatus.SESSION_STATUS_ACTIVE
    return parked
