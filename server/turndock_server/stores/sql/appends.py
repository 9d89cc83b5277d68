"""Appending. Numbers are dealt out while the database is locked, so that every log is 1, 2, 3, … however many write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from sqlalchemy import BindParameter, Connection, Dialect, bindparam, insert, select, update

from turndock.errors import TurndockError
from turndock.store.v1 import ExpectedSequence
from turndock.types.v1 import Event, EventType, Fence
from turndock_server.core.journal import Appended, NewEvents
from turndock_server.core.wireformat import elements, varint
from turndock_server.stores import rules
from turndock_server.stores.sql import encoding, graves, rows
from turndock_server.stores.sql.encoding import Draft
from turndock_server.stores.sql.rows import Partition, SessionRow
from turndock_server.stores.sql.schema import events as events_table
from turndock_server.stores.sql.schema import sessions as sessions_table
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
_ROWS_AT_ONCE: Final = (128, 16, 4, 1)

EventRow = tuple[int, int, int, bytes, int, int, int, bytes]
"""The values of `_EVENT_COLUMNS`."""

_CUSTOM: Final = EventType.EVENT_TYPE_CUSTOM

_EVENT_COLUMNS: Final = ("session", "sequence", "scope", "id", "type", "run", "stored_at", "body")


class Append:
    """The events of one call, ready to be numbered."""

    __slots__ = (
        "drafts",
        "expected",
        "fence",
        "field",
        "is_owners",
        "is_strict",
        "partition",
        "session_ids",
        "size",
    )

    def __init__(
        self,
        partition: Partition,
        drafts: Sequence[Draft],
        *,
        field: str,
        expected: ExpectedSequence | None = None,
        fence: Fence | None = None,
        is_strict: bool = False,
        is_owners: bool = True,
    ) -> None:
        self.partition = partition
        self.drafts = drafts
        self.session_ids = {session_id for session_id, *_ in drafts}
        """The sessions whose logs it goes to."""
        self.field = field
        """Path of the events in the request; of an only one if it has no index."""
        self.expected = expected
        self.fence = fence
        self.is_strict = is_strict
        self.is_owners = is_owners
        """Whether a session that somebody owns takes it from its owner alone."""
        self.size = sum([len(body) for *_, body in drafts])


class BlockAppend:
    """New events of one run, of which nobody needs to hear by itself what became of it."""

    __slots__ = ("fence", "new", "partition", "size")

    def __init__(self, partition: Partition, new: NewEvents) -> None:
        self.partition = partition
        self.new = new
        self.fence = Fence(epoch=new.epoch)
        self.size = new.size

    @property
    def session_ids(self) -> set[str]:
        """The session whose log it goes to."""
        return {self.new.key.session_id}

    def one_by_one(self) -> Append:
        """The same with a word about each event."""
        drafts = encoding.drafts_of(self.new)
        return Append(self.partition, drafts, field="events", fence=self.fence, is_strict=True)


@dataclass(slots=True)
class _Log:
    """A session's log in the middle of a transaction."""

    row: SessionRow
    tenant: str
    suffix: bytes
    is_changed: bool = False


