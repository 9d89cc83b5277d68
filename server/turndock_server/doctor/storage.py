"""Checks of what remembers: the library, the file, who holds it, and what survives."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from turndock.errors import TurndockError
from turndock_server.config import Settings
from turndock_server.doctor.findings import Finding, Level
from turndock_server.holding import Held, check_free

OLDEST_SQLITE: Final = (3, 35, 0)
"""The first with RETURNING."""

_MAGIC: Final = b"SQLite format 3\0"


def sqlite_library(settings: Settings) -> Iterator[Finding]:
    """Python's SQLite is new enough."""
    if settings.store.kind != "sqlite":
        return
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        yield Finding(
            Level.ERROR,
            "sqlite",
            f"this Python has SQLite {sqlite3.sqlite_version}; {oldest} or newer is needed",
            "Use a Python that is built with a newer SQLite",
        )
    else:
        yield Finding(Level.OK, "sqlite", f"SQLite {sqlite3.sqlite_version}")


def store_file(settings: Settings) -> Iterator[Finding]:
    """The store's file is one, and may be read and written."""
    path = settings.store_path
    if settings.store.kind != "sqlite" or not path.exists():
        return
    if not path.is_file():
        yield Finding(Level.ERROR, "store.path", f"{path} is no file", "Move it away, or choose another path")
    elif not os.access(path, os.R_OK | os.W_OK):
        yield Finding(
            Level.ERROR,
            "store.path",
            f"this user may not write {path}",
            "Give it to the user the server runs as",
        )
    elif path.stat().st_size and not _is_database(path):
        yield Finding(
            Level.ERROR,
            "store.path",
            f"{path} is no SQLite database",
            "Move it away, or choose another path",
        )
    else:
        yield Finding(Level.OK, "store.path", f"{path} is a SQLite database")


def store_schema(settings: Settings) -> Iterator[Finding]:
    """The database holds what this release can read, or can bring up to date."""
    if settings.store.kind != "sqlite" or not _is_database(settings.store_path):
        return
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    from turndock_server.stores.sql import migrations

    engine = create_engine(f"sqlite:///file:{quote(str(settings.store_path.absolute()))}?mode=ro&uri=true")
    try:
        with engine.connect() as connection:
            is_current = migrations.is_current(connection)
    except TurndockError as error:
        yield Finding(
            Level.ERROR, "store.path", error.message, "Run a release that knows it, or choose another path"
        )
    except SQLAlchemyError as error:
        yield Finding(Level.ERROR, "store.path", f"cannot be read: {error}", "Restore it from a backup")
    else:
        state = (
            "is this release's" if is_current else "is older and will be brought up to date; have a backup"
        )
        yield Finding(Level.OK if is_current else Level.WARNING, "store.path", f"its schema {state}")
    finally:
        engine.dispose()


def _is_database(path: Path) -> bool:
    if not path.is_file() or not os.access(path, os.R_OK):
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def store_lock(settings: Settings) -> Iterator[Finding]:
    """No other server has the store."""
    path = settings.lock_path
    if path is None or not path.exists():
        return
    try:
        check_free(path)
    except Held as held:
        holder = f"process {held.pid}" if held.pid is not None else "another process"
        yield Finding(
            Level.ERROR,
            "store.path",
            f"{settings.store_path} is in use by {holder}",
            "Stop that server, or give this one a data directory of its own",
        )
    except OSError as error:
        yield Finding(
            Level.ERROR,
            "store.path",
            f"cannot lock {path}: {error.strerror}",
            "Make it writable for the server",
        )
    else:
        yield Finding(Level.OK, "store.path", "no other server has it")


def durability(settings: Settings) -> Iterator[Finding]:
    """What is lost when."""
    if settings.store.kind == "memory":
        yield Finding(
            Level.WARNING,
            "store.kind",
            "agents, runs and events are gone when the server ends",
            'Set store.kind = "sqlite" to keep them',
        )
    elif settings.store.kind == "sqlite" and settings.store.synchronous == "normal":
        yield Finding(
            Level.WARNING,
            "store.synchronous",
            "a power cut may take what was acknowledged in the last moments before it",
            'Set store.synchronous = "full" unless the machine cannot lose power',
        )
    if settings.artifacts.kind == "memory" and settings.store.kind != "memory":
        yield Finding(
            Level.WARNING,
            "artifacts.kind",
            "large payloads and artifacts are gone when the server ends, and events refer to nothing",
            'Set artifacts.kind = "files" to keep them',
        )


def snapshots(settings: Settings) -> Iterator[Finding]:
    """Where agents' snapshots go, if they go anywhere. (A plug-in is asked with the others.)"""
    kind = settings.persistence.kind
    if kind == "memory":
        what = "snapshots are gone with the process"
        yield Finding(Level.WARNING, "persistence.kind", what, 'Set persistence.kind = "store" to keep them')
    elif kind != "none":
        where = "beside the sessions" if kind == "store" else f"in {kind}"
        yield Finding(Level.OK, "persistence.kind", f"snapshots are kept {where}")


def prices(settings: Settings) -> Iterator[Finding]:
    """The file of prices can be read, without which the server would not start."""
    path = settings.pricing.path
    if path is None:
        return
    from turndock_server.stores.price_file import read_prices

    try:
        count = len(read_prices(path))
    except TurndockError as error:
        mend = "Mend the file, or leave pricing.path out: docs/guides/usage-and-cost.md shows one"
        yield Finding(Level.ERROR, "pricing.path", error.message, mend)
    else:
        yield Finding(Level.OK, "pricing.path", f"{path} has {count} {'price' if count == 1 else 'prices'}")
