"""Opening a database: connected, and with this release's schema."""

from __future__ import annotations

from pathlib import Path

from turndock_server.stores.sql import migrations
from turndock_server.stores.sql.engine import Database
from turndock_server.stores.sql.products import product_of
from turndock_server.stores.sql.sqlite import Synchronous


async def open_database(
    target: str | Path,
    *,
    password: str | None = None,
    synchronous: Synchronous = "full",
    busy_timeout_ms: int = 5_000,
    readers: int = 4,
    migrate: bool = True,
) -> Database:
    """The database at a path or URL; see `SqlSessionStore.open`, which raises the same."""
    product = product_of(target, password=password, synchronous=synchronous, busy_timeout_ms=busy_timeout_ms)
    database = Database(product, busy_timeout_ms=busy_timeout_ms, readers=readers)
    try:
        await database.open()
        if not await database.patiently(lambda: database.read(migrations.is_current)):
            if not migrate:
                raise migrations.required()
            await database.patiently(lambda: database.write(migrations.bring_up_to_date))
    except BaseException:
        await database.close()
        raise
    return database
