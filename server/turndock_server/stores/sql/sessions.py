"""Sessions: their rows, who may write to them, saving and deleting."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from turndock.errors import TurndockError
from turndock.store.v1 import (
    DeleteSessionRequest,
    DeleteSessionResponse,
    SaveSessionRequest,
    SaveSessionResponse,
)
from turndock.types.v1 import Fence, Session
from turndock_server.stores import checks, rules
from turndock_server.stores.sql.schema import (
    NEVER,
    artifacts,
    events,
    retry_tokens,
    runs,
    sessions,
    tombstones,
)
from turndock_server.stores.sql.tokens import once
from turndock_server.stores.sql.transaction import Transaction

_CHUNK: Final = 500


@dataclass(frozen=True, slots=True)
class Partition:
    """A scope as the tables know it."""

    key: int
    tenant: str


@dataclass(slots=True)
class SessionRow:
    """A session's row; for one that is not there, the row that would be made."""

    scope: int
    id: str
    key: int | None = None
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    is_saved: bool = False
    created_at: int = 0
    updated_at: int = 0
    is_deleted: bool = False
    is_stopped: bool = False
    is_halted: bool = False
    last_sequence: int = 0
    largest_event: int = 0
    last_notification: int = 0
    epoch: int = 0
    owner: str = ""
    ticket_id: str = ""
    lease_until: int = 0

    def is_claimed(self, now_us: int) -> bool:
        """Whether somebody's lease runs."""
        return bool(self.owner) and now_us < self.lease_until

    def check_fence(self, fence: Fence | None, now_us: int) -> None:
        """Refuse a write under this fence, or without one, if it is not the owner's (FENCED)."""
        if fence is None:
            if self.is_claimed(now_us):
                raise rules.fenced(self.id, None, self.epoch)
        elif fence.epoch < self.epoch:
            raise rules.fenced(self.id, fence.epoch, self.epoch)

    def see(self, fence: Fence | None) -> None:
        """Take note of the epoch of a write that is made."""
        if fence is not None:
            self.epoch = max(self.epoch, fence.epoch)


_COLUMNS: Final = (
    sessions.c.scope,
    sessions.c.id,
    sessions.c.key,
    sessions.c.incarnation,
    sessions.c.body.is_not(None),
    sessions.c.created_at,
    sessions.c.updated_at,
    sessions.c.deleted_at.is_not(None),
    sessions.c.stopped,
    sessions.c.halted,
    sessions.c.last_sequence,
    sessions.c.largest_event,
    sessions.c.last_notification,
    sessions.c.epoch,
    sessions.c.owner,
    sessions.c.ticket_id,
    sessions.c.lease_until,
)
_ROWS: Final = select(*_COLUMNS).where(
    sessions.c.scope == bindparam("scope"), sessions.c.id.in_(bindparam("ids", expanding=True))
)
_TOMBSTONES: Final = select(tombstones.c.session_id, tombstones.c.epoch).where(
    tombstones.c.scope == bindparam("scope"), tombstones.c.session_id.in_(bindparam("ids", expanding=True))
)
_UPDATE: Final = update(sessions).where(sessions.c.key == bindparam("row"))


async def load(tx: Transaction, partition: Partition, session_id: str) -> SessionRow:
    """A session's row, or one yet to be made."""
    return (await load_all(tx, partition, (session_id,)))[session_id]


async def load_all(
    tx: Transaction, partition: Partition, session_ids: Iterable[str]
) -> dict[str, SessionRow]:
    """Rows by session id; those that are not there are yet to be made."""
    wanted = list(session_ids)
    rows: dict[str, SessionRow] = {}
    for first in range(0, len(wanted), _CHUNK):
        ids = wanted[first : first + _CHUNK]
        arguments = {"scope": partition.key, "ids": ids}
        for columns in await tx.connection.execute(_ROWS, arguments):
            row = SessionRow(*columns)
            rows[row.id] = row
        missing = [session_id for session_id in ids if session_id not in rows]
        if missing:
            buried = await tx.connection.execute(_TOMBSTONES, {"scope": partition.key, "ids": missing})
            epochs = dict(buried.all())
            for session_id in missing:
                rows[session_id] = SessionRow(partition.key, session_id, epoch=epochs.get(session_id, 0))
    return rows


async def put(tx: Transaction, row: SessionRow, session: Session | None = None) -> int:
    """Insert or update a row, together with the session itself if one is given. Returns the row's key."""
    values: dict[str, Any] = {
        "last_sequence": row.last_sequence,
        "largest_event": row.largest_event,
        "last_notification": row.last_notification,
        "epoch": row.epoch,
        "owner": row.owner,
        "ticket_id": row.ticket_id,
        "lease_until": row.lease_until,
    }
    if session is not None:
        values |= _saved(session)
    if row.key is not None:
        await tx.connection.execute(_UPDATE.values(values), {"row": row.key})
        return row.key
    values |= {"scope": row.scope, "id": row.id, "incarnation": row.incarnation}
    made = await tx.connection.execute(insert(sessions).returning(sessions.c.key), values)
    key: int = made.scalar_one()
    row.key = key
    return key


async def ensure(tx: Transaction, row: SessionRow, fence: Fence | None) -> int:
    """The key of a session's row, made if it is not there. The epoch of the write is remembered."""
    if row.key is not None and (fence is None or fence.epoch == row.epoch):
        return row.key
    row.see(fence)
    return await put(tx, row)


