"""Writes in two steps, so that a failed call changed nothing: first everything that can be refused, then the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turndock.errors import TurndockError
from turndock.store.v1 import AppendResult, ExpectedSequence
from turndock.types.v1 import Event, Run, RunStatus, Session
from turndock_server.stores import checks, rules
from turndock_server.stores.memory.database import Database, Key, Record, StoredEvent, copy_of


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that have their numbers and are not in any log yet."""

    results: list[AppendResult]
    fresh: list[tuple[Record, Event, StoredEvent]]

    def apply(self, database: Database) -> set[Key]:
        """Put them into their logs. Returns the sessions whose log grew."""
        for record, event, stored in self.fresh:
            database.keep(record)
            database.put_event(record, event, stored)
        return {record.key for record, _, _ in self.fresh}


def number(
    database: Database,
    partition: str,
    events: Sequence[Event],
    *,
    records: dict[str, Record] | None = None,
    strict: bool,
    field: str,
) -> Batch:
    """Give events their numbers; known ones keep theirs. `records` are those the same write has drafted.

    Raises IDEMPOTENCY_CONFLICT when `strict` and a known id comes with another payload.
    """
    drafted = records if records is not None else {}
    batch = Batch([], [])
    heads: dict[str, int] = {}
    known: dict[str, StoredEvent] = {}
    now_us = database.now_us()
    for index, event in enumerate(events):
        stored = known.get(event.id) or database.events.get((partition, event.id))
        if stored is not None:
            before = stored.message()
            differs = rules.as_written(before) != rules.as_written(event)
            if differs and strict:
                raise rules.event_conflict(event, f"{field}[{index}]")
            batch.results.append(AppendResult(event=before, duplicate=True, payload_differs=differs))
            continue
        record = drafted.get(event.session_id)
        if record is None:
            record = drafted[event.session_id] = database.record((partition, event.session_id))
        sequence = heads.get(event.session_id, record.head) + 1
        heads[event.session_id] = sequence
        numbered = copy_of(event)
        numbered.sequence = sequence
        numbered.incarnation = record.incarnation
        numbered.stored_at_us = now_us
        stored = StoredEvent(
            event.id,
            sequence,
            numbered.type,
            numbered.run_id,
            numbered.stored_at_us,
            numbered.SerializeToString(),
        )
        known[event.id] = stored
        batch.fresh.append((record, numbered, stored))
        batch.results.append(AppendResult(event=numbered))
    return batch


def check_expected(record: Record, expected: ExpectedSequence) -> None:
    """Refuse a write to a log that is not as its writer expects it (SEQUENCE_CONFLICT)."""
    condition = expected.WhichOneof("condition")
    if condition == "last_sequence":
        wanted = expected.last_sequence
    elif condition == "no_events" and expected.no_events:
        wanted = 0
    else:
        return
    if record.head != wanted:
        raise TurndockError(
            "SEQUENCE_CONFLICT",
            f"the log of session {record.key[1]!r} ends at {record.head}, not at {wanted}",
            metadata={"last_sequence": str(record.head), "expected": str(wanted)},
        )


def check_run_status(record: Record, run_id: str, expected: RunStatus.ValueType | None) -> None:
    """Refuse to save a run that is not in the status its writer expects (INVALID_TRANSITION)."""
    if expected is None:
        return
    stored = record.runs.get(run_id)
    status = stored.status if stored else RunStatus.RUN_STATUS_UNSPECIFIED
    if status != expected:
        names = {"status": rules.run_status_name(status), "expected": rules.run_status_name(expected)}
        raise TurndockError(
            "INVALID_TRANSITION",
            f"run {run_id!r} is {names['status']}, not {names['expected']}",
            metadata=names,
        )


def put_session(database: Database, record: Record, given: Session) -> None:
    """Insert a session or replace every field of it that is the writer's."""
    session = copy_of(given)
    now = database.now_us()
    session.ClearField("scope")
    scope = checks.scope_of(record.key[0])
    if scope is not None:
        session.scope.CopyFrom(scope)
    if record.session is not None:
        session.created_at_us = record.session.created_at_us
    session.created_at_us = session.created_at_us or now
    session.updated_at_us = session.updated_at_us or now
    session.incarnation = record.incarnation
    session.ClearField("last_sequence")
    database.put_session(record, session)


def put_run(database: Database, record: Record, given: Run, *, provider_metadata_json: str = "") -> Run:
    """Insert a run or replace every field of it that is the writer's. Returns the record's own run."""
    run = _own_run(given)
    stored = record.runs.get(run.id)
    if stored is not None:
        run.created_at_us = stored.created_at_us
    run.created_at_us = run.created_at_us or database.now_us()
    if provider_metadata_json:
        run.provider_metadata_json = provider_metadata_json
    record.put_run(run)
    database.keep(record)
    return run


def put_pending_run(database: Database, record: Record, given: Run, *, front: bool) -> Run:
    """Put a new run into the mailbox. Returns the record's own run."""
    run = _own_run(given)
    run.status = RunStatus.RUN_STATUS_PENDING
    run.queue_key = record.next_queue_key(front=front)
    run.created_at_us = database.now_us()
    record.put_run(run)
    database.keep(record)
    return run


def _own_run(given: Run) -> Run:
    run = copy_of(given)
    if run.HasField("response"):  # its events are in the log
        run.response.ClearField("events")
        run.response.ClearField("terminal")
    return run
