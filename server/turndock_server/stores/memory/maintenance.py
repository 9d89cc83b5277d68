"""`MemoryMaintenance`: retention and health of a store in memory."""

from __future__ import annotations

from collections.abc import Mapping

from turndock.ports import ArtifactStore
from turndock_server.stores.maintenance import StoreMaintenance
from turndock_server.stores.maintenance.expiry import OnDeleted
from turndock_server.stores.memory.store import MemorySessionStore


class MemoryMaintenance(StoreMaintenance):
    """`turndock.ports.Maintenance` of a `MemorySessionStore`."""

    def __init__(
        self,
        store: MemorySessionStore,
        *,
        artifacts: ArtifactStore | None = None,
        archives: Mapping[str, ArtifactStore] | None = None,
        on_deleted: OnDeleted | None = None,
    ) -> None:
        """As `StoreMaintenance`."""
        super().__init__(store.upkeep(), artifacts=artifacts, archives=archives, on_deleted=on_deleted)
