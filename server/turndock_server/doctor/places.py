"""Checks of where the server wants to be: its address and its directory."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from turndock.endpoint import Endpoint
from turndock_server.config import Settings
from turndock_server.doctor.findings import Finding, Level

LITTLE_SPACE_BYTES: Final = 256 << 20
NO_SPACE_BYTES: Final = 16 << 20

_ELSEWHERE: Final = 'Choose another address, such as server.listen = "127.0.0.1:7421"'


def address(settings: Settings) -> Iterator[Finding]:
    """The server can listen where it is told to."""
    where = settings.server.endpoint
    yield from _socket_file(Path(where.path)) if where.path else _port(where)


def _port(where: Endpoint) -> Iterator[Finding]:
    try:
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        yield _bad_address(f"{where.host} is no address of a machine: {error.strerror}")
        return
    for family, kind, protocol, _, target in found:
        with socket.socket(family, kind, protocol) as probe:
            if os.name == "posix":  # elsewhere the option would allow what is to be found out
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(target)
            except OSError as error:
                yield _bad_address(
                    _BIND_FAILURES.get(error.errno or 0, "{}: " + str(error.strerror)).format(where)
                )
                return
    yield Finding(
        Level.OK, "server.listen", f"{where} is free" if where.port else "any free port will be taken"
    )


_BIND_FAILURES: Final = {
    errno.EADDRINUSE: "another program listens at {}; perhaps the server runs already",
    errno.EACCES: "this user may not listen at {}",
    errno.EADDRNOTAVAIL: "{} is no address of this machine",
}


def _socket_file(path: Path) -> Iterator[Finding]:
    if not path.parent.is_dir():
        yield _bad_address(f"the directory {path.parent} does not exist", f"mkdir -p {path.parent}")
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        yield _bad_address(f"this user may not make a socket in {path.parent}")
    elif path.exists() and not path.is_socket():
        yield _bad_address(f"{path} is there, and is no socket", f"Move {path} away, or choose another path")
    elif path.exists() and _is_answered(path):
        yield _bad_address(f"another program listens at {path}; perhaps the server runs already")
    else:
        yield Finding(Level.OK, "server.listen", f"{path} is free")


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _bad_address(what: str, mend: str = _ELSEWHERE) -> Finding:
    return Finding(Level.ERROR, "server.listen", what, mend)


def data_directory(settings: Settings) -> Iterator[Finding]:
    """Every directory that will be written to is there, or can be made."""
    for key, directory in _directories(settings).items():
        existing = _existing(directory)
        if not existing.is_dir():
            yield Finding(
                Level.ERROR, key, f"{existing} is no directory", "Move it away, or choose another path"
            )
        elif not os.access(existing, os.W_OK | os.X_OK):
            yield Finding(
                Level.ERROR,
                key,
                f"this user may not write in {existing}",
                f"Give {existing} to the user the server runs as, or choose another path",
            )
        else:
            yield Finding(
                Level.OK, key, f"{directory} {'is there' if existing == directory else 'will be made'}"
            )


def free_space(settings: Settings) -> Iterator[Finding]:
    """There is room to write."""
    for key, directory in _directories(settings).items():
        free = shutil.disk_usage(_existing(directory)).free
        if free < LITTLE_SPACE_BYTES:
            level = Level.ERROR if free < NO_SPACE_BYTES else Level.WARNING
            yield Finding(
                level, key, f"only {free >> 20} MiB are free in {directory}", "Make room, or move it"
            )


def _directories(settings: Settings) -> dict[str, Path]:
    """What will be written to, by the key that says so. Nothing when everything is in memory or elsewhere."""
    directories: dict[str, Path] = {}
    if settings.store.kind == "sqlite":
        directories["data" if settings.store.path is None else "store.path"] = settings.store_path.parent
    if settings.artifacts.kind == "files":
        key = "data" if settings.artifacts.path is None else "artifacts.path"
        directories.setdefault(key, settings.artifacts_path)
    return directories


def _existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that is there."""
    return next(path for path in (directory, *directory.absolute().parents) if path.exists())
