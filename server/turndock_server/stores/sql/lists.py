"""Lists: pages of sessions and runs, cut by rows and by bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Table, and_, func, or_, select, tuple_, union
from sqlalchemy.ext.asyncio import AsyncConnection

from turndock.store.v1 import (
    ListOrphansRequest,
    ListOrphansResponse,
    ListRunsRequest,
    ListRunsResponse,
    ListSessionsRequest,
    ListSessionsResponse,
)
from turndock.types.v1 import Page, RunStatus
from turndock_server.stores import checks
from turndock_server.stores.cursors import PageCodec, Place
from turndock_server.stores.sql import runs as run_rows
from turndock_server.stores.sql import sessions as session_rows
from turndock_server.stores.sql.schema import runs, scopes, sessions

_NEWEST_FIRST: Final = (sessions.c.updated_at.desc(), sessions.c.id, sessions.c.scope)


async def list_sessions(
    connection: AsyncConnection, partition: str, scope: int | None, request: ListSessionsRequest
) -> ListSessionsResponse:
    """ListSessions. `scope` is the partition's key; None if nothing was ever stored in it."""
    codec = PageCodec("ListSessions", partition, request)
    after = codec.decode(request.page.cursor)
    wanted: list[ColumnElement[bool]] = [sessions.c.body.is_not(None)]
    if not request.every_scope:
        wanted.append(sessions.c.scope == scope)
    if request.statuses:
        wanted.append(sessions.c.status.in_(list(request.statuses)))
    if request.agent_id:
        wanted.append(sessions.c.agent_id == request.agent_id)
    if request.live_agents_only:
        wanted.append(sessions.c.live_agent.is_not(None))
    if request.hide_deleted:
        wanted.append(sessions.c.deleted_at.is_(None))
    if after is not None:
        wanted.append(_follows(after))
    found, has_more = await _page(
        connection, sessions, select(sessions.c.key).where(*wanted).order_by(*_NEWEST_FIRST), request.page
    )
    listed = await _sessions(connection, found)
    raise NotImplementedError
