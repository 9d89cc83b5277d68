"""Making turns, and what joins them to their agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turndock.backend.v1 import PromptRequest, Resume
from turndock.ports import Backend
from turndock.types.v1 import Run, Scope, Session, ToolApprovalRequested
from turndock_server.core.capture import Capture
from turndock_server.core.conduct import Conduct
from turndock_server.core.intake import Intake
from turndock_server.core.tool_policy import Judgement, judge
from turndock_server.core.turn import Earlier, Turn, TurnHooks

if TYPE_CHECKING:
    from turndock_server.core.agent_state import AgentState

Judge = Callable[[ToolApprovalRequested], Awaitable[Judgement]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn is taken."""

    session: Session
    scope: Scope | None
    backend: Backend
    hooks: TurnHooks


def turn_of(run: Run, prompt: str, place: Place, resume: Resume | None, earlier: Earlier | None) -> Turn:
    """The turn of a run, within its agent's limits; `resume` and `earlier` belong to one that was parked."""
    session = place.session
    record = session.agent
    limits = record.definition.limits
    request = PromptRequest(
        scope=place.scope,
        session=record.backend_session,
        prompt=prompt,
        run_id=run.id,
        attempt=run.attempt,
        session_id=session.id,
        agent_name=record.definition.agent_name,
        metadata_json=run.metadata_json,
        resume=resume,
    )
    return Turn(
        place.backend,
        request,
        Intake(session.id, run.id, record.definition.backend, run.correlation_id),
        Capture.within(limits, earlier.coverage if earlier is not None else None),
        place.hooks,
        watchdog_s=limits.watchdog_ms / 1000 if limits.watchdog_ms else None,
        inactivity_s=limits.inactivity_ms / 1000 if limits.inactivity_ms else None,
        earlier=earlier,
    )


def hooks_of(run: Run, conduct: Conduct, agent: AgentState) -> TurnHooks:
    """What a turn of this run asks of its agent."""
    return TurnHooks(
        store=lambda batch: agent.snapshots.append(run.id, batch, agent),
        keep_session=agent.writer.keep_backend_session,
        ask=agent.desk.ask,
        show=agent.desk.show,
        titled=agent.snapshots.titled,
        observe=(lambda seen: conduct.observe(run, seen)) if conduct.observes else None,
        judge=judge_of(run, conduct),
    )


def judge_of(run: Run, conduct: Conduct) -> Judge | None:
    """How the behavior is asked about this run's tool calls; None if it does not want to be."""
    return (lambda call: judge(conduct, run, call)) if conduct.judges_tools else None
