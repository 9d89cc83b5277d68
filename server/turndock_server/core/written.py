"""Events on their way from a turn into the log: encoded once, and from then on bytes.

What a turn says is nearly always a piece of text, and there are many of them. Making a message of each, completing it,
copying it into a request and encoding it there costs several times what is written here: the backend's own bytes,
followed by what the host adds to them, which is what protobuf would make of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from turndock import events
from turndock.types.v1 import EVENT_TYPE_MESSAGE_STREAMED, Event, EventBatch
from turndock_server.core.wireformat import element, prefix, varint

Written = tuple[bytes, int, bytes]
"""An event without what the store adds: its id as the 16 bytes of a UUID, its type, and the encoded message. (A bare
tuple, as a named one costs as much as all the rest of what happens to an event here.)"""

_STREAMED: Final = b"\x10" + varint(EVENT_TYPE_MESSAGE_STREAMED)
"""`Event.type` of a piece of text."""
_PAYLOAD: Final = b"\xd2\x01"
"""Tag of `Event.message_streamed`."""
_THOUGHT: Final = b"\x10\x01"
"""`MessageStreamed.thinking`, set."""
_TIME: Final = b"\x28"
"""Tag of `Event.time_us`."""
_ID: Final = b"\x0a\x24"
"""Tag of `Event.id`, and the length of a UUID's spelling."""
_COUNTER: Final = (1 << 47) - 1
"""Where the last 48 bits of a batch's first id lie, so that counting up from there never overflows them."""


def write(event: Event) -> Written:
    """A complete event, written. Its id is a UUID."""
    return bytes.fromhex(event.id.replace("-", "")), event.type, event.SerializeToString()


def read(batch: Iterable[Written]) -> Sequence[Event]:
    """The events again."""
    return EventBatch.FromString(b"".join([element(body) for *_, body in batch])).events


def piece_of(said: bytes) -> tuple[bytes, bool] | None:
    """The text of an encoded event that is a piece of text and nothing else, and whether it is a thought.

    None for every other event, and for a piece that needs repair. It must be a valid message.
    """
    size = len(said)
    if b"\0" in said:
        return None
    header = _header(size, 0)
    if said.startswith(header):
        return said[len(header) :], False
    header = _header(size, len(_THOUGHT))
    if said.startswith(header) and said.endswith(_THOUGHT):
        return said[len(header) : -len(_THOUGHT)], True
    return None


@lru_cache(maxsize=4096)
def _header(size: int, after: int) -> bytes:
    """What an encoded event of so many bytes begins with if it is a text and `after` bytes behind that."""
    for length in range(max(size - after - 16, 1), size):
        text = prefix(length)
        header = b"".join((_STREAMED, _PAYLOAD, varint(len(text) + length + after), text))
        if len(header) + length + after == size:
            return header
    return b"\xff"  # No message begins so.


def encoded_text(text: str) -> bytes:
    """A piece of text as a backend in another process would send it."""
    body = text.encode()
    if not body:
        return b"".join((_STREAMED, _PAYLOAD, b"\0"))
    payload = element(body)
    return b"".join((_STREAMED, _PAYLOAD, varint(len(payload)), payload))


class Pen:
    """Writes the pieces of text of one turn.

    The ids of a batch are consecutive: the first is random as any, the others count up from it (RFC 9562, section 6.2,
    method 2), which is cheaper to make and to put into an index.
    """

    __slots__ = ("_addition", "_common", "_head", "_next")

    def __init__(self, common: Event) -> None:
        """`common` is what all events of the turn have."""
        self._common = common.SerializeToString()
        self.turn_page()

    def turn_page(self) -> None:
        """What is written from here on is a new batch: it was said now."""
        first = events.new_id()
        key = bytes.fromhex(first.replace("-", ""))
        self._head = key[:10]
        self._next = int.from_bytes(key[10:], "big") & _COUNTER
        self._addition = b"".join((self._common, _TIME, varint(events.now_us()), _ID, first[:24].encode()))

    def text(self, said: bytes) -> Written:
        """An encoded event that is a piece of text and nothing else, completed."""
        number = self._next
        self._next = number + 1
        body = b"".join((said, self._addition, b"%012x" % number))
        return self._head + number.to_bytes(6, "big"), EVENT_TYPE_MESSAGE_STREAMED, body
