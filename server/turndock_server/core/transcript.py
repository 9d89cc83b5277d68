"""What a turn writes down: its opening, its closing, and the run rows that go with them. Pure.

A successful turn with text "hel", "lo", usage and result leaves exactly: run_started, message_sent, message_streamed
twice, token_usage_updated, message_received, run_completed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from turndock import events, jsontext
from turndock.agent.v1 import AgentStatus
from turndock.backend.v1 import Result
from turndock.behavior.v1 import NextPrompt
from turndock.store.v1 import CancelRunRequest, GetRunRequest
from turndock.types.v1 import (
    AgentPhase,
    Custom,
    Event,
    EventType,
    Failure,
    MessageReceived,
    MessageSent,
    Response,
    Run,
    RunCompleted,
    RunFailed,
    RunOrigin,
    RunStarted,
    RunStatus,
    Scope,
    SessionChanged,
    ToolApprovalRequested,
    ToolCallFailed,
)
from turndock_server.core import approvals
from turndock_server.core.intake import Intake
from turndock_server.core.lifecycle import TERMINAL_EVENT, Outcome

if TYPE_CHECKING:
    from turndock_server.core.turn import Turn

NOTIFIED = "turndock.notified"
INTERRUPTED = "turndock.interrupted"
UNHALTED = "turndock.unhalted"
ATTEMPT_SUPERSEDED = "turndock.attempt_superseded"
AGENT_SHUTDOWN = "turndock.agent_shutdown"
TITLE = events.TITLE
MAX_RESPONSE_TEXT_BYTES = 1 << 20


def intake_of(run: Run) -> Intake:
    """What completes the host's own events of a run."""
    return Intake(run.session_id, run.id, run.provider, run.correlation_id)


def of_run(run: Run, event: Event) -> Event:
    """An event of the host's own that belongs to a run, complete."""
    return intake_of(run).own(event)


def started_run(run: Run, provider: str) -> Run:
    """The row of a run whose turn begins."""
    started = Run()
    started.CopyFrom(run)
    started.status = RunStatus.RUN_STATUS_RUNNING
    started.attempt = max(run.attempt, 1)
    started.started_at_us = events.now_us()
    started.provider = provider
    return started


def opening(run: Run, prompt: str, *, is_sent: bool = True) -> list[Event]:
    """The events that begin a turn; its prompt is not sent yet if people have to agree first."""
    started = RunStarted(
        attempt=run.attempt, original_prompt=run.prompt, prompt=prompt, rewritten=prompt != run.prompt
    )
    begins = of_run(run, Event(type=EventType.EVENT_TYPE_RUN_STARTED, run_started=started))
    return [begins, message_sent(run, prompt)] if is_sent else [begins]


def message_sent(run: Run, prompt: str) -> Event:
    """Says what the backend gets."""
    sent = MessageSent(text=prompt, role="user")
    return of_run(run, Event(type=EventType.EVENT_TYPE_MESSAGE_SENT, message_sent=sent))


def closing(run: Run, outcome: Outcome) -> list[Event]:
    """The events that end a turn, the terminal last. `run` is the run as it ended."""
    intake = intake_of(run)
    closed = [*approvals_withdrawn(run, outcome.open_approvals), *_tools_closed(run, outcome.open_tools)]
    if isinstance(outcome.terminal, Result):
        text = final_text(outcome, outcome.terminal)
        if text:
            received = MessageReceived(text=text, role="assistant")
            closed.append(
                intake.own(Event(type=EventType.EVENT_TYPE_MESSAGE_RECEIVED, message_received=received))
            )
    closed.append(
        terminal_event(
            run,
            outcome.duration_us,
            stop_reason=outcome.terminal.stop_reason if isinstance(outcome.terminal, Result) else "",
            incomplete_text=bool(outcome.text),
        )
    )
    return closed


def approvals_withdrawn(run: Run, requests: Iterable[ToolApprovalRequested]) -> list[Event]:
    """Say that a turn ended before anybody decided on these."""
    withdrawn = [approvals.verdict(request, approvals.WITHDRAWN) for request in requests]
    return [approvals.decided_event(intake_of(run), decided) for decided in withdrawn]


