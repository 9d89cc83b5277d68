"""Deleting what is too large for one transaction.

A session is gone for everybody in the transaction in which it is buried: what few rows it has go there and then. If it
has more, its row is moved into a partition that no caller can name, where nothing finds it, and the rest follows in
small transactions, so that nobody waits for a lock. Should the process die meanwhile, whoever opens the database next
goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final, Protocol

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, select, update

from turndock_server.stores.pace import paced
from turndock_server.stores.sql.postgresql import SessionKey
from turndock_server.stores.sql.schema import GRAVEYARD_KEY, NEVER, events, retry_tokens, runs, sessions
from turndock_server.stores.sql.transaction import Transaction, Write

logger = logging.getLogger(__name__)

ROWS_AT_ONCE: Final = 1_000
"""Most rows that are deleted in one transaction: some ten milliseconds."""

_GRAVES: Final = select(sessions.c.key).where(sessions.c.scope == GRAVEYARD_KEY)
_GRAVE: Final = select(sessions.c.key).where(sessions.c.key == bindparam("row")).with_for_update()
_LEFT_OF_EVENTS: Final = (
    select(events.c.sequence)
    .where(events.c.session == bindparam("row"))
    .order_by(events.c.sequence)
    .offset(bindparam("rows"))
    .limit(1)
)
_LEFT_OF_RUNS: Final = (
    select(runs.c.key)
    .where(runs.c.session == bindparam("row"))
    .order_by(runs.c.key)
    .offset(bindparam("rows"))
    .limit(1)
)
_LEFT_OF_TOKENS: Final = (
    select(retry_tokens.c.request_id)
    .where(retry_tokens.c.session == bindparam("row"))
    .order_by(retry_tokens.c.request_id)
    .offset(bindparam("rows"))
    .limit(1)
)


def bury(tx: Transaction, session_key: int, limit: int = ROWS_AT_ONCE) -> bool:
    """Take a session away with as many of its rows as the limit allows. Whether some are left for `dig`."""
    if _delete_rows(tx, session_key, limit):
        tx.connection.execute(delete(sessions).where(sessions.c.key == session_key))
        return False
    tx.connection.execute(
        update(sessions)
        .where(sessions.c.key == session_key)
        .values(
            scope=GRAVEYARD_KEY,
            id=str(session_key),
            body=None,
            agent_id="",
            live_agent=None,
            deleted_at=None,
            owner="",
            ticket_id="",
            lease_until=0,
            notified_sequence=NEVER,
        )
    )
    return True


def dig(tx: Transaction, session_key: int, limit: int = ROWS_AT_ONCE) -> bool:
    """Delete more of a buried session's rows. Whether some are left."""
    if tx.connection.execute(_GRAVE, {"row": session_key}).first() is None:
        return False  # another process has finished it
    is_done = _delete_rows(tx, session_key, limit)
    if is_done:
        tx.connection.execute(delete(sessions).where(sessions.c.key == session_key))
    return not is_done


def graves(connection: Connection) -> list[int]:
    """Sessions of which something is left to delete."""
    return list(connection.execute(_GRAVES).scalars())


def free_ids(tx: Transaction, scope: int, ids: Collection[bytes]) -> None:
    """Delete those of the events that belong to buried sessions: their ids are free again."""
    tx.connection.execute(
        delete(events).where(
            events.c.scope == scope, events.c.id.in_(ids), events.c.session.in_(_GRAVES.scalar_subquery())
        )
    )


def _delete_rows(tx: Transaction, session_key: int, limit: int) -> bool:
    """Delete up to `limit` rows that belong to a session. Whether none is left."""
    for left, column, condition in (
        (_LEFT_OF_EVENTS, events.c.sequence, events.c.session == session_key),
        (_LEFT_OF_RUNS, runs.c.key, runs.c.session == session_key),
        (_LEFT_OF_TOKENS, retry_tokens.c.request_id, retry_tokens.c.session == session_key),
    ):
        bound = tx.connection.execute(left, {"row": session_key, "rows": limit}).scalar()
        doomed: ColumnElement[bool] = condition if bound is None else and_(condition, column < bound)
        result = tx.connection.execute(delete(column.table).where(doomed))
        if bound is not None:
            return False
        limit -= result.rowcount
    return True


class Writes(Protocol):
    """Whoever makes writes."""

    async def write(self, work: Write[bool], sessions: Collection[SessionKey] = ()) -> bool: ...


class Undertaker:
    """Deletes what is left of buried sessions, one small transaction after the other."""

    def __init__(self, writer: Writes) -> None:
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False

    async def finish(self, session_key: int) -> None:
        """Return when nothing is left of a session, or what is left has to wait; the work needs no caller.

        Raises nothing: the session is gone, whatever becomes of its rows.
        """
        await asyncio.wait((self._task(session_key),))

    def resume(self, session_keys: Collection[int]) -> None:
        """Go on with what an earlier process left."""
        for session_key in session_keys:
            self._task(session_key)

    async def close(self) -> None:
        """Stop after the transaction that is under way. What is left stays for whoever opens the database next."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def _task(self, session_key: int) -> asyncio.Task[None]:
        task = self._tasks.get(session_key)
        if task is None:
            task = asyncio.create_task(self._dig(session_key), name="deletion of a session's rows")
            self._tasks[session_key] = task
            task.add_done_callback(lambda done: self._ended(session_key, done))
        return task

    async def _dig(self, session_key: int) -> None:
        is_left = True
        grave = (GRAVEYARD_KEY, str(session_key))
        while is_left and not self._is_closed:
            async with paced():
                is_left = await self._writer.write(lambda tx: dig(tx, session_key), (grave,))

    def _ended(self, session_key: int, task: asyncio.Task[Any]) -> None:
        del self._tasks[session_key]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("rows of a deleted session are left for the next start", exc_info=error)
