"""Events as the tables keep them: the message's own bytes, written once, and the small keys beside them."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from turndock.types.v1 import Event, EventType
from turndock_server.stores import rules

# Tags of the fields the store sets in an Event, and of what holds events in the answers: wire format, so that an event
# is encoded once, when it is written, and never parsed on its way to a reader that wants bytes.
_SEQUENCE: Final = b"\x30"
_INCARNATION: Final = b"\x3a"
_STORED_AT: Final = b"\x40"
_FIRST_MESSAGE: Final = b"\x0a"
_DUPLICATE: Final = b"\x10\x01"
_DIFFERS: Final = b"\x18\x01"

# Looked up once: every access by name goes through the enum's wrapper.
_CUSTOM: Final = EventType.EVENT_TYPE_CUSTOM

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-9a-f][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def varint(number: int) -> bytes:
    """A number as protobuf encodes it."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def event_key(event_id: str) -> bytes:
    """16 bytes that stand for an event's id within its scope.

    A UUID in its usual spelling is its own bytes, so that time-ordered ones are neighbours in the index. Anything else
    is a digest with a version no UUID that passes here has, so that the two kinds never meet.
    """
    if _UUID.fullmatch(event_id):
        return bytes.fromhex(event_id.replace("-", ""))
    digest = bytearray(blake2b(event_id.encode(), digest_size=16).digest())
    digest[6] &= 0x0F
    return bytes(digest)


@lru_cache(maxsize=4096)
def run_key(run_id: str) -> int:
    """A number of 8 bytes that stands for a run's id within its session; 0 for no run."""
    if not run_id:
        return 0
    return int.from_bytes(blake2b(run_id.encode(), digest_size=8).digest(), "big", signed=True) or 1


class Draft(NamedTuple):
    """An event on its way into a log."""

    event: Event
    session_id: str
    key: bytes
    type: int
    run: int
    body: bytes
    """The event as its writer sent it, without what the store sets."""


def draft(event: Event) -> Draft:
    """An event ready to be numbered."""
    if event.sequence or event.incarnation or event.stored_at_us:
        written = Event()
        written.CopyFrom(event)
        for name in ("sequence", "incarnation", "stored_at_us"):
            written.ClearField(name)
        event = written
    return Draft(
        event,
        event.session_id,
        event_key(event.id),
        event.type,
        run_key(event.run_id),
        event.SerializeToString(),
    )


def is_notification(draft: Draft) -> bool:
    """Whether it is one that its session's agent has to apply."""
    return draft.type == _CUSTOM and draft.event.custom.name == rules.NOTIFIED


def stored_suffix(incarnation: str, stored_at_us: int) -> bytes:
    """What follows the sequence number in the bytes of every event that one commit puts into one log."""
    name = incarnation.encode()
    return b"".join((_INCARNATION, varint(len(name)), name, _STORED_AT, varint(stored_at_us)))


def stored_body(body: bytes, sequence: int, suffix: bytes) -> bytes:
    """An event as stored: its writer's bytes, then what the store sets."""
    return b"".join((body, _SEQUENCE, varint(sequence), suffix))


def stored_result(body: bytes) -> bytes:
    """An AppendResult for a new event, as an element of `results` (or as `result`): field 1 of every answer."""
    return _result_prefix(len(body)) + body


def known_result(body: bytes, *, differs: bool) -> bytes:
    """The same for an event whose id was known; `body` is what is stored."""
    inner = element(body) + _DUPLICATE + (_DIFFERS if differs else b"")
    return element(inner)


def element(body: bytes) -> bytes:
    """A message as an element of the list that is field 1."""
    return _prefix(len(body)) + body


@lru_cache(maxsize=4096)
def _prefix(size: int) -> bytes:
    return _FIRST_MESSAGE + varint(size)


@lru_cache(maxsize=4096)
def _result_prefix(size: int) -> bytes:
    inner = _prefix(size)
    return _prefix(len(inner) + size) + inner


def differs(written: Event, stored: bytes) -> bool:
    """Whether an event is another than the one stored under its id, apart from what the store sets."""
    return rules.as_written(written) != rules.as_written(Event.FromString(stored))
