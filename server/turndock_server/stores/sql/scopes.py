"""Partitions by number: a name is looked up once and never changes its number."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from turndock_server.stores import checks
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.schema import UNSCOPED_KEY, scopes
from turndock_server.stores.sql.transaction import Transaction


class Scopes:
    """The partitions this process has met."""

    def __init__(self) -> None:
        self._keys = {checks.UNSCOPED: UNSCOPED_KEY}

    def known(self, tenant: str) -> Partition | None:
        """The partition, if it was met before."""
        key = self._keys.get(tenant)
        return None if key is None else Partition(key, tenant)

    def find(self, connection: Connection, tenant: str) -> Partition | None:
        """The partition; None if nothing was ever stored in it."""
        known = self.known(tenant)
        if known is None:
            key = (connection.execute(select(scopes.c.key).where(scopes.c.tenant == tenant))).scalar()
            if key is not None:
                known = self.remember(Partition(key, tenant))
        return known

    def remember(self, partition: Partition) -> Partition:
        """The partition, whose number is committed, and known from now on."""
        self._keys[partition.tenant] = partition.key
        return partition


def make(tx: Transaction, tenant: str) -> Partition:
    """The partition, with a number given out now if it has none. A write of its own: other writes rely on it."""
    found = tx.connection.execute(select(scopes.c.key).where(scopes.c.tenant == tenant))
    key: int | None = found.scalar()
    if key is not None:
        return Partition(key, tenant)
    made = tx.connection.execute(insert(scopes).values(tenant=tenant).returning(scopes.c.key))
    return Partition(made.scalar_one(), tenant)
