"""A remote turn's items, however they travel: on a stream of its own, or with others on a shared one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turndock.backend.v1 import TurnItem
from turndock.errors import Code, TurndockError
from turndock.ports import BackendCrashed, BackendLost


class TurnItems(Protocol):
    """The items of one turn."""

    async def next(self) -> Sequence[TurnItem] | None:
        """The next items, in order; None at the turn's end.

        Raises `BackendLost` when the connection broke and `BackendCrashed` when the backend's code raised.
        """
        ...

    def leave(self) -> None:
        """Read nothing more. A turn under way is cancelled. Repeatable."""


def turn_error(error: TurndockError) -> BackendLost | BackendCrashed:
    """What a Prompt call's status means for its turn."""
    if error.code is Code.ABORTED and error.reason == "TASK_CRASHED":
        return BackendCrashed(error.message)
    return BackendLost(f"{error.reason}: {error.message}")
