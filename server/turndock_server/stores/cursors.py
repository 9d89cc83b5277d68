"""Page cursors: opaque to callers, checked when they come back.

A cursor is a place in one list: the sort key of the last row that was returned. It carries a checksum over that place
and over what the list was: the call, its filters, its order and its scope. A cursor that fits nothing of that is
INVALID_CURSOR, so that a page is never read from a list it was not made for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Final

from google.protobuf.message import Message

from turndock.errors import TurndockError, invalid

Place = tuple[int | str, ...]
"""The sort key of a row."""

_CHECKSUM_BYTES: Final = 12


class PageCodec:
    """Writes and reads the cursors of one list."""

    def __init__(self, call: str, partition: str, request: Message) -> None:
        """The list that `call` answers to `request` in a partition; its `page` and `scope` play no part."""
        filters = type(request)()
        filters.CopyFrom(request)
        for name in ("page", "scope"):
            if name in filters.DESCRIPTOR.fields_by_name:
                filters.ClearField(name)
        self._list = hashlib.sha256(
            b"\0".join((call.encode(), partition.encode(), filters.SerializeToString(deterministic=True)))
        ).digest()

    def encode(self, place: Place) -> str:
        """The cursor that stands directly after `place`."""
        body = json.dumps(place, separators=(",", ":"), ensure_ascii=False).encode()
        return base64.urlsafe_b64encode(self._checksum(body) + body).decode().rstrip("=")

    def decode(self, cursor: str, field: str = "page.cursor") -> Place | None:
        """The place a cursor stands after; None for an empty cursor. Raises INVALID_CURSOR for any other string."""
        if not cursor:
            return None
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid_cursor(field) from None
        checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        if checksum != self._checksum(body):
            raise _invalid_cursor(field)
        return tuple(json.loads(body))

    def _checksum(self, body: bytes) -> bytes:
        return hashlib.blake2b(body, key=self._list, digest_size=_CHECKSUM_BYTES).digest()


def _invalid_cursor(field: str) -> TurndockError:
    return invalid(field, "is not a cursor of this list", reason="INVALID_CURSOR")
