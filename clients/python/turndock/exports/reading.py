"""An export by a session store's own calls: of any store, also one that offers no Query."""

from __future__ import annotations

from collections.abc import AsyncIterator

from turndock.ports import ArtifactStore, SessionStore
from turndock.store.v1 import (
    ArtifactBatch,
    ArtifactStoreListRequest,
    ExportEnd,
    ExportSessionResponse,
    GetEventsRequest,
    GetSessionRequest,
    ListRunsRequest,
    RunBatch,
)
from turndock.types.v1 import EventBatch, Page, Scope


async def read_session(
    store: SessionStore, scope: Scope | None, session_id: str, *, artifacts: ArtifactStore | None = None
) -> AsyncIterator[ExportSessionResponse]:
    """All of a session, in the parts and the order of `Query.ExportSession`; with `artifacts` also their rows.

    Events that are stored after the call began are left out. A run that changes meanwhile is as it was when it was
    read: for a session whose agent is at work, `Query.ExportSession` is the one that sees a single moment. Raises
    SESSION_NOT_FOUND, and what the stores raise.
    """
    session = (await store.get_session(GetSessionRequest(scope=scope, session_id=session_id))).session
    end = ExportEnd(head=session.last_sequence)
    yield ExportSessionResponse(session=session)

    cursor = ""
    while True:
        runs = await store.list_runs(
            ListRunsRequest(scope=scope, session_id=session_id, page=Page(cursor=cursor))
        )
        if runs.runs:
            end.run_count += len(runs.runs)
            yield ExportSessionResponse(runs=RunBatch(runs=runs.runs))
        if not (cursor := runs.next_cursor):
            break

    after = 0
    while after < end.head:
        log = await store.get_events(
            GetEventsRequest(
                scope=scope, session_id=session_id, after_sequence=after, before_sequence=end.head + 1
            )
        )
        if log.events:
            end.event_count += len(log.events)
            yield ExportSessionResponse(events=EventBatch(events=log.events))
        if log.scanned_through <= after:
            break
        after = log.scanned_through

    while artifacts is not None:
        rows = await artifacts.list(
            ArtifactStoreListRequest(scope=scope, session_id=session_id, page=Page(cursor=cursor))
        )
        if rows.artifacts:
            end.artifact_count += len(rows.artifacts)
            yield ExportSessionResponse(artifacts=ArtifactBatch(artifacts=rows.artifacts))
        if not (cursor := rows.next_cursor):
            break
    yield ExportSessionResponse(end=end)
