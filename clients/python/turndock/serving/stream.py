"""StreamEvents, served: the items of many turns in one stream.

When little happens, what there is leaves at once. Under load messages leave on a tick, so that one of them carries what
many turns said meanwhile: a message costs a hundred times more than an item in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from turndock.backend.v1 import PromptRequest, StreamEventsResponse, TurnItems
from turndock.errors import TurndockError
from turndock.serving.handlers import Context
from turndock.serving.outbox import Outbox

DEFAULT_DELAY_S: Final = 0.005
MAX_DELAY_S: Final = 0.1

_MESSAGE_BYTES: Final = 1 << 20
# Each turn's items are encoded once and joined with others' by hand: built as a message they would be copied first.
_TURNS: Final = bytes([StreamEventsResponse.TURNS_FIELD_NUMBER << 3 | 2])
"""The tag before each TurnItems of an encoded StreamEventsResponse."""

_BURST: Final = 4
"""Messages that may leave without waiting for a tick after a time of little load."""


class Lane:
    """One turn's place in a stream."""

    def __init__(self, request: PromptRequest, changed: Callable[[Lane], None]) -> None:
        self.token = request.turn_token
        self.outbox: Outbox[TurnItems] = Outbox(
            lambda: TurnItems(turn_token=self.token),
            lambda: changed(self),
            credit_items=request.initial_credit_items or None,
        )
        self._changed = changed
        self._credit_bytes: int | None = request.initial_credit_bytes or None
        self._carried = asyncio.Event()
        self._lost = False

    @property
    def ready(self) -> bool:
        """Whether there is something to send that may be sent."""
        return not self.outbox.empty and (self._credit_bytes is None or self._credit_bytes > 0)

    def grant(self, items: int, size: int) -> None:
        """Let the turn send more."""
        if self._credit_bytes is not None:
            self._credit_bytes += size
        self.outbox.grant(items)
        self._changed(self)

    def take(self) -> bytes:
        """What there is to send: an encoded TurnItems."""
        batch = self.outbox.take().SerializeToString()
        if self._credit_bytes is not None:
            self._credit_bytes -= len(batch)
        return batch

    def sent(self) -> None:
        """What was taken is on its way."""
        if self.outbox.finished and self.outbox.empty:
            self._carried.set()

    def lose(self) -> None:
        """The stream is gone."""
        self._lost = True
        self._carried.set()

    async def carried(self) -> None:
        """Wait until all the turn said is on its way. Raises UNAVAILABLE when the stream is lost."""
        await self._carried.wait()
        if self._lost:
            raise TurndockError("UNAVAILABLE", "the stream that carried the turn's items was lost")


class EventStream:
    """One StreamEvents call."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._lanes: dict[str, Lane] = {}
        self._ready: dict[str, Lane] = {}
        """In the order in which they became ready; each goes to the end when it was served."""
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._quick = float(_BURST)
        self._last = 0.0

    def attach(self, request: PromptRequest) -> Lane:
        """A place for a turn."""
        lane = Lane(request, self._changed)
        self._lanes[lane.token] = lane
        return lane

    def detach(self, lane: Lane) -> None:
        """The turn is over; what it has not sent is dropped."""
        self._lanes.pop(lane.token, None)
        self._ready.pop(lane.token, None)

    async def run(self, context: Context) -> None:
        """Carry items until the call ends."""
        try:
            await context.send_initial_metadata(())
            while True:
                await self._wake.wait()
                await self._pace()
                self._wake.clear()
                self._urgent.clear()
                await self._send(context)
        finally:
            for lane in self._lanes.values():
                lane.lose()

    async def _send(self, context: Context) -> None:
        served: list[Lane] = []
        parts: list[bytes] = []
        size = 0
        for token, lane in list(self._ready.items()):
            size += lane.outbox.size
            if served and size > _MESSAGE_BYTES:
                self._wake.set()
                break
            del self._ready[token]
            items = lane.take()
            parts += (_TURNS, _varint(len(items)), items)
            served.append(lane)
        if served:
            await context.write(b"".join(parts))
        for lane in served:
            lane.sent()

    async def _pace(self) -> None:
        """Return at once as long as messages are rare, else on the next tick or when somebody waits."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._delay_s <= 0:
            return
        self._quick = min(_BURST, self._quick + (now - self._last) / self._delay_s)
        if self._quick < 1 and not self._urgent.is_set():
            try:
                async with asyncio.timeout((1 - self._quick) * self._delay_s):
                    await self._urgent.wait()
            except TimeoutError:
                pass
            self._quick = 1
        self._quick = max(0.0, self._quick - 1)
        self._last = loop.time()

    def _changed(self, lane: Lane) -> None:
        if lane.ready:
            self._ready.setdefault(lane.token, lane)
            self._wake.set()
            if lane.outbox.urgent:
                self._urgent.set()
        elif lane.outbox.finished:
            lane.sent()


def _varint(number: int) -> bytes:
    """A number as protobuf encodes lengths."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
