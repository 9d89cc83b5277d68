"""What maintenance asks of a store. Rules that must hold at the moment of a change are checked again where it is made.

Partitions go by name, as `checks.partition` makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from turndock_server.stores.maintenance.policy import Policy

R = TypeVar("R", bound=Message)

Place = tuple[int | str, ...]
"""Where a reader of events stands; what it means is the store's."""


@dataclass(frozen=True, slots=True)
class Spare:
    """An event that may be pruned."""

    session_id: str
    incarnation: str
    sequence: int
    size: int
    """Bytes of the message as stored."""


@dataclass(frozen=True, slots=True)
class Spares:
    """Some events that may be pruned, in the order in which they are."""

    events: Sequence[Spare]
    next: Place | None
    """Where to read on; None = nothing is left."""


@dataclass(frozen=True, slots=True)
class Ids:
    """Some sessions, in the order of their ids."""

    ids: Sequence[str]
    next: str | None
    """The id to read on after; None = nothing is left."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A session whose counter is below the highest number stored."""

    session_id: str
    counter: int
    max_sequence: int


class Upkeep(Protocol):
    """A store from the side of whoever keeps it small and sound. Every call is one transaction."""

    def now_us(self) -> int:
        """The store's time."""
        ...

    async def partitions(self) -> Sequence[str]:
        """Every partition something was ever stored in."""
        ...

    # --- Sessions ------------------------------------------------------------------------------------------------

    async def expired(self, partition: str, policy: Policy, now_us: int, after: str, limit: int) -> Ids:
        """Sessions to soft-delete: expired by the policy, claimed by nobody, with no run that is not over."""
        ...

    async def soft_delete(
        self, partition: str, session_ids: Sequence[str], policy: Policy, now_us: int
    ) -> Sequence[str]:
        """Mark those of the sessions for which all that still holds. Returns the marked ones."""
        ...

    async def condemned(self, partition: str, before_us: int, after: str, limit: int) -> Ids:
        """Sessions soft-deleted before a time, claimed by nobody, without an agent and a run that is not over."""
        ...

    async def hard_delete(self, partition: str, session_id: str, before_us: int) -> bool:
        """Delete a session for which all that still holds, as DeleteSession does. Whether it was."""
        ...

    # --- Events --------------------------------------------------------------------------------------------------

    async def count_events(self, partition: str, session_id: str | None = None) -> int:
        """Events that are stored in a session, or in all of them."""
        ...

    async def long_logs(self, partition: str, above: int, after: str, limit: int) -> Ids:
        """Sessions, saved or not, that may have more events than so many."""
        ...

    async def floor(self, partition: str, session_id: str) -> int:
        """Numbers up to and including this one have been subject to pruning; 0 for an unknown session."""
        ...

    async def spares(
        self,
        partition: str,
        session_id: str | None,
        policy: Policy,
        *,
        first: bool,
        after: Place | None,
        limit: int,
    ) -> Spares:
        """Events that may be pruned, of a session by number, or of all sessions by the time they were stored.

        With `first` those of the types that are pruned first, else those of the others.
        """
        ...

    async def bodies(self, partition: str, events: Sequence[Spare]) -> Sequence[bytes]:
        """The messages of those events of one session that are still there, as stored, in order."""
        ...

    async def prune(self, partition: str, events: Sequence[Spare]) -> int:
        """Remove those of the events that are still there and may still be pruned, and raise the floors.

        Returns how many were removed.
        """
        ...

    # --- What fits nothing ---------------------------------------------------------------------------------------

    async def saved(self, partition: str, session_ids: Sequence[str]) -> frozenset[str]:
        """Those of the sessions that were saved."""
        ...

    async def idle_counters(self, partition: str, after: str, limit: int) -> Ids:
        """Sessions that were never saved and have neither a run nor a claim; events they may have."""
        ...

    async def remove_counter(self, partition: str, session_id: str) -> bool:
        """Remove such a session if it has no event, either; a tombstone stays. Whether it was removed."""
        ...

    async def orphaned_events(self, partition: str) -> int:
        """Events of sessions that were never saved."""
        ...

    async def orphaned_runs(self, partition: str) -> int:
        """Runs of sessions that were never saved."""
        ...

    async def mismatches(self, partition: str) -> Sequence[Mismatch]:
        """Sessions whose counter is too low, by id."""
        ...

    # --- Retry tokens --------------------------------------------------------------------------------------------

    async def answer(self, partition: str, request_id: str) -> tuple[bytes, bytes] | None:
        """Fingerprint and answer of the call that used a token."""
        ...

    async def remember(self, partition: str, request_id: str, fingerprint: bytes, response: bytes) -> None:
        """Keep the answer to a call; a token that is known keeps what it has."""
        ...