def _tools_closed(run: Run, open_tools: Mapping[str, str]) -> list[Event]:
    failure = Failure(reason="cancelled", message="the turn ended before the tool did")
    intake = intake_of(run)
    return [
        intake.own(
            Event(
                type=EventType.EVENT_TYPE_TOOL_CALL_FAILED,
                tool_call_failed=ToolCallFailed(tool_call_id=tool_call_id, name=name, failure=failure),
            )
        )
        for tool_call_id, name in open_tools.items()
    ]


def terminal_event(
    run: Run, duration_us: int, *, stop_reason: str = "", incomplete_text: bool = False
) -> Event:
    """The event that ends a run, by the status the run has."""
    event = Event(type=TERMINAL_EVENT[run.status])
    if run.status == RunStatus.RUN_STATUS_COMPLETED:
        event.run_completed.CopyFrom(RunCompleted(stop_reason=stop_reason, duration_us=duration_us))
    else:
        event.run_failed.CopyFrom(
            RunFailed(failure=run.failure, duration_us=duration_us, incomplete_text=incomplete_text)
        )
    return intake_of(run).own(event)


def final_text(outcome: Outcome, result: Result) -> str:
    """The answer's text: the result's if it has one, else all that was streamed."""
    return jsontext.repair_text(result.text) if result.HasField("text") else outcome.text


def ended_run(run: Run, outcome: Outcome, *, decision_pending: bool) -> Run:
    """The run's row after its turn."""
    ended = Run()
    ended.CopyFrom(run)
    ended.status = outcome.status
    ended.ended_at_us = events.now_us()
    ended.turn_count = outcome.turn_count
    ended.decision_pending = decision_pending
    if outcome.usage is not None:
        ended.usage.CopyFrom(outcome.usage)
        if outcome.usage.HasField("cost_usd"):
            ended.cost_usd = outcome.usage.cost_usd
    if outcome.failure is not None:
        ended.failure.CopyFrom(outcome.failure)
        if not ended.failure.reason:
            ended.failure.reason = "unknown"
    return ended


def refused_run(run: Run, failure: Failure) -> Run:
    """The row of a run whose turn does not take place."""
    ended = Run()
    ended.CopyFrom(run)
    ended.status = RunStatus.RUN_STATUS_FAILED
    ended.ended_at_us = events.now_us()
    ended.failure.CopyFrom(failure)
    return ended


def response(outcome: Outcome, terminal: Event, turn: Turn | None) -> Response | None:
    """What a turn answered; None if it failed."""
    result = outcome.terminal
    if not isinstance(result, Result):
        return None
    text = final_text(outcome, result)
    answer = Response(
        text=cut(text),
        text_cut=len(text.encode()) > MAX_RESPONSE_TEXT_BYTES,
        usage=outcome.usage,
        terminal=terminal,
        provider_session_id=result.provider_session_id,
        stop_reason=result.stop_reason,
        duration_us=outcome.duration_us,
        data_json=result.data_json,
    )
    if turn is not None:
        turn.record.keep_terminal(terminal)
        answer.coverage.CopyFrom(turn.record.capture.coverage())
    return answer


def cut(text: str) -> str:
    """The text as a response carries it."""
    encoded = text.encode()
    if len(encoded) <= MAX_RESPONSE_TEXT_BYTES:
        return text
    return encoded[:MAX_RESPONSE_TEXT_BYTES].decode(errors="ignore")


def without_events(answer: Response) -> Response:
    """A response as its run's row keeps it: the log has the events."""
    kept = Response()
    kept.CopyFrom(answer)
    kept.ClearField("events")
    kept.ClearField("terminal")
    return kept


def with_events(answer: Response, kept: Sequence[Event], terminal: Event) -> None:
    """Put stored events into a response, in place."""
    answer.ClearField("events")
    answer.events.extend(kept)
    answer.terminal.CopyFrom(terminal)


def chained_run(parent: Run, prompt: NextPrompt) -> Run:
    """The run a decision asks for: `<first run of the chain>/chain/<n>`."""
    root, marker, number = parent.id.rpartition("/chain/")
    chain, place = (root, int(number) + 1) if marker else (parent.id, 1)
    return Run(
        id=f"{chain}/chain/{place}",
        session_id=parent.session_id,
        status=RunStatus.RUN_STATUS_PENDING,
        origin=RunOrigin.RUN_ORIGIN_CHAIN,
        prompt=jsontext.repair_text(prompt.text),
        metadata_json=prompt.metadata_json,
        parent_run_id=parent.id,
        correlation_id=parent.correlation_id,
    )