class Book:
    """The logs one transaction appends to, and what it puts into them."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._logs: dict[tuple[int, str], _Log] = {}
        self._known: defaultdict[int, dict[bytes, bytes]] = defaultdict(dict)
        """Stored bodies by scope and event id, as far as they were looked up or come from this transaction."""
        self._fresh: list[EventRow] = []

    def open(self, partition: Partition, sessions: Iterable[SessionRow]) -> None:
        """Make these sessions' logs ready to be appended to."""
        for row in sessions:
            suffix = encoding.stored_suffix(row.incarnation, self._tx.now_us)
            self._logs[partition.key, row.id] = _Log(row, partition.tenant, suffix)

    def look_up(self, appends: Iterable[Append]) -> None:
        """Find out which event ids are known. Without it a known one fails the transaction when it is written."""
        wanted: defaultdict[int, set[bytes]] = defaultdict(set)
        for append in appends:
            wanted[append.partition.key].update(key for _, key, *_ in append.drafts)
        for scope, keys in wanted.items():
            remaining = list(keys)
            for first in range(0, len(remaining), _CHUNK):
                chunk = remaining[first : first + _CHUNK]
                graves.free_ids(self._tx, scope, chunk)
                found = self._tx.connection.execute(_KNOWN, {"scope": scope, "ids": chunk})
                self._known[scope].update(found.all())

    def number(self, append: Append) -> list[bytes]:
        """Give each event of an append its number. Returns what became of each, encoded as in `encoding`.

        A refused append leaves the book as it was. Raises FENCED, SEQUENCE_CONFLICT, IDEMPOTENCY_CONFLICT.
        """
        logs = self._admit(append)
        known = self._known[append.partition.key]
        if append.is_strict:
            _check_duplicates(append, known)
        if append.fence is not None:
            for log in logs.values():
                self._see(append.fence, log)
        return [self._put(logs[draft[0]], known, draft) for draft in append.drafts]

    def number_block(self, append: BlockAppend) -> Appended:
        """The same for a block, as if none of its events was known. (If one is, writing them will fail.)"""
        new, now_us = append.new, self._tx.now_us
        log = self._logs[append.partition.key, new.key.session_id]
        row, suffix = log.row, log.suffix
        row.check_fence(append.fence, now_us)
        self._see(append.fence, log)
        self._change(log)
        run = encoding.run_key(new.run_id)
        session, scope = row.key or 0, row.scope
        first = sequence = row.last_sequence + 1
        bodies: list[bytes] = []
        for key, event_type, written in new.events:
            body = b"".join((written, encoding.SEQUENCE, varint(sequence), suffix))
            bodies.append(body)
            self._fresh.append((session, sequence, scope, key, event_type, run, now_us, body))
            sequence += 1
        row.last_sequence = sequence - 1
        row.largest_event = max(row.largest_event, *map(len, bodies))
        return Appended(first, sequence - 1, row.incarnation, now_us, elements(bodies))

    def _admit(self, append: Append) -> dict[str, _Log]:
        """The logs of an append, if its fence and its expectation hold."""
        logs = {session_id: self._logs[append.partition.key, session_id] for session_id in append.session_ids}
        for log in logs.values():
            if append.is_owners:
                log.row.check_fence(append.fence, self._tx.now_us)
            _check_expected(log.row, append.expected)
        return logs

    def _see(self, fence: Fence, log: _Log) -> None:
        if fence.epoch > log.row.epoch:
            log.row.see(fence)
            log.is_changed = log.row.key is not None

    def _change(self, log: _Log) -> None:
        if not log.is_changed:
            log.is_changed = True
            if log.row.key is None:
                rows.put(self._tx, log.row)

    def _put(self, log: _Log, known: dict[bytes, bytes], draft: Draft) -> bytes:
        """Put an event into its log, unless its id is known. Returns what became of it."""
        _, key, event_type, run, written = draft
        before = known.get(key)
        if before is not None:
            return encoding.known_result(before, differs=encoding.differs(written, before))
        row = log.row
        row.last_sequence = sequence = row.last_sequence + 1
        known[key] = body = b"".join((written, encoding.SEQUENCE, varint(sequence), log.suffix))
        size = len(body)
        if size > row.largest_event:  # noqa: PLR1730 - `max` is a call, and this is done for every event
            row.largest_event = size
        if event_type == _CUSTOM and encoding.is_notification(written):
            row.last_notification = sequence
        self._change(log)
        self._fresh.append((row.key or 0, sequence, row.scope, key, event_type, run, self._tx.now_us, body))
        return encoding.result_prefix(size) + body

    def write(self) -> None:
        """Write the events and the sessions' rows."""
        self.write_events()
        changed = [log.row for log in self._logs.values() if log.is_changed]
        if changed:
            advanced = [
                {
                    "row": row.key,
                    "last_sequence": row.last_sequence,
                    "largest_event": row.largest_event,
                    "last_notification": row.last_notification,
                    "epoch": row.epoch,
                }
                for row in changed
            ]
            self._tx.connection.execute(_ADVANCE, advanced)

    def write_events(self) -> None:
        """Write the events alone. The rows of their sessions are to be written after `number`."""
        if self._fresh:
            _insert(self._tx.connection, self._fresh)
            self._tx.grown.update((log.tenant, log.row.id) for log in self._logs.values() if log.is_changed)


def append_all(
    tx: Transaction, appends: Sequence[Append | BlockAppend]
) -> list[Appended | list[bytes] | TurndockError]:
    """Append the events of several calls. What each is answered or refused with, in their order."""
    book = Book(tx)
    wanted: dict[Partition, set[str]] = {}
    for append in appends:
        wanted.setdefault(append.partition, set()).update(append.session_ids)
    for partition, session_ids in wanted.items():
        book.open(partition, (rows.load_all(tx, partition, session_ids)).values())
    if tx.is_careful:
        appends = singly = [each.one_by_one() if isinstance(each, BlockAppend) else each for each in appends]
        book.look_up(singly)
    outcomes: list[Appended | list[bytes] | TurndockError] = []
    for append in appends:
        try:
            if isinstance(append, BlockAppend):
                outcomes.append(book.number_block(append))
            else:
                outcomes.append(book.number(append))
        except TurndockError as refusal:
            outcomes.append(refusal)
    book.write()
    return outcomes


def append_once(tx: Transaction, append: Append, request: Repeatable, answer: type[R]) -> R:
    """Append the events of one call that carries a retry token, which lives with the first event's session."""
    found = rows.load_all(tx, append.partition, append.session_ids)

    def write() -> R:
        book = Book(tx)
        book.open(append.partition, found.values())
        if tx.is_careful:
            book.look_up((append,))
        results = book.number(append)
        book.write()
        return answer.FromString(b"".join(results))

    return once(tx, found[append.drafts[0][0]], request, answer, write)


def _check_duplicates(append: Append, known: Mapping[bytes, bytes]) -> None:
    """Refuse known ids with other payloads, also those that are known from the same append (IDEMPOTENCY_CONFLICT)."""
    seen: dict[bytes, bytes] = {}
    for index, (_, key, _, _, written) in enumerate(append.drafts):
        before = known.get(key) or seen.setdefault(key, written)
        if before is not written and encoding.differs(written, before):
            raise rules.event_conflict(
                Event.FromString(written),
                append.field if append.field == "event" else f"{append.field}[{index}]",
            )


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


def _insert(connection: Connection, rows: Sequence[EventRow]) -> None:
    """Insert rows, many at once: a third faster than row by row, and the interpreter's lock changes hands less."""
    done = 0
    for size in _ROWS_AT_ONCE:
        statement = _insert_sql(connection.dialect, size)
        while len(rows) - done >= size:
            values = tuple(chain.from_iterable(rows[done : done + size]))
            connection.exec_driver_sql(statement, values)
            done += size


@cache
def _insert_sql(dialect: Dialect, rows: int) -> str:
    row: dict[str, BindParameter[Any]] = {name: bindparam(None, unique=True) for name in _EVENT_COLUMNS}
    return str(insert(events_table).values([row] * rows).compile(dialect=dialect))
