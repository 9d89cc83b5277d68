"""The end of a run in the store: the one terminal write, and what the run's row and its callers get of the turn."""

from __future__ import annotations

from dataclasses import dataclass

from turndock.types.v1 import Response, Run, RunStatus
from turndock_server.core import accounts, history, redaction, transcript
from turndock_server.core.conduct import Conduct
from turndock_server.core.environment import Environment
from turndock_server.core.feed import AgentKey
from turndock_server.core.lifecycle import Outcome
from turndock_server.core.session_writer import SessionWriter
from turndock_server.core.turn import Turn


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn has ended."""

    env: Environment
    key: AgentKey
    writer: SessionWriter
    conduct: Conduct


async def write(place: Place, run: Run, outcome: Outcome, turn: Turn | None) -> tuple[Run, Response | None]:
    """Flush what the turn left and its terminal; the run as it ended and, if it succeeded, its response."""
    env, writer, conduct = place.env, place.writer, place.conduct
    ended = transcript.ended_run(run, outcome, decision_pending=conduct.present)
    closing = transcript.closing(ended, outcome)
    if outcome.said_terminal:
        await conduct.observe(run, closing[-1:])
    response = transcript.response(outcome, closing[-1], turn)
    redaction.told_of(ended, response, env.journal.redacted)
    if response is not None:
        ended.response.CopyFrom(transcript.without_events(response))
    accounts.book(writer.session.agent, run, outcome)
    stored = await writer.flush(ended, [*outcome.pending, *closing], expected=RunStatus.RUN_STATUS_RUNNING)
    if response is not None and turn is not None:
        first, terminal = stored.results[0].event, stored.results[-1].event
        turn.record.stored(first.sequence, first.incarnation, first.stored_at_us, len(outcome.pending))
        transcript.with_events(response, turn.record.kept_with(terminal), terminal)
        if env.redact_text is not str or turn.is_continued:
            # What the turn kept is as the backend said it, and its last part; the log has all, without secrets.
            response = await history.response_of(env.journal, place.key, ended)
    return ended, response
