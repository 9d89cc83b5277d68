"""Appending. Numbers are dealt out while the database is locked, so that every log is 1, 2, 3, … however many write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar

from google.protobuf.message import Message
from sqlalchemy import Dialect, bindparam, insert, select, update

from turndock.errors import TurndockError
from turndock.store.v1 import ExpectedSequence
from turndock.types.v1 import Event, Fence
from turndock_server.stores import rules
from turndock_server.stores.sql import encoding, sessions
from turndock_server.stores.sql.encoding import Draft
from turndock_server.stores.sql.schema import events as events_table
from turndock_server.stores.sql.schema import sessions as sessions_table
from turndock_server.stores.sql.sessions import Partition, SessionRow
from turndock_server.stores.sql.tokens import Repeatable, once
from turndock_server.stores.sql.transaction import Transaction

R = TypeVar("R", bound=Message)

_CHUNK: Final = 500
"""Most event ids in one statement, far below the 32,766 parameters SQLite takes."""

_KNOWN: Final = select(events_table.c.id, events_table.c.body).where(
    events_table.c.scope == bindparam("scope"), events_table.c.id.in_(bindparam("ids", expanding=True))
)
_ADVANCE: Final = (
    update(sessions_table)
    .where(sessions_table.c.key == bindparam("row"))
    .values(
        {name: bindparam(name) for name in ("last_sequence", "largest_event", "last_notification", "epoch")}
    )
)
_EVENT_COLUMNS: Final = ("session", "sequence", "scope", "id", "type", "run", "stored_at", "body")


class Append:
    """The events of one call, ready to be numbered."""

    __slots__ = ("drafts", "expected", "fence", "field", "is_owners", "is_strict", "partition", "size")

    def __init__(
        self,
        partition: Partition,
        events: Iterable[Event],
        *,
        field: str,
        expected: ExpectedSequence | None = None,
        fence: Fence | None = None,
        is_strict: bool = False,
        is_owners: bool = True,
    ) -> None:
        self.partition = partition
        self.drafts = [encoding.draft(event) for event in events]
        self.field = field
        """Path of the events in the request; of an only one if it has no index."""
        self.expected = expected
        self.fence = fence
        self.is_strict = is_strict
        self.is_owners = is_owners
        """Whether a session that somebody owns takes it from its owner alone."""
        self.size = sum(len(draft.body) for draft in self.drafts)

    @property
    def session_ids(self) -> set[str]:
        """The sessions whose logs it goes to."""
        return {draft.session_id for draft in self.drafts}


@dataclass(slots=True)
class _Log:
    """A session's log in the middle of a transaction."""

    row: SessionRow
    tenant: str
    suffix: bytes
    is_changed: bool = False


@dataclass(frozen=True, slots=True)
class _Numbered:
    log: _Log
    sequence: int
    draft: Draft
    body: bytes


