"""Events as the tables keep them: the message's own bytes, written once, and the small keys beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from turndock.types.v1 import Event
from turndock_server.core.journal import NewEvents
from turndock_server.core.wireformat import element, prefix, varint
from turndock_server.stores import checks, rules

# Tags of the fields the store sets in an Event, and of what holds events in the answers: wire format, so that an event
# is encoded once, when it is written, and never parsed on its way to a reader that wants bytes.
SEQUENCE: Final = b"\x30"
_INCARNATION: Final = b"\x3a"
_STORED_AT: Final = b"\x40"
_DUPLICATE: Final = b"\x10\x01"
_DIFFERS: Final = b"\x18\x01"

_LARGE: Final = 1 << 19
"""Events below this size are never too large."""

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-9a-f][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


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


def run_key(run_id: str) -> int:
    """A number of 8 bytes that stands for a run's id within its session; 0 for no run."""
    if not run_id:
        return 0
    return int.from_bytes(blake2b(run_id.encode(), digest_size=8).digest(), "big", signed=True) or 1


Draft = tuple[str, bytes, int, int, bytes]
"""An event on its way into a log: session id, key, type, run key, and the bytes its writer sent, without what the store
sets. (A bare tuple, as a named one costs as much as all the rest of what happens to an event here.)"""


def drafts(events: Iterable[Event], field: str) -> list[Draft]:
    """Events ready to be numbered. `field` is their path in the request; that of an only one is `event`.

    Raises as `checks.check_event` for one that must not be stored. Most are seen to be sound at a glance: an id that is
    a UUID, a session and a run that were looked at before, no free-form data, no U+0000 in the encoded message.
    """
    session_ids: set[str] = set()
    run_keys: dict[str, int] = {}
    result: list[Draft] = []
    for index, event in enumerate(events):
        event_id, session_id, run_id, event_type = event.id, event.session_id, event.run_id, event.type
        if event.sequence or event.incarnation or event.stored_at_us:
            event = _as_written(event)  # noqa: PLW2901 - from here on it is this one
        body = event.SerializeToString()
        is_uuid = _UUID.fullmatch(event_id)
        run = run_keys.get(run_id)
        if (
            run is None
            or session_id not in session_ids
            or not event_type
            or event.time_us <= 0
            or event.metadata_json
            or event.data_json
            or not is_uuid
            or 0 in body
            or len(body) > _LARGE
        ):
            checks.check_event(event, field if field == "event" else f"{field}[{index}]")
            session_ids.add(session_id)
            run = run_keys[run_id] = run_key(run_id)
        key = bytes.fromhex(event_id.replace("-", "")) if is_uuid else event_key(event_id)
        result.append((session_id, key, event_type, run, body))
    return result


def _as_written(event: Event) -> Event:
    written = Event()
    written.CopyFrom(event)
    for name in ("sequence", "incarnation", "stored_at_us"):
        written.ClearField(name)
    return written


def drafts_of(new: NewEvents) -> list[Draft]:
    """The same for events of one run that are written already."""
    session_id, run = new.key.session_id, run_key(new.run_id)
    return [(session_id, key, event_type, run, body) for key, event_type, body in new.events]


def is_notification(body: bytes) -> bool:
    """Whether a CUSTOM event is one that its session's agent has to apply."""
    return Event.FromString(body).custom.name == rules.NOTIFIED


def stored_suffix(incarnation: str, stored_at_us: int) -> bytes:
    """What follows the sequence number in the bytes of every event that one commit puts into one log."""
    name = incarnation.encode()
    return b"".join((_INCARNATION, varint(len(name)), name, _STORED_AT, varint(stored_at_us)))


@lru_cache(maxsize=4096)
def result_prefix(size: int) -> bytes:
    """What goes before a new event of so many bytes to make it an AppendResult, as an element of `results`.

    That is field 1 of every answer to an append, as the event is field 1 of the result.
    """
    inner = prefix(size)
    return prefix(len(inner) + size) + inner


def known_result(body: bytes, *, differs: bool) -> bytes:
    """The whole element for an event whose id was known; `body` is what is stored."""
    inner = element(body) + _DUPLICATE + (_DIFFERS if differs else b"")
    return element(inner)


def differs(written: bytes, stored: bytes) -> bool:
    """Whether an event is another than the one stored under its id, apart from what the store sets."""
    return rules.as_written(Event.FromString(written)) != rules.as_written(Event.FromString(stored))
