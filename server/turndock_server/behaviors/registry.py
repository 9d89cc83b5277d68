"""Behaviors by name: those that distributions register.

A distribution registers a behavior as an entry point of the group `turndock.behaviors`: its name, and something to
call without arguments that returns a `turndock.ports.Behavior`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from turndock.errors import not_found
from turndock.ports import Behavior

GROUP: Final = "turndock.behaviors"
"""The entry-point group of behaviors for the host's own process."""


def registry() -> dict[str, EntryPoint]:
    """Name → where its factory is; nothing is imported yet."""
    return {point.name: point for point in entry_points(group=GROUP)}


def create(name: str) -> Behavior:
    """A new behavior of that name. Raises `TurndockError` (NOT_FOUND); whatever its module raises passes."""
    point = registry().get(name)
    if point is None:
        raise not_found("behavior", name)
    return cast(Callable[[], Behavior], point.load())()
