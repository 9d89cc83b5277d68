"""Session stores for tests: in memory and SQL (over either driver), as they are and behind gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from support import postgres
from turndock import events
from turndock.ports import SessionStore
from turndock.remote.stores import RemoteSessionStore
from turndock.serving import add_session_store
from turndock.store.v1 import GetEventsRequest, GetEventsResponse
from turndock.wire import bind, connect, new_server
from turndock_server.stores.checks import MAX_WAIT_MS
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.sql import SqlSessionStore

Opener = Callable[[Path], AbstractAsyncContextManager[SessionStore]]
"""Opens a store that may keep its files in a folder."""


@asynccontextmanager
async def memory(folder: Path, clock: Callable[[], int] = events.now_us) -> AsyncGenerator[SessionStore]:
    """The store in memory."""
    store = MemorySessionStore(clock)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def sql(folder: Path, clock: Callable[[], int] = events.now_us) -> AsyncGenerator[SessionStore]:
    """The SQL store on a file of its own."""
    store = await SqlSessionStore.open(folder / "store.db", clock=clock)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def sql_async(folder: Path) -> AsyncGenerator[SessionStore]:
    """The SQL store over the asynchronous driver."""
    store = await SqlSessionStore.open(f"sqlite+aiosqlite:///{folder / 'store.db'}")
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def sql_postgres(folder: Path) -> AsyncGenerator[SessionStore]:
    """The SQL store on a PostgreSQL database that others have used before."""
    store = await SqlSessionStore.open(postgres.server().common_database())
    try:
        yield store
    finally:
        await store.close()


class PlainSessionStore:
    """No more than the fourteen required calls, of which a read never waits."""

    def __init__(self) -> None:
        store = MemorySessionStore()
        self.save_session, self.get_session = store.save_session, store.get_session
        self.list_sessions, self.delete_session = store.list_sessions, store.delete_session
        self.save_run, self.get_run = store.save_run, store.get_run
        self.list_runs, self.get_active_run = store.list_runs, store.get_active_run
        self.append_event, self.append_events = store.append_event, store.append_events
        self.append_event_with_sequence = store.append_event_with_sequence
        self.get_latest_sequence, self.flush = store.get_latest_sequence, store.flush
        self._store = store

    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        at_once = GetEventsRequest()
        at_once.CopyFrom(request)
        if 0 <= request.wait_ms <= MAX_WAIT_MS:
            at_once.ClearField("wait_ms")
        return await self._store.get_events(at_once)


@asynccontextmanager
async def behind_grpc(store: SessionStore) -> AsyncGenerator[RemoteSessionStore]:
    """The same store with a real channel in between."""
    server = new_server()
    add_session_store(server, store)
    endpoint = bind(server, "127.0.0.1:0")
    await server.start()
    channel = connect(endpoint)
    try:
        yield RemoteSessionStore(channel)
    finally:
        await channel.close()
        await server.stop(None)


def remote(opener: Opener) -> Opener:
    """The stores of `opener`, each behind gRPC."""

    @asynccontextmanager
    async def open_remote(folder: Path) -> AsyncGenerator[SessionStore]:
        async with opener(folder) as store, behind_grpc(store) as proxy:
            yield proxy

    return open_remote


STORES: dict[str, Opener] = {
    "memory": memory,
    "sql": sql,
    "sql-async": sql_async,
    "memory-grpc": remote(memory),
    "sql-grpc": remote(sql),
    "postgres": sql_postgres,
}
"""Every implementation there is, by name. A channel in between is the same for every database."""
