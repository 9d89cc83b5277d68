"""From a store that is known by its calls into a database: messages become the rows that would have been written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, insert, update

from turndock.errors import TurndockError
from turndock.types.v1 import Event, EventType, Run, Session
from turndock_server.core.wireformat import varint
from turndock_server.stores.copying.calls import Calls
from turndock_server.stores.copying.rows import Name, Rows
from turndock_server.stores.sql import encoding
from turndock_server.stores.sql import runs as run_rows
from turndock_server.stores.sql import sessions as session_rows
from turndock_server.stores.sql.rows import SessionRow
from turndock_server.stores.sql.schema import events as events_table
from turndock_server.stores.sql.schema import sessions as sessions_table
from turndock_server.stores.sql.transaction import Transaction


async def write(source: Calls, session: Session, target: Rows) -> None:
    """Copy a session into a database that does not have it: with its numbers, its incarnation and its times.

    Raises ABORTED (SEQUENCE_CONFLICT) when it has changed meanwhile; nothing is copied then.
    """
    name = Name(session.scope.tenant, session.id)
    own = Session()
    own.CopyFrom(session)
    for field in ("scope", "incarnation", "last_sequence"):
        own.ClearField(field)
    async with target.transaction():
        scope = await target.make_scope(name.tenant)
        values: dict[str, Any] = session_rows.saved(own) | {
            "scope": scope,
            "id": session.id,
            "incarnation": session.incarnation,
            "last_sequence": session.last_sequence,
            "pruned_through": 0,
            "largest_event": 0,
            "last_notification": 0,
            "epoch": 0,
            "owner": "",
            "ticket_id": "",
            "lease_until": 0,
        }
        key = await target.run(
            lambda c: int(
                c.execute(insert(sessions_table).returning(sessions_table.c.key), values).scalar_one()
            )
        )
        made = SessionRow(scope, session.id, key=key)
        await target.run(lambda c: session_rows.put_tags(Transaction(c, 0, is_careful=False), made, own))
        async for run in source.runs(name):
            await target.run(_put(key, run))
        log = {"pruned_through": 0, "largest_event": 0, "last_notification": 0}
        head = 0
        async for page in source.log(name):
            head, log["pruned_through"] = page.head, page.pruned_through
            rows = [_row(key, scope, draft, event) for draft, event in _drafted(list(page.events))]
            if rows:
                await target.run(_insert(rows))
                log["largest_event"] = max(log["largest_event"], *(len(row["body"]) for row in rows))
            for row in rows:
                if row["type"] == EventType.EVENT_TYPE_CUSTOM and encoding.is_notification(row["body"]):
                    log["last_notification"] = row["sequence"]
        await target.run(
            lambda c: c.execute(update(sessions_table).where(sessions_table.c.key == key).values(log))
        )
        if head != session.last_sequence or await source.get(name) != session:
            raise TurndockError(
                "SEQUENCE_CONFLICT",
                f"session {name} was written to while it was copied; stop its agent, and run again",
            )


def _put(session: int, run: Run) -> Callable[[Connection], Run]:
    return lambda c: run_rows.put(Transaction(c, 0, is_careful=False), session, None, run)


def _insert(rows: list[dict[str, Any]]) -> Callable[[Connection], object]:
    return lambda c: c.execute(insert(events_table), rows)


def _drafted(events: list[Event]) -> list[tuple[encoding.Draft, Event]]:
    return list(zip(encoding.drafts(events, "events"), events, strict=True))


def _row(session: int, scope: int, draft: encoding.Draft, event: Event) -> dict[str, Any]:
    _, key, event_type, run, written = draft
    suffix = encoding.stored_suffix(event.incarnation, event.stored_at_us)
    return {
        "session": session,
        "sequence": event.sequence,
        "scope": scope,
        "id": key,
        "type": event_type,
        "run": run,
        "stored_at": event.stored_at_us,
        "body": b"".join((written, encoding.SEQUENCE, varint(event.sequence), suffix)),
    }
