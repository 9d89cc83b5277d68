"""Live tails of the logs: what was committed lately, encoded once and shared by all watchers of a session.

A watcher is a cursor, not a queue. It reads after its cursor, from here or from the store, and waits for a wake-up that
carries no data. A tail is only a cache: when numbers arrive out of order it forgets what it has, and readers fill the
gap from the store. It exists while somebody watches.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

from turndock.agent.v1 import AgentStatus
from turndock.types.v1 import Event, Scope

MAX_TAIL_EVENTS = 4_096
MAX_TAIL_BYTES = 4 << 20
MAX_BATCH_EVENTS = 1_024
MAX_BATCH_BYTES = 512 << 10
_SHARED_BATCHES = 32


@dataclass(frozen=True, slots=True)
class AgentKey:
    """Names one agent's session across all scopes."""

    tenant: str | None
    """None = the unscoped partition."""
    session_id: str

    @classmethod
    def of(cls, scope: Scope | None, session_id: str) -> AgentKey:
        """The key of a session in a scope; a request's scope that was not set is the unscoped partition."""
        return cls(scope.tenant if scope is not None and scope.tenant else None, session_id)

    @property
    def scope(self) -> Scope | None:
        """The scope as requests carry it."""
        return None if self.tenant is None else Scope(tenant=self.tenant)


@dataclass(frozen=True, slots=True)
class Frame:
    """A committed event, encoded."""

    sequence: int
    type: int
    run_id: str
    chunk: bytes
    """The event as an element of `Batch.events`: tag, length, bytes."""


def encode_frame(event: Event) -> Frame:
    """The frame of a stored event."""
    return frame_of(event.sequence, event.type, event.run_id, event.SerializeToString())


def frame_of(sequence: int, event_type: int, run_id: str, body: bytes) -> Frame:
    """The frame of a stored event whose encoded message is at hand."""
    return Frame(sequence, event_type, run_id, b"\x0a" + varint(len(body)) + body)


def varint(number: int) -> bytes:
    """A number as protobuf encodes it."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


@dataclass(frozen=True, slots=True)
class _Batch:
    chunks: bytes
    last: int
    full: bool
    """Whether it is as large as a batch may be, so that later events do not change it."""


class Tail:
    """The latest frames of one session, without a gap."""

    __slots__ = (
        "_batches",
        "_bytes",
        "_changed",
        "_frames",
        "deleted",
        "head",
        "status",
        "status_version",
        "watchers",
    )

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._batches: OrderedDict[int, _Batch] = OrderedDict()
        self._changed: asyncio.Future[None] | None = None
        self.head = 0
        """Highest number that was published here; 0 = none yet."""
        self.watchers = 0
        self.status: AgentStatus | None = None
        self.status_version = 0
        self.deleted = False

    def push(self, frames: Iterable[Frame]) -> None:
        """Take committed frames in and wake the watchers."""
        for frame in frames:
            if self._frames and frame.sequence != self._frames[-1].sequence + 1:
                if frame.sequence <= self._frames[-1].sequence:
                    continue
                self._forget()
            self._frames.append(frame)
            self._bytes += len(frame.chunk)
            self.head = max(self.head, frame.sequence)
        while len(self._frames) > MAX_TAIL_EVENTS or (self._bytes > MAX_TAIL_BYTES and len(self._frames) > 1):
            self._bytes -= len(self._frames.popleft().chunk)
        self.wake()

    def wake(self) -> None:
        """Wake every watcher."""
        if self._changed is not None:
            changed, self._changed = self._changed, None
            changed.set_result(None)

    def changed(self) -> asyncio.Future[None]:
        """Done at the next wake-up. Shared by all watchers: never cancel it."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def covers(self, after: int) -> bool:
        """Whether the frame that follows `after` is here."""
        return bool(self._frames) and self._frames[0].sequence <= after + 1 <= self._frames[-1].sequence

    def frames(self, after: int) -> list[Frame]:
        """The frames that follow `after`, at most a batch of them. Needs `covers(after)`."""
        first = after + 1 - self._frames[0].sequence
        return take_batch(self._frames[index] for index in range(first, len(self._frames)))

    def batch(self, after: int) -> tuple[bytes, int]:
        """The joined chunks that follow `after`, and the last number in them. Needs `covers(after)`.

        Watchers that stand at the same place get the same bytes.
        """
        shared = self._batches.get(after)
        if shared is None or not (shared.full or shared.last == self._frames[-1].sequence):
            frames = self.frames(after)
            last = frames[-1].sequence
            shared = _Batch(
                b"".join([frame.chunk for frame in frames]), last, last < self._frames[-1].sequence
            )
            self._batches[after] = shared
            self._batches.move_to_end(after)
            if len(self._batches) > _SHARED_BATCHES:
                self._batches.popitem(last=False)
        return shared.chunks, shared.last

    def _forget(self) -> None:
        self._frames.clear()
        self._batches.clear()
        self._bytes = 0


def take_batch(frames: Iterable[Frame]) -> list[Frame]:
    """As many frames from the front as fit into one batch; at least one, however large it is."""
    taken: list[Frame] = []
    size = 0
    for frame in frames:
        size += len(frame.chunk)
        if taken and (size > MAX_BATCH_BYTES or len(taken) >= MAX_BATCH_EVENTS):
            break
        taken.append(frame)
    return taken


class Feed:
    """The tails of all sessions somebody watches."""

    def __init__(self) -> None:
        self._tails: dict[AgentKey, Tail] = {}

    def publish(self, key: AgentKey, stored: Iterable[Event]) -> None:
        """Show committed events to whoever watches. Costs nothing when nobody does."""
        tail = self._tails.get(key)
        if tail is not None:
            tail.push([encode_frame(event) for event in stored])

    def publish_status(self, key: AgentKey, status: Callable[[], AgentStatus]) -> None:
        """Show a status; a slow watcher sees only the latest. Not even made when nobody watches."""
        tail = self._tails.get(key)
        if tail is not None:
            tail.status = status()
            tail.status_version += 1
            tail.wake()

    def watched(self, key: AgentKey) -> bool:
        """Whether anybody watches the session."""
        return key in self._tails

    def deleted(self, key: AgentKey) -> None:
        """The session is gone: end its watches."""
        tail = self._tails.pop(key, None)
        if tail is not None:
            tail.deleted = True
            tail.wake()

    def wake_all(self) -> None:
        """Wake every watcher of every session."""
        for tail in list(self._tails.values()):
            tail.wake()

    @contextmanager
    def watching(self, key: AgentKey) -> Generator[Tail]:
        """The session's tail, kept for as long as the context lasts."""
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = Tail()
        tail.watchers += 1
        try:
            yield tail
        finally:
            tail.watchers -= 1
            if tail.watchers == 0 and self._tails.get(key) is tail:
                del self._tails[key]
