"""`SqlSessionStore`: the contract's calls over an SQL database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

from sqlalchemy import Connection

from turndock.errors import not_found
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventResponse,
    AppendEventsRequest,
    AppendEventsResponse,
    AppendEventWithSequenceRequest,
    AppendEventWithSequenceResponse,
    DeleteSessionRequest,
    DeleteSessionResponse,
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
    ListRunsRequest,
    ListRunsResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    SaveRunRequest,
    SaveRunResponse,
    SaveSessionRequest,
    SaveSessionResponse,
    WatchEventsRequest,
    WatchEventsResponse,
)
from turndock.types.v1 import Event
from turndock_server.core import feed
from turndock_server.core.journal import Appended, NewEvents
from turndock_server.stores import checks
from turndock_server.stores.clock import Clock
from turndock_server.stores.sql import encoding, lists, runs, sessions
from turndock_server.stores.sql import flush as flushing
from turndock_server.stores.sql.appends import Append, BlockAppend, append_once
from turndock_server.stores.sql.calls import AppendRequest, check_token_and_fence
from turndock_server.stores.sql.engine import Database
from turndock_server.stores.sql.graves import Undertaker, graves
from turndock_server.stores.sql.logs import LogPage, LogQuery, framed, read_log
from turndock_server.stores.sql.mailbox_calls import SqlMailbox
from turndock_server.stores.sql.opening import open_database
from turndock_server.stores.sql.postgresql import SessionKey
from turndock_server.stores.sql.presence import Presence
from turndock_server.stores.sql.rows import Partition, fence_of
from turndock_server.stores.sql.schema import NEVER
from turndock_server.stores.sql.snapshots import SqlAgentPersistence
from turndock_server.stores.sql.sqlite import Synchronous
from turndock_server.stores.sql.transaction import Write
from turndock_server.stores.sql.upkeep import SqlUpkeep

T = TypeVar("T")


class SqlSessionStore(SqlMailbox):
    """A SessionStore with mailbox and watch_events, on a database that several processes may have open.

    An answer is given after the commit. What is answered survives a power cut with `synchronous="full"`.
    """

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        """Use `open`."""
        super().__init__(database, clock)
        self._undertaker = Undertaker(self._writer)
        self._presence: Presence | None = None

    @classmethod
    async def open(
        cls,
        target: str | Path,
        *,
        password: str | None = None,
        synchronous: Synchronous = "full",
        busy_timeout_ms: int = 5_000,
        readers: int = 4,
        migrate: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> Self:
        """Open the database at a path or URL; a file that is not there is made.

        `sqlite+aiosqlite:///<path>` asks for the asynchronous driver, a path and `sqlite:///<path>` for threads,
        `postgresql://<user>@<host>/<database>` for a server, whose `password` need not be in the URL.
        `synchronous` is SQLite's. `busy_timeout_ms` is how long a write waits for other processes before it is refused
        with STORAGE_BUSY, and any call for a server that cannot be reached; `readers` how many reads go on at once,
        `clock` the time of day in microseconds since the Unix epoch, by default that of the database's machine.

        Raises `TurndockError`: MIGRATION_REQUIRED when the schema is not this release's and cannot be made so, or must
        not be made so because `migrate` is false; STORAGE_CONNECTION_FAILED, STORAGE_BUSY, STORAGE_ERROR.
        """
        database = await open_database(
            target,
            password=password,
            synchronous=synchronous,
            busy_timeout_ms=busy_timeout_ms,
            readers=readers,
            migrate=migrate,
        )
        try:
            left = await database.patiently(lambda: database.read(graves))
        except BaseException:
            await database.close()
            raise
        store = cls(database, Clock(clock or database.now_us))
        store._undertaker.resume(left)
        return store

    async def be_only_server(self, on_lost: Callable[[], None], *, patience_ms: int = 5_000) -> bool:
        """Keep other servers away from a PostgreSQL database until the store is closed. False if one has it already.

        It is asked for as long as `patience_ms`. `on_lost` is called should another server have it later, as may
        happen when this one was cut off. Raises `TurndockError` for what the database reports.
        """
        line = self._database.line()
        self._presence = await Presence.announce(line, patience_ms=patience_ms, on_lost=on_lost)
        return self._presence is not None

    async def close(self) -> None:
        """Commit what is queued, answer everybody who waits, and close the database. Later calls are refused."""
        self._is_closed = True
        await self._bell.close()
        await self._undertaker.close()
        await self._writer.close()
        if self._presence is not None:
            await self._presence.close()
            self._presence = None
        await self._database.close()

    @property
    def agent_persistence(self) -> SqlAgentPersistence:
        """Snapshots of agents, in the same database. It lives as long as the store is open."""
        return SqlAgentPersistence(self._writer.write, self._read, self._partition, self._scopes.find)

    # --- Sessions ------------------------------------------------------------------------------------------------

    async def save_session(self, request: SaveSessionRequest) -> SaveSessionResponse:
        checks.check_session(request.session)
        check_token_and_fence(request)
        partition = await self._partition(request)
        return await self._write(
            partition, request.session.id, lambda tx: sessions.save(tx, partition, request)
        )

    async def get_session(self, request: GetSessionRequest) -> GetSessionResponse:
        checks.check_session_id(request.session_id)
        tenant = checks.partition(request)
        session = await self._read(
            lambda connection: sessions.get(
                connection, self._scopes.find(connection, tenant), request.session_id
            )
        )
        if session is None:
            raise not_found("session", request.session_id)
        return GetSessionResponse(session=session)

    async def list_sessions(self, request: ListSessionsRequest) -> ListSessionsResponse:
        tenant = checks.partition(request)
        return await self._read(
            lambda connection: lists.list_sessions(
                connection, tenant, self._scopes.find(connection, tenant), request
            )
        )

    async def delete_session(self, request: DeleteSessionRequest) -> DeleteSessionResponse:
        checks.check_session_id(request.session_id)
        check_token_and_fence(request)
        partition = await self._partition(request)
        left = await self._write(
            partition, request.session_id, lambda tx: sessions.remove(tx, partition, request)
        )
        if left is not None:
            await self._undertaker.finish(left)
        return DeleteSessionResponse()

    # --- Runs ----------------------------------------------------------------------------------------------------

    async def save_run(self, request: SaveRunRequest) -> SaveRunResponse:
        checks.check_run(request.run)
        check_token_and_fence(request)
        partition = await self._partition(request)
        return await self._write(
            partition, request.run.session_id, lambda tx: runs.save(tx, partition, request)
        )

    async def get_run(self, request: GetRunRequest) -> GetRunResponse:
        checks.check_session_id(request.session_id)
        tenant = checks.partition(request)
        run = await self._read(
            lambda connection: runs.get(
                connection, self._scopes.find(connection, tenant), request.session_id, request.run_id
            )
        )
        if run is None:
            raise not_found("run", request.run_id)
        return GetRunResponse(run=run)

    async def list_runs(self, request: ListRunsRequest) -> ListRunsResponse:
        checks.check_session_id(request.session_id)
        tenant = checks.partition(request)
        return await self._read(
            lambda connection: lists.list_runs(
                connection, tenant, self._scopes.find(connection, tenant), request
            )
        )

    async def get_active_run(self, request: GetActiveRunRequest) -> GetActiveRunResponse:
        checks.check_session_id(request.session_id)
        tenant = checks.partition(request)
        run = await self._read(
            lambda connection: runs.get_active(
                connection, self._scopes.find(connection, tenant), request.session_id
            )
        )
        return GetActiveRunResponse(run=run)

    # --- Events --------------------------------------------------------------------------------------------------

    async def append_event(self, request: AppendEventRequest) -> AppendEventResponse:
        append = await self._append_of(request, (request.event,), "event")
        if request.request_id:
            await self._writer.write(
                lambda tx: append_once(tx, append, request, AppendEventWithSequenceResponse),
                _sessions_of(append),
            )
        else:
            await self._writer.append(append)
        return AppendEventResponse()

    async def append_event_with_sequence(
        self, request: AppendEventWithSequenceRequest
    ) -> AppendEventWithSequenceResponse:
        append = await self._append_of(request, (request.event,), "event")
        if request.request_id:
            return await self._writer.write(
                lambda tx: append_once(tx, append, request, AppendEventWithSequenceResponse),
                _sessions_of(append),
            )
        return AppendEventWithSequenceResponse.FromString(b"".join(await self._writer.append(append)))

    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        if len(request.events) > checks.MAX_BATCH_EVENTS:
            checks.check_append(request)
        append = await self._append_of(request, request.events, "events")
        if not append.drafts:
            return AppendEventsResponse()
        if len(append.session_ids) > 1:
            checks.check_append(request)
        if request.request_id:
            return await self._writer.write(
                lambda tx: append_once(tx, append, request, AppendEventsResponse), _sessions_of(append)
            )
        return AppendEventsResponse.FromString(b"".join(await self._writer.append(append)))

    async def append_block(self, new: NewEvents) -> Appended | AppendEventsResponse:
        """As `append_events`, for a caller in this process who has new events of one run, encoded.

        Answers shortly, without a message for each event, unless some were known.
        """
        append = BlockAppend(await self._partition_of(new.key.tenant or checks.UNSCOPED), new)
        answer = await self._writer.append_block(append)
        return answer if isinstance(answer, Appended) else AppendEventsResponse.FromString(b"".join(answer))

    async def flush(self, request: FlushRequest) -> FlushResponse:
        checks.check_flush(request)
        append = await self._append_of(request, request.events.events, "events.events")
        return await self._write(
            append.partition, request.session.id, lambda tx: flushing.flush(tx, append, request)
        )

    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        limit, wait_ms = checks.check_get_events(request)
        tenant = checks.partition(request)
        query = LogQuery.of(request, limit)
        if not wait_ms:
            page = await self._read_log(tenant, request.session_id, query)
        else:
            page = await self._wait_for_events(tenant, request.session_id, query, wait_ms / 1000)
        return page.response

    async def get_latest_sequence(self, request: GetLatestSequenceRequest) -> GetLatestSequenceResponse:
        checks.check_session_id(request.session_id)
        tenant = checks.partition(request)
        # The page itself is empty: no number is above the highest.
        page = await self._read_log(tenant, request.session_id, LogQuery(after=NEVER))
        return GetLatestSequenceResponse(sequence=page.head, incarnation=page.incarnation)

    async def read_frames(
        self, tenant: str, session_id: str, *, after: int, limit: int = checks.DEFAULT_EVENTS
    ) -> feed.LogPage:
        """A page of a log as bytes, for readers that pass events on; `tenant` is empty for the unscoped partition.

        Raises as GetEvents does.
        """
        return framed(await self._read_log(tenant, session_id, LogQuery(after=after, limit=limit)))

    async def read(self, tenant: str, work: Callable[[Connection, Partition | None], T]) -> T:
        """What a function reads in a partition, which is None if nothing was ever stored in it."""
        return await self._read(lambda connection: work(connection, self._scopes.find(connection, tenant)))

    async def write(self, work: Write[T], sessions: Collection[SessionKey] = ()) -> T:
        """What a function does to these sessions and answers, committed together with other writes."""
        return await self._writer.write(work, sessions)

    async def watch_events(self, request: WatchEventsRequest) -> AsyncGenerator[WatchEventsResponse]:
        """Streams a log. A session made anew is streamed from its beginning, under its own incarnation."""
        checks.check_session_id(request.session_id)
        tenant = checks.partition(request)
        after, incarnation = min(request.after_sequence, NEVER), ""
        with self._bell.listening((tenant, request.session_id)) as listener:
            while True:
                listener.arm()
                page = await self._read_log(tenant, request.session_id, LogQuery(after=after))
                if incarnation and page.incarnation not in {"", incarnation}:
                    incarnation, after = page.incarnation, 0
                    continue
                incarnation = page.incarnation or incarnation
                if page.events:
                    after = page.scanned_through
                    yield WatchEventsResponse(events=page.response.events, head=page.head)
                    continue
                listener.seen = (page.incarnation, page.head)
                await listener.changed()

    def upkeep(self) -> SqlUpkeep:
        """The store from the side of whoever keeps it small and sound."""
        return SqlUpkeep(self._read, self._writer, self._scopes, self._clock, self._undertaker)

    # --- What the calls share --------------------------------------------------------------------------------------

    async def _append_of(self, request: AppendRequest, to_append: Sequence[Event], field: str) -> Append:
        check_token_and_fence(request)
        return Append(
            await self._partition(request),
            encoding.drafts(to_append, field),
            field=field,
            expected=request.expected if request.HasField("expected") else None,
            fence=fence_of(request),
            is_strict=request.strict_duplicates,
        )

    async def _read_log(self, tenant: str, session_id: str, query: LogQuery) -> LogPage:
        return await self._read(
            lambda connection: read_log(connection, self._scopes.find(connection, tenant), session_id, query)
        )

    async def _wait_for_events(
        self, tenant: str, session_id: str, query: LogQuery, seconds: float
    ) -> LogPage:
        """The first page with an event, or the last one without when the time is over or the store is closed."""
        until = asyncio.get_running_loop().time() + seconds
        with self._bell.listening((tenant, session_id)) as listener:
            incarnation, rest = "", query
            while True:
                listener.arm()
                page = await self._read_log(tenant, session_id, rest)
                if page.incarnation != incarnation:
                    # What was read of another incarnation says nothing about this one.
                    incarnation, is_new = page.incarnation, rest is not query
                    rest = query
                    if is_new:
                        continue
                if page.events or asyncio.get_running_loop().time() >= until:
                    return page
                if not query.is_descending:
                    # Nothing up to there matches, nor ever will.
                    rest = replace(query, after=page.scanned_through)
                listener.seen = (page.incarnation, page.head)
                await listener.changed(until)
                if self._is_closed:
                    return page


def _sessions_of(append: Append) -> list[SessionKey]:
    return [(append.partition.key, session_id) for session_id in append.session_ids]
