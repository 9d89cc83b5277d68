"""`MemorySessionStore`: the contract's calls over a `Database` in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

from google.protobuf.message import Message

from turndock import events
from turndock.errors import TurndockError, not_found
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
    ClaimAgentRequest,
    ClaimAgentResponse,
    DeleteSessionRequest,
    DeleteSessionResponse,
    EditRunRequest,
    EditRunResponse,
    EnqueueRunRequest,
    EnqueueRunResponse,
    FlushRequest,
    FlushResponse,
    GetActiveRunRequest,
    GetActiveRunResponse,
    GetEventsRequest,
    GetEventsResponse,
    GetLatestSequenceRequest,
    GetLatestSequenceResponse,
    GetRunRequest,
    GetRunResponse,
    GetSessionRequest,
    GetSessionResponse,
    ListOrphansRequest,
    ListOrphansResponse,
    ListRunsRequest,
    ListRunsResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    ReleaseIfEmptyRequest,
    ReleaseIfEmptyResponse,
    RenewClaimsRequest,
    RenewClaimsResponse,
    SaveRunRequest,
    SaveRunResponse,
    SaveSessionRequest,
    SaveSessionResponse,
    WatchEventsRequest,
    WatchEventsResponse,
)
from turndock.types.v1 import Event, Session
from turndock_server.stores import checks, rules
from turndock_server.stores.clock import Clock
from turndock_server.stores.cursors import PageCodec, Place
from turndock_server.stores.memory import mailbox, reading, writing
from turndock_server.stores.memory.database import Answer, Database, Key, copy_of, mailbox_place
from turndock_server.stores.memory.upkeep import MemoryUpkeep

R = TypeVar("R", bound=Message)
Append = AppendEventRequest | AppendEventWithSequenceRequest | AppendEventsRequest


OwnersWrite = SaveSessionRequest | DeleteSessionRequest | SaveRunRequest | Append | FlushRequest
"""What only a session's owner may send, if it has one."""
Repeatable = OwnersWrite | EditRunRequest | CancelRunRequest
"""What may carry a retry token."""


