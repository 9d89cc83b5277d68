"""From one database to another: rows as they are, a session at a time, each in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, and_, insert, or_, select
from sqlalchemy.exc import IntegrityError

from turndock.errors import TurndockError
from turndock_server.stores.copying.tables import OWN_KEY, Part, of_scope, of_session
from turndock_server.stores.sql.engine import Database
from turndock_server.stores.sql.failures import REPORTED, storage_error
from turndock_server.stores.sql.schema import GRAVEYARD_KEY, scopes, sessions

T = TypeVar("T")

_PAGE_BYTES: Final = 8 << 20
_PAGE_ROWS: Final = 1_000
_THERE_ANEW: Final = frozenset({OWN_KEY, "scope", "indexed_through"})
_SESSION_COLUMNS: Final = [column for column in sessions.columns if column.name not in _THERE_ANEW]


@dataclass(frozen=True, slots=True)
class Name:
    """A session, whichever database it is in."""

    tenant: str
    id: str

    def __str__(self) -> str:
        return f"{self.id!r} of {self.tenant!r}" if self.tenant else repr(self.id)


class Digest:
    """A digest of rows that is the same in every database that holds the same."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, values: Sequence[Any]) -> None:
        """Take a row, or the name of what follows."""
        for value in values:
            raw = value if isinstance(value, bytes) else b"" if value is None else str(value).encode()
            kind = b"b" if isinstance(value, bytes) else b"-" if value is None else b"t"
            self._hash.update(kind + len(raw).to_bytes(8, "big") + raw)

    def hexdigest(self) -> str:
        """The digest of all there was."""
        return self._hash.hexdigest()


