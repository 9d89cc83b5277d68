"""Live tails of the logs: what was committed lately, encoded once and shared by all watchers of a session.

A watcher is a cursor, not a queue. It reads after its cursor, from here or from the store, and waits for a wake-up that
carries no data. A tail is only a cache: when numbers arrive out of order it forgets what it has, and readers fill the
gap from the store. It exists while somebody watches.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from turndock.agent.v1 import AgentStatus, Batch
from turndock.types.v1 import Event, Scope
from turndock_server.core.wireformat import elements

MAX_TAIL_BLOCKS = 1_024
MAX_TAIL_BYTES = 4 << 20
MAX_BATCH_EVENTS = 1_024
MAX_BATCH_BYTES = 512 << 10
MAX_BLOCK_BYTES = 1 << 20
_SHARED_JOINS = 4


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


Frame = tuple[int, int, str, bytes]
"""A committed event: sequence, type, run id, and the encoded message. (A bare tuple: there are many.)"""


@dataclass(frozen=True, slots=True)
class LogPage:
    """A piece of a committed log."""

    frames: Sequence[Frame]
    head: int
    oldest: int
    scanned_through: int
    incarnation: str
    """Empty for an unknown session."""
    pruned_through: int


def encode_frame(event: Event) -> Frame:
    """The frame of a stored event."""
    return event.sequence, event.type, event.run_id, event.SerializeToString()


class Block:
    """Events that were committed together, encoded as one: the elements of a `Batch`, as protobuf joins them.

    Watchers who stand before its first event get these bytes as they are. Who stands within it, or wants only some of
    its events, has it taken apart.
    """

    __slots__ = ("chunks", "first", "last")

    def __init__(self, first: int, last: int, chunks: bytes) -> None:
        self.first = first
        self.last = last
        self.chunks = chunks

    @classmethod
    def of(cls, events: Sequence[Event]) -> Block:
        """The block of these events."""
        return cls(events[0].sequence, events[-1].sequence, Batch(events=events).SerializeToString())

    def events(self) -> Sequence[Event]:
        """Its events."""
        return Batch.FromString(self.chunks).events

    def frames(self) -> list[Frame]:
        """Its events, each by itself and encoded."""
        return [encode_frame(event) for event in self.events()]


def blocks_of(events: Sequence[Event]) -> Iterator[Block]:
    """Committed events as blocks no larger than a batch may be."""
    if len(events) > MAX_BATCH_EVENTS:
        for first in range(0, len(events), MAX_BATCH_EVENTS):
            yield from blocks_of(events[first : first + MAX_BATCH_EVENTS])
        return
    block = Block.of(events)
    if len(block.chunks) <= MAX_BLOCK_BYTES or len(events) == 1:
        yield block
        return
    half = len(events) // 2
    yield from blocks_of(events[:half])
    yield from blocks_of(events[half:])


class Tail:
    """The latest blocks of one session, without a gap."""

    __slots__ = (
        "_blocks",
        "_bytes",
        "_joined",
        "deleted",
        "head",
        "listeners",
        "status",
        "status_version",
        "watchers",
    )

    def __init__(self) -> None:
        self._blocks: deque[Block] = deque()
        self._bytes = 0
        self._joined: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self.head = 0
        """Highest number that was published here; 0 = none yet."""
        self.watchers = 0
        self.listeners: list[Callable[[], None]] = []
        """Called at each change. A wake-up carries no data: who is called looks at what there is."""
        self.status: AgentStatus | None = None
        self.status_version = 0
        self.deleted = False

    def push(self, blocks: Iterable[Block]) -> None:
        """Take committed blocks of one write in, and wake the watchers."""
        for block in blocks:
            if self._blocks and block.first != self._blocks[-1].last + 1:
                if block.first <= self._blocks[-1].last:
                    continue  # Told before, or too late to fit: the store has it.
                self._forget()
            self._blocks.append(block)
            self._bytes += len(block.chunks)
            self.head = max(self.head, block.last)
        while len(self._blocks) > MAX_TAIL_BLOCKS or (self._bytes > MAX_TAIL_BYTES and len(self._blocks) > 1):
            self._bytes -= len(self._blocks.popleft().chunks)
        self.wake()

    def wake(self) -> None:
        """Wake every watcher."""
        for listener in self.listeners:
            listener()

    def covers(self, after: int) -> bool:
        """Whether the event that follows `after` is here."""
        return bool(self._blocks) and self._blocks[0].first <= after + 1 <= self._blocks[-1].last

    def frames(self, after: int) -> list[Frame]:
        """The events that follow `after`, up to the end of their block, each by itself. Needs `covers(after)`."""
        block = self._blocks[self._index(after)]
        return [frame for frame in block.frames() if frame[0] > after]

    def batch(self, after: int) -> tuple[bytes, int]:
        """The joined events that follow `after`, and the last number in them. Needs `covers(after)`.

        Watchers that stand at the same place get the same bytes.
        """
        index = self._index(after)
        block = self._blocks[index]
        if block.first <= after:
            return elements([body for *_, body in self.frames(after)]), block.last
        last, size = index, len(block.chunks)
        while last + 1 < len(self._blocks) and size + len(self._blocks[last + 1].chunks) <= MAX_BATCH_BYTES:
            last += 1
            size += len(self._blocks[last].chunks)
        if last == index:
            return block.chunks, block.last
        return self._join(index, last), self._blocks[last].last

    def _join(self, first: int, last: int) -> bytes:
        place = (self._blocks[first].first, self._blocks[last].last)
        joined = self._joined.get(place)
        if joined is None:
            joined = b"".join([self._blocks[index].chunks for index in range(first, last + 1)])
            self._joined[place] = joined
            if len(self._joined) > _SHARED_JOINS:
                self._joined.popitem(last=False)
        return joined

    def _index(self, after: int) -> int:
        """Place of the block that has the event that follows `after`; nearly always the last one."""
        index = len(self._blocks) - 1
        while self._blocks[index].first > after + 1:
            index -= 1
        return index

    def _forget(self) -> None:
        self._blocks.clear()
        self._joined.clear()
        self._bytes = 0


def take_batch(frames: Iterable[Frame]) -> list[Frame]:
    """As many frames from the front as fit into one batch; at least one, however large it is."""
    taken: list[Frame] = []
    size = 0
    for frame in frames:
        size += len(frame[3])
        if taken and (size > MAX_BATCH_BYTES or len(taken) >= MAX_BATCH_EVENTS):
            break
        taken.append(frame)
    return taken


class Feed:
    """The tails of all sessions somebody watches."""

    def __init__(self) -> None:
        self._tails: dict[AgentKey, Tail] = {}

    def publish(self, key: AgentKey, stored: Sequence[Event]) -> None:
        """Show the committed events of one write to whoever watches. Costs nothing when nobody does."""
        tail = self._tails.get(key)
        if tail is not None:
            tail.push(blocks_of(stored))

    def publish_block(self, key: AgentKey, block: Block) -> None:
        """Show a committed block to whoever watches."""
        tail = self._tails.get(key)
        if tail is not None:
            tail.push((block,) if len(block.chunks) <= MAX_BLOCK_BYTES else blocks_of(block.events()))

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
    def watching(self, key: AgentKey, listener: Callable[[], None] | None = None) -> Generator[Tail]:
        """The session's tail, kept for as long as the context lasts; `listener` is called at each change of it."""
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = Tail()
        tail.watchers += 1
        if listener is not None:
            tail.listeners.append(listener)
        try:
            yield tail
        finally:
            tail.watchers -= 1
            if listener is not None:
                tail.listeners.remove(listener)
            if tail.watchers == 0 and self._tails.get(key) is tail:
                del self._tails[key]
