"""TLS: who the other side is, proven by certificates in PEM files.

A channel trusts a CA and may show a certificate of its own. A server shows its certificate, asks for its clients' if it
is given their CA, and takes new files over by itself: at the next connection, without a restart.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from turndock.errors import invalid

_log = logging.getLogger("turndock.wire")


@dataclass(frozen=True, slots=True)
class Tls:
    """What a client needs beyond the address, as paths of PEM files.

    `ca`: whom to trust; unset = the authorities gRPC brings along. `cert` and `key`: the client's own certificate with
    its chain, and its private key, where the server asks for one.
    """

    ca: Path | str | None = None
    cert: Path | str | None = None
    key: Path | str | None = None

    def credentials(self, field: str = "tls") -> grpc.ChannelCredentials:
        """The credentials for a channel. Raises `TurndockError` (VALIDATION_ERROR) naming a key below `field`."""
        if (self.cert is None) != (self.key is None):
            missing = "key" if self.key is None else "cert"
            raise invalid(f"{field}.{missing}", "is missing: a certificate and its key go together")
        ca = None if self.ca is None else _authorities(Path(self.ca), f"{field}.ca")
        if self.cert is None or self.key is None:
            return grpc.ssl_channel_credentials(ca)
        cert, key = _pair(Path(self.cert), Path(self.key), field)
        return grpc.ssl_channel_credentials(ca, private_key=key, certificate_chain=cert)


def server_credentials(
    cert: Path | str, key: Path | str, client_ca: Path | str | None = None, *, field: str = "tls"
) -> grpc.ServerCredentials:
    """The credentials a server listens with, from PEM files.

    With `client_ca` every client has to show a certificate that this CA signed. The files may be replaced at any time:
    a new connection gets the new ones. Files that do not fit together are logged, and those before them stay in use.
    Raises `TurndockError` (VALIDATION_ERROR) naming what is wrong below `field`.
    """
    files = _ServerFiles(Path(cert), Path(key), None if client_ca is None else Path(client_ca), field)
    fetch: Any = files.fetch  # whose None the stubs do not know
    return grpc.dynamic_ssl_server_credentials(
        files.read(), fetch, require_client_authentication=client_ca is not None
    )


class _ServerFiles:
    """A server's files, and whether they have changed. gRPC asks from threads of its own."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None, field: str) -> None:
        self._cert, self._key, self._client_ca, self._field = cert, key, client_ca, field
        self._lock = threading.Lock()
        self._seen: object = None

    def read(self) -> grpc.ServerCertificateConfiguration:
        """The files as they are now."""
        self._seen = self._stamp()
        cert, key = _pair(self._cert, self._key, self._field)
        ca = None if self._client_ca is None else _authorities(self._client_ca, f"{self._field}.client_ca")
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """The files if they have changed since they were last read; None = go on as before."""
        with self._lock:
            try:
                if self._stamp() == self._seen:
                    return None
                changed = self.read()
            except Exception as error:  # noqa: BLE001 - a connection must not fail because somebody edits files
                _log.error("new certificates cannot be used, the ones before stay: %s", error)
                return None
        _log.info("certificates were read anew from %s", self._cert)
        return changed

    def _stamp(self) -> list[tuple[int, int, int] | None]:
        return [_state(path) for path in (self._cert, self._key, self._client_ca) if path is not None]


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _pair(cert: Path, key: Path, field: str) -> tuple[bytes, bytes]:
    """A certificate and its key, which fit each other."""
    pair = (_content(cert, f"{field}.cert"), _content(key, f"{field}.key"))
    try:
        # An empty password, so that an encrypted key is an error instead of a question at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise invalid(
            f"{field}.cert", f"{cert} and the key {key} are no pair that can be used: {why}"
        ) from None
    return pair


def _authorities(path: Path, field: str) -> bytes:
    content = _content(path, field)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=content.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise invalid(field, f"{path} holds no certificates: {why}") from None
    return content


def _content(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise invalid(field, f"cannot read {path}: {error.strerror or type(error).__name__}") from None
