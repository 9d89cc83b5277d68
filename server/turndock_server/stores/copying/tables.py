"""What a database holds, table by table: what belongs to a session, and what to a scope as a whole.

It is read off the tables themselves, so that a new one is copied from the day it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, PrimaryKeyConstraint, Table, UniqueConstraint

from turndock.errors import TurndockError
from turndock_server.stores.sql.schema import alembic_version, metadata, scopes, sessions

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

    @property
    def columns(self) -> list[Column[Any]]:
        """What is the same in every database."""
        numbered = {OWN_KEY, "scope", self.of.name}
        return [column for column in self.table.columns if column.name not in numbered]


def of_session() -> list[Part]:
    """The tables with what belongs to a session, beside its own row."""
    return [part for table in _others() if (part := _part(table, "session", sessions)) is not None]


def of_scope() -> list[Part]:
    """The tables with what belongs to a scope and to none of its sessions."""
    return [
        part
        for table in _others()
        if _part(table, "session", sessions) is None and (part := _part(table, "scope", scopes)) is not None
    ]


def check_all_are_known() -> None:
    """Raises INVALID_OPERATION for a table that would be left behind."""
    parts = {part.table.name: part for part in (*of_session(), *of_scope())}
    left = [
        table.name
        for table in _others()
        if table.name not in parts
        or any(key.parent.name not in {"scope", parts[table.name].of.name} for key in table.foreign_keys)
    ]
    if left:
        raise TurndockError("INVALID_OPERATION", f"nothing is known about copying {', '.join(left)}")


def _others() -> list[Table]:
    own = {scopes.name, sessions.name, alembic_version.name}
    return [table for table in metadata.sorted_tables if table.name not in own]


def _part(table: Table, owner: str, owners: Table) -> Part | None:
    column = table.columns.get(owner)
    if column is None or not any(key.column.table is owners for key in column.foreign_keys):
        return None
    unique = [each for each in table.constraints if isinstance(each, UniqueConstraint | PrimaryKeyConstraint)]
    orders = sorted(
        tuple(str(each.name) for each in constraint.columns if each.name != owner)
        for constraint in unique
        if owner in constraint.columns
    )
    return Part(table, column, tuple(table.columns[name] for name in orders[0])) if orders else None