class Rows:
    """A database that is copied from or to. Nobody else has it meanwhile."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._scopes: dict[str, int] = {}
        self._is_writing = False

    async def tenants(self) -> list[str]:
        """The scopes there are, the unscoped one among them."""
        found = await self.run(lambda c: c.execute(select(scopes.c.tenant, scopes.c.key)).all())
        self._scopes = {row.tenant: row.key for row in found if row.key != GRAVEYARD_KEY}
        return sorted(self._scopes)

    async def names(self, tenant: str) -> AsyncIterator[Name]:
        """The sessions of a scope, those without a saved session too."""
        key = await self._scope(tenant)
        after = ""
        while key is not None:
            statement = select(sessions.c.id).where(sessions.c.scope == key, sessions.c.id > after)
            statement = statement.order_by(sessions.c.id).limit(_PAGE_ROWS)
            found = await self.run(_fetch_first(statement))
            for session_id in found:
                yield Name(tenant, session_id)
            if not found:
                return
            after = found[-1]

    async def digest(self, name: Name) -> str | None:
        """The digest of a session and all that belongs to it; None if it is not there."""
        digest = Digest()
        found = False
        async for part, rows in self.read(name):
            found = True
            digest.add([part.table.name if part else sessions.name])
            for row in rows:
                digest.add(row)
        return digest.hexdigest() if found else None

    async def read(self, name: Name) -> AsyncIterator[tuple[Part | None, Sequence[Sequence[Any]]]]:
        """A session's own row under None, then what belongs to it, page by page; nothing if it is not there."""
        scope = await self._scope(name.tenant)
        if scope is None:
            return
        own = select(sessions.c.key, sessions.c.largest_event, *_SESSION_COLUMNS).where(
            sessions.c.scope == scope, sessions.c.id == name.id
        )
        row = await self.run(lambda c: c.execute(own).first())
        if row is None:
            return
        key, largest, *values = list[Any](row)
        yield None, [values]
        rows_at_once = max(1, min(_PAGE_ROWS, _PAGE_BYTES // max(1, largest)))
        for part in of_session():
            async for page in self._pages(part, key, rows_at_once):
                yield part, page

    async def read_scope(self, tenant: str) -> AsyncIterator[tuple[Part, Sequence[Sequence[Any]]]]:
        """What belongs to a scope and to no session of it, page by page."""
        scope = await self._scope(tenant)
        if scope is not None:
            for part in of_scope():
                async for page in self._pages(part, scope, _PAGE_ROWS):
                    yield part, page

    async def holds(self, part: Part, tenant: str, row: Sequence[Any]) -> bool:
        """Whether a scope has that row. Raises ALREADY_EXISTS if it has another one in its place."""
        scope = await self._scope(tenant)
        if scope is None:
            return False
        values = dict(zip((column.name for column in part.columns), row, strict=True))
        place = and_(part.of == scope, *(column == values[column.name] for column in part.order))
        found = await self.run(
            lambda c: c.execute(select(*part.columns).select_from(part.source).where(place)).first()
        )
        if found is not None and list(found) != list(row):
            where = ", ".join(f"{column.name} {values[column.name]!r}" for column in part.order)
            raise TurndockError("ALREADY_EXISTS", f"the target has other {part.table.name} for {where}")
        return found is not None

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """What is written meanwhile is there as a whole in the end, or not at all."""
        line = self._database.writer
        await line.run(lambda connection: connection.begin())
        self._is_writing = True
        try:
            yield
            await line.run(lambda connection: connection.commit())
        except BaseException as error:
            self._scopes.clear()  # those made meanwhile are no more
            with suppress(*REPORTED):  # the connection may be gone, and the transaction with it
                await line.run(lambda connection: connection.rollback())
            if isinstance(error, IntegrityError):
                raise TurndockError(
                    "ALREADY_EXISTS",
                    f"the target has the same in another session: {storage_error(error).message}",
                ) from error
            if isinstance(error, REPORTED):
                raise storage_error(error) from error
            raise
        finally:
            self._is_writing = False

    async def make_scope(self, tenant: str) -> int:
        """The number of a scope, given out now if it has none. Within a transaction, as all that follows."""
        key = await self._scope(tenant)
        if key is None:
            made = insert(scopes).values(tenant=tenant).returning(scopes.c.key)
            key = self._scopes[tenant] = await self.run(lambda c: int(c.execute(made).scalar_one()))
        return key

    async def make_session(self, tenant: str, row: Sequence[Any]) -> tuple[int, int]:
        """Write a session's own row. Returns its scope's key and its own."""
        scope = await self.make_scope(tenant)
        values = _named(_SESSION_COLUMNS, row) | {"scope": scope}
        made = insert(sessions).returning(sessions.c.key)
        key = await self.run(lambda c: int(c.execute(made, values).scalar_one()))
        return scope, key

    async def write(self, part: Part, owner: int, scope: int, rows: Sequence[Sequence[Any]]) -> None:
        """Write what belongs to a session or a scope."""
        if part.parent is not None:
            for row in rows:
                await self.run(_insert_below(part, part.parent, owner, row))
            return
        also = {part.of.name: owner} | ({"scope": scope} if "scope" in part.table.columns else {})
        values = [_named(part.columns, row) | also for row in rows]
        await self.run(lambda c: c.execute(insert(part.table), values))

    async def _scope(self, tenant: str) -> int | None:
        if not self._scopes:
            await self.tenants()
        return self._scopes.get(tenant)

    async def _pages(self, part: Part, owner: int, rows: int) -> AsyncIterator[Sequence[Sequence[Any]]]:
        last: Sequence[Any] | None = None
        where = [part.columns.index(column) for column in part.order]
        while True:
            wanted = [part.of == owner]
            if last is not None:
                wanted.append(_beyond(part.order, [last[index] for index in where]))
            page = (
                select(*part.columns)
                .select_from(part.source)
                .where(*wanted)
                .order_by(*part.order)
                .limit(rows)
            )
            found = await self.run(_fetch(page))
            if found:
                yield found
                last = found[-1]
            if len(found) < rows:
                return

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Over the connection that writes within a transaction, over one that only reads otherwise."""
        if self._is_writing:
            return await self._database.writer.run(work)
        return await self._database.read(work)


def _fetch(statement: Select[*tuple[Any, ...]]) -> Callable[[Connection], Sequence[Row[*tuple[Any, ...]]]]:
    return lambda connection: connection.execute(statement).all()


def _fetch_first(statement: Select[str]) -> Callable[[Connection], list[str]]:
    return lambda connection: list(connection.execute(statement).scalars())


def _insert_below(part: Part, parent: Part, owner: int, row: Sequence[Any]) -> Callable[[Connection], object]:
    """Write a row that belongs to a row of another part."""
    values = _named(part.columns, row)
    above = select(parent.table.columns[OWN_KEY]).where(
        parent.of == owner, *(column == values[column.name] for column in parent.order)
    )
    own: dict[str, Any] = {column.name: values[column.name] for column in part.own}
    link = part.link.name if part.link is not None else ""
    return lambda c: c.execute(insert(part.table).values({**own, link: above.scalar_subquery()}))


def _named(columns: Sequence[Column[Any]], row: Sequence[Any]) -> dict[str, Any]:
    return {column.name: value for column, value in zip(columns, row, strict=True)}


def _beyond(order: Sequence[Column[Any]], place: Sequence[Any]) -> ColumnElement[bool]:
    """What comes after a place, column by column."""
    options: list[ColumnElement[bool]] = []
    for at, column in enumerate(order):
        same = [before == value for before, value in zip(order[:at], place[:at], strict=True)]
        options.append(and_(*same, column > place[at]))
    return or_(*options)
