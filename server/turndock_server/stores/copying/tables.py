"""What a database holds, table by table: what belongs to a session, and what to a scope as a whole.

It is read off the tables themselves, so that a new one is copied from the day it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, FromClause, PrimaryKeyConstraint, Table, UniqueConstraint

from turndock.errors import TurndockError
from turndock_server.stores.sql.schema import alembic_version, event_index, metadata, scopes, sessions

DERIVED: Final = frozenset({event_index.name})
"""What a database makes of the rest by itself, as far as a session's `indexed_through` does not say that it has."""
OWN_KEY: Final = "key"
"""The column by which a database numbers its rows. Every database numbers for itself."""


@dataclass(frozen=True, slots=True)
class Part:
    """A table whose rows belong to something."""

    table: Table
    of: Column[Any]
    """The column that says what a row belongs to."""
    order: tuple[Column[Any], ...]
    """What tells its rows of one owner apart, in every database alike."""
    parent: Part | None = None
    """The part whose rows its own belong to, if they belong to the owner by way of it."""
    link: Column[Any] | None = None
    """The column that says to which."""

    @property
    def own(self) -> list[Column[Any]]:
        """What of its own columns is the same in every database."""
        numbered = {OWN_KEY, "scope", self.of.name, self.link.name if self.link is not None else ""}
        return [column for column in self.table.columns if column.name not in numbered]

    @property
    def columns(self) -> list[Column[Any]]:
        """What its rows are copied as."""
        return [*(self.parent.order if self.parent else ()), *self.own]

    @property
    def source(self) -> FromClause:
        """What these columns are read from."""
        if self.parent is None or self.link is None:
            return self.table
        return self.table.join(self.parent.table, self.parent.table.columns[OWN_KEY] == self.link)


def of_session() -> list[Part]:
    """The tables with what belongs to a session, beside its own row."""
    return [part for table in _others() if (part := _part(table, "session", sessions)) is not None]


def of_scope() -> list[Part]:
    """The tables with what belongs to a scope and to none of its sessions."""
    direct = [
        part
        for table in _others()
        if _part(table, "session", sessions) is None and (part := _part(table, "scope", scopes)) is not None
    ]
    children = [child for table in _others() for part in direct if (child := _child(table, part)) is not None]
    return [*direct, *children]


def check_all_are_known() -> None:
    """Raises INVALID_OPERATION for a table that would be left behind."""
    parts = {part.table.name: part for part in (*of_session(), *of_scope())}
    left = [
        table.name
        for table in _others()
        if table.name not in parts
        or any(not _is_followed(key.parent, parts[table.name]) for key in table.foreign_keys)
    ]
    if left:
        raise TurndockError("INVALID_OPERATION", f"nothing is known about copying {', '.join(left)}")


def _others() -> list[Table]:
    own = {scopes.name, sessions.name, alembic_version.name, *DERIVED}
    return [table for table in metadata.sorted_tables if table.name not in own]


def _is_followed(column: Column[Any], part: Part) -> bool:
    return column.name == "scope" or column is part.of or column is part.link


def _child(table: Table, parent: Part) -> Part | None:
    for column in table.columns:
        if any(key.column.table is parent.table for key in column.foreign_keys):
            part = _part(table, column.name, parent.table)
            if part is not None:
                return Part(table, parent.of, (*parent.order, *part.order), parent, column)
    return None


def _part(table: Table, owner: str, owners: Table) -> Part | None:
    column = table.columns.get(owner)
    if column is None or not any(key.column.table is owners for key in column.foreign_keys):
        return None
    unique = [each for each in table.constraints if isinstance(each, UniqueConstraint | PrimaryKeyConstraint)]
    orders = sorted(
        tuple(str(each.name) for each in constraint.columns if each.name not in {owner, "scope"})
        for constraint in unique
        if owner in constraint.columns
    )
    return Part(table, column, tuple(table.columns[name] for name in orders[0])) if orders else None
