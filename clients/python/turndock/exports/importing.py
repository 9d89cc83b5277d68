"""An export back into a store: a session with its runs and its log.

What the store sets is the new store's own: the incarnation, and when it stored an event. Everything else comes back as
it was. Numbers do, too, unless some were pruned: then they close up, and what refers to a number follows.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from turndock.errors import TurndockError, invalid
from turndock.exports.lines import Record, parse_line
from turndock.ports import ArtifactStore, SessionStore
from turndock.store.v1 import (
    AppendEventsRequest,
    ArtifactStoreHeadRequest,
    ExportEnd,
    GetSessionRequest,
    SaveRunRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import Artifact, Event, Run, Scope, Session

_BATCH_EVENTS: Final = 1_000
_BATCH_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Imported:
    """What was imported."""

    session: Session
    """As stored."""
    run_count: int = 0
    event_count: int = 0
    renumbered: bool = False
    """Whether events have other numbers than they had, because some before them were pruned."""
    missing_artifacts: list[str] = field(default_factory=list[str])
    """Keys of artifacts that the session has or refers to, and that are not there: their bytes travel apart."""


def read_lines(lines: Iterable[str]) -> Iterator[Record]:
    """The records of an export as JSON Lines. Raises VALIDATION_ERROR naming the line for what is none."""
    is_begun = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record = parse_line(line, number)
        if record is None:
            is_begun = True
            continue
        if not is_begun:
            raise invalid(f"line {number}", "comes before the header: this is no export as JSON Lines")
        yield record


def check(records: Iterable[Record]) -> Session:
    """Hold an export against what an export is, before anything of it is stored. Returns its session.

    Raises VALIDATION_ERROR for one that is incomplete, out of order, or of several sessions.
    """
    session: Session | None = None
    end: ExportEnd | None = None
    counts = {Run: 0, Event: 0, Artifact: 0}
    last = 0
    for record in records:
        if end is not None:
            raise invalid("export", "goes on after its end")
        if isinstance(record, Session):
            if session is not None:
                raise invalid("export", "holds more than one session")
            session = record
            continue
        if session is None:
            raise invalid("export", "does not begin with its session")
        if isinstance(record, ExportEnd):
            end = record
            continue
        counts[type(record)] += 1
        if isinstance(record, Run | Event) and record.session_id != session.id:
            raise invalid(
                "export", f"holds {record.id!r} of session {record.session_id!r}, not {session.id!r}"
            )
        if isinstance(record, Event):
            if record.sequence <= last:
                raise invalid("export", f"holds event {record.sequence} after event {last}")
            last = record.sequence
    if session is None or end is None:
        raise invalid("export", "is incomplete: it breaks off before its end")
    told = (end.run_count, end.event_count, end.artifact_count)
    if told != tuple(counts.values()):
        raise invalid(
            "export", f"holds {tuple(counts.values())} runs, events and artifacts; its end says {told}"
        )
    return session


async def import_session(
    records: Iterable[Record],
    store: SessionStore,
    scope: Scope | None,
    *,
    session_id: str = "",
    artifacts: ArtifactStore | None = None,
) -> Imported:
    """Store an export that passes `check`, as its own session or as a copy under another id.

    A copy's events get ids of their own, which follow from the two, and its agent is stopped: the first one goes on
    alone. The session is saved last: an import that broke off can be made again, and goes on from there. With
    `artifacts` those that are referred to are looked for.

    Raises ALREADY_EXISTS for a session that is there, IDEMPOTENCY_CONFLICT when ids of its events are taken in this
    scope by something else, and what the store raises.
    """
    source = iter(records)
    session = next(source)
    if not isinstance(session, Session):
        raise invalid("export", "does not begin with its session")
    target = _Target(session_id or session.id, is_copy=session_id not in {"", session.id})
    await _check_free(store, scope, target.id)
    imported = Imported(session)
    keys: dict[str, None] = {}
    numbers: list[int] = []
    batch = _Batch(store, scope)
    for record in source:
        if isinstance(record, Run):
            run = target.run(record)
            await store.save_run(SaveRunRequest(scope=scope, run=run))
            imported.run_count += 1
        elif isinstance(record, Event):
            await batch.add(target.event(record))
            numbers.append(record.sequence)
            if record.HasField("offloaded"):
                keys[record.offloaded.key] = None
        elif isinstance(record, Artifact):
            keys[record.key] = None
    await batch.send()
    imported.event_count = len(numbers)
    imported.renumbered = bool(numbers) and numbers[-1] != len(numbers)
    request = SaveSessionRequest(scope=scope, session=target.session(session, numbers))
    imported.session = (await store.save_session(request)).session
    if artifacts is not None:
        imported.missing_artifacts = [key for key in keys if not await _is_there(artifacts, scope, key)]
    return imported


class _Target:
    """The session an export becomes."""

    def __init__(self, session_id: str, *, is_copy: bool) -> None:
        self.id = session_id
        self._is_copy = is_copy

    def run(self, given: Run) -> Run:
        run = Run()
        run.CopyFrom(given)
        run.session_id = self.id
        return run

    def event(self, given: Event) -> Event:
        event = Event()
        event.CopyFrom(given)
        event.session_id = self.id
        if self._is_copy:
            event.id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"turndock:{self.id}\n{given.id}"))
        for name in ("sequence", "incarnation", "stored_at_us"):
            event.ClearField(name)
        return event

    def session(self, given: Session, numbers: list[int]) -> Session:
        """The session; `numbers` are those its events had."""
        session = Session()
        session.CopyFrom(given)
        session.id = self.id
        if session.HasField("agent"):
            session.agent.notified_sequence = bisect_right(numbers, given.agent.notified_sequence)
            if self._is_copy:
                session.agent.stopped = True
        return session


class _Batch:
    """Events on their way into the store, many at once."""

    def __init__(self, store: SessionStore, scope: Scope | None) -> None:
        self._store = store
        self._scope = scope
        self._events: list[Event] = []
        self._bytes = 0

    async def add(self, event: Event) -> None:
        size = event.ByteSize()
        if len(self._events) == _BATCH_EVENTS or (self._events and self._bytes + size > _BATCH_BYTES):
            await self.send()
        self._events.append(event)
        self._bytes += size

    async def send(self) -> None:
        if self._events:
            await self._store.append_events(
                AppendEventsRequest(scope=self._scope, events=self._events, strict_duplicates=True)
            )
        self._events, self._bytes = [], 0


async def _check_free(store: SessionStore, scope: Scope | None, session_id: str) -> None:
    try:
        await store.get_session(GetSessionRequest(scope=scope, session_id=session_id))
    except TurndockError as error:
        if error.reason != "SESSION_NOT_FOUND":
            raise
        return
    raise TurndockError(
        "ALREADY_EXISTS",
        f"session {session_id!r} is there already; under another id it can be imported as a copy",
        metadata={"session_id": session_id},
    )


async def _is_there(artifacts: ArtifactStore, scope: Scope | None, key: str) -> bool:
    return (await artifacts.head(ArtifactStoreHeadRequest(scope=scope, key=key))).HasField("artifact")
