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
_MAX_NUMBER: Final = (1 << 63) - 1


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

    def decode(
        self, cursor: str, field: str = "page.cursor", *, kinds: tuple[type[int | str], ...] | None = None
    ) -> Place | None:
        """The place a cursor stands after; None for an empty cursor. Raises INVALID_CURSOR for any other string.

        `kinds` are the types of a place's parts: who can make up a checksum still cannot make up a place.
        """
        if not cursor:
            return None
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid_cursor(field) from None
        checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        if checksum != self._checksum(body):
            raise _invalid_cursor(field)
        try:
            place: Place = tuple(json.loads(body))
        except (ValueError, TypeError, RecursionError):
            raise _invalid_cursor(field) from None
        if kinds is not None and not _is_place(place, kinds):
            raise _invalid_cursor(field)
        return place

    def _checksum(self, body: bytes) -> bytes:
        return hashlib.blake2b(body, key=self._list, digest_size=_CHECKSUM_BYTES).digest()


def _is_place(place: Place, kinds: tuple[type[int | str], ...]) -> bool:
    """Whether parts are of these types, and numbers such as a row can have."""
    return tuple(map(type, place)) == kinds and all(
        abs(part) <= _MAX_NUMBER if isinstance(part, int) else _is_text(part) for part in place
    )


def _is_text(part: str) -> bool:
    try:
        return b"\0" not in part.encode()
    except UnicodeEncodeError:
        return False


def _invalid_cursor(field: str) -> TurndockError:
    return invalid(field, "is not a cursor of this list", reason="INVALID_CURSOR")
