"""Artifact stores for tests: as they are, behind gRPC, and short ways to call them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

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


def upload(key: str, *pieces: bytes, **header: Any) -> AsyncIterator[ArtifactStorePutRequest]:
    """An upload of tenant red."""
    return stream(ArtifactHeader(scope=RED, key=key, **header), *pieces)


def files_below(root: Path) -> list[str]:
    """Every file that holds bytes or would have held some, below a FileArtifactStore's folder."""
    return sorted(str(path.relative_to(root)) for path in (root / "objects").rglob("*") if path.is_file())
