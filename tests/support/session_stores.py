"""Session stores for tests: in memory and SQL, as they are and behind gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from turndock import events
from turndock.ports import SessionStore
from turndock.remote.stores import RemoteSessionStore
from turndock.serving import add_session_store
from turndock.wire import bind, connect, new_server
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
    "memory-grpc": remote(memory),
    "sql-grpc": remote(sql),
}
"""Every implementation there is, by name."""
