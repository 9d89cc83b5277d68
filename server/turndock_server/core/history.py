"""What the log knows of one run: for a caller who comes back, and for an owner who takes over."""

from __future__ import annotations

from collections.abc import AsyncIterator

from turndock import events
from turndock.store.v1 import GetEventsRequest
from turndock.types.v1 import AgentLimits, Event, EventType, Response, Run
from turndock_server.core import transcript
from turndock_server.core.capture import Capture
from turndock_server.core.feed import AgentKey
from turndock_server.core.journal import Journal

_NOT_THE_BACKENDS = frozenset(
    (
        EventType.EVENT_TYPE_RUN_STARTED,
        EventType.EVENT_TYPE_MESSAGE_SENT,
    )
)


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


async def response_of(journal: Journal, key: AgentKey, run: Run, limits: AgentLimits) -> Response | None:
    """The response of a run that succeeded, with the events it carried; None if it did not succeed."""
    if not run.HasField("response"):
        return None
    answer = Response()
    answer.CopyFrom(run.response)
    capture = Capture.within(limits)
    capture.lossless = False
    kept: list[Event] = []
    pending: Event | None = None
    async for event in run_events(journal, key, run.id):
        # The last MESSAGE_RECEIVED is the host's own summary; any before it the backend sent.
        if pending is not None and event.type != EventType.EVENT_TYPE_RUN_COMPLETED and capture.take(pending):
            kept.append(pending)
        pending = None
        if event.type == EventType.EVENT_TYPE_MESSAGE_RECEIVED:
            pending = event
        elif event.type in events.RUN_TERMINAL:
            if capture.take(event):
                kept.append(event)
            transcript.with_events(answer, kept, event)
        elif event.type not in _NOT_THE_BACKENDS and capture.take(event):
            kept.append(event)
    return answer


async def open_tools(journal: Journal, key: AgentKey, run_id: str) -> dict[str, str]:
    """Tool calls of a run that have a beginning and no end: id → name."""
    still_open: dict[str, str] = {}
    async for event in run_events(journal, key, run_id):
        match event.type:
            case EventType.EVENT_TYPE_TOOL_CALL_STARTED:
                still_open[event.tool_call_started.tool_call_id] = event.tool_call_started.name
            case EventType.EVENT_TYPE_TOOL_CALL_COMPLETED:
                still_open.pop(event.tool_call_completed.tool_call_id, None)
            case EventType.EVENT_TYPE_TOOL_CALL_FAILED:
                still_open.pop(event.tool_call_failed.tool_call_id, None)
            case _:
                pass
    return still_open
