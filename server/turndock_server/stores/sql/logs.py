"""Reading logs. A page is two statements, each a transaction of its own: what a reader holds is never the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, select

from turndock.store.v1 import GetEventsRequest, GetEventsResponse
from turndock.types.v1 import Event
from turndock_server.core import feed
from turndock_server.core.wireformat import elements
from turndock_server.stores import checks
from turndock_server.stores.sql import encoding
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.schema import NEVER, events, sessions

_READ_BYTES: Final = 8 << 20
"""Most bytes of bodies that are fetched without looking at their sizes first."""


class Shape(NamedTuple):
    """Which statement a query needs."""

    by_run: bool
    by_type: bool
    by_time: bool
    is_descending: bool


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which events of a log are wanted."""

    after: int = 0
    before: int = NEVER
    run_id: str = ""
    types: tuple[int, ...] = ()
    since_us: int | None = None
    limit: int = checks.DEFAULT_EVENTS
    is_descending: bool = False

    @classmethod
    def of(cls, request: GetEventsRequest, limit: int) -> LogQuery:
        """What a request asks for."""
        return cls(
            after=min(request.after_sequence, NEVER),
            before=min(request.before_sequence, NEVER) if request.HasField("before_sequence") else NEVER,
            run_id=request.run_id,
            types=tuple(set(request.types)),
            since_us=request.since_us if request.HasField("since_us") else None,
            limit=limit,
            is_descending=request.descending,
        )

    @property
    def shape(self) -> Shape:
        """What the query's statement depends on."""
        return Shape(bool(self.run_id), bool(self.types), self.since_us is not None, self.is_descending)


StoredEvent = tuple[int, int, int, bytes]
"""Sequence, type, run key, body."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """A piece of a log, still encoded. The fields are those of GetEventsResponse."""

    events: Sequence[StoredEvent] = ()
    head: int = 0
    oldest: int = 0
    scanned_through: int = 0
    incarnation: str = ""
    pruned_through: int = 0

    @property
    def response(self) -> GetEventsResponse:
        """The page as callers get it."""
        response = GetEventsResponse.FromString(elements([body for *_, body in self.events]))
        response.head = self.head
        response.oldest = self.oldest
        response.scanned_through = self.scanned_through
        response.incarnation = self.incarnation
        response.pruned_through = self.pruned_through
        return response


_HEAD: Final = select(
    sessions.c.key,
    sessions.c.incarnation,
    sessions.c.last_sequence,
    sessions.c.pruned_through,
    sessions.c.largest_event,
    select(func.min(events.c.sequence)).where(events.c.session == sessions.c.key).scalar_subquery(),
).where(sessions.c.scope == bindparam("scope"), sessions.c.id == bindparam("id"))


def read_log(
    connection: Connection, partition: Partition | None, session_id: str, query: LogQuery
) -> LogPage:
    """A page of a log; of an unknown session, and in a partition nothing was ever stored in, an empty one."""
    if partition is None:
        return LogPage(scanned_through=query.after)
    found = connection.execute(_HEAD, {"scope": partition.key, "id": session_id}).first()
    if found is None:
        return LogPage(scanned_through=query.after)
    key, incarnation, head, pruned_through, largest_event, oldest = found
    first, last = query.after + 1, min(head, query.before - 1)
    rows: Sequence[StoredEvent] = ()
    scanned_through = query.after
    if first <= last and query.limit:
        fits = min(query.limit + 1, last - first + 1) * largest_event <= _READ_BYTES
        rows, is_cut = _read_range(connection, _arguments(key, first, last, query), query, fits=fits)
        scanned_through = rows[-1][0] if is_cut else first if query.is_descending else last
    return LogPage(rows, head, oldest or 0, scanned_through, incarnation, pruned_through)


def _read_range(
    connection: Connection, arguments: dict[str, Any], query: LogQuery, *, fits: bool
) -> tuple[Sequence[StoredEvent], bool]:
    """The events of a range that fit into a page, and whether there are more.

    Unless all candidates are known to fit into memory, their sizes are read first, and then what the page takes.
    """
    if fits:
        rows = connection.execute(_events(query.shape), arguments).all()
        taken = _fitting((len(body) for *_, body in rows), query.limit)
        return rows[:taken], taken < len(rows)
    sizes = connection.execute(_sizes(query.shape), arguments).all()
    taken = _fitting((size for _, size in sizes), query.limit)
    if not taken:
        return (), False
    end = {"first" if query.is_descending else "last": sizes[taken - 1][0], "rows": taken}
    rows = connection.execute(_events(query.shape), arguments | end).all()
    return rows, taken < len(sizes)


def _arguments(key: int, first: int, last: int, query: LogQuery) -> dict[str, Any]:
    arguments: dict[str, Any] = {"session": key, "first": first, "last": last, "rows": query.limit + 1}
    if query.run_id:
        arguments["run"] = encoding.run_key(query.run_id)
    if query.types:
        arguments["types"] = query.types
    if query.since_us is not None:
        arguments["since"] = query.since_us
    return arguments


def _fitting(sizes: Iterable[int], limit: int) -> int:
    """How many rows a page takes: not more than `limit`, and no more bytes than it may have unless it is one row."""
    taken = total = 0
    for size in sizes:
        total += size
        if taken == limit or (taken and total > checks.MAX_PAGE_BYTES):
            break
        taken += 1
    return taken


@cache
def _events(shape: Shape) -> Select[Any, Any, Any, Any]:
    return (
        select(events.c.sequence, events.c.type, events.c.run, events.c.body)
        .where(*_filters(shape))
        .order_by(_order(shape))
        .limit(bindparam("rows"))
    )


@cache
def _sizes(shape: Shape) -> Select[Any, Any]:
    return (
        select(events.c.sequence, func.length(events.c.body))
        .where(*_filters(shape))
        .order_by(_order(shape))
        .limit(bindparam("rows"))
    )


def _filters(shape: Shape) -> list[ColumnElement[bool]]:
    filters = [
        events.c.session == bindparam("session"),
        events.c.sequence.between(bindparam("first"), bindparam("last")),
    ]
    if shape.by_run:
        filters.append(events.c.run == bindparam("run"))
    if shape.by_type:
        # Numbers are written into the statement: however many there are, they are no parameters.
        filters.append(events.c.type.in_(bindparam("types", expanding=True, literal_execute=True)))
    if shape.by_time:
        filters.append(events.c.stored_at > bindparam("since"))
    return filters


def _order(shape: Shape) -> ColumnElement[int]:
    return events.c.sequence.desc() if shape.is_descending else events.c.sequence.asc()


def framed(page: LogPage) -> feed.LogPage:
    """The page for readers that pass events on without looking into them.

    The events' run ids are only in their bodies: one of each run is looked into.
    """
    names: dict[int, str] = {0: ""}
    for _, _, run, body in page.events:
        if run not in names:
            names[run] = Event.FromString(body).run_id
    frames = [(sequence, event_type, names[run], body) for sequence, event_type, run, body in page.events]
    return feed.LogPage(
        frames, page.head, page.oldest, page.scanned_through, page.incarnation, page.pruned_through
    )
