"""What becomes of a turn whose host died."""

from __future__ import annotations

from turndock.types.v1 import Failure, HostLostPolicy, Run, RunStatus, Session
from turndock_server.core import transcript
from turndock_server.core.history import Remains
from turndock_server.core.lifecycle import Outcome
from turndock_server.core.session_writer import SessionWriter

MAX_ATTEMPTS = 3
"""A run whose host died this often fails even if its agent asked for retries: it may be what kills the host."""


def is_retried(session: Session, run: Run) -> bool:
    """Whether the run is tried again."""
    policy = session.agent.definition.limits.host_lost_policy
    return policy == HostLostPolicy.HOST_LOST_POLICY_RETRY and run.attempt < MAX_ATTEMPTS


async def tried_again(writer: SessionWriter, run: Run, left: Remains) -> Run:
    """The run, stored as one that waits, after the events that close what the lost attempt left."""
    again = transcript.next_attempt(run)
    superseded = transcript.superseding(run, left.open_tools, left.open_approvals.values())
    await writer.flush(again, superseded, expected=RunStatus.RUN_STATUS_RUNNING)
    return again


def lost(session: Session, left: Remains) -> Outcome:
    """How it ends otherwise."""
    failure = Failure(
        reason="host_lost",
        message="the host that ran this turn ended in the middle of it",
        retryable=True,
    )
    return Outcome(
        terminal=failure,
        session=session.agent.backend_session,
        text=left.text,
        usage=left.usage,
        open_tools=left.open_tools,
        turn_count=left.turn_count,
        open_approvals=list(left.open_approvals.values()),
    )
