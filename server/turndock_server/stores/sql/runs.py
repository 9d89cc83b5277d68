"""Runs: their rows, and saving them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, bindparam, func, insert, select, update

from turndock.errors import TurndockError
from turndock.store.v1 import SaveRunRequest, SaveRunResponse
from turndock.types.v1 import Run, RunStatus
from turndock_server.stores import rules, spending
from turndock_server.stores.sql import rows
from turndock_server.stores.sql.rows import Partition, SessionRow, fence_of
from turndock_server.stores.sql.schema import runs, sessions
from turndock_server.stores.sql.tokens import once
from turndock_server.stores.sql.transaction import Transaction

UNSETTLED: Final = frozenset((RunStatus.RUN_STATUS_PENDING, RunStatus.RUN_STATUS_RUNNING))


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run's row."""

    key: int
    id: str
    status: int
    queue_key: int
    created_at: int
    prompt_bytes: int
    body: bytes

    @property
    def run(self) -> Run:
        """The run as callers see it."""
        return visible(self.body, self.queue_key)


COLUMNS: Final = (
    runs.c.key,
    runs.c.id,
    runs.c.status,
    runs.c.queue_key,
    runs.c.created_at,
    runs.c.prompt_bytes,
    runs.c.body,
)
MAILBOX_ORDER: Final = (runs.c.queue_key, runs.c.created_at, runs.c.id)

_FIND: Final = select(*COLUMNS).where(runs.c.session == bindparam("session"), runs.c.id == bindparam("run"))
_INSERT: Final = insert(runs).values(
    scope=select(sessions.c.scope).where(sessions.c.key == bindparam("owner")).scalar_subquery()
)
_UPDATE: Final = update(runs).where(runs.c.key == bindparam("row"))
_IN_MAILBOX: Final = (
    select(*COLUMNS)
    .where(runs.c.session == bindparam("session"), runs.c.unsettled == 1)
    .order_by(*MAILBOX_ORDER)
)
_OF_SESSION: Final = (
    select(runs.c.body, runs.c.queue_key)
    .join(sessions, sessions.c.key == runs.c.session)
    .where(sessions.c.scope == bindparam("scope"), sessions.c.id == bindparam("id"))
)
_GET: Final = _OF_SESSION.where(runs.c.id == bindparam("run"))
_GET_ACTIVE: Final = (
    _OF_SESSION.where(runs.c.unsettled == 1, runs.c.status == RunStatus.RUN_STATUS_RUNNING)
    .order_by(*MAILBOX_ORDER)
    .limit(1)
)
_FIRST_PLACE: Final = select(func.min(runs.c.queue_key)).where(
    runs.c.session == bindparam("session"),
    runs.c.unsettled == 1,
    runs.c.status == RunStatus.RUN_STATUS_PENDING,
)
_LAST_PLACE: Final = select(func.max(runs.c.queue_key)).where(runs.c.session == bindparam("session"))


def visible(body: bytes, queue_key: int) -> Run:
    """A stored run as callers see it. Its place is kept beside it: moving a run does not rewrite it."""
    run = Run.FromString(body)
    run.queue_key = queue_key
    return run


def find(tx: Transaction, session: SessionRow, run_id: str) -> RunRow | None:
    """A run's row."""
    if session.key is None:
        return None
    found = tx.connection.execute(_FIND, {"session": session.key, "run": run_id}).first()
    return RunRow(*found) if found is not None else None


def unsettled(tx: Transaction, session: SessionRow) -> list[RunRow]:
    """The runs that are PENDING or RUNNING, or wait for a decision, in mailbox order."""
    if session.key is None:
        return []
    return [RunRow(*found) for found in tx.connection.execute(_IN_MAILBOX, {"session": session.key})]


def get(connection: Connection, partition: Partition | None, session_id: str, run_id: str) -> Run | None:
    """A run as callers see it."""
    if partition is None:
        return None
    arguments = {"scope": partition.key, "id": session_id, "run": run_id}
    row = connection.execute(_GET, arguments).first()
    return None if row is None else visible(row.body, row.queue_key)


