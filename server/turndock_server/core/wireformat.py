"""The little of protobuf's wire format that passing events on as bytes takes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_FIRST_MESSAGE: Final = b"\x0a"
"""Tag of field 1 when it is a message, a string or bytes."""


def varint(number: int) -> bytes:
    """A number as protobuf encodes it."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


@lru_cache(maxsize=4096)
def prefix(size: int) -> bytes:
    """What goes before so many bytes to make them field 1, or an element of the list that is field 1."""
    return _FIRST_MESSAGE + varint(size)


def elements(bodies: Iterable[bytes]) -> bytes:
    """Messages as the list that is field 1."""
    return b"".join([part for body in bodies for part in (prefix(len(body)), body)])


def element(body: bytes) -> bytes:
    """A message as field 1, or as an element of the list that is field 1: of a batch of events, for one."""
    return prefix(len(body)) + body
