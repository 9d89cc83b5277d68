"""Artifact stores for tests: as they are, behind gRPC, and short ways to call them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from turndock.conformance.artifact_store.suite import Fixture, stream
from turndock.ports import ArtifactStore
from turndock.remote.stores import RemoteArtifactStore
from turndock.serving import add_artifact_store
from turndock.store.v1 import ArtifactHeader, ArtifactStorePutRequest
from turndock.types.v1 import Scope
from turndock.wire import bind, connect, new_server

RED = Scope(tenant="red")
BLUE = Scope(tenant="blue")


def as_red(store: ArtifactStore) -> Fixture:
    """Short ways to call the store as tenant red."""
    return Fixture(store, RED)


@asynccontextmanager
async def behind_grpc(store: ArtifactStore) -> AsyncGenerator[RemoteArtifactStore]:
    """The same store with a real channel in between."""
    server = new_server()
    add_artifact_store(server, store)
    endpoint = bind(server, "127.0.0.1:0")
    await server.start()
    channel = connect(endpoint)
    try:
        yield RemoteArtifactStore(channel)
    finally:
        await channel.close()
        await server.stop(None)


async def endless(
    header: ArtifactHeader, pieces: Iterable[bytes], sent: asyncio.Event
) -> AsyncIterator[ArtifactStorePutRequest]:
    """An upload that never ends: it sets `sent` when the last of these pieces has been taken, and waits."""
    async for request in stream(header, *pieces):
        yield request
    sent.set()
    await asyncio.Event().wait()


def paths_below(root: Path) -> list[Path]:
    """Every file and folder below a folder."""
    return sorted(root.rglob("*"))


def files_below(root: Path) -> list[str]:
    """Every file that holds bytes or would have held some, below a FileArtifactStore's folder."""
    return sorted(str(path.relative_to(root)) for path in (root / "objects").rglob("*") if path.is_file())
