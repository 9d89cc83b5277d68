"""Sessions: saving, reading and deleting them."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, insert, select

from turndock.errors import TurndockError
from turndock.store.v1 import DeleteSessionRequest, SaveSessionRequest, SaveSessionResponse
from turndock.types.v1 import Session
from turndock_server.stores import checks, rules
from turndock_server.stores.sql import graves, snapshots
from turndock_server.stores.sql.rows import Partition, SessionRow, fence_of, load, put
from turndock_server.stores.sql.schema import NEVER, session_tags, sessions, tombstones
from turndock_server.stores.sql.tokens import once
from turndock_server.stores.sql.transaction import Transaction

_SAVED: Final = select(sessions.c.body, sessions.c.incarnation, sessions.c.last_sequence).where(
    sessions.c.scope == bindparam("scope"), sessions.c.id == bindparam("id"), sessions.c.body.is_not(None)
)
_NAMESAKE: Final = select(sessions.c.id).where(
    sessions.c.scope == bindparam("scope"),
    sessions.c.live_agent == bindparam("name"),
    sessions.c.id != bindparam("id"),
)
_TAGS: Final = select(session_tags.c.tag).where(session_tags.c.session == bindparam("row"))
_REMOVE_TAG: Final = delete(session_tags).where(
    session_tags.c.session == bindparam("row"), session_tags.c.tag == bindparam("label")
)


def saved(session: Session) -> dict[str, Any]:
    """The values a saved session has in its row."""
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
        "rests_until": rules.rests_until(session),
        "notified_sequence": min(session.agent.notified_sequence, NEVER) if has_agent else NEVER,
        "tag_count": len(set(session.tags)),
    }


def put_tags(tx: Transaction, row: SessionRow, session: Session) -> None:
    """Make a saved session's tags findable, and no others. `row` is the row as it was before."""
    if row.key is None or not (row.tag_count or session.tags):
        return
    wanted = set(session.tags)
    stored = set(tx.connection.execute(_TAGS, {"row": row.key}).scalars()) if row.tag_count else set[str]()
    gone = sorted(stored - wanted)
    if gone:
        tx.connection.execute(_REMOVE_TAG, [{"row": row.key, "label": tag} for tag in gone])
    fresh = [{"scope": row.scope, "tag": tag, "session": row.key} for tag in sorted(wanted - stored)]
    if fresh:
        tx.connection.execute(insert(session_tags), fresh)


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


def get(connection: Connection, partition: Partition | None, session_id: str) -> Session | None:
    """A session as callers see it; None if it was never saved."""
    if partition is None:
        return None
    row = connection.execute(_SAVED, {"scope": partition.key, "id": session_id}).first()
    return None if row is None else visible(row.body, partition.tenant, row.incarnation, row.last_sequence)


def check_agent_name(tx: Transaction, row: SessionRow, session: Session) -> None:
    """Refuse a session whose live agent has a name another one has (ALREADY_EXISTS)."""
    if not session.HasField("agent") or session.agent.stopped:
        return
    arguments = {"scope": row.scope, "name": session.agent_id, "id": row.id}
    if tx.connection.execute(_NAMESAKE, arguments).first() is not None:
        raise TurndockError(
            "ALREADY_EXISTS",
            f"agent {session.agent_id!r} is alive in another session",
            metadata={"agent_name": session.agent_id},
        )


def save(tx: Transaction, partition: Partition, request: SaveSessionRequest) -> SaveSessionResponse:
    """SaveSession."""
    row = load(tx, partition, request.session.id)
    fence = fence_of(request)

    def write() -> SaveSessionResponse:
        row.check_fence(fence, tx.now_us)
        check_agent_name(tx, row, request.session)
        session = complete(row, request.session, tx.now_us)
        row.see(fence)
        values = saved(session)
        put(tx, row, values)
        put_tags(tx, row, session)
        return SaveSessionResponse(
            session=visible(values["body"], partition.tenant, row.incarnation, row.last_sequence)
        )

    return once(tx, row, request, SaveSessionResponse, write)


def remove(tx: Transaction, partition: Partition, request: DeleteSessionRequest) -> int | None:
    """DeleteSession. Its retry token is kept with the tombstone.

    Returns the key of a session that has rows left, which nobody finds any more; None if nothing is left to do.
    """
    row = load(tx, partition, request.session_id)
    fingerprint = rules.fingerprint(request) if request.request_id else b""
    if request.request_id and _was_buried_by(tx, row, request.request_id, fingerprint):
        return None
    fence = fence_of(request)
    row.check_fence(fence, tx.now_us)
    row.see(fence)
    return bury(tx, row, request.request_id, fingerprint)


def bury(tx: Transaction, row: SessionRow, request_id: str = "", fingerprint: bytes = b"") -> int | None:
    """Delete a session, whoever owns it; a tombstone stays. Returns as `remove`."""
    snapshots.forget(tx, row.scope, row.id)
    if row.key is None:
        return None
    is_left = graves.bury(tx, row.key)
    _bury(tx, row, request_id, fingerprint)
    return row.key if is_left else None


def _bury(tx: Transaction, row: SessionRow, request_id: str, fingerprint: bytes) -> None:
    grave = (tombstones.c.scope == row.scope) & (tombstones.c.session_id == row.id)
    tx.connection.execute(delete(tombstones).where(grave))
    tx.connection.execute(
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


def _was_buried_by(tx: Transaction, row: SessionRow, request_id: str, fingerprint: bytes) -> bool:
    grave = tx.connection.execute(
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
