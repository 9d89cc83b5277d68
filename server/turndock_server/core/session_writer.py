"""An owner's pen: every write of a claimed session goes through here, fenced, from the one copy in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from turndock import events
from turndock.store.v1 import (
    AppendEventsRequest,
    AppendResult,
    ClaimAgentResponse,
    EditRunRequest,
    EnqueueRunRequest,
    FlushRequest,
    FlushResponse,
    SaveSessionRequest,
)
from turndock.types.v1 import BackendSession, Event, EventBatch, Fence, Run, RunStatus, Session
from turndock_server.core import history
from turndock_server.core.feed import AgentKey
from turndock_server.core.journal import Appended, Journal, NewEvents
from turndock_server.core.offload import INLINE_BYTES, Offloader
from turndock_server.core.written import Written, read, size_of, write


class SessionWriter:
    """The session as its owner knows it, which is how it is saved each time. Raises FENCED once another owns it."""

    __slots__ = ("_journal", "_key", "_offloader", "_state_json", "epoch", "session")

    def __init__(
        self,
        journal: Journal,
        offloader: Offloader,
        key: AgentKey,
        claim: ClaimAgentResponse,
        state_json: Callable[[], str],
    ) -> None:
        self.epoch = claim.epoch
        self.session = Session()
        self.session.CopyFrom(claim.session)
        self._journal = journal
        self._offloader = offloader
        self._key = key
        self._state_json = state_json

    @property
    def fence(self) -> Fence:
        """What every write carries."""
        return Fence(epoch=self.epoch)

    async def save(self) -> None:
        """Store the session as it is in memory."""
        await self._journal.save_session(
            SaveSessionRequest(scope=self._key.scope, session=self._now(), fence=self.fence)
        )

    async def keep_backend_session(self, backend_session: BackendSession) -> None:
        """Store a checkpoint."""
        self.session.agent.backend_session.CopyFrom(backend_session)
        await self.save()

    async def append(self, batch: Sequence[Event]) -> None:
        """Store new events of the host's own."""
        request = await self._append_request(batch, strict=True)
        results = (await self._journal.append_events(request)).results
        self.advance(results[-1].event.sequence)

    async def append_written(self, run_id: str, batch: Sequence[Written]) -> Appended:
        """Store new events of a run."""
        size = size_of(batch)
        if size > INLINE_BYTES:
            batch = [write(event) for event in await self._offloader.fit(self._key.scope, read(batch))]
            size = size_of(batch)
        appended = await self._journal.append_block(NewEvents(self._key, run_id, self.epoch, batch, size))
        self.advance(appended.last)
        return appended

    async def append_checked(self, batch: Sequence[Event]) -> list[Event]:
        """Store events whose ids may be known; as stored. Raises IDEMPOTENCY_CONFLICT for one that is."""
        request = await self._append_request(batch, strict=True)
        results = (await self._journal.append_events(request)).results
        self.advance(results[-1].event.sequence)
        return [result.event for result in results]

    async def append_once(self, event: Event) -> AppendResult:
        """Store an event whose id may be known; what became of it."""
        request = await self._append_request([event], strict=False)
        result = (await self._journal.append_events(request)).results[0]
        self.advance(result.event.sequence)
        return result

    async def _append_request(self, batch: Sequence[Event], *, strict: bool) -> AppendEventsRequest:
        request = AppendEventsRequest(
            scope=self._key.scope, events=batch, fence=self.fence, strict_duplicates=strict
        )
        if request.ByteSize() > INLINE_BYTES:
            await self._fit(request.events)
        return request

    async def flush(
        self,
        run: Run,
        batch: Sequence[Event],
        *,
        expected: RunStatus.ValueType,
        chained: Run | None = None,
    ) -> FlushResponse:
        """Store the session, a run and events in one transaction, if the run still has the expected status."""
        request = FlushRequest(
            scope=self._key.scope,
            session=self._now(),
            run=run,
            events=EventBatch(events=batch),
            expected_run_status=expected,
            fence=self.fence,
            strict_duplicates=True,
            chained_run=chained,
        )
        if request.events.ByteSize() > INLINE_BYTES:
            await self._fit(request.events.events)
        response = await self._journal.flush(request)
        self.advance(response.head)
        return response

    async def enqueue(self, run: Run) -> Run:
        """Put a run at the mailbox's tail, or find it there; as stored."""
        request = EnqueueRunRequest(scope=self._key.scope, run=run, fence=self.fence)
        return (await self._journal.enqueue_run(request)).run

    async def move(self, run_id: str, before_run_id: str) -> list[Run]:
        """Give a waiting run its place before another; all that wait, as a move may give others a new place too."""
        scope, session_id = self._key.scope, self._key.session_id
        request = EditRunRequest(
            scope=scope, session_id=session_id, run_id=run_id, before_run_id=before_run_id
        )
        await self._journal.edit_run(request)
        return [run async for run in history.waiting_runs(self._journal, self._key)]

    async def _fit(self, written: RepeatedCompositeFieldContainer[Event]) -> None:
        """Offload what is too large for the log, in a request that is not sent yet."""
        fitting = await self._offloader.fit(self._key.scope, list(written))
        del written[:]
        written.extend(fitting)

    def _now(self) -> Session:
        self.session.agent.state_json = self._state_json()
        self.session.updated_at_us = events.now_us()
        return self.session

    def advance(self, head: int) -> None:
        """The log is known to reach this far."""
        self.session.last_sequence = max(self.session.last_sequence, head)
