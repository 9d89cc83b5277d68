"""The host's own stores, served: a remote caller uses them as its own, within its scope.

A write that reaches a session whose agent lives here is told to that agent; one that would go behind its back is
fenced by the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc.aio

from turndock.errors import TurndockError, not_found, not_offered
from turndock.ports import AgentPersistence, ArtifactStore, EventWatcher, InterruptedFlag, Query
from turndock.serving import add_agent_persistence, add_artifact_store
from turndock.serving.contracts import QUERY, SESSION_STORE
from turndock.serving.handlers import add_port
from turndock.store.v1 import (
    ArtifactStoreDeleteRequest,
    ArtifactStoreDeleteResponse,
    ArtifactStoreGetRequest,
    ArtifactStoreGetResponse,
    ArtifactStoreHeadRequest,
    ArtifactStoreHeadResponse,
    ArtifactStoreListRequest,
    ArtifactStoreListResponse,
    ArtifactStorePutRequest,
    ArtifactStorePutResponse,
    CancelRunRequest,
    CancelRunResponse,
    EditRunRequest,
    EditRunResponse,
    EnqueueRunRequest,
    EnqueueRunResponse,
    ExportSessionRequest,
    ExportSessionResponse,
    GetCostSummaryRequest,
    GetCostSummaryResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    LoadStateRequest,
    LoadStateResponse,
    ModelPrice,
    PersistStateRequest,
    PersistStateResponse,
    RenewClaimsRequest,
    RenewClaimsResponse,
    SetInterruptedRequest,
    SetInterruptedResponse,
    WatchEventsRequest,
    WatchEventsResponse,
)
from turndock.types.v1 import Scope
from turndock.wire import close_stream
from turndock_server.access import Role
from turndock_server.core.feed import AgentKey
from turndock_server.core.host import Host
from turndock_server.core.journal import Journal
from turndock_server.core.prompts import Prompts
from turndock_server.services.callers import caller, check_fence, may_use


class SessionStoreService:
    """The journal as remote callers get it: every call checks the scope first."""

    def __init__(self, host: Host, watcher: EventWatcher | None, prompts: Prompts) -> None:
        self._host = host
        self._prompts = prompts
        self._journal: Journal = host.journal
        self._watcher = watcher

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve every RPC the store has."""
        add_port(server, SESSION_STORE, self)

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        """The journal's call of that name, for requests within the caller's scope."""
        if name == "list_orphans" or name.startswith("_"):
            raise AttributeError(name)
        if name == "watch_events" and self._watcher is not None:
            return self._watch_events
        call: Callable[[Any], Awaitable[Any]] = getattr(self._journal, name)

        async def scoped(request: Any) -> Any:
            _check_scope(request)
            return await call(request)

        return scoped

    async def list_sessions(self, request: ListSessionsRequest) -> ListSessionsResponse:
        """List one scope's sessions; every scope's only for the host itself."""
        if request.every_scope:
            raise TurndockError("PERMISSION_DENIED", "every_scope is for the host alone")
        _check_scope(request)
        return await self._journal.list_sessions(request)

    async def renew_claims(self, request: RenewClaimsRequest) -> RenewClaimsResponse:
        """Prolong leases; each claim names its own scope."""
        for claim in request.claims:
            _check_scope(claim)
        return await self._journal.renew_claims(request)

    async def enqueue_run(self, request: EnqueueRunRequest) -> EnqueueRunResponse:
        """Put a run into a mailbox, and have its agent look."""
        _check_scope(request)
        key = _key(request, request.run.session_id)
        if caller().role < Role.ADMIN:
            request = await self._prompts.bounded(key, request)
        return await self._host.roster.enqueue_run(key, request)

    async def edit_run(self, request: EditRunRequest) -> EditRunResponse:
        """Change a waiting run before its agent begins it."""
        _check_scope(request)
        if caller().role < Role.ADMIN:
            self._prompts.check_size(request.prompt, "prompt")
        return EditRunResponse(
            run=await self._host.roster.edit_run(_key(request, request.session_id), request)
        )

    async def cancel_run(self, request: CancelRunRequest) -> CancelRunResponse:
        """End a waiting run before its agent begins it."""
        _check_scope(request)
        return await self._host.roster.cancel_run(_key(request, request.session_id), request)

    async def _watch_events(self, request: WatchEventsRequest) -> AsyncIterator[WatchEventsResponse]:
        _check_scope(request)
        watcher = self._watcher
        if watcher is None:
            raise not_offered("SessionStore.WatchEvents")
        batches = watcher.watch_events(request)
        try:
            async for batch in batches:
                yield batch
        finally:
            await close_stream(batches)


