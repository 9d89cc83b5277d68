"""The metadata keys of this system, and texts in metadata.

gRPC carries printable ASCII in metadata values. A tenant may be any text, so it travels percent-encoded.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote

from turndock.errors import invalid

AUTHORIZATION: Final = "authorization"
"""`Bearer <token>`: who calls."""

SCOPE: Final = "turndock-scope"
"""The tenant a call acts for, percent-encoded; only from credentials that may act for others."""

CONNECTION: Final = "turndock-connection"
"""Which StreamEvents call carries the items of a turn: `StreamEventsRequest.connection_id`."""

_AS_IT_IS: Final = "".join(set(string.punctuation + " ") - {"%"})


def encode_tenant(tenant: str) -> str:
    """The tenant as a metadata value: everything outside printable ASCII, and `%`, percent-encoded as UTF-8."""
    encoded = quote(tenant, safe=_AS_IT_IS)
    # Blanks at either end would be lost on the way.
    inner = encoded.strip(" ")
    start = encoded.index(inner) if inner else len(encoded)
    return "%20" * start + inner + "%20" * (len(encoded) - start - len(inner))


def decode_tenant(value: str) -> str:
    """The tenant of a metadata value. Raises `TurndockError` (VALIDATION_ERROR) for broken UTF-8."""
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise invalid(SCOPE, "is not percent-encoded UTF-8") from None


def bearer(token: str) -> str:
    """The value of `authorization` for a token."""
    return f"Bearer {token}"


def find(metadata: Iterable[tuple[str, str | bytes]] | None, key: str) -> str:
    """The first value of a key as text; empty if there is none."""
    for name, value in metadata or ():
        if name == key:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return ""
