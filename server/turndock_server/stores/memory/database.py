"""What a `MemorySessionStore` holds, and the two questions every write asks of it: whose is it, and was it here before.

Messages in here are private: what comes in is copied or encoded, what goes out is copied or decoded.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from google.protobuf.message import Message

from turndock.errors import TurndockError
from turndock.types.v1 import Event, Fence, Run, RunStatus, Session
from turndock_server.stores import rules

Key = tuple[str, str]
"""Partition and session id."""

M = TypeVar("M", bound=Message)

_OPEN: Final = frozenset((RunStatus.RUN_STATUS_PENDING, RunStatus.RUN_STATUS_RUNNING))


def copy_of(message: M) -> M:
    """A message nobody else holds."""
    result = type(message)()
    result.CopyFrom(message)
    return result


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as bytes, with the columns that reads filter by."""

    id: str
    sequence: int
    type: int
    run_id: str
    stored_at_us: int
    body: bytes

    def message(self) -> Event:
        """The event as stored."""
        return Event.FromString(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a retry token was answered with."""

    fingerprint: bytes
    response: Message


@dataclass(slots=True)
class Record:
    """All that one session has."""

    key: Key
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    session: Session | None = None
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    open_runs: dict[str, Run] = field(default_factory=dict[str, Run])
    """Those that are PENDING or RUNNING, or wait for a decision."""
    log: dict[int, StoredEvent] = field(default_factory=dict[int, StoredEvent])
    """By number, in order."""
    head: int = 0
    """Highest number ever assigned."""
    pruned_through: int = 0
    """Highest number ever removed."""
    tail_key: int = 0
    """Highest queue key of all runs so far."""
    last_notification: int = 0
    """Number of the last notification in the log."""
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])

    @property
    def oldest(self) -> int:
        """Lowest number that is stored; 0 for none."""
        return next(iter(self.log), 0)

    def stored_events(self) -> list[StoredEvent]:
        """The events that are in the log now, in the order of their numbers."""
        return list(self.log.values())

    @property
    def is_halted(self) -> bool:
        """Whether the mailbox is frozen."""
        return self.session is not None and self.session.agent.halted

    def rests(self, now_us: int) -> bool:
        """Whether the session has no work now, whatever its runs say."""
        until = rules.rests_until(self.session)
        return until is not None and now_us < until

    def visible_session(self) -> Session | None:
        """The session as callers see it, a copy; None if it was never saved."""
        if self.session is None:
            return None
        session = copy_of(self.session)
        session.last_sequence = self.head
        return session

    def put_run(self, run: Run) -> None:
        """Keep a run, which is the record's own from now on."""
        self.runs[run.id] = run
        if run.status in _OPEN or run.decision_pending:
            self.open_runs[run.id] = run
        else:
            self.open_runs.pop(run.id, None)
        self.tail_key = max(self.tail_key, run.queue_key)

    def pending(self) -> list[Run]:
        """The runs that wait, first one first."""
        waiting = (run for run in self.open_runs.values() if run.status == RunStatus.RUN_STATUS_PENDING)
        return in_mailbox_order(waiting)

    def running(self) -> Run | None:
        """The run whose turn is under way."""
        running = (run for run in self.open_runs.values() if run.status == RunStatus.RUN_STATUS_RUNNING)
        return next(iter(in_mailbox_order(running)), None)

    def next_queue_key(self, *, front: bool) -> int:
        """A place at the mailbox's tail, or before all runs that wait."""
        pending = self.pending() if front else []
        return pending[0].queue_key - 1 if pending else self.tail_key + rules.QUEUE_STEP


def mailbox_place(run: Run) -> tuple[int, int, str]:
    """What runs are sorted by."""
    return (run.queue_key, run.created_at_us, run.id)


def in_mailbox_order(runs: Iterable[Run]) -> list[Run]:
    """Runs, first one first."""
    return sorted(runs, key=mailbox_place)


@dataclass(slots=True)
class Ownership:
    """Who may write to a session. It outlives the session, so that no epoch is granted twice."""

    session_id: str
    epoch: int = 0
    """Highest epoch granted or seen."""
    owner: str = ""
    """Whose the claim is; empty = nobody's."""
    claim_epoch: int = 0
    ticket_id: str = ""
    lease_ends_us: int = 0
    """When the claim lapses."""

    def is_claimed(self, now_us: int) -> bool:
        """Whether somebody's lease runs."""
        return bool(self.owner) and now_us < self.lease_ends_us

    def check(self, fence: Fence | None, now_us: int) -> None:
        """Refuse a write under this fence, or without one, if it is not the owner's (FENCED)."""
        if fence is None:
            if self.is_claimed(now_us):
                raise rules.fenced(self.session_id, None, self.epoch)
        elif fence.epoch < self.epoch:
            raise rules.fenced(self.session_id, fence.epoch, self.epoch)

    def grant(self, owner: str, ticket_id: str, lease_ends_us: int) -> int:
        """Make somebody the owner. Returns the epoch."""
        self.epoch += 1
        self.owner, self.ticket_id, self.claim_epoch = owner, ticket_id, self.epoch
        self.lease_ends_us = lease_ends_us
        return self.epoch

    def release(self) -> None:
        """Give the claim up."""
        self.owner = self.ticket_id = ""


class Database:
    """Records by key, and what must be unique within a partition."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.now_us = clock
        self.records: dict[Key, Record] = {}
        self.events: dict[tuple[str, str], StoredEvent] = {}
        """By partition and event id."""
        self.maintenance_answers: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        """Of maintenance calls, by partition and retry token."""
        self._ownerships: dict[Key, Ownership] = {}
        self._live_agents: dict[tuple[str, str], str] = {}
        """Session of each agent that has not stopped, by partition and name."""

    def record(self, key: Key) -> Record:
        """The session's record; a new one, not yet kept, if there is none."""
        return self.records.get(key) or Record(key)

    def keep(self, record: Record) -> None:
        """Make a new record findable."""
        self.records[record.key] = record

    def ownership(self, key: Key) -> Ownership:
        """Who owns a session."""
        return self._ownerships.get(key) or Ownership(key[1])

    def keep_ownership(self, key: Key, ownership: Ownership) -> None:
        """Remember who owns a session."""
        self._ownerships[key] = ownership

    def see(self, key: Key, fence: Fence) -> None:
        """Take note of the epoch of a write that was made."""
        ownership = self.ownership(key)
        ownership.epoch = max(ownership.epoch, fence.epoch)
        self.keep_ownership(key, ownership)

    def check_agent_name(self, partition: str, session: Session) -> None:
        """Refuse a session whose live agent has a name another one has (ALREADY_EXISTS)."""
        holder = self._live_agents.get((partition, session.agent_id))
        if _is_live(session) and holder not in {None, session.id}:
            raise TurndockError(
                "ALREADY_EXISTS",
                f"agent {session.agent_id!r} is alive in another session",
                metadata={"agent_name": session.agent_id},
            )

    def put_session(self, record: Record, session: Session) -> None:
        """Keep a session, which is the record's own from now on."""
        self._forget_agent(record)
        record.session = session
        if _is_live(session):
            self._live_agents[record.key[0], session.agent_id] = session.id
        self.keep(record)

    def put_event(self, record: Record, event: Event, stored: StoredEvent) -> None:
        """Put the next event into a log."""
        record.log[stored.sequence] = stored
        record.head = stored.sequence
        if event.custom.name == rules.NOTIFIED:
            record.last_notification = stored.sequence
        self.events[record.key[0], event.id] = stored

    def prune(self, record: Record, sequence: int) -> None:
        """Remove an event; its number stays used."""
        del self.events[record.key[0], record.log.pop(sequence).id]
        record.pruned_through = max(record.pruned_through, sequence)

    def delete(self, key: Key) -> None:
        """Remove a session with everything it has; which epochs were granted stays known."""
        record = self.records.pop(key, None)
        if record is None:
            return
        self._forget_agent(record)
        for event in record.log.values():
            del self.events[key[0], event.id]
        if key in self._ownerships:
            self._ownerships[key].release()

    def _forget_agent(self, record: Record) -> None:
        if record.session is not None and _is_live(record.session):
            self._live_agents.pop((record.key[0], record.session.agent_id), None)


def _is_live(session: Session) -> bool:
    return session.HasField("agent") and not session.agent.stopped