class MemorySessionStore:
    """Keeps sessions, runs and events in memory, with every promise of the contract but to outlive the process.

    Implements `turndock.ports.SessionStore`, `Mailbox` and `EventWatcher`. For one event loop: every write is made
    between two awaits, so it is seen whole or not at all. It has no artifact rows: whoever puts it together with an
    ArtifactStore lets that one forget the artifacts of a deleted session.
    """

    def __init__(self, clock: Callable[[], int] = events.now_us) -> None:
        """An empty store. `clock` is the time of day in microseconds since the Unix epoch."""
        self._database = Database(Clock(clock))
        self._bells: dict[Key, set[asyncio.Event]] = {}
        self._is_closed = False

    async def close(self) -> None:
        """Answer the readers that wait and end the streams."""
        self._is_closed = True
        self._ring(tuple(self._bells))

    # --- Sessions ------------------------------------------------------------------------------------------------

    async def save_session(self, request: SaveSessionRequest) -> SaveSessionResponse:
        key = _key(request, request.session.id, "session.id")
        checks.check_session(request.session)

        def write() -> SaveSessionResponse:
            self._database.check_agent_name(key[0], request.session)
            record = self._database.record(key)
            writing.put_session(self._database, record, request.session)
            return SaveSessionResponse(session=record.visible_session())

        return self._write(request, (key,), write)

    async def get_session(self, request: GetSessionRequest) -> GetSessionResponse:
        record = self._database.records.get(_key(request, request.session_id))
        session = record.visible_session() if record else None
        if session is None:
            raise not_found("session", request.session_id)
        return GetSessionResponse(session=session)

    async def list_sessions(self, request: ListSessionsRequest) -> ListSessionsResponse:
        partition = checks.partition(request)
        statuses = frozenset(request.statuses)

        def matches(session: Session) -> bool:
            return (
                (not statuses or session.status in statuses)
                and request.agent_id in {"", session.agent_id}
                and not (request.hide_deleted and session.HasField("deleted_at_us"))
                and not (
                    request.live_agents_only and (not session.HasField("agent") or session.agent.stopped)
                )
            )

        rows = (
            session
            for record in self._database.records.values()
            if request.every_scope or record.key[0] == partition
            if (session := record.visible_session()) is not None and matches(session)
        )
        codec = PageCodec("ListSessions", partition, request)
        sessions, cursor = reading.page_of(rows, _newest_first, request.page, codec)
        return ListSessionsResponse(sessions=sessions, next_cursor=cursor)

    async def delete_session(self, request: DeleteSessionRequest) -> DeleteSessionResponse:
        key = _key(request, request.session_id)

        def write() -> DeleteSessionResponse:
            self._database.delete(key)
            return DeleteSessionResponse()

        return self._write(request, (key,), write)

    # --- Runs ----------------------------------------------------------------------------------------------------

    async def save_run(self, request: SaveRunRequest) -> SaveRunResponse:
        key = _key(request, request.run.session_id, "run.session_id")
        checks.check_run(request.run)

        def write() -> SaveRunResponse:
            record = self._database.record(key)
            expected = request.expected_status if request.HasField("expected_status") else None
            writing.check_run_status(record, request.run.id, expected)
            return SaveRunResponse(run=writing.put_run(self._database, record, request.run))

        return self._write(request, (key,), write)

    async def get_run(self, request: GetRunRequest) -> GetRunResponse:
        record = self._database.record(_key(request, request.session_id))
        run = record.runs.get(request.run_id)
        if run is None:
            raise not_found("run", request.run_id)
        return GetRunResponse(run=run)

    async def list_runs(self, request: ListRunsRequest) -> ListRunsResponse:
        key = _key(request, request.session_id)
        statuses = frozenset(request.statuses)
        runs = self._database.record(key).runs.values()
        rows = (run for run in runs if not statuses or run.status in statuses)
        taken, cursor = reading.page_of(
            rows, mailbox_place, request.page, PageCodec("ListRuns", key[0], request)
        )
        return ListRunsResponse(runs=taken, next_cursor=cursor)

    async def get_active_run(self, request: GetActiveRunRequest) -> GetActiveRunResponse:
        return GetActiveRunResponse(run=self._database.record(_key(request, request.session_id)).running())

    # --- Events --------------------------------------------------------------------------------------------------

    async def append_event(self, request: AppendEventRequest) -> AppendEventResponse:
        checks.check_append_one(request)
        self._append(request, [request.event], "event", lambda _: AppendEventResponse())
        return AppendEventResponse()

    async def append_event_with_sequence(
        self, request: AppendEventWithSequenceRequest
    ) -> AppendEventWithSequenceResponse:
        checks.check_append_one(request)
        return self._append(
            request,
            [request.event],
            "event",
            lambda results: AppendEventWithSequenceResponse(result=results[0]),
        )

    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        checks.check_append(request)
        return self._append(
            request, request.events, "events", lambda results: AppendEventsResponse(results=results)
        )

    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        limit, wait_ms = checks.check_get_events(request)
        key = _key(request, request.session_id)
        response = self._read(key, request, limit)
        if response.events or not wait_ms:
            return response
        with self._bell(key) as grown:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    while not response.events and not self._is_closed:
                        await grown.wait()
                        grown.clear()
                        response = self._read(key, request, limit)
            except TimeoutError:
                response = self._read(key, request, limit)
        return response

    async def get_latest_sequence(self, request: GetLatestSequenceRequest) -> GetLatestSequenceResponse:
        record = self._database.records.get(_key(request, request.session_id))
        if record is None:
            return GetLatestSequenceResponse()
        return GetLatestSequenceResponse(sequence=record.head, incarnation=record.incarnation)

    async def watch_events(self, request: WatchEventsRequest) -> AsyncIterator[WatchEventsResponse]:
        """Streams a log. A session made anew is streamed from its beginning, under its own incarnation."""
        key = _key(request, request.session_id)
        read = GetEventsRequest(session_id=request.session_id, after_sequence=request.after_sequence)
        incarnation = ""
        with self._bell(key) as grown:
            while not self._is_closed:
                grown.clear()
                page = self._read(key, read, checks.DEFAULT_EVENTS)
                if incarnation and page.incarnation and page.incarnation != incarnation:
                    read.after_sequence = 0
                    page = self._read(key, read, checks.DEFAULT_EVENTS)
                incarnation = page.incarnation or incarnation
                if page.events:
                    read.after_sequence = page.scanned_through
                    yield WatchEventsResponse(events=page.events, head=page.head)
                else:
                    await grown.wait()
        raise TurndockError("SERVER_STOPPING", "the store stops")

    async def flush(self, request: FlushRequest) -> FlushResponse:
        checks.check_flush(request)
        key = _key(request, request.session.id, "session.id")
        database = self._database
        grown: set[Key] = set()

        def write() -> FlushResponse:
            record = database.record(key)
            database.check_agent_name(key[0], request.session)
            expected = request.expected_run_status if request.HasField("expected_run_status") else None
            writing.check_run_status(record, request.run.id, expected)
            writing.check_expected(record, request.expected)
            batch = writing.number(
                database,
                key[0],
                request.events.events,
                records={key[1]: record},
                strict=request.strict_duplicates,
                field="events.events",
            )
            writing.put_session(database, record, request.session)
            metadata = request.provider_metadata_json
            writing.put_run(database, record, request.run, provider_metadata_json=metadata)
            grown.update(batch.apply(database))
            response = FlushResponse(results=batch.results, head=record.head)
            if request.HasField("chained_run"):
                chained = record.runs.get(request.chained_run.id) or writing.put_pending_run(
                    database, record, request.chained_run, front=True
                )
                response.chained_run.CopyFrom(chained)
            return response

        response = self._write(request, (key,), write)
        self._ring(grown)
        return response

    # --- Mailbox -------------------------------------------------------------------------------------------------

    async def enqueue_run(self, request: EnqueueRunRequest) -> EnqueueRunResponse:
        checks.check_enqueue(request)
        key = _key(request, request.run.session_id, "run.session_id")
        return mailbox.enqueue(self._database, key, request)

    async def claim_agent(self, request: ClaimAgentRequest) -> ClaimAgentResponse:
        checks.check_claim(request)
        return mailbox.claim(self._database, _key(request, request.session_id), request)

    async def renew_claims(self, request: RenewClaimsRequest) -> RenewClaimsResponse:
        return mailbox.renew(self._database, checks.check_renew(request), request)

    async def release_if_empty(self, request: ReleaseIfEmptyRequest) -> ReleaseIfEmptyResponse:
        checks.check_release(request)
        key = _key(request, request.session_id)
        return ReleaseIfEmptyResponse(released=mailbox.release(self._database, key, request))

    async def edit_run(self, request: EditRunRequest) -> EditRunResponse:
        checks.check_edit(request)
        key = _key(request, request.session_id)
        return self._once(
            request, key, lambda: EditRunResponse(run=mailbox.edit(self._database, key, request))
        )

    async def cancel_run(self, request: CancelRunRequest) -> CancelRunResponse:
        checks.check_cancel(request)
        key = _key(request, request.session_id)
        grown: set[Key] = set()

        def write() -> CancelRunResponse:
            response, logs = mailbox.cancel(self._database, key, request)
            grown.update(logs)
            return response

        response = self._once(request, key, write)
        self._ring(grown)
        return response

    async def list_orphans(self, request: ListOrphansRequest) -> ListOrphansResponse:
        rows = (
            session
            for record in self._database.records.values()
            if mailbox.is_orphan(self._database, record, asked_by=request.owner, sole_host=request.sole_host)
            if (session := record.visible_session()) is not None
        )
        codec = PageCodec("ListOrphans", checks.UNSCOPED, request)
        sessions, cursor = reading.page_of(rows, _by_scope, request.page, codec)
        return ListOrphansResponse(sessions=sessions, next_cursor=cursor)

    def upkeep(self) -> MemoryUpkeep:
        """The store from the side of whoever keeps it small and sound."""
        return MemoryUpkeep(self._database)

    # --- What the calls share --------------------------------------------------------------------------------------

    def _append(
        self, request: Append, events: Sequence[Event], field: str, answer: Callable[[list[AppendResult]], R]
    ) -> R:
        partition = checks.partition(request)
        keys = tuple(dict.fromkeys((partition, event.session_id) for event in events))
        grown: set[Key] = set()

        def write() -> R:
            if keys:
                writing.check_expected(self._database.record(keys[0]), request.expected)
            batch = writing.number(
                self._database, partition, events, strict=request.strict_duplicates, field=field
            )
            grown.update(batch.apply(self._database))
            return answer(batch.results)

        response = self._write(request, keys, write)
        self._ring(grown)
        return response

    def _write(self, request: OwnersWrite, keys: Sequence[Key], write: Callable[[], R]) -> R:
        """Make an owner's write, or answer a repeated one as before."""
        fence = request.fence if request.HasField("fence") else None
        checks.check_fence(fence)

        def guarded() -> R:
            for key in keys:
                self._database.ownership(key).check(fence, self._database.now_us())
            response = write()
            if fence is not None:
                for key in keys:
                    self._database.see(key, fence)
            return response

        return self._once(request, keys[0] if keys else None, guarded)

    def _once(self, request: Repeatable, key: Key | None, write: Callable[[], R]) -> R:
        """Make a write, or answer a repeated one as before. Ids are remembered as long as the session at `key`."""
        token = request.request_id
        checks.check_request_id(token)
        if not token or key is None:
            return write()
        fingerprint = rules.fingerprint(request)
        record = self._database.records.get(key)
        answer = record.answers.get(token) if record else None
        if answer is not None:
            if answer.fingerprint != fingerprint:
                raise rules.token_conflict(token)
            return cast(
                "R", copy_of(answer.response)
            )  # the fingerprint names the call, and with it the answer's type
        response = write()
        record = self._database.records.get(key)
        if record is not None:
            record.answers[token] = Answer(fingerprint, copy_of(response))
        return response

    def _read(self, key: Key, request: GetEventsRequest, limit: int) -> GetEventsResponse:
        return reading.read_log(self._database.records.get(key), request, limit)

    @contextmanager
    def _bell(self, key: Key) -> Generator[asyncio.Event, None, None]:
        """An event that is set whenever the session's log grows."""
        bell = asyncio.Event()
        bells = self._bells.setdefault(key, set())
        bells.add(bell)
        try:
            yield bell
        finally:
            bells.discard(bell)
            if not bells and self._bells.get(key) is bells:
                del self._bells[key]

    def _ring(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for bell in self._bells.get(key, ()):
                bell.set()


def _key(request: checks.Scoped, session_id: str, field: str = "session_id") -> Key:
    checks.check_session_id(session_id, field)
    return checks.partition(request), session_id


def _newest_first(session: Session) -> Place:
    return (-session.updated_at_us, session.id, session.scope.tenant)


def _by_scope(session: Session) -> Place:
    return (session.scope.tenant, session.id)
