"""Pruning: which events may go, and their going."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    bindparam,
    delete,
    func,
    select,
    tuple_,
    update,
)

from turndock.types.v1 import EventType
from turndock_server.stores.maintenance.policy import PROTECTED, Policy
from turndock_server.stores.maintenance.upkeep import Ids, Place, Spare, Spares
from turndock_server.stores.sql import encoding, rows
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.schema import events, runs, sessions
from turndock_server.stores.sql.transaction import Transaction

_CHUNK: Final = 500

_SESSION: Final = select(sessions.c.key, sessions.c.incarnation, sessions.c.pruned_through).where(
    sessions.c.scope == bindparam("scope"), sessions.c.id == bindparam("id")
)


def count(connection: Connection, partition: Partition, session_id: str | None) -> int:
    """See `Upkeep.count_events`."""
    wanted = select(sessions.c.key).where(sessions.c.scope == partition.key)
    if session_id is not None:
        wanted = wanted.where(sessions.c.id == session_id)
    counted = select(func.count()).select_from(events).where(events.c.session.in_(wanted.scalar_subquery()))
    return connection.execute(counted).scalar_one()


def long_logs(connection: Connection, partition: Partition, above: int, after: str, limit: int) -> Ids:
    """See `Upkeep.long_logs`. A log has not more events than its counter says."""
    wanted = (
        select(sessions.c.id)
        .where(sessions.c.scope == partition.key, sessions.c.id > after, sessions.c.last_sequence > above)
        .order_by(sessions.c.id)
        .limit(limit)
    )
    ids = connection.execute(wanted).scalars().all()
    return Ids(ids, ids[-1] if len(ids) == limit else None)


def floor(connection: Connection, partition: Partition, session_id: str) -> int:
    """See `Upkeep.floor`."""
    row = connection.execute(_SESSION, {"scope": partition.key, "id": session_id}).first()
    return row.pruned_through if row else 0


def spares(
    connection: Connection,
    partition: Partition,
    session_id: str | None,
    policy: Policy,
    *,
    first: bool,
    after: Place | None,
    limit: int,
) -> Spares:
    """See `Upkeep.spares`. What only an event's body tells, and which runs are not over, is looked at afterwards."""
    order = (events.c.sequence,) if session_id else (events.c.stored_at, events.c.session, events.c.sequence)
    wanted = _candidates(partition, session_id).where(_is_of_turn(policy, first=first))
    if after is not None:
        wanted = wanted.where(tuple_(*order) > tuple_(*after) if len(order) > 1 else order[0] > after[0])
    found = connection.execute(wanted.order_by(*order).limit(limit)).all()
    open_runs = _open_runs(connection, {row.key for row in found})
    unapplied = _unapplied_notifications(connection, found)
    spared = [
        Spare(row.id, row.incarnation, row.sequence, row.size)
        for row in found
        if row.run not in open_runs.get(row.key, ()) and (row.key, row.sequence) not in unapplied
    ]
    if len(found) < limit:
        return Spares(spared, None)
    last = found[-1]
    return Spares(spared, (last.sequence,) if session_id else (last.stored_at, last.key, last.sequence))


def bodies(connection: Connection, partition: Partition, chosen: Sequence[Spare]) -> list[bytes]:
    """See `Upkeep.bodies`."""
    row = _find(connection, partition, chosen[0])
    if row is None:
        return []
    found: list[bytes] = []
    for numbers in _chunks([event.sequence for event in chosen]):
        wanted = select(events.c.body).where(events.c.session == row.key, events.c.sequence.in_(numbers))
        found += connection.execute(wanted.order_by(events.c.sequence)).scalars()
    return found


def prune(tx: Transaction, partition: Partition, chosen: Sequence[Spare]) -> int:
    """See `Upkeep.prune`."""
    rows.load_all(tx, partition, {event.session_id for event in chosen})  # locks them
    ordered = sorted(chosen, key=lambda event: (event.session_id, event.sequence))
    return sum(
        _prune(tx, partition, list(session))
        for _, session in groupby(ordered, key=lambda event: event.session_id)
    )


