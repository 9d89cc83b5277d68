"""Lists: pages of sessions and runs, cut by rows and by bytes. A page is one statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Table,
    and_,
    bindparam,
    func,
    or_,
    select,
    true,
    tuple_,
    union,
)

from turndock.store.v1 import (
    ListOrphansRequest,
    ListOrphansResponse,
    ListRunsRequest,
    ListRunsResponse,
    ListSessionsRequest,
    ListSessionsResponse,
)
from turndock.types.v1 import Page, RunStatus, Session
from turndock_server.stores import checks
from turndock_server.stores.cursors import PageCodec, Place
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.runs import visible as visible_run
from turndock_server.stores.sql.schema import runs, scopes, sessions
from turndock_server.stores.sql.sessions import visible as visible_session

Order = Sequence[tuple[Column[Any], bool]]
"""Columns, and whether each is descending."""

_NEWEST_FIRST: Final[Order] = (
    (sessions.c.updated_at, True),
    (sessions.c.id, False),
    (sessions.c.scope, False),
)
_BY_KEY: Final[Order] = ((sessions.c.key, False),)
_MAILBOX_ORDER: Final[Order] = ((runs.c.queue_key, False), (runs.c.created_at, False), (runs.c.id, False))


def list_sessions(
    connection: Connection, tenant: str, partition: Partition | None, request: ListSessionsRequest
) -> ListSessionsResponse:
    """ListSessions. `partition` is None if nothing was ever stored in the tenant's."""
    codec = PageCodec("ListSessions", tenant, request)
    after = codec.decode(request.page.cursor)
    wanted: list[ColumnElement[bool]] = [sessions.c.body.is_not(None)]
    if not request.every_scope:
        wanted.append(sessions.c.scope == (partition.key if partition else None))
    if request.statuses:
        wanted.append(_is_one_of(sessions.c.status, request.statuses))
    if request.agent_id:
        wanted.append(sessions.c.agent_id == request.agent_id)
    if request.live_agents_only:
        wanted.append(sessions.c.live_agent.is_not(None))
    if request.hide_deleted:
        wanted.append(sessions.c.deleted_at.is_(None))
    if after is not None:
        wanted.append(_is_older(*after))
    rows, has_more = _page(connection, sessions, wanted, _NEWEST_FIRST, request.page)
    last: Place = (rows[-1].updated_at, rows[-1].id, rows[-1].scope) if rows else ()
    return ListSessionsResponse(
        sessions=_visible(connection, rows), next_cursor=codec.encode(last) if has_more else ""
    )


def list_orphans(connection: Connection, now_us: int, request: ListOrphansRequest) -> ListOrphansResponse:
    """ListOrphans."""
    codec = PageCodec("ListOrphans", checks.UNSCOPED, request)
    after = codec.decode(request.page.cursor)
    with_runs = (
        select(runs.c.session)
        .join(sessions, sessions.c.key == runs.c.session)
        .where(
            runs.c.unsettled == 1,
            or_(runs.c.status != RunStatus.RUN_STATUS_PENDING, sessions.c.halted == 0),
        )
    )
    with_notifications = select(sessions.c.key).where(
        sessions.c.last_notification > sessions.c.notified_sequence
    )
    is_lapsed = sessions.c.lease_until <= now_us
    wanted = [
        sessions.c.body.is_not(None),
        sessions.c.key.in_(union(with_runs, with_notifications)),
        or_(sessions.c.rests_until.is_(None), sessions.c.rests_until <= now_us),
        or_(
            sessions.c.owner == "",
            and_(sessions.c.owner != request.owner, true() if request.sole_host else is_lapsed),
        ),
    ]
    if after is not None:
        wanted.append(sessions.c.key > after[0])
    rows, has_more = _page(connection, sessions, wanted, _BY_KEY, request.page)
    return ListOrphansResponse(
        sessions=_visible(connection, rows),
        next_cursor=codec.encode((rows[-1].key,)) if has_more else "",
    )


