"""What a turn has said and the wire has not taken yet.

Items are built in place, in the message that will carry them; whoever writes takes the whole message. So a message
holds what was ready when the writer came, and a turn that is faster than the wire is held up by `room`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from turndock.backend.v1 import TurnItem

MAX_ITEMS: Final = 512
MAX_BYTES: Final = 256 << 10


class Batch(Protocol):
    """A message with items: `PromptResponse` or `TurnItems`."""

    @property
    def items(self) -> RepeatedCompositeFieldContainer[TurnItem]: ...

    def ByteSize(self) -> int: ...


B = TypeVar("B", bound=Batch)


class Outbox(Generic[B]):
    """The items of one turn on their way out, in order.

    `notify` is called whenever there is something to take, or the turn is over.
    """

    def __init__(
        self, new_batch: Callable[[], B], notify: Callable[[], None], *, credit_items: int | None = None
    ) -> None:
        self._new_batch = new_batch
        self._notify = notify
        self._open = new_batch()
        self._count = 0
        self._bytes = 0
        self._said = 0
        self._credit = credit_items
        self._room: asyncio.Future[None] | None = None
        self.urgent = False
        """Whether somebody waits for an answer to something in it, or for room."""
        self.finished = False
        """Whether nothing more will be said."""

    @property
    def said(self) -> int:
        """How many items the turn has said so far; the index of the last one."""
        return self._said

    @property
    def size(self) -> int:
        """About how many bytes there are to take."""
        return self._bytes

    @property
    def empty(self) -> bool:
        """Whether there is nothing to take."""
        return self._count == 0

    def has_room(self, size: int) -> bool:
        """Whether an item of about `size` bytes may be added now."""
        if self._credit is not None and self._credit <= 0:
            return False
        return self._count == 0 or (self._count < MAX_ITEMS and self._bytes + size <= MAX_BYTES)

    async def room(self, size: int) -> None:
        """Wait until an item of about `size` bytes may be added."""
        while not self.has_room(size):
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
                self.urgent = True
                self._notify()
            # Shielded: several tasks of one turn may wait, and one that is cancelled must not cancel the others.
            await asyncio.shield(self._room)

    def add(self, size: int, *, urgent: bool = False) -> TurnItem:
        """A new item of about `size` bytes, to be filled in at once. Call `room` first."""
        self._said += 1
        self._count += 1
        self._bytes += size
        if self._credit is not None:
            self._credit -= 1
        item = self._open.items.add()
        item.index = self._said
        if urgent or self._count == 1:
            self.urgent |= urgent
            self._notify()
        return item

    def take(self) -> B:
        """Everything there is. Makes room."""
        batch, self._open = self._open, self._new_batch()
        self._count = self._bytes = 0
        self.urgent = False
        self._let_on()
        return batch

    def grant(self, items: int) -> None:
        """Let the turn say more."""
        if self._credit is not None:
            self._credit += items
            self._let_on()

    def finish(self) -> None:
        """Nothing more will be said."""
        self.finished = True
        self._notify()

    def _let_on(self) -> None:
        if self._room is not None:
            room, self._room = self._room, None
            room.set_result(None)
