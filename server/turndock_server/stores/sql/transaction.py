"""What a write gets to work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection

from turndock_server.stores.sql.wakeups import LogKey

T = TypeVar("T")


@dataclass(slots=True)
class Transaction:
    """The database while it is locked for one writer."""

    connection: Connection
    now_us: int
    """The store's time; the same for all that is written together."""
    is_careful: bool
    """Whether to look known event ids up first. Otherwise a known one fails the transaction, and it is made again."""
    grown: set[LogKey] = field(default_factory=set[LogKey])
    """The logs that have new events."""


Write = Callable[[Transaction], T]
"""A write: refuses with a `TurndockError` before it has changed anything, or changes rows and answers."""
