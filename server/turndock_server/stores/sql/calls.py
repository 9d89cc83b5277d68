"""What the calls of an SQL store share: reads, writes that are committed together with others, and partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from turndock.errors import TurndockError, invalid
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventsRequest,
    AppendEventWithSequenceRequest,
    DeleteSessionRequest,
    FlushRequest,
    SaveRunRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import Fence
from turndock_server.stores import checks
from turndock_server.stores.sql import scopes
from turndock_server.stores.sql.engine import Database
from turndock_server.stores.sql.rows import Partition, fence_of
from turndock_server.stores.sql.schema import NEVER
from turndock_server.stores.sql.transaction import Write
from turndock_server.stores.sql.wakeups import Bell
from turndock_server.stores.sql.writer import Writer

T = TypeVar("T")

AppendRequest = AppendEventRequest | AppendEventWithSequenceRequest | AppendEventsRequest | FlushRequest
OwnersRequest = AppendRequest | SaveSessionRequest | SaveRunRequest | DeleteSessionRequest
"""The writes that an owner's fence goes with."""


class SqlCalls:
    """An open database, as calls see it."""

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock
        self._bell = Bell(database)
        self._writer = Writer(database, self._bell, clock)
        self._scopes = scopes.Scopes()
        self._is_closed = False

    async def _read(self, work: Callable[[Connection], T]) -> T:
        if self._is_closed:
            raise TurndockError("SERVER_STOPPING", "the store is closed")
        return await self._database.read(work)

    async def _write(self, partition: Partition, session_id: str, work: Write[T]) -> T:
        return await self._writer.write(work, [(partition.key, session_id)])

    async def _partition(self, request: checks.Scoped) -> Partition:
        """The partition a write is about; it has a number from now on."""
        return await self._partition_of(checks.partition(request))

    async def _partition_of(self, tenant: str) -> Partition:
        known = self._scopes.known(tenant)
        if known is None:
            known = self._scopes.remember(await self._writer.write(lambda tx: scopes.make(tx, tenant)))
        return known


def check_token_and_fence(request: OwnersRequest) -> None:
    """Refuse a retry token or a fence that is none. Raises `TurndockError` (VALIDATION_ERROR)."""
    checks.check_request_id(request.request_id)
    check_fence(fence_of(request))


def check_fence(fence: Fence | None) -> None:
    """Refuse a fence that is none. Raises `TurndockError` (VALIDATION_ERROR)."""
    checks.check_fence(fence)
    if fence is not None and fence.epoch >= NEVER:
        raise invalid("fence.epoch", "is no epoch: none is that high")
