"""The rows of sessions: what every write begins with, and who may make it."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from sqlalchemy import bindparam, insert, select, update

from turndock.types.v1 import Fence
from turndock_server.stores import rules
from turndock_server.stores.sql.schema import sessions, tombstones
from turndock_server.stores.sql.transaction import Transaction

_CHUNK: Final = 500


@dataclass(frozen=True, slots=True)
class Partition:
    """A scope as the tables know it."""

    key: int
    tenant: str


class Fenced(Protocol):
    """A request that may name the ownership under which it is made."""

    @property
    def fence(self) -> Fence: ...
    def HasField(self, field_name: Literal["fence"]) -> bool: ...  # protobuf's own spelling


def fence_of(request: Fenced) -> Fence | None:
    """The ownership under which a request is made."""
    return request.fence if request.HasField("fence") else None


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
    tag_count: int = 0
    rests_until: int | None = None

    def rests(self, now_us: int) -> bool:
        """Whether the session has no work now, whatever its runs say."""
        return self.rests_until is not None and now_us < self.rests_until

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
    sessions.c.tag_count,
    sessions.c.rests_until,
)
# Where not the whole database is locked for one writer, the rows are, until the transaction's end. (SQLite has no such
# words, and none are said to it.)
_ROW: Final = (
    select(*_COLUMNS)
    .where(sessions.c.scope == bindparam("scope"), sessions.c.id == bindparam("id"))
    .with_for_update(key_share=True)
)
_ROWS: Final = (
    select(*_COLUMNS)
    .where(sessions.c.scope == bindparam("scope"), sessions.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(sessions.c.id)
    .with_for_update(key_share=True)
)
_TOMBSTONES: Final = select(tombstones.c.session_id, tombstones.c.epoch).where(
    tombstones.c.scope == bindparam("scope"), tombstones.c.session_id.in_(bindparam("ids", expanding=True))
)
_INSERT: Final = insert(sessions).returning(sessions.c.key)
_UPDATE: Final = update(sessions).where(sessions.c.key == bindparam("row"))


def load(tx: Transaction, partition: Partition, session_id: str) -> SessionRow:
    """A session's row, or one yet to be made."""
    found = tx.connection.execute(_ROW, {"scope": partition.key, "id": session_id}).first()
    return SessionRow(*found) if found else _unmade(tx, partition, [session_id])[session_id]


def load_all(tx: Transaction, partition: Partition, session_ids: Collection[str]) -> dict[str, SessionRow]:
    """Rows by session id; those that are not there are yet to be made."""
    if len(session_ids) == 1:
        return {session_id: load(tx, partition, session_id) for session_id in session_ids}
    wanted = sorted(session_ids)
    rows: dict[str, SessionRow] = {}
    for first in range(0, len(wanted), _CHUNK):
        ids = wanted[first : first + _CHUNK]
        for columns in tx.connection.execute(_ROWS, {"scope": partition.key, "ids": ids}):
            row = SessionRow(*columns)
            rows[row.id] = row
        missing = [session_id for session_id in ids if session_id not in rows]
        if missing:
            rows |= _unmade(tx, partition, missing)
    return rows


def _unmade(tx: Transaction, partition: Partition, session_ids: list[str]) -> dict[str, SessionRow]:
    """Rows yet to be made; epochs go on from where a session of that id left off."""
    buried = tx.connection.execute(_TOMBSTONES, {"scope": partition.key, "ids": session_ids})
    epochs = dict(buried.all())
    return {
        session_id: SessionRow(partition.key, session_id, epoch=epochs.get(session_id, 0))
        for session_id in session_ids
    }


def put(tx: Transaction, row: SessionRow, saved: Mapping[str, Any] | None = None) -> int:
    """Insert or update a row, with the values of the session itself if it is saved. Returns the row's key."""
    values: dict[str, Any] = {
        "last_sequence": row.last_sequence,
        "largest_event": row.largest_event,
        "last_notification": row.last_notification,
        "epoch": row.epoch,
        "owner": row.owner,
        "ticket_id": row.ticket_id,
        "lease_until": row.lease_until,
        **(saved or {}),
    }
    if row.key is not None:
        tx.connection.execute(_UPDATE, values | {"row": row.key})
        return row.key
    values |= {"scope": row.scope, "id": row.id, "incarnation": row.incarnation}
    key: int = tx.connection.execute(_INSERT, values).scalar_one()
    row.key = key
    return key


def ensure(tx: Transaction, row: SessionRow, fence: Fence | None) -> int:
    """The key of a session's row, made if it is not there. The epoch of the write is remembered."""
    if row.key is not None and (fence is None or fence.epoch == row.epoch):
        return row.key
    row.see(fence)
    return put(tx, row)