def _prune(tx: Transaction, partition: Partition, chosen: Sequence[Spare]) -> int:
    """Remove events of one session."""
    row = _find(tx.connection, partition, chosen[0])
    if row is None:
        return 0
    open_runs = _open_runs(tx.connection, {row.key}).get(row.key, frozenset())
    highest = removed = 0
    for numbers in _chunks([event.sequence for event in chosen]):
        doomed = [events.c.session == row.key, events.c.sequence.in_(numbers)]
        if open_runs:
            doomed.append(events.c.run.not_in(_literal(open_runs)))
        gone = tx.connection.execute(select(func.count(), func.max(events.c.sequence)).where(*doomed)).one()
        tx.connection.execute(delete(events).where(*doomed))
        removed += gone[0]
        highest = max(highest, gone[1] or 0)
    if highest > row.pruned_through:
        tx.connection.execute(
            update(sessions).where(sessions.c.key == row.key).values(pruned_through=highest)
        )
    return removed


def _find(connection: Connection, partition: Partition, event: Spare) -> Any:
    """The row of an event's session, if it is still the same session."""
    row = connection.execute(_SESSION, {"scope": partition.key, "id": event.session_id}).first()
    return row if row is not None and row.incarnation == event.incarnation else None


def _candidates(partition: Partition, session_id: str | None) -> Any:
    of_session = [sessions.c.scope == partition.key]
    if session_id is not None:
        of_session.append(sessions.c.id == session_id)
    return (
        select(
            sessions.c.key,
            sessions.c.id,
            sessions.c.incarnation,
            sessions.c.notified_sequence,
            events.c.sequence,
            events.c.type,
            events.c.run,
            events.c.stored_at,
            func.length(events.c.body).label("size"),
        )
        .join(events, events.c.session == sessions.c.key)
        .where(*of_session)
    )


def _is_of_turn(policy: Policy, *, first: bool) -> ColumnElement[bool]:
    """Whether an event's type is one of those whose turn it is."""
    if first:
        return events.c.type.in_(_literal(policy.first_types))
    return events.c.type.not_in(_literal(policy.first_types | PROTECTED))


def _literal(numbers: Collection[int]) -> BindParameter[Any]:
    """Numbers that are written into the statement: however many there are, they are no parameters."""
    literal: BindParameter[Any] = bindparam(None, sorted(numbers), expanding=True, literal_execute=True)
    return literal


def _open_runs(connection: Connection, session_keys: Collection[int]) -> Mapping[int, frozenset[int]]:
    """Keys of the runs that are not over, by session."""
    found: dict[int, set[int]] = {}
    for keys in _chunks(sorted(session_keys)):
        wanted = select(runs.c.session, runs.c.id).where(runs.c.unsettled == 1, runs.c.session.in_(keys))
        for session, run_id in connection.execute(wanted):
            found.setdefault(session, set()).add(encoding.run_key(run_id))
    return {session: frozenset(keys) for session, keys in found.items()}


def _unapplied_notifications(connection: Connection, found: Sequence[Row[Any]]) -> set[tuple[int, int]]:
    """Those of the events that their sessions' agents have still to apply: session and number."""
    custom: dict[int, list[int]] = {}
    for row in found:
        if row.type == EventType.EVENT_TYPE_CUSTOM and row.sequence > row.notified_sequence:
            custom.setdefault(row.key, []).append(row.sequence)
    unapplied: set[tuple[int, int]] = set()
    for session, all_numbers in custom.items():
        for numbers in _chunks(all_numbers):
            wanted = select(events.c.sequence, events.c.body).where(
                events.c.session == session, events.c.sequence.in_(numbers)
            )
            for sequence, body in connection.execute(wanted):
                if encoding.is_notification(body):
                    unapplied.add((session, sequence))
    return unapplied


def _chunks(numbers: Sequence[int]) -> list[Sequence[int]]:
    return [numbers[first : first + _CHUNK] for first in range(0, len(numbers), _CHUNK)]
