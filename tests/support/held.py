"""Agents whose turns are held at a gate until the test says so, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.servers import Calls, ServerProcess, Watcher
from turndock.types.v1 import Event

GRACE_S = 2.0
HELD: list[dict[str, Any]] = [
    {"text": "begun"},
    {"tool_use": {"id": "t"}},
    {"gate": "end"},
    {"result": "done"},
]
"""A script whose turn does not end before somebody opens its gate."""


def config(folder: Path, *, grace_s: float = GRACE_S, more: str = "") -> str:
    """A scripted backend in the server, and one `beside` it: the fixture `backend`."""
    return f"""
        [server]
        grace_seconds = {grace_s}
        [backends.inside]
        kind = "scripted"
        [backends.beside]
        kind = "plugin"
        plugin = "beside"
        [plugins.beside]
        endpoint = "unix:{folder / "backend"}"
        {more}
    """


def begun(run_id: str) -> Callable[[Watcher], object]:
    """Whether a run has said its first words."""
    return lambda watcher: any(
        event.run_id == run_id and event.HasField("message_streamed") for event in watcher.events
    )


async def stored_after(server: ServerProcess, api: Calls, session_id: str) -> list[Event]:
    """A session's log, from the next server."""
    await server.start()
    return await api.stored(session_id)
