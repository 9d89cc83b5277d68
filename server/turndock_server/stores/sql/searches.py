"""SearchSessions and SearchRuns."""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, Connection, Integer, func, literal_column, select

from turndock.store.v1 import (
    RunOrder,
    SearchRunsRequest,
    SearchRunsResponse,
    SearchSessionsRequest,
    SearchSessionsResponse,
    SessionOrder,
)
from turndock_server.stores import query_checks
from turndock_server.stores.query_checks import Cursors
from turndock_server.stores.sql.pages import Search, count, is_one_of, read_page
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.runs import visible as visible_run
from turndock_server.stores.sql.schema import run_tokens, runs, session_tags, sessions
from turndock_server.stores.sql.sessions import visible as visible_session

RUNS_AND_SESSIONS: Final = runs.join(sessions, sessions.c.key == runs.c.session)


def search_sessions(
    connection: Connection, tenant: str, partition: Partition | None, request: SearchSessionsRequest
) -> SearchSessionsResponse:
    """SearchSessions. `partition` is None if nothing was ever stored in the tenant's; the request has its order."""
    limit = query_checks.page_limit(request.page)
    cursors = Cursors("SearchSessions", tenant, request, (int, str))
    after = cursors.after(request.page.cursor)
    if partition is None:
        return SearchSessionsResponse()
    is_by_change = request.order == SessionOrder.SESSION_ORDER_UPDATED_AT_DESC
    search = Search(
        table=sessions,
        source=sessions,
        wanted=_wanted_sessions(partition, request),
        order=(sessions.c.updated_at if is_by_change else sessions.c.created_at, sessions.c.id),
        is_descending=request.order != SessionOrder.SESSION_ORDER_CREATED_AT_ASC,
    )
    page = read_page(connection, search, after, limit)
    return SearchSessionsResponse(
        sessions=[visible_session(row.body, tenant, row.incarnation, row.last_sequence) for row in page.rows],
        next_cursor=cursors.next(page.last),
        total_count=count(connection, search),
    )


def _wanted_sessions(partition: Partition, request: SearchSessionsRequest) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = [sessions.c.scope == partition.key, sessions.c.body.is_not(None)]
    if request.agent_id:
        wanted.append(sessions.c.agent_id == request.agent_id)
    if request.statuses:
        wanted.append(is_one_of(sessions.c.status, request.statuses))
    if request.provider:
        answered = select(runs.c.session).where(
            runs.c.scope == partition.key, runs.c.provider == request.provider
        )
        wanted.append(sessions.c.key.in_(answered))
    if request.tags:
        tags = sorted(set(request.tags))
        tagged = (
            select(session_tags.c.session)
            .where(session_tags.c.scope == partition.key, session_tags.c.tag.in_(tags))
            .group_by(session_tags.c.session)
            .having(func.count() == literal_column(str(len(tags)), Integer))
        )
        wanted.append(sessions.c.key.in_(tagged))
    if request.HasField("created_after_us"):
        wanted.append(sessions.c.created_at >= request.created_after_us)
    if request.HasField("created_before_us"):
        wanted.append(sessions.c.created_at <= request.created_before_us)
    if not request.include_deleted:
        wanted.append(sessions.c.deleted_at.is_(None))
    return wanted


def search_runs(
    connection: Connection, tenant: str, partition: Partition | None, request: SearchRunsRequest
) -> SearchRunsResponse:
    """SearchRuns. As `search_sessions`."""
    limit = query_checks.page_limit(request.page)
    cursors = Cursors("SearchRuns", tenant, request, (int, str, str))
    after = cursors.after(request.page.cursor)
    if partition is None:
        return SearchRunsResponse()
    is_by_tokens = request.order == RunOrder.RUN_ORDER_TOKEN_USAGE_DESC
    search = Search(
        table=runs,
        source=RUNS_AND_SESSIONS,
        wanted=_wanted_runs(partition, request),
        order=(run_tokens if is_by_tokens else runs.c.started_at, runs.c.id, sessions.c.id),
        is_descending=request.order != RunOrder.RUN_ORDER_STARTED_AT_ASC,
    )
    page = read_page(connection, search, after, limit)
    return SearchRunsResponse(
        runs=[visible_run(row.body, row.queue_key) for row in page.rows],
        next_cursor=cursors.next(page.last),
        total_count=count(connection, search),
    )


def of_partition(partition: Partition, session_id: str = "") -> list[ColumnElement[bool]]:
    """What is true of a partition's runs, or of one session's in it.

    The session decides: runs of a deleted one may still have to be cleared away.
    """
    is_there = sessions.c.scope == partition.key
    if session_id:
        return [is_there, sessions.c.id == session_id]
    return [is_there, runs.c.scope == partition.key]


def _wanted_runs(partition: Partition, request: SearchRunsRequest) -> list[ColumnElement[bool]]:
    wanted = of_partition(partition, request.session_id)
    if request.provider:
        wanted.append(runs.c.provider == request.provider)
    if request.statuses:
        wanted.append(is_one_of(runs.c.status, request.statuses))
    if request.HasField("started_after_us"):
        wanted.append(runs.c.started_at >= max(request.started_after_us, 1))
    if request.HasField("started_before_us"):
        wanted.append(runs.c.started_at.between(1, request.started_before_us))
    if request.HasField("min_tokens"):
        wanted.append(run_tokens >= request.min_tokens)
    return wanted
