"""To, from or between stores of which nothing is known but their contract: what its calls can carry, call by call."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from turndock.errors import TurndockError
from turndock.ports import SessionStore
from turndock.store.v1 import (
    AppendEventsRequest,
    ExpectedSequence,
    GetEventsRequest,
    GetEventsResponse,
    GetSessionRequest,
    ListRunsRequest,
    ListSessionsRequest,
    SaveRunRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import Event, Page, Run, Session
from turndock_server.stores.checks import scope_of
from turndock_server.stores.copying.rows import Name


@dataclass(frozen=True, slots=True)
class Summary:
    """What a store says about a session, in short."""

    digest: str
    head: int


class Calls:
    """A store that is copied from or to by its calls."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def sessions(self, tenant: str | None) -> AsyncIterator[Session]:
        """The saved sessions of a scope, or of all of them for None."""
        cursor = ""
        while True:
            request = ListSessionsRequest(
                scope=scope_of(tenant or ""), every_scope=tenant is None, page=Page(cursor=cursor)
            )
            page = await self._store.list_sessions(request)
            for session in page.sessions:
                yield session
            cursor = page.next_cursor
            if not cursor:
                return

    async def get(self, name: Name) -> Session | None:
        """A session, if it was saved."""
        try:
            request = GetSessionRequest(scope=scope_of(name.tenant), session_id=name.id)
            return (await self._store.get_session(request)).session
        except TurndockError as error:
            if error.reason != "SESSION_NOT_FOUND":
                raise
            return None

    async def runs(self, name: Name) -> AsyncIterator[Run]:
        """A session's runs, in the mailbox's order."""
        cursor = ""
        while True:
            request = ListRunsRequest(
                scope=scope_of(name.tenant), session_id=name.id, page=Page(cursor=cursor)
            )
            page = await self._store.list_runs(request)
            for run in page.runs:
                yield run
            cursor = page.next_cursor
            if not cursor:
                return

    async def log(self, name: Name) -> AsyncIterator[GetEventsResponse]:
        """A session's log page by page, and at least one page."""
        after = 0
        while True:
            request = GetEventsRequest(scope=scope_of(name.tenant), session_id=name.id, after_sequence=after)
            page = await self._store.get_events(request)
            yield page
            if not page.events:
                return
            after = page.events[-1].sequence

    async def summary(self, name: Name, *, with_stamps: bool, upto: int | None = None) -> Summary | None:
        """A digest of a session, its runs and its log, or of the log alone as far as `upto`.

        Without what a store stamps by itself: `with_stamps`. None if the store knows nothing of the session.
        """
        digest = hashlib.sha256()
        session = await self.get(name)
        if upto is None:
            if session is not None:
                digest.update(
                    _stamped(session, with_stamps=with_stamps).SerializeToString(deterministic=True)
                )
            async for run in self.runs(name):
                digest.update(b"run" + hashlib.sha256(run.SerializeToString(deterministic=True)).digest())
        head = 0
        incarnation = ""
        async for page in self.log(name):
            head, incarnation = page.head, page.incarnation
            for event in page.events:
                if upto is not None and event.sequence > upto:
                    return Summary(digest.hexdigest(), head)
                own = event if with_stamps else _unstamped(event)
                digest.update(b"evt" + hashlib.sha256(own.SerializeToString(deterministic=True)).digest())
        return Summary(digest.hexdigest(), head) if session is not None or incarnation else None

    async def write(self, session: Session, source: Calls) -> None:
        """Copy a session from another store; what an earlier try has copied is left as it is.

        The session itself comes last: until then nobody runs what is in its mailbox. Raises ALREADY_EXISTS when there
        is other data in its place, INVALID_OPERATION when its numbers cannot be kept.
        """
        name = Name(session.scope.tenant, session.id)
        scope = scope_of(name.tenant)
        there = await self.summary(name, with_stamps=False, upto=0)
        head = there.head if there is not None else 0
        if head:
            copied = await self.summary(name, with_stamps=False, upto=head)
            same = await source.summary(name, with_stamps=False, upto=head)
            if same is None or copied is None or copied.digest != same.digest or head > same.head:
                raise _other(name)
        async for page in source.log(name):
            if page.pruned_through or page.oldest > 1:
                raise TurndockError(
                    "INVALID_OPERATION",
                    f"the log of session {name} begins at {page.oldest or page.pruned_through + 1}, as it was pruned;"
                    " a store that is written by its calls would number it anew",
                )
            fresh = [event for event in page.events if event.sequence > head]
            if fresh:
                expected = ExpectedSequence(last_sequence=fresh[0].sequence - 1)
                request = AppendEventsRequest(
                    scope=scope, events=fresh, expected=expected, strict_duplicates=True
                )
                await self._store.append_events(request)
                head = fresh[-1].sequence
        known = {run.id: run async for run in self.runs(name)}
        async for run in source.runs(name):
            if run.id not in known:
                await self._store.save_run(SaveRunRequest(scope=scope, run=run))
            elif known.pop(run.id) != run:
                raise _other(name)
        stored = await self.get(name)
        if stored is None:
            await self._store.save_session(SaveSessionRequest(scope=scope, session=session))
        elif _stamped(stored, with_stamps=False) != _stamped(session, with_stamps=False):
            raise _other(name)


def _other(name: Name) -> TurndockError:
    return TurndockError("ALREADY_EXISTS", f"the target has other data for session {name}")


def _stamped(session: Session, *, with_stamps: bool) -> Session:
    """A session without what says where it is kept."""
    result = Session()
    result.CopyFrom(session)
    result.ClearField("scope")
    if not with_stamps:
        result.ClearField("incarnation")
    return result


def _unstamped(event: Event) -> Event:
    result = Event()
    result.CopyFrom(event)
    result.ClearField("incarnation")
    result.ClearField("stored_at_us")
    return result
