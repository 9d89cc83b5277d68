"""ExportSession: a session as it was at one moment, read by and by, without a transaction that stays open.

The session and its runs, which change, are copied out by one statement when the export begins. Events never change:
they are read page by page while the caller takes them, up to the number that was the highest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, Connection, cast, literal_column, null, select, union_all

from turndock.types.v1 import Run, Session
from turndock_server.stores.spool import Spool
from turndock_server.stores.sql.postgresql import at_one_moment
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.runs import visible as visible_run
from turndock_server.stores.sql.schema import runs, sessions
from turndock_server.stores.sql.sessions import visible as visible_session

_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Beginning:
    """What an export begins with."""

    session: Session
    run_count: int

    @property
    def head(self) -> int:
        """The highest number there was in its log."""
        return self.session.last_sequence


def begin(
    connection: Connection, partition: Partition | None, session_id: str, spooled: Spool[Run]
) -> Beginning | None:
    """Copy a session and its runs out, the runs into `spooled` in mailbox order; None if there is no such session."""
    if partition is None:
        return None
    of_session = (
        sessions.c.scope == partition.key,
        sessions.c.id == session_id,
        sessions.c.body.is_not(None),
    )
    itself = select(
        literal_column("0", BigInteger).label("part"),
        sessions.c.body.label("body"),
        sessions.c.last_sequence.label("number"),
        cast(null(), BigInteger).label("created_at"),
        sessions.c.incarnation.label("name"),
    ).where(*of_session)
    its_runs = (
        select(
            literal_column("1", BigInteger),
            runs.c.body,
            runs.c.queue_key,
            runs.c.created_at,
            runs.c.id,
        )
        .join(sessions, sessions.c.key == runs.c.session)
        .where(*of_session)
    )
    both = union_all(itself, its_runs).subquery()
    order = (both.c.part, both.c.number, both.c.created_at, both.c.name)
    statement = select(both.c.part, both.c.body, both.c.number, both.c.name).order_by(*order)
    session: Session | None = None
    run_count = 0
    with (
        at_one_moment(connection),
        connection.execute(statement, execution_options={"yield_per": _AT_ONCE}) as rows,
    ):
        for part, body, number, name in rows:
            if part == 0:
                session = visible_session(body, partition.tenant, name, number)
            else:
                spooled.put(visible_run(body, number))
                run_count += 1
    return None if session is None else Beginning(session, run_count)
