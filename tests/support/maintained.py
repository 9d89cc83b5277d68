"""Stores with their maintenance, for tests: in memory and SQL (over either driver), as they are and behind gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from support import postgres
from turndock import serving, wire
from turndock.conformance.maintenance import SUITE, Fixture
from turndock.ports import ArtifactStore, Maintenance, SessionStore
from turndock.remote import RemoteArtifactStore, RemoteMaintenance, RemoteSessionStore
from turndock_server.stores.artifacts import forgetting
from turndock_server.stores.files import FileArtifactStore
from turndock_server.stores.maintenance import StoreMaintenance
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.memory.upkeep import MemoryUpkeep
from turndock_server.stores.memory_artifacts import MemoryArtifactStore
from turndock_server.stores.sql import SqlMaintenance, SqlSessionStore

ARCHIVE = "cold"


@dataclass(frozen=True)
class Maintained:
    """A store, its maintenance, and the artifact stores that belong to it."""

    store: SessionStore
    maintenance: Maintenance
    artifacts: ArtifactStore
    archive: ArtifactStore = field(default_factory=MemoryArtifactStore)

    def fixture(self) -> Fixture:
        """What a case gets."""
        return Fixture(
            maintenance=self.maintenance,
            store=self.store,
            artifacts=self.artifacts,
            archive=self.archive,
            archive_store=ARCHIVE,
            abilities=SUITE.abilities,
        )


Opener = Callable[[Path], AbstractAsyncContextManager[Maintained]]


@asynccontextmanager
async def memory(
    folder: Path,
    *,
    upkeep: type[MemoryUpkeep] = MemoryUpkeep,
    maintenance: type[StoreMaintenance] = StoreMaintenance,
) -> AsyncGenerator[Maintained]:
    """The store in memory. `upkeep` and `maintenance` may be broken ones."""
    store, artifacts, archive = MemorySessionStore(), MemoryArtifactStore(), MemoryArtifactStore()
    kept = maintenance(
        upkeep(store._database),
        artifacts=artifacts,
        archives={ARCHIVE: archive},
        on_deleted=forgetting(artifacts),
    )
    try:
        yield Maintained(store, kept, artifacts, archive)
    finally:
        await store.close()


@asynccontextmanager
async def sql(folder: Path, url: str = "") -> AsyncGenerator[Maintained]:
    """The SQL store on a file of its own or a database, with artifacts in files."""
    store = await SqlSessionStore.open(url or folder / "store.db")
    artifacts, archive = FileArtifactStore(folder / "artifacts"), MemoryArtifactStore()
    await artifacts.open()
    maintenance = SqlMaintenance(
        store, artifacts=artifacts, archives={ARCHIVE: archive}, on_deleted=forgetting(artifacts)
    )
    try:
        yield Maintained(store, maintenance, artifacts, archive)
    finally:
        await store.close()
        await artifacts.close()


@asynccontextmanager
async def sql_async(folder: Path) -> AsyncGenerator[Maintained]:
    """The SQL store over the asynchronous driver."""
    async with sql(folder, f"sqlite+aiosqlite:///{folder / 'store.db'}") as maintained:
        yield maintained


@asynccontextmanager
async def sql_postgres(folder: Path) -> AsyncGenerator[Maintained]:
    """The SQL store on a PostgreSQL database that others have used before."""
    async with sql(folder, postgres.server().common_database()) as maintained:
        yield maintained


def remote(opener: Opener) -> Opener:
    """What `opener` opens, with a real channel in between."""

    @asynccontextmanager
    async def open_remote(folder: Path) -> AsyncGenerator[Maintained]:
        async with opener(folder) as maintained:
            server = wire.new_server()
            serving.add_session_store(server, maintained.store)
            serving.add_artifact_store(server, maintained.artifacts)
            serving.add_maintenance(server, maintained.maintenance)
            endpoint = wire.bind(server, "127.0.0.1:0")
            await server.start()
            try:
                async with wire.connect(endpoint) as channel:
                    yield replace(
                        maintained,
                        store=RemoteSessionStore(channel),
                        artifacts=RemoteArtifactStore(channel),
                        maintenance=RemoteMaintenance(channel),
                    )
            finally:
                await server.stop(0)

    return open_remote


MAINTAINED: dict[str, Opener] = {
    "memory": memory,
    "sql": sql,
    "sql-async": sql_async,
    "postgres": sql_postgres,
    "memory-grpc": remote(memory),
    "sql-grpc": remote(sql),
}
"""Every implementation there is, by name."""
