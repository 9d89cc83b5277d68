"""The index of events: what they are searched by that is only in their bodies.

Whoever searches brings it up to date first, a piece at a time. So events cost nothing more when they are appended,
where there are most of them and nobody searches yet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select, update

from turndock.types.v1 import Event
from turndock_server.stores.sql.encoding import run_key
from turndock_server.stores.sql.postgresql import SessionKey
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.schema import event_index, events, sessions
from turndock_server.stores.sql.transaction import Transaction

AT_ONCE: Final = 1_000
"""Most events that are indexed in one transaction."""

_BEHIND: Final = sessions.c.last_sequence - sessions.c.indexed_through
_LOGS: Final = (
    select(sessions.c.key, sessions.c.indexed_through, sessions.c.last_sequence)
    .where(
        sessions.c.scope == bindparam("scope"),
        sessions.c.id.in_(bindparam("ids", expanding=True)),
        sessions.c.last_sequence > sessions.c.indexed_through,
    )
    .order_by(sessions.c.id)
    .with_for_update(key_share=True)
)
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


def behind(
    connection: Connection, partition: Partition | None, session_ids: Sequence[str]
) -> tuple[list[SessionKey], bool]:
    """Sessions of the partition with events that are not indexed, as many as are indexed at once, and if these are all.

    Only some of these sessions, if any are named.
    """
    if partition is None:
        return [], True
    scope = partition.key
    wanted = select(sessions.c.id, _BEHIND).where(sessions.c.scope == scope, _BEHIND > 0).limit(AT_ONCE)
    if session_ids:
        wanted = wanted.where(sessions.c.id.in_(sorted(set(session_ids))))
    found: list[SessionKey] = []
    room = AT_ONCE
    for session_id, missing in connection.execute(wanted):
        found.append((scope, session_id))
        room -= missing
        if room <= 0:
            break
    return found, room > 0 and len(found) < AT_ONCE


def index_some(tx: Transaction, logs: Collection[SessionKey]) -> bool:
    """Index what is not of these sessions of one scope, up to `AT_ONCE` events. Whether that was all."""
    room = AT_ONCE
    (scope,) = {scope for scope, _ in logs}
    wanted = {"scope": scope, "ids": [session_id for _, session_id in logs]}
    for key, indexed_through, last_sequence in tx.connection.execute(_LOGS, wanted).all():
        if room <= 0:
            return False
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
    return room > 0


def _said(body: bytes) -> dict[str, Any]:
    event = Event.FromString(body)
    return {
        "time": event.time_us,
        "provider": name_key(event.provider),
        "correlation": name_key(event.correlation_id),
    }
