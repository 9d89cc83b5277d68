"""Keeps a second host away from what one host uses: a lock beside it, free again when its holder is gone, however."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock, Timeout


class Held(Exception):
    """Another process holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The lock's file."""
        self.pid = _read_pid(path)
        """The holder's process id; None when it does not say."""
        holder = f"process {self.pid}" if self.pid is not None else "another process"
        super().__init__(f"{path} is held by {holder}")


def hold(path: Path) -> FileLock:
    """Take a lock for this process, until the answer is released or the process has ended.

    Raises `Held` when another has it, and `OSError` when the file cannot be made.
    """
    lock = _acquired(path)
    path.write_text(f"{os.getpid()}\n", encoding="ascii")
    return lock


def check_free(path: Path) -> None:
    """Raises as `hold` would now, and takes nothing."""
    _acquired(path).release()


def _acquired(path: Path) -> FileLock:
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise Held(path) from None
    return lock


def _read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
