"""Store, then publish: the one door through which anything gets into a log.

The journal is itself a SessionStore with a mailbox, so that the host's own writes and those of remote callers of the
host's store become visible to watchers in the same way: after their commit, and only then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

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
from turndock.types.v1 import Event, Fence, Scope
from turndock_server.core.feed import AgentKey, Block, Feed
from turndock_server.core.written import Written, read, size_of, write

Redact = Callable[[Event], tuple[Event, int]]
"""Takes secrets out of an event: the event without them, the given one if it has none, and how many it had."""


@dataclass(frozen=True, slots=True)
class NewEvents:
    """Events of one run that nobody has stored before, on their way into its session's log."""

    key: AgentKey
    run_id: str
    epoch: int
    """The writer's claim."""
    events: Sequence[Written]
    size: int
    """Bytes of all of them."""

    def request(self) -> AppendEventsRequest:
        """The same for a store that takes messages."""
        return AppendEventsRequest(
            scope=self.key.scope,
            events=read(self.events),
            fence=Fence(epoch=self.epoch),
            strict_duplicates=True,
        )


@dataclass(frozen=True, slots=True)
class Appended:
    """New events of one session under consecutive numbers, without a word about each."""

    first: int
    last: int
    incarnation: str
    stored_at_us: int
    chunks: bytes
    """The events as stored, as elements of `Batch.events`."""


@runtime_checkable
class BlockAppender(Protocol):
    """Ability of a store in this process: appends without making a message of each stored event again."""

    async def append_block(self, new: NewEvents) -> Appended | AppendEventsResponse:
        """As `append_events`. The long answer when some of the events were known."""
        ...


class Journal:
    """A SessionStore and Mailbox whose writes reach the feed."""

    def __init__(
        self,
        store: SessionStore,
        mailbox: Mailbox,
        feed: Feed,
        *,
        redact: Redact | None = None,
        on_deleted: Callable[[DeleteSessionRequest], Awaitable[None]] | None = None,
    ) -> None:
        self.feed = feed
        self.when_gone: Callable[[AgentKey], object] = lambda _: None
        """Hears of sessions that were deleted. Set by the host."""
        self._redact = redact
        self._on_deleted = on_deleted
        self._store = store
        self._blocks = store if isinstance(store, BlockAppender) else None
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

    def redacted(self, event: Event) -> Event:
        """The event without secrets; the given one is left alone."""
        return event if self._redact is None else self._redact(event)[0]

    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        """Store events and show them."""
        request = self._redacted(request)
        response = await self._store.append_events(request)
        self._publish(_scope(request), response.results)
        return response

    async def append_block(self, new: NewEvents) -> Appended:
        """Store a run's new events, and show them."""
        if self._redact is not None:
            redacted = [write(self._redact(event)[0]) for event in read(new.events)]
            new = replace(new, events=redacted, size=size_of(redacted))
        if self._blocks is not None:
            answer = await self._blocks.append_block(new)
            if isinstance(answer, Appended):
                self.feed.publish_block(new.key, Block(answer.first, answer.last, answer.chunks))
                return answer
        else:
            answer = await self._store.append_events(new.request())
        self._publish(new.key.scope, answer.results)
        stored = answer.results[0].event
        return Appended(
            stored.sequence, answer.results[-1].event.sequence, stored.incarnation, stored.stored_at_us, b""
        )

    async def append_event_with_sequence(
        self, request: AppendEventWithSequenceRequest
    ) -> AppendEventWithSequenceResponse:
        """Store an event and show it."""
        if self._redact is not None:
            given, request = request, AppendEventWithSequenceRequest()
            request.CopyFrom(given)
            request.event.CopyFrom(self._redact(given.event)[0])
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
        if self._redact is not None:
            given, request = request, FlushRequest()
            request.CopyFrom(given)
            _replace(request.events.events, [self._redact(event)[0] for event in given.events.events])
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
        await self.was_deleted(request)
        return response

    async def was_deleted(self, request: DeleteSessionRequest) -> None:
        """Forget the artifacts of a session that the store has deleted, and end its watches."""
        if self._on_deleted is not None:
            await self._on_deleted(request)
        key = AgentKey.of(_scope(request), request.session_id)
        self.feed.deleted(key)
        self.when_gone(key)

    def _redacted(self, request: AppendEventsRequest) -> AppendEventsRequest:
        """The request without secrets in its events; a request that was handed over is left alone."""
        if self._redact is None:
            return request
        redacted = AppendEventsRequest()
        redacted.CopyFrom(request)
        _replace(redacted.events, [self._redact(event)[0] for event in request.events])
        return redacted

    def _publish(self, scope: Scope | None, results: Iterable[AppendResult]) -> None:
        fresh: defaultdict[str, list[Event]] = defaultdict(list)
        for result in results:
            if not result.duplicate:
                fresh[result.event.session_id].append(result.event)
        for session_id, stored in fresh.items():
            self.feed.publish(AgentKey.of(scope, session_id), stored)


def _replace(written: RepeatedCompositeFieldContainer[Event], events: Sequence[Event]) -> None:
    del written[:]
    written.extend(events)


def _scope(
    request: AppendEventsRequest
    | AppendEventWithSequenceRequest
    | FlushRequest
    | CancelRunRequest
    | DeleteSessionRequest,
) -> Scope | None:
    return request.scope if request.HasField("scope") else None
