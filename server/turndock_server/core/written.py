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
from turndock_server.core.wireformat import element, elements, prefix, varint

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
_LINES: Final = 256
"""As many ids have all but the last byte in common."""
_BYTE: Final = [bytes((number,)) for number in range(_LINES)]
_HEX: Final = [b"%02x" % number for number in range(_LINES)]


def write(event: Event) -> Written:
    """A complete event, written. Its id is a UUID."""
    return bytes.fromhex(event.id.replace("-", "")), event.type, event.SerializeToString()


def read(batch: Iterable[Written]) -> Sequence[Event]:
    """The events again."""
    return EventBatch.FromString(elements([body for *_, body in batch])).events


Piece = tuple[bytes, bool]
"""A text, and whether it is a thought."""


def piece_of(said: bytes) -> Piece | None:
    """What an encoded event says that is a piece of text and nothing else.

    None for every other event, and for a piece that needs repair. It must be a valid message.
    """
    size = len(said)
    if 0 in said:  # Five times as fast as looking for b"\0".
        return None
    header = _text_header(size)
    if said.startswith(header):
        return said[len(header) :], False
    header = _thought_header(size)
    if said.startswith(header) and said.endswith(_THOUGHT):
        return said[len(header) : -len(_THOUGHT)], True
    return None


def size_of(batch: Iterable[Written]) -> int:
    """Bytes of all events together."""
    return sum([len(body) for *_, body in batch])


@lru_cache(maxsize=4096)
def _text_header(size: int) -> bytes:
    """What an encoded event of so many bytes begins with if it is a text and nothing else."""
    return _header(size, 0)


@lru_cache(maxsize=4096)
def _thought_header(size: int) -> bytes:
    """The same for a thought."""
    return _header(size, len(_THOUGHT))


def _header(size: int, after: int) -> bytes:
    """What comes before a text that ends `after` bytes before the event's end."""
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

    The ids of a page are consecutive: its first is as random as any, the others count up from it (RFC 9562, section
    6.2, method 2), which is cheaper to make and to put into an index. What is written on one page was said at once.
    """

    __slots__ = ("_addition", "_common", "_key", "_line")

    def __init__(self, common: Event) -> None:
        """`common` is what all events of the turn have."""
        self._common = common.SerializeToString()
        self.turn_page()

    def turn_page(self) -> None:
        """Begin a new page."""
        first = events.new_id()
        self._key = bytes.fromhex(first[:-2].replace("-", ""))
        self._addition = b"".join((self._common, _TIME, varint(events.now_us()), _ID, first[:-2].encode()))
        self._line = 0

    def text(self, said: bytes) -> Written:
        """An encoded event that is a piece of text and nothing else, completed."""
        line = self._line
        if line == _LINES:
            self.turn_page()
            line = 0
        self._line = line + 1
        return (
            self._key + _BYTE[line],
            EVENT_TYPE_MESSAGE_STREAMED,
            b"".join((said, self._addition, _HEX[line])),
        )
