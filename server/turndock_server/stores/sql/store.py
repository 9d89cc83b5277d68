"""`SqlSessionStore`: the contract's calls over an SQL database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Self

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from turndock import events
from turndock.errors import TurndockError, invalid, not_found
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventResponse,
    AppendEventsRequest,
    AppendEventsResponse,
    AppendEventWithSequenceRequest,
    AppendEventWithSequenceResponse,
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
from turndock.types.v1 import Event, Fence, RunStatus
from turndock_server.stores import checks
from turndock_server.stores.sql import flush as flushing
from turndock_server.stores.sql import lists, mailbox, migrations, runs, scopes, sessions
from turndock_server.stores.sql.appends import Append, append_once
from turndock_server.stores.sql.engine import Database, Synchronous, url_of
from turndock_server.stores.sql.logs import FramePage, LogPage, LogQuery, read_log
from turndock_server.stores.sql.schema import NEVER
from turndock_server.stores.sql.schema import runs as runs_table
from turndock_server.stores.sql.schema import sessions as sessions_table
from turndock_server.stores.sql.sessions import Partition
from turndock_server.stores.sql.transaction import Clock, Write
from turndock_server.stores.sql.wakeups import Bell
from turndock_server.stores.sql.writer import Writer


class SqlSessionStore:
    """A SessionStore with mailbox and watch_events, on a database that several processes may have open.

    An answer is given after the commit. What is answered survives a power cut with `synchronous="full"`.
    """

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        """Use `open`."""
        self._database = database
        self._clock = clock
        self._bell = Bell(database)
        self._writer = Writer(database, self._bell, clock)
        self._scopes = scopes.Scopes()
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        target: str | Path,
        *,
        synchronous: Synchronous = "full",
        busy_timeout_ms: int = 5_000,
        readers: int = 4,
        migrate: bool = True,
        clock: Callable[[], int] = events.now_us,
    ) -> Self:
        """Open the database at a path or URL; a file that is not there is made.

        `busy_timeout_ms` is how long a write waits for other processes before it is refused with STORAGE_BUSY,
        `readers` how many reads go on at once, `clock` the time of day in microseconds since the Unix epoch.

        Raises `TurndockError`: MIGRATION_REQUIRED when the schema is not this release's and cannot be made so, or must
        not be made so because `migrate` is false; STORAGE_CONNECTION_FAILED, STORAGE_BUSY, STORAGE_ERROR.
        """
        database = Database(
            url_of(target), synchronous=synchronous, busy_timeout_ms=busy_timeout_ms, readers=readers
        )

        async def prepare() -> None:
            async with database.transaction() as connection:
                await connection.run_sync(migrations.bring_up_to_date)

        try:
            await database.open()
            async with database.reader() as connection:
                is_current = await connection.run_sync(migrations.is_current)
            if not is_current:
                migrations.check_allowed(migrate)
                await database.patiently(prepare)
        except BaseException:
            await database.close()
            raise
        return cls(database, Clock(clock))
