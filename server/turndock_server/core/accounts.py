"""What an agent may still spend, and what it has spent. Pure."""

from __future__ import annotations

from turndock.types.v1 import AgentLimits, AgentRecord, Failure, Run, RunOrigin, Session, Usage
from turndock_server.core.lifecycle import Outcome

DEFAULT_LIMITS = AgentLimits(
    watchdog_ms=600_000,
    inactivity_ms=0,
    idle_shutdown_ms=300_000,
    max_pending_prompts=1_000,
    max_pending_bytes=1 << 20,
    max_events_per_turn=1_000,
    max_event_bytes_per_turn=1 << 20,
    max_pending_notifications=1_000,
)
"""What an agent gets that says nothing, on a server whose configuration says nothing."""


def with_defaults(given: AgentLimits, defaults: AgentLimits) -> AgentLimits:
    """The limits given, completed by the defaults."""
    limits = AgentLimits()
    limits.CopyFrom(defaults)
    limits.MergeFrom(given)
    return limits


def add_usage(total: Usage, usage: Usage | None) -> None:
    """Add one run's latest usage to a total, in place. What neither says stays unset."""
    if usage is None:
        return
    for field, value in usage.ListFields():
        if field.has_presence:
            setattr(total, field.name, getattr(total, field.name) + value)


def exhausted(session: Session, run: Run) -> Failure | None:
    """Why a run's turn may not begin any more; None while the agent's budgets last."""
    record = session.agent
    limits = record.definition.limits
    if limits.HasField("max_turns") and record.turn_count >= limits.max_turns:
        return Failure(reason="budget_exceeded", message=f"the agent has had its {limits.max_turns} turns")
    spent = record.total_usage.input_tokens + record.total_usage.output_tokens
    if limits.HasField("max_tokens") and spent >= limits.max_tokens:
        return Failure(
            reason="budget_exceeded", message=f"the agent has spent {spent} of its {limits.max_tokens} tokens"
        )
    if limits.HasField("max_turn_time_ms") and record.turn_time_us >= limits.max_turn_time_ms * 1000:
        return Failure(
            reason="budget_exceeded",
            message=f"the agent's turns have taken their {limits.max_turn_time_ms} ms",
        )
    if (
        run.origin == RunOrigin.RUN_ORIGIN_CHAIN
        and limits.HasField("max_self_chain")
        and record.chain_length > limits.max_self_chain
    ):
        return Failure(
            reason="self_chain_limit", message=f"the agent chained {limits.max_self_chain} runs in a row"
        )
    return None


def book(record: AgentRecord, run: Run, outcome: Outcome) -> None:
    """Note in an agent's record, in place, what a turn has come to."""
    record.backend_session.CopyFrom(outcome.session)
    record.last_run_id = run.id
    record.turn_count += 1
    record.turn_time_us += outcome.active_us
    add_usage(record.total_usage, outcome.usage)