def list_runs(
    connection: Connection, tenant: str, partition: Partition | None, request: ListRunsRequest
) -> ListRunsResponse:
    """ListRuns. `partition` is None if nothing was ever stored in the tenant's."""
    codec = PageCodec("ListRuns", tenant, request)
    after = codec.decode(request.page.cursor)
    session = select(sessions.c.key).where(
        sessions.c.scope == (partition.key if partition else None), sessions.c.id == request.session_id
    )
    wanted: list[ColumnElement[bool]] = [runs.c.session == session.scalar_subquery()]
    if request.statuses:
        wanted.append(_is_one_of(runs.c.status, request.statuses))
    if after is not None:
        wanted.append(tuple_(runs.c.queue_key, runs.c.created_at, runs.c.id) > tuple_(*after))
    rows, has_more = _page(connection, runs, wanted, _MAILBOX_ORDER, request.page)
    last: Place = (rows[-1].queue_key, rows[-1].created_at, rows[-1].id) if rows else ()
    return ListRunsResponse(
        runs=[visible_run(row.body, row.queue_key) for row in rows],
        next_cursor=codec.encode(last) if has_more else "",
    )


def _is_one_of(column: Column[Any], numbers: Iterable[int]) -> ColumnElement[bool]:
    """The numbers are written into the statement: however many there are, they are no parameters."""
    return column.in_(bindparam(None, sorted(set(numbers)), expanding=True, literal_execute=True))


def _is_older(updated_at: int | str, session_id: int | str, scope: int | str) -> ColumnElement[bool]:
    """What comes after a place in the order of `_NEWEST_FIRST`."""
    return and_(
        sessions.c.updated_at <= updated_at,  # implied by the rest, and what an index can be searched with
        or_(
            sessions.c.updated_at < updated_at,
            sessions.c.id > session_id,
            and_(sessions.c.id == session_id, sessions.c.scope > scope),
        ),
    )


def _page(
    connection: Connection,
    table: Table,
    wanted: Sequence[ColumnElement[bool]],
    order: Order,
    page: Page,
) -> tuple[Sequence[Row[Any]], bool]:
    """The rows of a page, and whether there are more. A row that makes the page too heavy is not even fetched."""
    limit = checks.page_limit(page)
    candidates = (
        select(
            table.c.key.label("row"),
            func.length(table.c.body).label("size"),
            *(column.label(column.name) for column, _ in order),
        )
        .where(*wanted)
        .order_by(*_in_order([column for column, _ in order], order))
        .limit(limit + 1)
        .subquery()
    )
    again = _in_order([candidates.c[column.name] for column, _ in order], order)
    weighed = select(
        candidates.c.row,
        func.row_number().over(order_by=again).label("place"),
        func.sum(candidates.c.size).over(order_by=again, rows=(None, 0)).label("total"),
        func.count().over().label("candidates"),
    ).subquery()
    statement = (
        select(table, weighed.c.candidates)
        .join(weighed, weighed.c.row == table.c.key)
        .where(or_(weighed.c.place == 1, weighed.c.total <= checks.MAX_PAGE_BYTES))
        .order_by(weighed.c.place)
    )
    rows = connection.execute(statement).all()
    taken = rows[:limit]
    return taken, bool(rows) and rows[0].candidates > len(taken)


def _in_order(columns: Sequence[ColumnElement[Any]], order: Order) -> list[ColumnElement[Any]]:
    return [
        column.desc() if is_descending else column.asc()
        for column, (_, is_descending) in zip(columns, order, strict=True)
    ]


def _visible(connection: Connection, rows: Sequence[Row[Any]]) -> list[Session]:
    """The sessions in these rows as callers see them."""
    keys = {row.scope for row in rows}
    found = connection.execute(select(scopes.c.key, scopes.c.tenant).where(scopes.c.key.in_(keys)))
    tenants = dict(found.all())
    return [visible_session(row.body, tenants[row.scope], row.incarnation, row.last_sequence) for row in rows]
