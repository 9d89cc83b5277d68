"""Store, then publish: the one door through which anything gets into a log.

The journal is itself a SessionStore with a mailbox, so that the host's own writes and those of remote callers of the
host's store become visible to watchers in the same way: after their commit, and only then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from turndock.ports import Mailbox, SessionStore
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventResponse,
    AppendEventsRequest,
    AppendEventsResponse,
    AppendEventWithSequenceRequest,
    AppendEventWithSequenceResponse,
    AppendResult,
    CancelRunRequest,
    CancelRunResponse,
    DeleteSessionRequest,
    DeleteSessionResponse,
    FlushRequest,
    FlushResponse,
)
from turndock.types.v1 import Event, Scope
from turndock_server.core.feed import AgentKey, Feed


class Journal:
    """A SessionStore and Mailbox whose writes reach the feed."""

    def __init__(
        self,
        store: SessionStore,
        mailbox: Mailbox,
        feed: Feed,
        *,
        on_deleted: Callable[[DeleteSessionRequest], Awaitable[None]] | None = None,
    ) -> None:
        self.feed = feed
        self._on_deleted = on_deleted
        self._store = store
        self._mailbox = mailbox
        # What writes no event passes straight through.
        self.save_session = store.save_session
        self.get_session = store.get_session
        self.list_sessions = store.list_sessions
        self.save_run = store.save_run
        self.get_run = store.get_run
        self.list_runs = store.list_runs
        self.get_active_run = store.get_active_run
        self.get_events = store.get_events
        self.get_latest_sequence = store.get_latest_sequence
        self.enqueue_run = mailbox.enqueue_run
        self.claim_agent = mailbox.claim_agent
        self.renew_claims = mailbox.renew_claims
        self.release_if_empty = mailbox.release_if_empty
        self.edit_run = mailbox.edit_run
        self.list_orphans = mailbox.list_orphans

    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        """Store events and show them."""
        response = await self._store.append_events(request)
        self._publish(_scope(request), response.results)
        return response

    async def append_event_with_sequence(
        self, request: AppendEventWithSequenceRequest
    ) -> AppendEventWithSequenceResponse:
        """Store an event and show it."""
        response = await self._store.append_event_with_sequence(request)
        self._publish(_scope(request), (response.result,))
        return response

    async def append_event(self, request: AppendEventRequest) -> AppendEventResponse:
        """Store an event and show it."""
        numbered = AppendEventWithSequenceRequest(
            request_id=request.request_id, event=request.event, strict_duplicates=request.strict_duplicates
        )
        for field in ("scope", "expected", "fence"):
            if request.HasField(field):
                getattr(numbered, field).CopyFrom(getattr(request, field))
        await self.append_event_with_sequence(numbered)
        return AppendEventResponse()

    async def flush(self, request: FlushRequest) -> FlushResponse:
        """Store a session, a run and events in one transaction, and show the events."""
        response = await self._store.flush(request)
        self._publish(_scope(request), response.results)
        return response

    async def cancel_run(self, request: CancelRunRequest) -> CancelRunResponse:
        """End a waiting run and show its terminal event."""
        response = await self._mailbox.cancel_run(request)
        if response.HasField("result"):
            self._publish(_scope(request), (response.result,))
        return response

    async def delete_session(self, request: DeleteSessionRequest) -> DeleteSessionResponse:
        """Delete a session with its artifacts' rows, and end its watches."""
        response = await self._store.delete_session(request)
        if self._on_deleted is not None:
            await self._on_deleted(request)
        self.feed.deleted(AgentKey.of(_scope(request), request.session_id))
        return response

    def _publish(self, scope: Scope | None, results: Iterable[AppendResult]) -> None:
        fresh: defaultdict[str, list[Event]] = defaultdict(list)
        for result in results:
            if not result.duplicate:
                fresh[result.event.session_id].append(result.event)
        for session_id, stored in fresh.items():
            self.feed.publish(AgentKey.of(scope, session_id), stored)


def _scope(
    request: AppendEventsRequest
    | AppendEventWithSequenceRequest
    | FlushRequest
    | CancelRunRequest
    | DeleteSessionRequest,
) -> Scope | None:
    return request.scope if request.HasField("scope") else None
