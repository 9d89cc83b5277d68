"""Blocking work on files, done in threads: one file being written, one being read, and what may go wrong."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from turndock.errors import TurndockError
from turndock_server.stores import artifacts
from turndock_server.stores.artifacts import Content

PART: Final = ".part"
"""Ends the name of a file whose bytes still arrive."""

_log = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Upload:
    """The file of one Put. Nothing is on disk before `begin`, nor after `discard` unless `keep` was called.

    `begin` and `write` raise `TurndockError`, `sync` and `publish` raise `OSError`.
    """

    def __init__(self, objects: Path, file: str, content: Content) -> None:
        self.content = content
        self.file = file
        self._final = objects / file
        self._path = self._final.with_name(self._final.name + PART)
        self._descriptor: int | None = None
        self._litter = False

    def begin(self) -> None:
        """Make the file."""
        with reported("store an artifact"):
            folder = self._final.parent
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
                sync_folder(folder.parent)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._litter = True

    def write(self, chunk: bytes) -> None:
        """Add bytes, and hold them against what was announced."""
        self.content.add(chunk)
        with reported("store an artifact"):
            _write_all(self._opened(), chunk)

    def sync(self) -> None:
        """Make the bytes durable; no more can be written."""
        os.fsync(self._opened())
        self._close()

    def publish(self) -> None:
        """Give the file its name, durably."""
        self._path = self._path.rename(self._final)
        sync_folder(self._final.parent)

    def keep(self) -> None:
        """The index names the file now."""
        self._litter = False

    def discard(self) -> None:
        """Close the file, and remove it if nothing names it. Repeatable."""
        self._close()
        if self._litter:
            self._litter = False
            remove_later_if_not_now(self._path)

    def _opened(self) -> int:
        assert self._descriptor is not None  # `begin` has returned
        return self._descriptor

    def _close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


class Download:
    """The file of one Get."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> bytes:
        """Digest of what has been read."""
        return self._hash.digest()

    def open(self, path: Path) -> int:
        """Open a file and return its size. Raises `OSError`."""
        self._descriptor = os.open(path, os.O_RDONLY)
        return os.fstat(self._descriptor).st_size

    def read(self, key: str, offset: int, size: int) -> bytes:
        """Exactly these bytes. Raises `TurndockError` (STORAGE_ERROR)."""
        assert self._descriptor is not None  # `open` has returned
        with reported("read an artifact"):
            data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise artifacts.damaged(key, "end too early")
        self._hash.update(data)
        return data

    def close(self) -> None:
        """Close the file. Repeatable."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


async def in_thread(
    call: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Run what blocks in a thread. Cancellation waits for the thread, so that nothing is closed under its hands."""
    work = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError:
                continue
        if not work.cancelled():
            work.exception()  # the caller hears of the cancellation instead
        raise


@contextmanager
def reported(what: str) -> Generator[None]:
    """Make what the system or SQLite reports a STORAGE_ERROR: a missing file, too, is no missing artifact."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        raise _storage_error(what, error.strerror or name, name) from error
    except sqlite3.Error as error:
        raise _storage_error(what, str(error), getattr(error, "sqlite_errorname", "")) from error


def _storage_error(what: str, reported: str, name: str) -> TurndockError:
    return TurndockError(
        "STORAGE_ERROR", f"the artifact store cannot {what}: {reported}", metadata={"cause": name}
    )


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Make names that were added to a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_later_if_not_now(path: Path) -> None:
    """Remove a file no entry names. What cannot be removed now is found again when the store is opened."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("a file of no artifact cannot be removed yet: %s", error.strerror)