def get_active(connection: Connection, partition: Partition | None, session_id: str) -> Run | None:
    """The run that is RUNNING; the first in mailbox order, should there be several."""
    if partition is None:
        return None
    row = connection.execute(_GET_ACTIVE, {"scope": partition.key, "id": session_id}).first()
    return None if row is None else visible(row.body, row.queue_key)


def check_status(stored: RunRow | None, run_id: str, expected: RunStatus.ValueType) -> None:
    """Refuse to save a run that is not in the status its writer expects (INVALID_TRANSITION)."""
    status = stored.status if stored else RunStatus.RUN_STATUS_UNSPECIFIED
    if status != expected:
        names = {"status": rules.run_status_name(status), "expected": rules.run_status_name(expected)}
        raise TurndockError(
            "INVALID_TRANSITION",
            f"run {run_id!r} is {names['status']}, not {names['expected']}",
            metadata=names,
        )


def put(tx: Transaction, session_key: int, stored: RunRow | None, given: Run) -> Run:
    """Insert a run, or replace every field of the stored one that is the writer's. Returns it as stored."""
    run = Run()
    run.CopyFrom(given)
    # The run's events are in the log; here they would be a second copy.
    if run.HasField("response"):
        run.response.ClearField("events")
        run.response.ClearField("terminal")
    run.created_at_us = (stored.created_at if stored else 0) or run.created_at_us or tx.now_us
    values: dict[str, Any] = {
        "status": run.status,
        "queue_key": run.queue_key,
        "created_at": run.created_at_us,
        "prompt_bytes": rules.prompt_bytes(run),
        "unsettled": 1 if run.status in UNSETTLED or run.decision_pending else None,
        "body": run.SerializeToString(),
        **_account(run),
    }
    if stored is None:
        key = {"owner": session_key, "session": session_key, "id": run.id}
        tx.connection.execute(_INSERT, values | key)
    else:
        tx.connection.execute(_UPDATE, values | {"row": stored.key})
    return run


def _account(run: Run) -> dict[str, Any]:
    """The values by which runs are searched and added up."""
    spent = spending.of_run(run)
    return {
        "provider": run.provider,
        "model": run.usage.model,
        "started_at": run.started_at_us,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "total_tokens": spent.total_tokens,
        "cached_input_tokens": spent.cached_input_tokens,
        "reasoning_tokens": spent.reasoning_tokens,
        "cost_usd": spent.cost_usd,
    }


def put_pending(tx: Transaction, session_key: int, given: Run, *, front: bool) -> Run:
    """Put a new run into the mailbox. Returns it as stored."""
    run = Run()
    run.CopyFrom(given)
    run.status = RunStatus.RUN_STATUS_PENDING
    run.queue_key = _queue_key(tx, session_key, front=front)
    run.created_at_us = tx.now_us
    return put(tx, session_key, None, run)


def _queue_key(tx: Transaction, session_key: int, *, front: bool) -> int:
    """A place at the mailbox's tail, or before all runs that wait."""
    arguments = {"session": session_key}
    first: int | None = tx.connection.execute(_FIRST_PLACE, arguments).scalar_one() if front else None
    if first is not None:
        return first - 1
    last: int | None = tx.connection.execute(_LAST_PLACE, arguments).scalar_one()
    return (last or 0) + rules.QUEUE_STEP


def save(tx: Transaction, partition: Partition, request: SaveRunRequest) -> SaveRunResponse:
    """SaveRun. The session need not have been saved."""
    session = rows.load(tx, partition, request.run.session_id)
    fence = fence_of(request)

    def write() -> SaveRunResponse:
        session.check_fence(fence, tx.now_us)
        stored = find(tx, session, request.run.id)
        if request.HasField("expected_status"):
            check_status(stored, request.run.id, request.expected_status)
        session_key = rows.ensure(tx, session, fence)
        return SaveRunResponse(run=put(tx, session_key, stored, request.run))

    return once(tx, session, request, SaveRunResponse, write)
