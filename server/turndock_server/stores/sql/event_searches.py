"""SearchEvents and CountEvents.

What is in the table of events is searched there: sessions, runs, types, numbers. What is only in the events' bodies is
searched in the index of events, which has all the rest, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import ColumnElement, Connection, FromClause, Table, and_, func, select

from turndock.store.v1 import (
    CountEventsRequest,
    CountEventsResponse,
    EventFilter,
    EventOrder,
    SearchEventsRequest,
    SearchEventsResponse,
)
from turndock_server.core.wireformat import elements
from turndock_server.stores import query_checks
from turndock_server.stores.cursors import Place
from turndock_server.stores.query_checks import Cursors
from turndock_server.stores.sql import encoding
from turndock_server.stores.sql.event_index import name_key
from turndock_server.stores.sql.pages import Page, Search, count, is_one_of, read_page
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.schema import event_index, events, is_correlated, sessions

_WIDER: Final = 4


@dataclass(frozen=True, slots=True)
class _Place:
    """Where events are searched."""

    table: Table
    bodies: FromClause
    """The table with the events themselves and their sessions."""
    sessions: FromClause
    """The table with the sessions."""


_IN_TABLE: Final = _Place(
    events,
    events.join(sessions, sessions.c.key == events.c.session),
    events.join(sessions, sessions.c.key == events.c.session),
)
_IN_INDEX: Final = _Place(
    event_index,
    event_index.join(
        events,
        and_(events.c.session == event_index.c.session, events.c.sequence == event_index.c.sequence),
    ).join(sessions, sessions.c.key == event_index.c.session),
    event_index.join(sessions, sessions.c.key == event_index.c.session),
)


def needs_index(wanted: EventFilter, order: EventOrder.ValueType) -> bool:
    """Whether a search asks for what is only in the events' bodies."""
    return (
        order not in {EventOrder.EVENT_ORDER_UNSPECIFIED, EventOrder.EVENT_ORDER_SEQUENCE_ASC}
        or wanted.HasField("since_us")
        or wanted.HasField("until_us")
        or bool(wanted.providers or wanted.correlation_id)
    )


def search_events(
    connection: Connection, tenant: str, partition: Partition | None, request: SearchEventsRequest
) -> SearchEventsResponse:
    """SearchEvents. `partition` is None if nothing was ever stored in the tenant's; the request has its order.

    The index must be up to date if the request needs it.
    """
    limit = query_checks.page_limit(request.page, query_checks.DEFAULT_EVENTS)
    by_number = request.order == EventOrder.EVENT_ORDER_SEQUENCE_ASC
    cursors = Cursors("SearchEvents", tenant, request, (int, str) if by_number else (int, int, str))
    after = cursors.after(request.page.cursor)
    if partition is None:
        return SearchEventsResponse()
    wanted = request.filter
    if by_number:
        place = _IN_INDEX if needs_index(wanted, request.order) else _IN_TABLE
        page = _by_number(connection, place, partition, wanted, (after, limit))
    else:
        search = Search(
            table=events,
            source=_IN_INDEX.bodies,
            wanted=_wanted(event_index, partition, wanted),
            order=(event_index.c.time, event_index.c.sequence, sessions.c.id),
            is_descending=request.order == EventOrder.EVENT_ORDER_TIME_DESC,
        )
        page = read_page(connection, search, after, limit)
    response = SearchEventsResponse.FromString(elements([row.body for row in page.rows]))
    response.next_cursor = cursors.next(page.last)
    return response


def count_events(
    connection: Connection, partition: Partition | None, request: CountEventsRequest
) -> CountEventsResponse:
    """CountEvents. As `search_events`."""
    if partition is None:
        return CountEventsResponse()
    wanted = request.filter
    place = _IN_INDEX if needs_index(wanted, EventOrder.EVENT_ORDER_UNSPECIFIED) else _IN_TABLE
    search = Search(
        table=place.table,
        source=place.sessions,
        wanted=_wanted(place.table, partition, wanted),
        order=(),
    )
    return CountEventsResponse(event_count=count(connection, search))


def _by_number(
    connection: Connection,
    place: _Place,
    partition: Partition,
    wanted: EventFilter,
    at: tuple[Place | None, int],
) -> Page:
    """A page in the order of numbers, behind a place and with a limit.

    Over several logs no index has that order. So the logs are read side by side, each from the same number on, in a
    window that is made wider until it holds a page: what it costs depends on how many logs there are, not how long.
    """
    after, limit = at
    logs = [sessions.c.scope == partition.key]
    if wanted.session_ids:
        logs.append(sessions.c.id.in_(sorted(set(wanted.session_ids))))
    first = int(after[0]) if after is not None else 1
    reaching = (*logs, sessions.c.last_sequence >= first)
    longest, log_count = connection.execute(
        select(func.max(sessions.c.last_sequence), func.count()).where(*reaching)
    ).one()
    number = place.table.c.sequence
    search = Search(
        table=events,
        source=place.bodies,
        wanted=[*logs, *_filters(place.table, wanted)],
        order=(number, sessions.c.id),
    )
    width = limit // max(log_count, 1) + 1
    while longest is not None:
        last = first + width
        within = replace(search, wanted=[*search.wanted, number.between(first, last)])
        page = read_page(connection, within, after, limit)
        if page.is_full or last >= longest:
            return page
        width *= _WIDER
    return Page()


def _wanted(table: Table, partition: Partition, wanted: EventFilter) -> list[ColumnElement[bool]]:
    """Events of sessions that are in the partition now: those of a deleted one may still have to be cleared away."""
    filters = [sessions.c.scope == partition.key, *_filters(table, wanted)]
    if wanted.session_ids:
        filters.append(sessions.c.id.in_(sorted(set(wanted.session_ids))))
    elif not wanted.correlation_id:
        filters.append(table.c.scope == partition.key)  # where no index leads to fewer than the scope's
    return filters


def _filters(table: Table, wanted: EventFilter) -> list[ColumnElement[bool]]:
    filters: list[ColumnElement[bool]] = []
    if wanted.run_ids:
        filters.append(is_one_of(table.c.run, {encoding.run_key(run_id) for run_id in wanted.run_ids}))
    if wanted.types:
        types: Sequence[int] = wanted.types
        filters.append(is_one_of(table.c.type, types))
    if wanted.providers:
        filters.append(is_one_of(table.c.provider, set(map(name_key, wanted.providers))))
    if wanted.HasField("since_us"):
        filters.append(table.c.time >= wanted.since_us)
    if wanted.HasField("until_us"):
        filters.append(table.c.time <= wanted.until_us)
    if wanted.correlation_id:
        filters.append(is_correlated)  # follows from the next; said for its index
        filters.append(table.c.correlation == name_key(wanted.correlation_id))
    return filters
