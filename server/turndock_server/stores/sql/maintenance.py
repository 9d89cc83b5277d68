"""`SqlMaintenance`: retention and health of an SQL store."""

from __future__ import annotations

from collections.abc import Mapping

from turndock.ports import ArtifactStore
from turndock_server.stores.maintenance import StoreMaintenance
from turndock_server.stores.maintenance.expiry import OnDeleted
from turndock_server.stores.sql.store import SqlSessionStore


class SqlMaintenance(StoreMaintenance):
    """`turndock.ports.Maintenance` of a `SqlSessionStore`, which may be open in several processes."""

    def __init__(
        self,
        store: SqlSessionStore,
        *,
        artifacts: ArtifactStore | None = None,
        archives: Mapping[str, ArtifactStore] | None = None,
        on_deleted: OnDeleted | None = None,
    ) -> None:
        """As `StoreMaintenance`."""
        super().__init__(store.upkeep(), artifacts=artifacts, archives=archives, on_deleted=on_deleted)
