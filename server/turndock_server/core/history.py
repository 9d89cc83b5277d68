"""What the log knows of one run: for a caller who comes back, and for an owner who takes over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

from turndock import events
from turndock.store.v1 import GetEventsRequest, ListRunsRequest
from turndock.types.v1 import (
    Event,
    EventType,
    Page,
    Response,
    Run,
    RunStatus,
    ToolApprovalRequested,
    Usage,
)
from turndock_server.core import transcript
from turndock_server.core.feed import AgentKey
from turndock_server.core.journal import Journal

_RUNS_PER_PAGE = 1_000

_DECIDED = (EventType.EVENT_TYPE_TOOL_APPROVAL_GRANTED, EventType.EVENT_TYPE_TOOL_APPROVAL_DENIED)
_BESIDE = frozenset((EventType.EVENT_TYPE_MESSAGE_SENT, *_DECIDED))
"""What the host itself writes into a turn before its end; no response carries it."""


async def run_events(journal: Journal, key: AgentKey, run_id: str) -> AsyncIterator[Event]:
    """All stored events of a run, in order."""
    after = 0
    while True:
        page = await journal.get_events(
            GetEventsRequest(scope=key.scope, session_id=key.session_id, run_id=run_id, after_sequence=after)
        )
        for event in page.events:
            yield event
        if page.scanned_through <= after or page.scanned_through >= page.head:
            return
        after = page.scanned_through


async def waiting_runs(journal: Journal, key: AgentKey) -> AsyncIterator[Run]:
    """All runs in an agent's mailbox, first one first."""
    page = Page(limit=_RUNS_PER_PAGE)
    while True:
        found = await journal.list_runs(
            ListRunsRequest(
                scope=key.scope,
                session_id=key.session_id,
                statuses=[RunStatus.RUN_STATUS_PENDING],
                page=page,
            )
        )
        for run in found.runs:
            yield run
        if not found.next_cursor:
            return
        page = Page(limit=_RUNS_PER_PAGE, cursor=found.next_cursor)


async def notifications(journal: Journal, key: AgentKey, after: int) -> AsyncIterator[Event]:
    """Stored notifications that follow a number, in order."""
    while True:
        page = await journal.get_events(
            GetEventsRequest(
                scope=key.scope,
                session_id=key.session_id,
                after_sequence=after,
                types=[EventType.EVENT_TYPE_CUSTOM],
            )
        )
        for event in page.events:
            if event.custom.name == transcript.NOTIFIED:
                yield event
        if page.scanned_through <= after or page.scanned_through >= page.head:
            return
        after = page.scanned_through


async def approvals_decided(
    journal: Journal, key: AgentKey, approval_ids: Collection[str]
) -> dict[str, Event]:
    """The events that decided these approvals, by id, as far as they are decided."""
    decided: dict[str, Event] = {}
    after = 0
    while True:
        page = await journal.get_events(
            GetEventsRequest(scope=key.scope, session_id=key.session_id, after_sequence=after, types=_DECIDED)
        )
        for event in page.events:
            if event.tool_approval_decided.approval_id in approval_ids:
                decided[event.tool_approval_decided.approval_id] = event
        if page.scanned_through <= after or page.scanned_through >= page.head:
            return decided
        after = page.scanned_through


async def response_of(journal: Journal, key: AgentKey, run: Run) -> Response | None:
    """The response of a run that succeeded, with the events it carried; None if it did not succeed."""
    if not run.HasField("response"):
        return None
    answer = Response()
    answer.CopyFrom(run.response)
    coverage = answer.coverage
    # The backend's own events are the first ones after the opening; what the host added at the end is not among them.
    wanted = min(coverage.retained, coverage.observed - 1)
    kept: list[Event] = []
    async for event in run_events(journal, key, run.id):
        if event.type == EventType.EVENT_TYPE_RUN_STARTED:
            kept.clear()  # A further attempt: what the one before it left does not count.
        elif event.type in events.RUN_TERMINAL:
            if coverage.retained == coverage.observed:
                kept.append(event)
            transcript.with_events(answer, kept, event)
        elif event.type not in _BESIDE and len(kept) < wanted:
            kept.append(event)
    return answer


@dataclass(slots=True)
class Remains:
    """What a turn without an end left in the log."""

    text: str = ""
    usage: Usage | None = None
    open_tools: dict[str, str] = field(default_factory=dict[str, str])
    """Tool calls that have a beginning and no end: id → name."""
    open_approvals: dict[str, ToolApprovalRequested] = field(default_factory=dict[str, ToolApprovalRequested])
    """Approvals that nobody has decided on, by id."""
    turn_count: int = 0
    title: str = ""
    """The title it gave the conversation; empty = none."""


async def left_by(journal: Journal, key: AgentKey, run_id: str) -> Remains:
    """What the latest attempt of a run left."""
    left = Remains()
    async for event in run_events(journal, key, run_id):
        match event.type:
            case EventType.EVENT_TYPE_RUN_STARTED:
                left = Remains()
            case EventType.EVENT_TYPE_MESSAGE_STREAMED:
                if not event.message_streamed.thinking:
                    left.text += event.message_streamed.text
            case EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED:
                left.usage = event.token_usage_updated.usage
            case EventType.EVENT_TYPE_TURN_COMPLETED:
                left.turn_count += 1
            case EventType.EVENT_TYPE_CUSTOM:
                left.title = events.title_of(event) or left.title
            case EventType.EVENT_TYPE_TOOL_CALL_STARTED:
                left.open_tools[event.tool_call_started.tool_call_id] = event.tool_call_started.name
            case EventType.EVENT_TYPE_TOOL_CALL_COMPLETED:
                left.open_tools.pop(event.tool_call_completed.tool_call_id, None)
            case EventType.EVENT_TYPE_TOOL_CALL_FAILED:
                left.open_tools.pop(event.tool_call_failed.tool_call_id, None)
            case _:
                _keep_open(event, left)
    return left


def _keep_open(event: Event, left: Remains) -> None:
    """Note, in place, whether the event opens or closes an approval."""
    if event.HasField("tool_approval_requested"):
        left.open_approvals[event.tool_approval_requested.approval_id] = event.tool_approval_requested
    elif event.HasField("tool_approval_decided"):
        left.open_approvals.pop(event.tool_approval_decided.approval_id, None)