class ArtifactStoreService:
    """The artifact store as remote callers get it: every call checks the scope first."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve every RPC."""
        add_artifact_store(server, self)

    async def put(self, requests: AsyncIterator[ArtifactStorePutRequest]) -> ArtifactStorePutResponse:
        """Store bytes."""
        first = await anext(requests, None)
        if first is None:
            return await self._store.put(requests)
        _check_scope(first.header)  # before the store is asked for anything

        async def all_of_them() -> AsyncIterator[ArtifactStorePutRequest]:
            yield first
            async for request in requests:
                if request.HasField("header"):
                    _check_scope(request.header)
                yield request

        return await self._store.put(all_of_them())

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        """Read bytes."""
        _check_scope(request)
        parts = self._store.get(request)
        try:
            async for part in parts:
                yield part
        finally:
            await close_stream(parts)

    async def delete(self, request: ArtifactStoreDeleteRequest) -> ArtifactStoreDeleteResponse:
        """Delete bytes."""
        _check_scope(request)
        return await self._store.delete(request)

    async def head(self, request: ArtifactStoreHeadRequest) -> ArtifactStoreHeadResponse:
        """Read what is known of bytes."""
        _check_scope(request)
        return await self._store.head(request)

    async def list(self, request: ArtifactStoreListRequest) -> ArtifactStoreListResponse:
        """List what is stored."""
        _check_scope(request)
        return await self._store.list(request)


class AgentPersistenceService:
    """What keeps snapshots as remote callers get it: every call checks the scope first, and answers its error."""

    def __init__(self, persistence: AgentPersistence) -> None:
        self._persistence = persistence

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve every RPC."""
        add_agent_persistence(server, self)

    async def persist_state(self, request: PersistStateRequest) -> PersistStateResponse:
        """Store a snapshot."""
        _check_scope(request)
        return await self._persistence.persist_state(request)

    async def load_state(self, request: LoadStateRequest) -> LoadStateResponse:
        """Read a snapshot."""
        _check_scope(request)
        return await self._persistence.load_state(request)

    async def set_interrupted(self, request: SetInterruptedRequest) -> SetInterruptedResponse:
        """Store whether a conversation waits, if there is who keeps that."""
        _check_scope(request)
        if not isinstance(self._persistence, InterruptedFlag):
            raise not_offered("AgentPersistence.SetInterrupted")
        return await self._persistence.set_interrupted(request)


class QueryService:
    """The query as remote callers get it: every call checks the scope first."""

    def __init__(self, query: Query, prices: Sequence[ModelPrice]) -> None:
        """`prices` are those of requests that bring none."""
        self._query = query
        self._prices = prices

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve every RPC."""
        add_port(server, QUERY, self)

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        """The query's call of that name, for requests within the caller's scope."""
        if name.startswith("_"):
            raise AttributeError(name)
        call: Callable[[Any], Awaitable[Any]] = getattr(self._query, name)

        async def scoped(request: Any) -> Any:
            _check_scope(request)
            return await call(request)

        return scoped

    async def get_cost_summary(self, request: GetCostSummaryRequest) -> GetCostSummaryResponse:
        """Add up costs, by the server's own prices unless the request brings some."""
        _check_scope(request)
        if self._prices and not request.pricing_table:
            priced = GetCostSummaryRequest(pricing_table=self._prices)
            priced.MergeFrom(request)
            request = priced
        return await self._query.get_cost_summary(request)

    async def export_session(self, request: ExportSessionRequest) -> AsyncIterator[ExportSessionResponse]:
        """Stream a session."""
        _check_scope(request)
        parts = self._query.export_session(request)
        try:
            async for part in parts:
                yield part
        finally:
            await close_stream(parts)


def _check_scope(request: Any) -> None:
    """Another scope than the caller's has nothing in it, and a session's owner writes into it. Raises NOT_FOUND.

    Raises PERMISSION_DENIED for a fence from somebody who may not claim.
    """
    if not may_use(request.scope if request.HasField("scope") else None):
        raise not_found("scope", request.scope.tenant)
    if "fence" in request.DESCRIPTOR.fields_by_name:
        check_fence(request)


def _key(request: Any, session_id: str) -> AgentKey:
    scope: Scope | None = request.scope if request.HasField("scope") else None
    return AgentKey.of(scope, session_id)
