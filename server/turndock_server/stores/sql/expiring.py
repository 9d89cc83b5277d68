"""Sessions that maintenance marks, deletes, or finds nothing behind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, exists, func, select, update

from turndock.types.v1 import Session
from turndock_server.stores.maintenance.policy import Policy, is_free
from turndock_server.stores.maintenance.upkeep import Ids, Mismatch
from turndock_server.stores.sql import rows
from turndock_server.stores.sql import sessions as session_rows
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.schema import events, runs, sessions
from turndock_server.stores.sql.transaction import Transaction

Span = tuple[str, int]
"""The id after which to read, and how many rows."""

_HAS_OPEN_RUN: Final = exists().where(runs.c.session == sessions.c.key, runs.c.unsettled == 1)
_HAS_RUN: Final = exists().where(runs.c.session == sessions.c.key)
_HAS_EVENT: Final = exists().where(events.c.session == sessions.c.key)
_IS_SAVED: Final = sessions.c.body.is_not(None)


def expired(connection: Connection, partition: Partition, policy: Policy, now_us: int, span: Span) -> Ids:
    """See `Upkeep.expired`."""
    found = _page(connection, _expired(partition, policy, now_us), span)
    return Ids([row.id for row in found if _has_expired(row, policy, now_us)], _next(found, span))


def soft_delete(
    tx: Transaction, partition: Partition, session_ids: Collection[str], policy: Policy, now_us: int
) -> list[str]:
    """See `Upkeep.soft_delete`."""
    rows.load_all(
        tx, partition, session_ids
    )  # locks them: what is decided by below does not change meanwhile
    wanted = _expired(partition, policy, now_us).where(sessions.c.id.in_(session_ids))
    marked: list[str] = []
    for row in tx.connection.execute(wanted.order_by(sessions.c.id)).all():
        if not _has_expired(row, policy, now_us):
            continue
        session = Session.FromString(row.body)
        session.deleted_at_us = tx.now_us
        values = {"body": session.SerializeToString(), "deleted_at": tx.now_us}
        tx.connection.execute(update(sessions).where(sessions.c.key == row.key).values(values))
        marked.append(row.id)
    return marked


def condemned(connection: Connection, partition: Partition, before_us: int, now_us: int, span: Span) -> Ids:
    """See `Upkeep.condemned`."""
    found = _page(connection, _condemned(partition, before_us, now_us), span)
    return Ids([row.id for row in found if is_free(Session.FromString(row.body))], _next(found, span))


def hard_delete(
    tx: Transaction, partition: Partition, session_id: str, before_us: int
) -> tuple[bool, int | None]:
    """See `Upkeep.hard_delete`. Whether it was, and as `sessions.bury`."""
    found = rows.load(tx, partition, session_id)
    wanted = _condemned(partition, before_us, tx.now_us).where(sessions.c.id == session_id)
    row = tx.connection.execute(wanted).first()
    if row is None or not is_free(Session.FromString(row.body)):
        return False, None
    return True, session_rows.bury(tx, found)


def saved(connection: Connection, partition: Partition, session_ids: Collection[str]) -> frozenset[str]:
    """See `Upkeep.saved`."""
    wanted = select(sessions.c.id).where(
        sessions.c.scope == partition.key, sessions.c.id.in_(session_ids), _IS_SAVED
    )
    return frozenset(connection.execute(wanted).scalars())


def idle_counters(connection: Connection, partition: Partition, now_us: int, span: Span) -> Ids:
    """See `Upkeep.idle_counters`."""
    found = _page(connection, _idle_counters(partition, now_us), span)
    return Ids([row.id for row in found], _next(found, span))


def remove_counter(tx: Transaction, partition: Partition, session_id: str) -> tuple[bool, int | None]:
    """See `Upkeep.remove_counter`. Whether it was, and as `sessions.bury`."""
    found = rows.load(tx, partition, session_id)
    wanted = _idle_counters(partition, tx.now_us).where(sessions.c.id == session_id, ~_HAS_EVENT)
    if tx.connection.execute(wanted).first() is None:
        return False, None
    return True, session_rows.bury(tx, found)


def orphaned_rows(connection: Connection, partition: Partition, table: Any) -> int:
    """Events or runs of sessions that were never saved."""
    unsaved = select(sessions.c.key).where(sessions.c.scope == partition.key, ~_IS_SAVED)
    count = select(func.count()).select_from(table).where(table.c.session.in_(unsaved.scalar_subquery()))
    return int(connection.execute(count).scalar_one())


def mismatches(connection: Connection, partition: Partition) -> list[Mismatch]:
    """See `Upkeep.mismatches`."""
    highest = select(func.max(events.c.sequence)).where(events.c.session == sessions.c.key).scalar_subquery()
    wanted = (
        select(sessions.c.id, sessions.c.last_sequence, highest.label("highest"))
        .where(sessions.c.scope == partition.key, sessions.c.last_sequence < highest)
        .order_by(sessions.c.id)
    )
    return [Mismatch(*row) for row in connection.execute(wanted)]


def _expired(partition: Partition, policy: Policy, now_us: int) -> Select[Any, Any, Any]:
    """Rows of sessions that may have expired: what the columns tell."""
    age_us = policy.least_age_us
    return _free(partition, now_us).where(
        sessions.c.deleted_at.is_(None),
        sessions.c.updated_at < (0 if age_us is None else max(0, now_us - age_us)),
    )


def _has_expired(row: Any, policy: Policy, now_us: int) -> bool:
    return policy.has_expired(Session.FromString(row.body), now_us)


def _condemned(partition: Partition, before_us: int, now_us: int) -> Select[Any, Any, Any]:
    """Rows of sessions that were marked before a time."""
    return _free(partition, now_us).where(sessions.c.deleted_at < max(0, before_us))


def _free(partition: Partition, now_us: int) -> Select[Any, Any, Any]:
    """Rows of sessions that are saved, and that nobody works for."""
    return select(sessions.c.key, sessions.c.id, sessions.c.body).where(
        sessions.c.scope == partition.key,
        _IS_SAVED,
        sessions.c.live_agent.is_(None),
        (sessions.c.owner == "") | (sessions.c.lease_until <= now_us),
        ~_HAS_OPEN_RUN,
    )


def _idle_counters(partition: Partition, now_us: int) -> Select[str]:
    return select(sessions.c.id).where(
        sessions.c.scope == partition.key,
        ~_IS_SAVED,
        (sessions.c.owner == "") | (sessions.c.lease_until <= now_us),
        ~_HAS_RUN,
    )


def _page(connection: Connection, wanted: Any, span: Span) -> Sequence[Row[Any]]:
    after, limit = span
    in_order = wanted.where(sessions.c.id > after).order_by(sessions.c.id).limit(limit)
    return connection.execute(in_order).all()


def _next(found: Sequence[Row[Any]], span: Span) -> str | None:
    return found[-1].id if len(found) == span[1] else None
