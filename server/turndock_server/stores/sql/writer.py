"""The one writer: whatever is queued is written in one transaction, and nobody is answered before its commit.

A write first refuses all that can be refused and only then changes rows. So a refused one leaves nothing behind, and
the others of its transaction are none the wiser. Only what nobody can foresee (a full disk, an event id that turns out
to be known) takes the transaction back; then every write of it is made in one of its own, so that a failure is the
failure of one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from turndock.errors import TurndockError
from turndock_server.core.journal import Appended
from turndock_server.stores.sql.appends import Append, BlockAppend, append_all
from turndock_server.stores.sql.engine import Database
from turndock_server.stores.sql.failures import REPORTED, is_everybodys, storage_error
from turndock_server.stores.sql.postgresql import SessionKey, lock_sessions
from turndock_server.stores.sql.sqlite import WAL_BOUND
from turndock_server.stores.sql.transaction import Transaction, Write
from turndock_server.stores.sql.wakeups import Bell, LogKey

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_GROUP: Final = 1_000
"""Most writes in one transaction."""

MAX_GROUP_BYTES: Final = 8 << 20
"""Most bytes of events in one transaction of several writes."""

_TRIES: Final = 3
_CHECKPOINT_PAUSE_SECONDS: Final = 5.0


@dataclass(slots=True)
class _Queued:
    work: Write[Any] | Append | BlockAppend
    sessions: Collection[SessionKey]
    """The sessions whose rows it loads; an append knows them by itself."""
    answer: asyncio.Future[Any]


class Writer:
    """Queues writes and commits them in groups."""

    def __init__(self, database: Database, bell: Bell, clock: Callable[[], int]) -> None:
        self._database = database
        self._bell = bell
        self._clock = clock
        self._queue: deque[_Queued] = deque()
        self._called = asyncio.Event()
        self._is_closing = False
        self._next_checkpoint = 0.0
        self._loop = asyncio.create_task(self._run(), name="store writer")

    async def write(self, work: Write[T], sessions: Collection[SessionKey] = ()) -> T:
        """Make a write that is about these sessions.

        Raises what it refuses with, or what the database reports, as `TurndockError`.
        """
        answer: T = await self._enqueue(work, sessions)
        return answer

    async def append(self, work: Append) -> list[bytes]:
        """Append events, together with other appends that wait. What became of each; raises as `write`."""
        results: list[bytes] = await self._enqueue(work)
        return results

    async def append_block(self, work: BlockAppend) -> Appended | list[bytes]:
        """Append a block. What became of each event if not all were new; raises as `write`."""
        results: Appended | list[bytes] = await self._enqueue(work)
        return results

    async def close(self) -> None:
        """Take nothing more, and commit what is queued."""
        self._is_closing = True
        self._called.set()
        await self._loop

    def _enqueue(
        self, work: Write[Any] | Append | BlockAppend, sessions: Collection[SessionKey] = ()
    ) -> asyncio.Future[Any]:
        if self._is_closing:
            raise TurndockError("SERVER_STOPPING", "the store is closed")
        queued = _Queued(work, sessions, asyncio.get_running_loop().create_future())
        self._queue.append(queued)
        self._called.set()
        return queued.answer

    async def _run(self) -> None:
        while True:
            while self._queue:
                await self._settle(self._next_group())
                await self._keep_wal_small()
            if self._is_closing:
                return
            self._called.clear()
            await self._called.wait()

    def _next_group(self) -> list[_Queued]:
        group: list[_Queued] = []
        size = 0
        while self._queue and len(group) < MAX_GROUP:
            work = self._queue[0].work
            size += work.size if isinstance(work, Append | BlockAppend) else 0
            if group and size > MAX_GROUP_BYTES:
                break
            queued = self._queue.popleft()
            if not queued.answer.cancelled():  # nobody waits for it, and nothing of it was promised
                group.append(queued)
        return group

    async def _settle(self, group: Sequence[_Queued]) -> None:
        """Commit a group and answer everybody in it."""
        for is_careful in (False, True):
            try:
                return _answer(group, await self._commit(group, is_careful=is_careful))
            except IntegrityError:
                continue
            except Exception as error:  # noqa: BLE001 - whoever waits for an answer gets this one
                if len(group) == 1 or is_everybodys(_reported(error)):
                    return _answer(group, [_reported(error) for _ in group])
                break
        for queued in group:
            await self._settle_alone(queued)

    async def _settle_alone(self, queued: _Queued) -> None:
        for remaining in reversed(range(_TRIES)):
            try:
                return _answer((queued,), await self._commit((queued,), is_careful=True))
            except IntegrityError as error:  # another process was faster between a look and a write
                if not remaining:
                    _answer((queued,), [_reported(error)])
            except Exception as error:  # noqa: BLE001 - whoever waits for an answer gets this one
                return _answer((queued,), [_reported(error)])

    async def _commit(self, group: Sequence[_Queued], *, is_careful: bool) -> list[Any]:
        now_us = self._clock()  # read here, as the clock belongs to the event loop's thread

        def perform(connection: Connection) -> tuple[list[Any], set[LogKey]]:
            transaction = Transaction(connection, now_us, is_careful)
            if len(group) > 1 and connection.dialect.name == "postgresql":
                _lock(connection, group)
            return _perform(transaction, [queued.work for queued in group]), transaction.grown

        outcomes, grown = await self._database.write(perform)
        self._bell.ring(grown)
        return outcomes

    async def _keep_wal_small(self) -> None:
        """Checkpoints happen by the way, at commits; here one is made that cuts the file, if it has grown too large."""
        if self._database.log_bytes() <= WAL_BOUND or time.monotonic() < self._next_checkpoint:
            return
        try:
            is_empty = await self._database.empty_log()
        except REPORTED:
            logger.exception("the write-ahead log could not be emptied")
            is_empty = False
        if not is_empty:
            self._next_checkpoint = time.monotonic() + _CHECKPOINT_PAUSE_SECONDS


def _perform(transaction: Transaction, group: Iterable[Write[Any] | Append | BlockAppend]) -> list[Any]:
    """What each write answers or refuses with. Appends that follow one another are one piece of work."""
    outcomes: list[Any] = []
    appends: list[Append | BlockAppend] = []
    for work in group:
        if isinstance(work, Append | BlockAppend):
            appends.append(work)
            continue
        if appends:
            outcomes += append_all(transaction, appends)
            appends = []
        try:
            outcomes.append(work(transaction))
        except TurndockError as refusal:
            outcomes.append(refusal)
    if appends:
        outcomes += append_all(transaction, appends)
    return outcomes


def _lock(connection: Connection, group: Iterable[_Queued]) -> None:
    """Lock the rows that a group will load, in one order for every process, so that nobody waits in a ring."""
    keys: set[SessionKey] = set()
    for queued in group:
        work = queued.work
        if isinstance(work, Append | BlockAppend):
            keys.update((work.partition.key, session_id) for session_id in work.session_ids)
        else:
            keys.update(queued.sessions)
    lock_sessions(connection, keys)


def _answer(group: Iterable[_Queued], outcomes: Iterable[Any]) -> None:
    for queued, outcome in zip(group, outcomes, strict=True):
        if queued.answer.done():  # the caller has gone
            continue
        if isinstance(outcome, Exception):
            queued.answer.set_exception(outcome)
        else:
            queued.answer.set_result(outcome)


def _reported(error: Exception) -> Exception:
    return storage_error(error) if isinstance(error, REPORTED) else error
