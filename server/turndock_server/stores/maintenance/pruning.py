"""Cutting logs down: which events go, in which order, in which transactions. In earnest, or as a rehearsal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from turndock_server.stores.maintenance.archive import Archive, key_of
from turndock_server.stores.maintenance.policy import Policy
from turndock_server.stores.maintenance.upkeep import Place, Spare, Upkeep
from turndock_server.stores.pace import paced

_LEAST_READ: Final = 500
_MOST_READ: Final = 10_000
_ARCHIVE_BYTES: Final = 8 << 20
"""Most bytes of events that are archived, and so held in memory, at once."""


@dataclass(slots=True)
class Figures:
    """What was pruned."""

    pruned: int = 0
    archived: int = 0
    keys: list[str] = field(default_factory=list[str])
    """Of the artifacts the archive was stored in."""


@dataclass(slots=True)
class Rehearsal:
    """What would be gone by now, had the steps so far been taken in earnest."""

    sessions: set[str] = field(default_factory=set[str])
    """Those that would be deleted."""
    pruned: Counter[str] = field(default_factory=Counter[str])
    """Events by session."""
    _through: dict[tuple[str, bool], int] = field(default_factory=dict[tuple[str, bool], int])
    """The highest number that would be removed, by session and by whether its type goes first."""

    def has(self, event: Spare, *, first: bool) -> bool:
        """Whether the event would be gone. Within a session events go by number, so a mark says it of all below."""
        is_cut = event.sequence <= self._through.get((event.session_id, first), 0)
        return is_cut or event.session_id in self.sessions

    def remove(self, events: Sequence[Spare], *, first: bool) -> None:
        """Pretend to remove events."""
        for event in events:
            self.pruned[event.session_id] += 1
            self._through[event.session_id, first] = event.sequence


class Pruner:
    """Prunes one partition by one policy."""

    def __init__(
        self,
        upkeep: Upkeep,
        partition: str,
        policy: Policy,
        archive: Archive | None,
        rehearsal: Rehearsal | None,
    ) -> None:
        """With a `rehearsal` nothing is changed."""
        self.figures = Figures()
        self._upkeep = upkeep
        self._partition = partition
        self._policy = policy
        self._archive = archive
        self._rehearsal = rehearsal

    async def cut_session(self, session_id: str) -> None:
        """Cut one session's log down. Raises `TurndockError`; `ArchiveFailed` if that was it."""
        if self._policy.max_events_per_session is not None:
            count = await self._upkeep.count_events(self._partition, session_id)
            await self._cut(session_id, count - self._policy.max_events_per_session)

    async def cut_all(self) -> None:
        """Cut all of the partition's logs down together. Raises as `cut_session`."""
        if self._policy.max_total_events is None:
            return
        count = await self._upkeep.count_events(self._partition)
        if self._rehearsal is not None:
            count -= self._rehearsal.pruned.total()
            for session_id in self._rehearsal.sessions:
                count -= await self._upkeep.count_events(self._partition, session_id)
        await self._cut(None, count - self._policy.max_total_events)

    async def _cut(self, session_id: str | None, surplus: int) -> None:
        for first in (True, False):
            after: Place | None = None
            while surplus > 0:
                spares = await self._upkeep.spares(
                    self._partition,
                    session_id,
                    self._policy,
                    first=first,
                    after=after,
                    limit=min(max(surplus, _LEAST_READ), _MOST_READ),
                )
                left = [event for event in spares.events if not self._is_gone(event, first=first)]
                for events in self._transactions(left[:surplus]):
                    await self._remove(events, first=first)
                    # Those that somebody else has removed meanwhile were too many, as well.
                    surplus -= len(events)
                after = spares.next
                if after is None:
                    break

    def _is_gone(self, event: Spare, *, first: bool) -> bool:
        return self._rehearsal is not None and self._rehearsal.has(event, first=first)

    def _transactions(self, events: Sequence[Spare]) -> Iterator[Sequence[Spare]]:
        begin = size = 0
        for index, event in enumerate(events):
            is_full = index - begin == self._policy.batch_size
            if is_full or (
                self._archive is not None and index > begin and size + event.size > _ARCHIVE_BYTES
            ):
                yield events[begin:index]
                begin, size = index, 0
            size += event.size
        if begin < len(events):
            yield events[begin:]

    async def _remove(self, events: Sequence[Spare], *, first: bool) -> None:
        if self._archive is not None:
            for session in _by_session(events):
                keys = [key_of(session)] if self._rehearsal else await self._archive.take(session)
                self.figures.keys += keys
                self.figures.archived += len(session)
        if self._rehearsal is not None:
            self._rehearsal.remove(events, first=first)
            self.figures.pruned += len(events)
            return
        async with paced():
            self.figures.pruned += await self._upkeep.prune(self._partition, events)


def _by_session(events: Sequence[Spare]) -> Iterator[list[Spare]]:
    """The events of each session, by number."""
    ordered = sorted(events, key=lambda event: (event.session_id, event.sequence))
    for _, session in groupby(ordered, key=lambda event: event.session_id):
        yield list(session)
