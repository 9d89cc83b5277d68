"""Queries for tests, with the stores they look into: in memory and SQL (over either driver), direct and behind gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from support.session_stores import sql, sql_async, sql_postgres
from turndock.ports import ArtifactStore, Query, SessionStore
from turndock.remote import RemoteQuery
from turndock.serving import add_query
from turndock.wire import bind, connect, new_server
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore
from turndock_server.stores.sql import SqlQuery, SqlSessionStore


@dataclass(frozen=True)
class Stored:
    """A Query and what it looks into."""

    query: Query
    store: SessionStore
    artifacts: ArtifactStore


Opener = Callable[[Path], AbstractAsyncContextManager[Stored]]
"""Opens a Query over stores that may keep their files in a folder."""


def over(opener: Callable[[Path], AbstractAsyncContextManager[SessionStore]]) -> Opener:
    """A `SqlQuery` over the stores of `opener`."""

    @asynccontextmanager
    async def open_query(folder: Path) -> AsyncGenerator[Stored]:
        async with opener(folder) as store:
            assert isinstance(store, SqlSessionStore)
            artifacts = MemoryArtifactStore()
            yield Stored(SqlQuery(store, artifacts), store, artifacts)

    return open_query


@asynccontextmanager
async def behind_grpc(query: Query) -> AsyncGenerator[RemoteQuery]:
    """The same Query with a real channel in between."""
    server = new_server()
    add_query(server, query)
    endpoint = bind(server, "127.0.0.1:0")
    await server.start()
    channel = connect(endpoint)
    try:
        yield RemoteQuery(channel)
    finally:
        await channel.close()
        await server.stop(None)


def remote(opener: Opener) -> Opener:
    """The Queries of `opener`, each behind gRPC; what it looks into stays where it is."""

    @asynccontextmanager
    async def open_remote(folder: Path) -> AsyncGenerator[Stored]:
        async with opener(folder) as stored, behind_grpc(stored.query) as query:
            yield Stored(query, stored.store, stored.artifacts)

    return open_remote


@asynccontextmanager
async def memory(folder: Path) -> AsyncGenerator[Stored]:
    """The Query of the store in memory."""
    store, artifacts = MemorySessionStore(), MemoryArtifactStore()
    yield Stored(store.query(artifacts), store, artifacts)
    await store.close()


QUERIES: dict[str, Opener] = {
    "sql": over(sql),
    "sql-async": over(sql_async),
    "postgres": over(sql_postgres),
    "memory": memory,
    "sql-grpc": remote(over(sql)),
    "memory-grpc": remote(memory),
}
"""Every implementation there is, by name."""
