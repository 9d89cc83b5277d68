"""Backends by name: those that come with Turndock, and those other distributions register.

A distribution registers a backend that runs in the host's process as an entry point of the group
`turndock.backends`: its name, and something to call without arguments that returns a `turndock.ports.Backend`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from turndock.errors import not_found
from turndock.ports import Backend

GROUP: Final = "turndock.backends"
"""The entry-point group of backends for the host's own process."""

REPLAY: Final = "replay"
"""The kind that needs the host's own stores, and so is not made by `create`."""

_HOME: Final = "turndock_server.backends"
_BUILT_IN: Final = (
    EntryPoint("command", f"{_HOME}.command:CommandBackend", GROUP),
    EntryPoint("echo", f"{_HOME}.echo:EchoBackend", GROUP),
    EntryPoint("llama", f"{_HOME}.llama:LlamaBackend", GROUP),
    EntryPoint("scripted", f"{_HOME}.scripted:ScriptedBackend", GROUP),
)


def registry() -> dict[str, EntryPoint]:
    """Name → where its factory is; nothing is imported yet. A name that comes with Turndock stays Turndock's."""
    return {point.name: point for point in (*entry_points(group=GROUP), *_BUILT_IN)}


def create(name: str) -> Backend:
    """A new backend of that name. Raises `TurndockError` (NOT_FOUND); whatever its module raises passes."""
    point = registry().get(name)
    if point is None:
        raise not_found("backend", name)
    return cast(Callable[[], Backend], point.load())()
