"""Where a server listens, as people write it. Without grpc, so that a configuration can be read before it is loaded."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from turndock.errors import invalid

# `sun_path` holds 108 bytes with its end mark on Linux, 104 elsewhere.
_MAX_UNIX_PATH_BYTES: Final = 103

_FORMS: Final = "grpc://host:port, grpcs://host:port, host:port or unix:/path"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens: a host and a port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""
    tls: bool = False
    """Whether what is said there is encrypted: `grpcs://`."""

    @property
    def address(self) -> str:
        """What a server binds: `host:port` or `unix:path`."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def target(self) -> str:
        """What a channel connects to. Says its scheme, so that no host name is taken for one."""
        return self.address if self.path else f"dns:///{self.address}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return self.address if self.path else f"{'grpcs' if self.tls else 'grpc'}://{self.address}"


def parse_endpoint(text: str, field: str = "endpoint") -> Endpoint:
    """The endpoint of `grpc://host:port`, `grpcs://host:port` (TLS), `host:port` or `unix:/path`.

    An IPv6 address stands in brackets. Raises `TurndockError` (VALIDATION_ERROR) naming `field`.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path:
            raise invalid(field, "has no path after unix:")
        if len(path.encode()) > _MAX_UNIX_PATH_BYTES:
            raise invalid(field, f"has a path longer than the {_MAX_UNIX_PATH_BYTES} bytes a socket can have")
        return Endpoint(path=path)
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in ("grpc", "grpcs"):
        raise invalid(field, f"has the scheme {scheme!r}; use {_FORMS}")
    authority = (rest if separator else text).removesuffix("/")
    host, colon, port = authority.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not host or (":" in host and not bracketed) or "/" in authority:
        raise invalid(field, f"{text!r} is not {_FORMS}")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise invalid(field, f"has the port {port!r}; a port is a number from 0 to 65535")
    return Endpoint(host, int(port), tls=scheme == "grpcs" and bool(separator))
