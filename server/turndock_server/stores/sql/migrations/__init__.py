"""Bringing a database's schema to this release's: made at once where there is none, by Alembic where there is an older.

Alembic is imported only when something has to be migrated: it would double the time of a cold start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, insert, inspect, select

from turndock.errors import TurndockError
from turndock_server.stores import checks
from turndock_server.stores.sql.schema import (
    GRAVEYARD,
    GRAVEYARD_KEY,
    REVISIONS,
    UNSCOPED_KEY,
    alembic_version,
    metadata,
    scopes,
)

_FOLDER: Final = Path(__file__).parent


def is_current(connection: Connection) -> bool:
    """Whether the schema is this release's. Raises MIGRATION_REQUIRED for one that cannot become it."""
    tables = inspect(connection).get_table_names()
    if not tables:
        return False
    if alembic_version.name not in tables:
        raise TurndockError(
            "MIGRATION_REQUIRED", "the database holds the tables of something else; name another file"
        )
    revision = connection.execute(select(alembic_version.c.version_num)).scalar_one_or_none()
    if revision is not None and revision not in REVISIONS:
        raise TurndockError(
            "MIGRATION_REQUIRED",
            f"the database has schema {revision}, which is newer than {REVISIONS[-1]}, the newest this release knows;"
            " run the release that wrote it, or a newer one",
            metadata={"schema": revision, "known": REVISIONS[-1]},
        )
    return revision == REVISIONS[-1]


def required() -> TurndockError:
    """The error for a schema that could be made this release's and must not."""
    return TurndockError(
        "MIGRATION_REQUIRED",
        f"the database does not have schema {REVISIONS[-1]}; open it once with migration allowed",
        metadata={"known": REVISIONS[-1]},
    )


def bring_up_to_date(connection: Connection) -> None:
    """Make the schema this release's, within the connection's transaction. Raises as `is_current`."""
    if is_current(connection):
        return
    if inspect(connection).get_table_names():
        _upgrade(connection)
    else:
        metadata.create_all(connection)
        connection.execute(insert(alembic_version).values(version_num=REVISIONS[-1]))
        partitions = ((UNSCOPED_KEY, checks.UNSCOPED), (GRAVEYARD_KEY, GRAVEYARD))
        connection.execute(insert(scopes), [{"key": key, "tenant": tenant} for key, tenant in partitions])


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