def _saved(session: Session) -> dict[str, Any]:
    has_agent = session.HasField("agent")
    is_live = has_agent and not session.agent.stopped
    return {
        "body": session.SerializeToString(),
        "agent_id": session.agent_id,
        "live_agent": session.agent_id if is_live else None,
        "status": session.status,
        "created_at": session.created_at_us,
        "updated_at": session.updated_at_us,
        "deleted_at": session.deleted_at_us if session.HasField("deleted_at_us") else None,
        "stopped": int(session.agent.stopped),
        "halted": int(session.agent.halted),
        "notified_sequence": min(session.agent.notified_sequence, NEVER) if has_agent else NEVER,
    }


def complete(row: SessionRow, given: Session, now_us: int) -> Session:
    """A session as it is stored: what is the store's is taken out or filled in."""
    session = Session()
    session.CopyFrom(given)
    for name in ("scope", "last_sequence", "incarnation"):
        session.ClearField(name)
    session.created_at_us = (row.created_at if row.is_saved else 0) or session.created_at_us or now_us
    # One change after the other, also when both fall into the same microsecond.
    session.updated_at_us = session.updated_at_us or max(now_us, row.updated_at + 1)
    return session


def visible(body: bytes, tenant: str, incarnation: str, last_sequence: int) -> Session:
    """A stored session as callers see it."""
    session = Session.FromString(body)
    scope = checks.scope_of(tenant)
    if scope is not None:
        session.scope.CopyFrom(scope)
    session.incarnation = incarnation
    session.last_sequence = last_sequence
    return session


async def get(connection: AsyncConnection, partition: Partition, session_id: str) -> Session | None:
    """A session as callers see it; None if it was never saved."""
    found = await connection.execute(
        select(sessions.c.body, sessions.c.incarnation, sessions.c.last_sequence).where(
            sessions.c.scope == partition.key, sessions.c.id == session_id, sessions.c.body.is_not(None)
        )
    )
    row = found.first()
    return None if row is None else visible(row.body, partition.tenant, row.incarnation, row.last_sequence)


async def check_agent_name(tx: Transaction, row: SessionRow, session: Session) -> None:
    """Refuse a session whose live agent has a name another one has (ALREADY_EXISTS)."""
    if not session.HasField("agent") or session.agent.stopped:
        return
    holder = await tx.connection.execute(
        select(sessions.c.id).where(
            sessions.c.scope == row.scope,
            sessions.c.live_agent == session.agent_id,
            sessions.c.id != row.id,
        )
    )
    if holder.first() is not None:
        raise TurndockError(
            "ALREADY_EXISTS",
            f"agent {session.agent_id!r} is alive in another session",
            metadata={"agent_name": session.agent_id},
        )


async def save(tx: Transaction, partition: Partition, request: SaveSessionRequest) -> SaveSessionResponse:
    """SaveSession."""
    row = await load(tx, partition, request.session.id)
    fence = request.fence if request.HasField("fence") else None

    async def write() -> SaveSessionResponse:
        row.check_fence(fence, tx.now_us)
        await check_agent_name(tx, row, request.session)
        session = complete(row, request.session, tx.now_us)
        row.see(fence)
        await put(tx, row, session)
        body = session.SerializeToString()
        return SaveSessionResponse(
            session=visible(body, partition.tenant, row.incarnation, row.last_sequence)
        )

    return await once(tx, row, request, SaveSessionResponse, write)


async def remove(
    tx: Transaction, partition: Partition, request: DeleteSessionRequest
) -> DeleteSessionResponse:
    """DeleteSession. Its retry token is kept with the tombstone."""
    row = await load(tx, partition, request.session_id)
    fingerprint = rules.fingerprint(request) if request.request_id else b""
    if request.request_id and await _was_buried_by(tx, row, request.request_id, fingerprint):
        return DeleteSessionResponse()
    fence = request.fence if request.HasField("fence") else None
    row.check_fence(fence, tx.now_us)
    row.see(fence)
    # Artifacts may name a session that was never made.
    await tx.connection.execute(
        delete(artifacts).where(artifacts.c.scope == row.scope, artifacts.c.session_id == row.id)
    )
    if row.key is not None:
        for table in (events, runs, retry_tokens):
            await tx.connection.execute(delete(table).where(table.c.session == row.key))
        await tx.connection.execute(delete(sessions).where(sessions.c.key == row.key))
        await _bury(tx, row, request.request_id, fingerprint)
    return DeleteSessionResponse()


async def _bury(tx: Transaction, row: SessionRow, request_id: str, fingerprint: bytes) -> None:
    grave = (tombstones.c.scope == row.scope) & (tombstones.c.session_id == row.id)
    await tx.connection.execute(delete(tombstones).where(grave))
    await tx.connection.execute(
        insert(tombstones).values(
            scope=row.scope,
            session_id=row.id,
            incarnation=row.incarnation,
            epoch=row.epoch,
            deleted_at=tx.now_us,
            request_id=request_id,
            fingerprint=fingerprint,
        )
    )


async def _was_buried_by(tx: Transaction, row: SessionRow, request_id: str, fingerprint: bytes) -> bool:
    grave = await tx.connection.execute(
        select(tombstones.c.fingerprint).where(
            tombstones.c.scope == row.scope,
            tombstones.c.session_id == row.id,
            tombstones.c.request_id == request_id,
        )
    )
    known = grave.scalar_one_or_none()
    if known is not None and known != fingerprint:
        raise rules.token_conflict(request_id)
    return known is not None
