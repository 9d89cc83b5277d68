"""An agent as seen from outside. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turndock.agent.v1 import AgentStatus
from turndock.types.v1 import Session, ToolApprovalRequested
from turndock_server.core.lifecycle import Phase

if TYPE_CHECKING:
    from turndock_server.core.agent_state import AgentState


def status_of(
    session: Session,
    phase: Phase,
    *,
    queued: int,
    last_activity_us: int,
    current_run_id: str = "",
    pending_notifications: int = 0,
    pending_approvals: Sequence[ToolApprovalRequested] = (),
) -> AgentStatus:
    """The status of a session's agent, live or not."""
    record = session.agent
    return AgentStatus(
        agent_name=record.definition.agent_name,
        session_id=session.id,
        phase=phase.value,
        halted=record.halted,
        queued=queued,
        current_run_id=current_run_id or record.parked.run_id,
        state_json=record.state_json,
        persistence_failures=record.persistence_failures,
        last_sequence=session.last_sequence,
        definition=record.definition,
        turn_count=record.turn_count,
        total_usage=record.total_usage,
        title=record.title,
        last_activity_us=last_activity_us,
        incarnation=session.incarnation,
        pending_notifications=pending_notifications,
        pending_approvals=pending_approvals or parked_approvals(session),
    )


def status_of_live(agent: AgentState) -> AgentStatus:
    """The status of an agent in memory."""
    return status_of(
        agent.session,
        agent.phase,
        queued=len(agent.mailbox),
        last_activity_us=agent.last_activity_us,
        current_run_id=agent.current_run_id,
        pending_notifications=agent.mailbox.pending_notifications,
        pending_approvals=agent.desk.pending(),
    )


def parked_approvals(session: Session) -> list[ToolApprovalRequested]:
    """What a parked turn still waits for."""
    return [each.request for each in session.agent.parked.approvals if not each.HasField("decision")]
