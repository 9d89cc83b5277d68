"""The index of events: what they are searched by that is only in their bodies.

Whoever searches brings it up to date first, a piece at a time. So events cost nothing more when they are appended,
where there are most of them and nobody searches yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, bindparam, insert, select, update

from turndock.types.v1 import Event
from turndock_server.stores.sql.encoding import run_key
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.schema import event_index, events, sessions
from turndock_server.stores.sql.transaction import Transaction

AT_ONCE: Final = 1_000
"""Most events that are indexed in one transaction."""

_UNINDEXED: Final = select(events.c.sequence, events.c.type, events.c.run, events.c.body).where(
    events.c.session == bindparam("session"),
    events.c.sequence.between(bindparam("first"), bindparam("last")),
)
_INSERT: Final = insert(event_index)
_ADVANCE: Final = (
    update(sessions).where(sessions.c.key == bindparam("row")).values(indexed_through=bindparam("through"))
)


@lru_cache(maxsize=4096)
def name_key(name: str) -> int:
    """A number of 8 bytes that stands for the name of a provider or a correlation; 0 for none."""
    return run_key(name)


def behind(connection: Connection, partition: Partition | None, session_ids: Sequence[str]) -> int | None:
    """Key of the partition if some of its events are not indexed; only those of these sessions, if there are any."""
    if partition is None:
        return None
    statement = select(sessions.c.key).where(*_is_behind(partition.key, session_ids)).limit(1)
    return None if connection.execute(statement).first() is None else partition.key


def _is_behind(scope: int, session_ids: Sequence[str]) -> list[ColumnElement[bool]]:
    wanted = [sessions.c.scope == scope, sessions.c.last_sequence > sessions.c.indexed_through]
    if session_ids:
        wanted.append(sessions.c.id.in_(sorted(set(session_ids))))
    return wanted


def index_some(tx: Transaction, scope: int, session_ids: Sequence[str]) -> bool:
    """Index what is not, up to `AT_ONCE` events. Returns whether there may be more."""
    room = AT_ONCE
    logs = tx.connection.execute(
        select(sessions.c.key, sessions.c.indexed_through, sessions.c.last_sequence)
        .where(*_is_behind(scope, session_ids))
        .limit(AT_ONCE)
    ).all()
    for key, indexed_through, last_sequence in logs:
        if room <= 0:
            return True
        through = min(last_sequence, indexed_through + room)
        room -= through - indexed_through
        arguments = {"session": key, "first": indexed_through + 1, "last": through}
        rows = [
            {
                "session": key,
                "scope": scope,
                "sequence": sequence,
                "type": event_type,
                "run": run,
                **_said(body),
            }
            for sequence, event_type, run, body in tx.connection.execute(_UNINDEXED, arguments)
        ]
        if rows:
            tx.connection.execute(_INSERT, rows)
        tx.connection.execute(_ADVANCE, {"row": key, "through": through})
    return len(logs) == AT_ONCE or room <= 0


def _said(body: bytes) -> dict[str, Any]:
    event = Event.FromString(body)
    return {
        "time": event.time_us,
        "provider": name_key(event.provider),
        "correlation": name_key(event.correlation_id),
    }
