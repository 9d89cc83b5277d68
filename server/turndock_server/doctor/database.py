"""Checks of a PostgreSQL database: whether it lets the server in, and what it holds."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from turndock.errors import TurndockError
from turndock_server.config import ConfigError, Settings
from turndock_server.doctor.findings import Finding, Level

if TYPE_CHECKING:
    from sqlalchemy import Connection

OLDEST: Final = 130_000
"""The first version that says which transactions are visible, as a number the way PostgreSQL writes it."""

_MENDS: Final = {
    "28P01": "Give the right one by store.password, or set another: ALTER ROLE … PASSWORD …",
    "28000": "Make the role with CREATE ROLE … LOGIN, and let it in by the server's pg_hba.conf",
    "3D000": "Make it with CREATE DATABASE …, or name another in store.url",
    "42501": "GRANT ALL ON DATABASE … TO …, and CREATE on its schema",
    "53300": "Raise max_connections, or end what uses them up",
}
"""What to do about an error, by PostgreSQL's code for it."""
_REACH: Final = (
    "Start it, or mend host and port in store.url; from this machine try: pg_isready -h HOST -p PORT"
)


def database(settings: Settings) -> Iterator[Finding]:
    """The database can be used, and by nobody else."""
    if settings.store.kind != "postgresql" or settings.store.url is None:
        return
    if importlib.util.find_spec("asyncpg") is None:
        yield Finding(
            Level.ERROR, "store.kind", "the driver asyncpg is missing", 'pip install "turndock[postgres]"'
        )
        return
    try:
        password = settings.store.read_password()
    except ConfigError:
        return  # is said already, with the other references
    try:
        findings = asyncio.run(_look(settings.store.url, password))
    except TurndockError as error:
        findings = [_failed(error)]
    yield from findings


async def _look(url: str, password: str | None) -> list[Finding]:
    from turndock_server.stores.sql import migrations, postgresql
    from turndock_server.stores.sql.engine import Database
    from turndock_server.stores.sql.products import product_of

    product = product_of(url, password=password, synchronous="full", busy_timeout_ms=0)
    database = Database(product, busy_timeout_ms=0, readers=1)
    try:
        version = int(await database.read(_show("server_version_num")))
        if version < OLDEST:
            what = f"PostgreSQL {version // 10_000} is too old; {OLDEST // 10_000} is the oldest that will do"
            return [Finding(Level.ERROR, "store.url", what, "Use a newer server")]
        findings = [Finding(Level.OK, "store.url", f"PostgreSQL {version // 10_000} lets the server in")]
        if await database.read(_show("fsync")) == "off":
            what = "the server runs with fsync = off: a power cut may take everything"
            findings.append(Finding(Level.WARNING, "store.url", what, "Set fsync = on in postgresql.conf"))
        elif await database.read(_show("synchronous_commit")) == "off":
            what = "synchronous_commit is off: a crash may take what was acknowledged in the last moments"
            findings.append(
                Finding(Level.WARNING, "store.url", what, "ALTER DATABASE … SET synchronous_commit = on")
            )
        holder = await database.read(postgresql.present_server)
        if holder:
            what = f"another server has this database; it connects from {holder}"
            mend = "Stop that server, or give this one a database of its own"
            findings.append(Finding(Level.ERROR, "store.url", what, mend))
        try:
            is_current = await database.read(migrations.is_current)
        except TurndockError as error:
            if error.reason != "MIGRATION_REQUIRED":
                raise
            mend = "Run a release that knows it, or name another database"
            return [*findings, Finding(Level.ERROR, "store.url", error.message, mend)]
        is_empty = not is_current and not await database.read(migrations.has_tables)
        if is_current:
            findings.append(Finding(Level.OK, "store.url", "its schema is this release's"))
        elif is_empty:
            findings.append(Finding(Level.OK, "store.url", "it is empty; the tables will be made"))
        else:
            what = "its schema is older and will be brought up to date by `turndock serve`"
            findings.append(Finding(Level.WARNING, "store.url", what, "Have a backup: pg_dump"))
        return findings
    finally:
        await database.close()


def _show(setting: str) -> Callable[[Connection], str]:
    return lambda connection: str(connection.exec_driver_sql(f"SHOW {setting}").scalar_one())


def _failed(error: TurndockError) -> Finding:
    state = (error.metadata or {}).get("sqlstate", "")
    mend = _MENDS.get(state, _REACH if error.reason == "STORAGE_CONNECTION_FAILED" else "Mend what it says")
    return Finding(Level.ERROR, "store.url", error.message, mend)
