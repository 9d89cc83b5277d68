"""Parked turns: what is kept of a turn that its backend has left until people have decided, and how it is taken up.

    paused ─▶ requests stored ─▶ Flush: run RUNNING, session PAUSED, `parked` in its row      the backend may die now
    answer ─▶ Flush: the decision in `parked`, its event; with the last one the session is ACTIVE: it has work
    resume ─▶ Flush: `parked` taken out, session_resumed ─▶ Prompt{resume}                   once, whatever dies

A host that dies after the last of these has lost a turn that was under way, like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from turndock import events
from turndock.backend.v1 import Paused, Resume
from turndock.ports import Rejected
from turndock.store.v1 import ClaimAgentResponse
from turndock.types.v1 import (
    EventType,
    Failure,
    ParkedApproval,
    ParkedTurn,
    Run,
    RunStatus,
    Session,
    SessionChanged,
    SessionStatus,
)
from turndock_server.core import approvals, history, transcript
from turndock_server.core.capture import Capture
from turndock_server.core.desk import Desk, for_backend, settle_wake
from turndock_server.core.feed import AgentKey
from turndock_server.core.journal import Journal
from turndock_server.core.lifecycle import Kill, Outcome
from turndock_server.core.session_writer import SessionWriter
from turndock_server.core.status import parked_approvals
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


async def park(run: Run, prompt: str, outcome: Outcome, place: Place) -> bool:
    """Keep what a turn needs that ended with `paused`; False if it did not, or nobody could decide on what it asks.

    In the latter case the outcome's terminal is the failure that says so.
    """
    writer, desk, capture = place.writer, place.desk, place.capture
    if not isinstance(outcome.terminal, Paused):
        return False
    try:
        asked = approvals.checked_all(outcome.terminal.approvals)
    except Rejected as rejected:
        outcome.terminal, outcome.said_terminal = rejected.failure, False
        return False
    if outcome.pending:
        await writer.append(outcome.pending)
        outcome.pending = []
    parked = ParkedTurn(
        run_id=run.id, prompt="" if prompt == run.prompt else prompt, active_us=outcome.active_us
    )
    for request in asked:
        event = await desk.record(request)
        capture.take(events.kind(event), event.ByteSize())  # Its response is read back from the log.
        parked.approvals.append(
            ParkedApproval(request=event.tool_approval_requested, asked_id=request.approval_id)
        )
    parked.coverage.CopyFrom(capture.coverage())
    settle_wake(parked)
    session = writer.session
    session.agent.backend_session.CopyFrom(outcome.session)
    session.agent.parked.CopyFrom(parked)
    session.status = SessionStatus.SESSION_STATUS_PAUSED
    changed = SessionChanged(reason="approvals_pending")
    paused = transcript.session_event(session.id, EventType.EVENT_TYPE_SESSION_PAUSED, changed)
    await writer.flush(run, [paused], expected=RunStatus.RUN_STATUS_RUNNING)
    desk.hold(run)
    return True


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


async def take_up(
    journal: Journal, key: AgentKey, writer: SessionWriter, run: Run
) -> tuple[str, Resume, Earlier]:
    """Store that a parked turn goes on: its prompt, what was decided, what it did. From here on it is under way."""
    left = await history.left_by(journal, key, run.id)
    parked = _taken_out(writer.session)
    changed = SessionChanged(reason="approvals_decided")
    resumed = transcript.session_event(writer.session.id, EventType.EVENT_TYPE_SESSION_RESUMED, changed)
    await writer.flush(run, [resumed], expected=RunStatus.RUN_STATUS_RUNNING)
    resume = Resume(decisions=[for_backend(each.decision, each.asked_id) for each in parked.approvals])
    return parked.prompt or run.prompt, resume, Earlier(left, parked.active_us, parked.coverage)


async def given_up(journal: Journal, key: AgentKey, writer: SessionWriter, run: Run, kill: Kill) -> Outcome:
    """How a parked turn ends that is not taken up. The caller stores it."""
    left = await history.left_by(journal, key, run.id)
    waited = parked_approvals(writer.session)
    parked = _taken_out(writer.session)
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


def _taken_out(session: Session) -> ParkedTurn:
    parked = ParkedTurn()
    parked.CopyFrom(session.agent.parked)
    session.agent.ClearField("parked")
    session.status = SessionStatus.SESSION_STATUS_ACTIVE
    return parked