class Book:
    """The logs one transaction appends to, and what it puts into them."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._logs: dict[tuple[int, str], _Log] = {}
        self._known: dict[tuple[int, bytes], bytes] = {}
        """Stored bodies by scope and event id, as far as they were looked up or come from this transaction."""
        self._fresh: list[_Numbered] = []

    def open(self, partition: Partition, rows: Iterable[SessionRow]) -> None:
        """Make these sessions' logs ready to be appended to."""
        for row in rows:
            suffix = encoding.stored_suffix(row.incarnation, self._tx.now_us)
            self._logs[partition.key, row.id] = _Log(row, partition.tenant, suffix)

    async def look_up(self, appends: Iterable[Append]) -> None:
        """Find out which event ids are known. Without it a known one fails the transaction when it is written."""
        wanted: dict[int, set[bytes]] = {}
        for append in appends:
            wanted.setdefault(append.partition.key, set()).update(draft.key for draft in append.drafts)
        for scope, keys in wanted.items():
            remaining = list(keys)
            for first in range(0, len(remaining), _CHUNK):
                chunk = remaining[first : first + _CHUNK]
                for key, body in await self._tx.connection.execute(_KNOWN, {"scope": scope, "ids": chunk}):
                    self._known[scope, key] = body

    def number(self, append: Append) -> list[bytes]:
        """Give each event of an append its number. Returns what became of each, encoded (see `encoding.result`).

        A refused append leaves the book as it was. Raises FENCED, SEQUENCE_CONFLICT, IDEMPOTENCY_CONFLICT.
        """
        scope = append.partition.key
        logs = [self._logs[scope, session_id] for session_id in append.session_ids]
        for log in logs:
            if append.is_owners:
                log.row.check_fence(append.fence, self._tx.now_us)
            _check_expected(log.row, append.expected)
        if append.is_strict:
            self._check_duplicates(append)
        for log in logs:
            if append.fence is not None and append.fence.epoch > log.row.epoch:
                log.row.see(append.fence)
                log.is_changed = log.row.key is not None
        return [self._put(scope, draft) for draft in append.drafts]

    async def write(self) -> None:
        """Write the events and the sessions' rows."""
        changed = [log for log in self._logs.values() if log.is_changed]
        advanced = [
            {
                "row": log.row.key,
                "last_sequence": log.row.last_sequence,
                "largest_event": log.row.largest_event,
                "last_notification": log.row.last_notification,
                "epoch": log.row.epoch,
            }
            for log in changed
            if log.row.key is not None
        ]
        for log in changed:
            if log.row.key is None:
                await sessions.put(self._tx, log.row)
        await self.write_events()
        if advanced:
            await self._tx.connection.execute(_ADVANCE, advanced)

    async def write_events(self) -> None:
        """Write the events alone, after the rows of their sessions."""
        if not self._fresh:
            return
        rows = [
            (
                each.log.row.key,
                each.sequence,
                each.log.row.scope,
                each.draft.key,
                each.draft.type,
                each.draft.run,
                self._tx.now_us,
                each.body,
            )
            for each in self._fresh
        ]
        await self._tx.connection.exec_driver_sql(_insert_sql(self._tx.connection.dialect), rows)
        self._tx.grown.update({(each.log.tenant, each.log.row.id) for each in self._fresh})

    def _check_duplicates(self, append: Append) -> None:
        seen: dict[bytes, bytes] = {}
        for index, draft in enumerate(append.drafts):
            before = self._known.get((append.partition.key, draft.key)) or seen.setdefault(
                draft.key, draft.body
            )
            if before is not draft.body and encoding.differs(draft.event, before):
                path = append.field if append.field == "event" else f"{append.field}[{index}]"
                raise rules.event_conflict(draft.event, path)

    def _put(self, scope: int, draft: Draft) -> bytes:
        known = self._known.get((scope, draft.key))
        if known is not None:
            return encoding.result(known, is_duplicate=True, differs=encoding.differs(draft.event, known))
        log = self._logs[scope, draft.session_id]
        row = log.row
        row.last_sequence += 1
        body = encoding.stored_body(draft.body, row.last_sequence, log.suffix)
        row.largest_event = max(row.largest_event, len(body))
        if draft.is_notification:
            row.last_notification = row.last_sequence
        log.is_changed = True
        self._known[scope, draft.key] = body
        self._fresh.append(_Numbered(log, row.last_sequence, draft, body))
        return encoding.result(body)


async def append_all(tx: Transaction, appends: Sequence[Append]) -> list[list[bytes] | TurndockError]:
    """Append the events of several calls. What each is answered or refused with, in their order."""
    book = Book(tx)
    wanted: dict[Partition, set[str]] = {}
    for append in appends:
        wanted.setdefault(append.partition, set()).update(append.session_ids)
    for partition, session_ids in wanted.items():
        book.open(partition, (await sessions.load_all(tx, partition, session_ids)).values())
    if tx.is_careful:
        await book.look_up(appends)
    outcomes: list[list[bytes] | TurndockError] = []
    for append in appends:
        try:
            outcomes.append(book.number(append))
        except TurndockError as refusal:
            outcomes.append(refusal)
    await book.write()
    return outcomes


async def append_once(tx: Transaction, append: Append, request: Repeatable, answer: type[R]) -> R:
    """Append the events of one call that carries a retry token, which lives with the first event's session."""
    rows = await sessions.load_all(tx, append.partition, append.session_ids)

    async def write() -> R:
        book = Book(tx)
        book.open(append.partition, rows.values())
        if tx.is_careful:
            await book.look_up((append,))
        results = book.number(append)
        await book.write()
        return answer.FromString(b"".join(results))

    return await once(tx, rows[append.drafts[0].session_id], request, answer, write)


def _check_expected(row: SessionRow, expected: ExpectedSequence | None) -> None:
    """Refuse a write to a log that is not as its writer expects it (SEQUENCE_CONFLICT)."""
    condition = expected.WhichOneof("condition") if expected is not None else None
    if expected is None or condition is None or condition == "any":
        return
    if condition == "no_events" and not expected.no_events:
        return
    wanted = expected.last_sequence if condition == "last_sequence" else 0
    if row.last_sequence != wanted:
        raise TurndockError(
            "SEQUENCE_CONFLICT",
            f"the log of session {row.id!r} ends at {row.last_sequence}, not at {wanted}",
            metadata={"last_sequence": str(row.last_sequence), "expected": str(wanted)},
        )


@cache
def _insert_sql(dialect: Dialect) -> str:
    return str(insert(events_table).compile(dialect=dialect, column_keys=_EVENT_COLUMNS))