def event_run(session_id: str, notification: Event, prompt: NextPrompt) -> Run:
    """The run a notification's decision asks for; its id follows from the notification, so that it is made once."""
    return Run(
        id=f"{notification.correlation_id}/event/{notification.sequence}",
        session_id=session_id,
        status=RunStatus.RUN_STATUS_PENDING,
        origin=RunOrigin.RUN_ORIGIN_EVENT,
        prompt=jsontext.repair_text(prompt.text),
        metadata_json=prompt.metadata_json,
        correlation_id=notification.correlation_id,
    )


def notification(session_id: str, request_id: str, payload_json: str) -> Event:
    """A notification as it is stored."""
    return requested(NOTIFIED, session_id, request_id, payload_json)


def requested(name: str, session_id: str, request_id: str, data_json: str) -> Event:
    """What a call leaves in the log; its id follows from the request's, so that a retry is known."""
    event = Intake(session_id, "", "", request_id).own(
        Event(type=EventType.EVENT_TYPE_CUSTOM, custom=Custom(name=name, data_json=data_json))
    )
    event.id = f"request-{hashlib.sha256(f'{session_id}/{request_id}'.encode()).hexdigest()}"
    return event


def cancelled_run(run: Run, reason: str) -> Run:
    """The row of a waiting run that is cancelled."""
    cancelled = Run()
    cancelled.CopyFrom(run)
    cancelled.status = RunStatus.RUN_STATUS_CANCELLED
    cancelled.failure.CopyFrom(Failure(reason=reason))
    return cancelled


def cancel_request(scope: Scope | None, cancelled: Run, request_id: str) -> CancelRunRequest:
    """The store's call that cancels a waiting run."""
    return CancelRunRequest(
        scope=scope,
        request_id=request_id,
        session_id=cancelled.session_id,
        run_id=cancelled.id,
        failure=cancelled.failure,
        event=terminal_event(cancelled, 0),
    )


def stored_run(scope: Scope | None, session_id: str, run_id: str) -> GetRunRequest:
    """The store's call that reads a run."""
    return GetRunRequest(scope=scope, session_id=session_id, run_id=run_id)


def next_attempt(run: Run) -> Run:
    """The row of a run that is tried again."""
    again = Run()
    again.CopyFrom(run)
    again.status = RunStatus.RUN_STATUS_PENDING
    again.attempt = run.attempt + 1
    again.started_at_us = 0
    return again


def superseding(
    run: Run, open_tools: Mapping[str, str], open_approvals: Iterable[ToolApprovalRequested]
) -> list[Event]:
    """The events that close an attempt whose host was lost: what it left in the log does not count."""
    mark = custom(ATTEMPT_SUPERSEDED, {"run_id": run.id, "attempt": run.attempt})
    withdrawn = approvals_withdrawn(run, open_approvals)
    return [*withdrawn, *_tools_closed(run, open_tools), intake_of(run).own(mark)]


def session_event(session_id: str, event_type: EventType.ValueType, changed: SessionChanged) -> Event:
    """An event about the session as a whole."""
    return Intake(session_id, "", "", "").own(Event(type=event_type, session_changed=changed))


def shutdown_event(status: AgentStatus, reason: str, last_activity_us: int) -> Event:
    """Says that an agent left memory."""
    data = {
        "agent_id": status.agent_name,
        "reason": reason,
        "status": AgentPhase.Name(status.phase).removeprefix("AGENT_PHASE_").lower(),
        "interrupt_restorable": bool(status.pending_approvals),
        "last_activity_at_us": last_activity_us,
        "shutdown_at_us": events.now_us(),
    }
    return Intake(status.session_id, "", "", "").own(custom(AGENT_SHUTDOWN, data))


def title_event(session_id: str, run_id: str, title: str) -> Event:
    """Says that the conversation has a title, or another one."""
    return Intake(session_id, run_id, "", "").own(custom(TITLE, {"title": title}))


def custom(name: str, data: object) -> Event:
    """One of the host's own events."""
    return Event(
        type=EventType.EVENT_TYPE_CUSTOM, custom=Custom(name=name, data_json=jsontext.canonical(data))
    )
