"""A file that says who may call, and whose changes count within a second."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

_log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0

Item = TypeVar("Item")


class UnusableFileError(Exception):
    """A file that cannot be read or written, or is not what it should be; the text says why."""


class FollowedFile(Generic[Item]):
    """What a file holds, by id, as it is now.

    A file that cannot be used any more holds nothing: whoever takes it away means to lock out.
    """

    def __init__(self, path: Path, read: Callable[[Path], Mapping[str, Item]]) -> None:
        """Read the file. Raises what `read` raises: `UnusableFileError`."""
        self._path = path
        self._read = read
        self._seen = _state(path)
        self._items: Mapping[str, Item] = read(path)
        self._look_again_at = time.monotonic() + _LOOK_EVERY_S

    def items(self) -> Mapping[str, Item]:
        """What it holds."""
        now = time.monotonic()
        if now >= self._look_again_at:
            self._look_again_at = now + _LOOK_EVERY_S
            self._follow()
        return self._items

    def _follow(self) -> None:
        state = _state(self._path)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._items = self._read(self._path)
            _log.info("%s was read anew: it holds %d", self._path, len(self._items))
        except UnusableFileError as error:
            self._items = {}
            _log.error("no token is valid until this is mended: %s", error)


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
