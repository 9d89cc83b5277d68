"""The two ends of a copy: databases, which nobody else may use meanwhile, and stores by their address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turndock.client import Client
from turndock.errors import TurndockError, invalid
from turndock.ports import SessionStore
from turndock_server.holding import Held, hold
from turndock_server.stores.clock import Clock
from turndock_server.stores.copying import (
    LEFT_BY_READING,
    LEFT_BY_WRITING,
    Progress,
    Report,
    copy_by_calls,
    copy_database,
    copy_into_database,
)
from turndock_server.stores.copying.calls import Calls
from turndock_server.stores.copying.rows import Rows
from turndock_server.stores.sql import SqlSessionStore
from turndock_server.stores.sql.engine import Database
from turndock_server.stores.sql.opening import open_database
from turndock_server.stores.sql.presence import Presence

_REMOTE: Final = ("grpc://", "unix:")
_PATIENCE_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class End:
    """Where a store is."""

    place: str
    """A file, the URL of a database, or the address of a server or plug-in."""
    password: str | None = None
    """For a database that asks for one."""
    token: str = ""
    """For a server that asks who is there."""

    @property
    def is_remote(self) -> bool:
        """Whether there is nothing but its calls."""
        return self.place.startswith(_REMOTE)

    @property
    def file(self) -> Path | None:
        """The file of a SQLite database; None for what is none."""
        if self.is_remote or self.place.startswith("postgres"):
            return None
        _, _, path = self.place.rpartition(":///") if "://" in self.place else ("", "", self.place)
        return Path(path)


async def copy_store(
    source: End, target: End, *, tenant: str | None, accept_loss: bool, on_session: Progress
) -> Report:
    """Copy a store, or one scope of it.

    Raises `TurndockError`: INVALID_OPERATION when an end is in use, when the two are one, or when something would be
    left behind and `accept_loss` is false; ALREADY_EXISTS when the target has other data, and whatever the stores say.
    """
    _check(source, target, accept_loss=accept_loss)
    async with AsyncExitStack() as stack:
        if not source.is_remote and not target.is_remote:
            come_from = await stack.enter_async_context(_database(source, make=False))
            go_to = await stack.enter_async_context(_database(target, make=True))
            return await copy_database(Rows(come_from), Rows(go_to), tenant, on_session)
        try:
            return await _copy_by_calls(source, target, stack, tenant, on_session)
        except TurndockError as error:
            if error.reason == "PERMISSION_DENIED" and tenant is None:
                what = "a server shows one scope at a time: --scope names it; --scope '' is the unscoped partition"
                raise TurndockError("PERMISSION_DENIED", what) from error
            raise


async def _copy_by_calls(
    source: End, target: End, stack: AsyncExitStack, tenant: str | None, on_session: Progress
) -> Report:
    reading = Calls(await stack.enter_async_context(_calls(source, tenant)))
    if target.is_remote:
        writing = Calls(await stack.enter_async_context(_calls(target, tenant)))
        return await copy_by_calls(reading, writing, tenant, on_session)
    database = await stack.enter_async_context(_database(target, make=True))
    stored = await stack.enter_async_context(_store(database))
    return await copy_into_database(reading, Rows(database), Calls(stored), tenant, on_session)


def _check(source: End, target: End, *, accept_loss: bool) -> None:
    if source.place == target.place or (source.file is not None and _is_same(source.file, target.file)):
        raise TurndockError("INVALID_OPERATION", "both ends are the same store")
    if source.file is not None and not source.file.is_file():
        raise invalid("from", f"there is no file {source.file}")
    left = [
        *(LEFT_BY_READING if source.is_remote or target.is_remote else ()),
        *(LEFT_BY_WRITING if target.is_remote else ()),
    ]
    if left and not accept_loss:
        raise TurndockError(
            "INVALID_OPERATION",
            f"the calls of a store cannot carry {'; '.join(left)}. --accept-loss copies the rest without them",
        )


def _is_same(one: Path, other: Path | None) -> bool:
    return other is not None and one.absolute() == other.absolute()


@asynccontextmanager
async def _database(end: End, *, make: bool) -> AsyncGenerator[Database]:
    async with AsyncExitStack() as stack:
        if end.file is not None:
            try:
                lock = hold(end.file.with_name(f"{end.file.name}.lock"))
            except Held as held:
                raise TurndockError("INVALID_OPERATION", f"{held}. Stop that server first") from held
            except OSError as error:
                raise TurndockError("STORAGE_CONNECTION_FAILED", f"{end.file}: {error.strerror}") from error
            stack.callback(lock.release)
        database = await open_database(end.place, password=end.password, migrate=make)
        stack.push_async_callback(database.close)
        if end.file is None:
            copying = asyncio.current_task()
            assert copying is not None, "this is a coroutine"
            # Should the database be taken over meanwhile, the copy ends, and its transaction with it.
            presence = await Presence.announce(
                database.line(), patience_ms=_PATIENCE_MS, on_lost=lambda: _end(copying)
            )
            if presence is None:
                raise TurndockError("INVALID_OPERATION", "a server has this database; stop it first")
            stack.push_async_callback(presence.close)
        yield database


def _end(copying: asyncio.Task[object]) -> None:
    copying.cancel()


@asynccontextmanager
async def _calls(end: End, tenant: str | None) -> AsyncGenerator[SessionStore]:
    if not end.is_remote:
        async with _database(end, make=False) as database, _store(database) as store:
            yield store
        return
    async with Client(end.place, token=end.token, scope=tenant or None) as client:
        yield client.session_store()


@asynccontextmanager
async def _store(database: Database) -> AsyncGenerator[SqlSessionStore]:
    """The store on a database that somebody else closes."""
    store = SqlSessionStore(database, Clock(database.now_us))
    try:
        yield store
    finally:
        await store.close()
