"""Mailboxes and ownership: each function is one write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, bindparam, cast, func, select, update

from turndock.errors import TurndockError, not_found
from turndock.store.v1 import (
    AppendEventWithSequenceResponse,
    CancelRunRequest,
    CancelRunResponse,
    Claim,
    ClaimAgentRequest,
    ClaimAgentResponse,
    EditRunRequest,
    EditRunResponse,
    EnqueueRunRequest,
    EnqueueRunResponse,
    ReleaseIfEmptyRequest,
    ReleaseIfEmptyResponse,
    RenewClaimsRequest,
    RenewClaimsResponse,
)
from turndock.types.v1 import RunStatus
from turndock_server.stores import rules
from turndock_server.stores.sql import rows as session_rows
from turndock_server.stores.sql import runs as run_rows
from turndock_server.stores.sql import sessions
from turndock_server.stores.sql.appends import Append, Book
from turndock_server.stores.sql.rows import Partition, SessionRow, fence_of
from turndock_server.stores.sql.runs import RunRow
from turndock_server.stores.sql.schema import NEVER, runs, scopes
from turndock_server.stores.sql.schema import sessions as sessions_table
from turndock_server.stores.sql.tokens import once
from turndock_server.stores.sql.transaction import Transaction

_RENEW: Final = (
    update(sessions_table)
    .where(sessions_table.c.key == bindparam("row"))
    .values(lease_until=bindparam("until"))
)
_PLACE: Final = update(runs).where(runs.c.key == bindparam("row")).values(queue_key=bindparam("place"))
_COUNTS: Final = (
    select(runs.c.status, func.count(), cast(func.sum(runs.c.prompt_bytes), BigInteger))
    .where(runs.c.session == bindparam("session"), runs.c.unsettled == 1)
    .group_by(runs.c.status)
)
# Whoever adds to a scope that is bounded waits for those who do so in other sessions.
_SCOPE: Final = select(scopes.c.key).where(scopes.c.key == bindparam("scope")).with_for_update(key_share=True)
_COUNT_OF_SCOPE: Final = (
    select(func.count(), cast(func.sum(runs.c.prompt_bytes), BigInteger))
    .join_from(runs, sessions_table, runs.c.session == sessions_table.c.key)
    .where(
        runs.c.unsettled == 1,
        runs.c.status == RunStatus.RUN_STATUS_PENDING,
        sessions_table.c.scope == bindparam("scope"),
    )
)


def enqueue(tx: Transaction, partition: Partition, request: EnqueueRunRequest) -> EnqueueRunResponse:
    """EnqueueRun."""
    session = session_rows.load(tx, partition, request.run.session_id)
    waiting, is_running = _waiting(tx, session)
    owner = session.owner if session.is_claimed(tx.now_us) else ""
    known = run_rows.find(tx, session, request.run.id)
    if known is not None:
        run = known.run
        if run.request_sha256 != request.run.request_sha256:
            raise rules.token_conflict(run.id)
        return EnqueueRunResponse(run=run, duplicate=True, pending_count=waiting.count, owner=owner)
    fence = fence_of(request)
    if fence is not None:
        session.check_fence(fence, tx.now_us)
    _check_open(session)
    if request.only_if_idle and (waiting.count or is_running or session.is_halted):
        raise TurndockError("AGENT_BUSY", f"session {session.id!r} is not idle")
    if request.HasField("limits"):
        rules.admit(request.run, waiting, request.limits, front=request.front)
        if rules.bounds_scope(request.limits):
            tx.connection.execute(_SCOPE, {"scope": partition.key})
            count, size = tx.connection.execute(_COUNT_OF_SCOPE, {"scope": partition.key}).one()
            rules.admit_to_scope(request.run, waiting, count, size or 0, request.limits, front=request.front)
    session_key = session_rows.ensure(tx, session, fence)
    run = run_rows.put_pending(tx, session_key, request.run, front=request.front)
    return EnqueueRunResponse(run=run, pending_count=waiting.count + 1, owner=owner)


def claim(tx: Transaction, partition: Partition, request: ClaimAgentRequest) -> ClaimAgentResponse:
    """ClaimAgent."""
    row = session_rows.load(tx, partition, request.session_id)
    session = sessions.get(tx.connection, partition, request.session_id)
    if session is None:
        raise not_found("session", request.session_id)
    is_redelivery = bool(request.ticket_id) and request.ticket_id == row.ticket_id
    if row.is_claimed(tx.now_us) and row.owner != request.owner and not (request.sole_host or is_redelivery):
        raise TurndockError(
            "CLAIM_CONFLICT",
            f"session {row.id!r} is owned by {row.owner!r}",
            metadata={"session_id": row.id, "owner": row.owner},
            retry_after_ms=(row.lease_until - tx.now_us) // 1000 + 1,
        )
    row.epoch += 1
    row.owner, row.ticket_id = request.owner, request.ticket_id
    row.lease_until = _lease_until(tx, request.lease_ms)
    session_rows.put(tx, row)
    waiting = run_rows.unsettled(tx, row)
    return ClaimAgentResponse(epoch=row.epoch, session=session, runs=[each.run for each in waiting])


def renew(
    tx: Transaction, partitions: Sequence[Partition | None], request: RenewClaimsRequest
) -> RenewClaimsResponse:
    """RenewClaims. `partitions` are those of the claims, in their order; None for one nothing was ever stored in."""
    wanted: dict[Partition, set[str]] = {}
    for partition, held in zip(partitions, request.claims, strict=True):
        if partition is not None:
            wanted.setdefault(partition, set()).add(held.session_id)
    rows = {
        partition: session_rows.load_all(tx, partition, session_ids)
        for partition, session_ids in wanted.items()
    }
    lost: list[Claim] = []
    kept: list[dict[str, int | None]] = []
    for partition, held in zip(partitions, request.claims, strict=True):
        row = rows[partition][held.session_id] if partition is not None else None
        if row is not None and row.owner == request.owner and row.epoch == held.epoch:
            kept.append({"row": row.key, "until": _lease_until(tx, request.lease_ms)})
        else:
            lost.append(held)
    if kept:
        tx.connection.execute(_RENEW, kept)
    return RenewClaimsResponse(lost=lost)


def release(tx: Transaction, partition: Partition, request: ReleaseIfEmptyRequest) -> ReleaseIfEmptyResponse:
    """ReleaseIfEmpty."""
    session = session_rows.load(tx, partition, request.session_id)
    session.check_fence(request.fence, tx.now_us)
    waiting, _ = _waiting(tx, session)
    if waiting.count and not session.is_halted and not session.rests(tx.now_us) and not request.force:
        return ReleaseIfEmptyResponse(released=False)
    if session.key is not None:
        session.see(request.fence)
        session.owner, session.ticket_id, session.lease_until = "", "", 0
        session_rows.put(tx, session)
    return ReleaseIfEmptyResponse(released=True)


def edit(tx: Transaction, partition: Partition, request: EditRunRequest) -> EditRunResponse:
    """EditRun."""
    session = session_rows.load(tx, partition, request.session_id)

    def write() -> EditRunResponse:
        stored = _pending(tx, session, request.run_id)
        run = stored.run
        if request.before_run_id or request.to_tail:
            next_one = request.before_run_id and _pending(tx, session, request.before_run_id)
            run.queue_key = _move(tx, session, stored, before=next_one or None)
        if request.HasField("prompt"):
            run.prompt = request.prompt
            run = run_rows.put(tx, session.key or 0, stored, run)
        return EditRunResponse(run=run)

    return once(tx, session, request, EditRunResponse, write)


def cancel(tx: Transaction, append: Append, request: CancelRunRequest) -> CancelRunResponse:
    """CancelRun. `append` is its terminal event."""
    session = session_rows.load(tx, append.partition, request.session_id)

    def write() -> CancelRunResponse:
        stored = run_rows.find(tx, session, request.run_id)
        if stored is None or session.key is None:
            raise not_found("run", request.run_id)
        run = stored.run
        if run.status == RunStatus.RUN_STATUS_CANCELLED:
            return CancelRunResponse(run=run)
        if run.status != RunStatus.RUN_STATUS_PENDING:
            raise rules.wrong_status(run, "pending")
        book = Book(tx)
        book.open(append.partition, (session,))
        if tx.is_careful:
            book.look_up((append,))
        (result,) = book.number(append)
        book.write()
        run.status = RunStatus.RUN_STATUS_CANCELLED
        run.failure.CopyFrom(request.failure)
        run.ended_at_us = tx.now_us
        stored_run = run_rows.put(tx, session.key, stored, run)
        response = AppendEventWithSequenceResponse.FromString(result)
        return CancelRunResponse(run=stored_run, result=response.result)

    return once(tx, session, request, CancelRunResponse, write)


def _waiting(tx: Transaction, session: SessionRow) -> tuple[rules.Waiting, bool]:
    """The session's mailbox, and whether one of its runs is RUNNING."""
    counts: dict[int, tuple[int, int]] = {}
    if session.key is not None:
        for status, count, prompt_bytes in tx.connection.execute(_COUNTS, {"session": session.key}):
            counts[status] = (count, prompt_bytes)
    count, prompt_bytes = counts.get(RunStatus.RUN_STATUS_PENDING, (0, 0))
    is_running = RunStatus.RUN_STATUS_RUNNING in counts
    dispatches = not is_running and not session.is_halted
    return rules.Waiting(count=count, prompt_bytes=prompt_bytes, dispatches=dispatches), is_running


def _check_open(session: SessionRow) -> None:
    """Refuse a run for a session that nobody will ever run it for."""
    if not session.is_saved:
        raise not_found("session", session.id)
    if session.is_deleted:
        raise TurndockError("INVALID_STATUS", f"session {session.id!r} is deleted")
    if session.is_stopped:
        raise TurndockError("AGENT_STOPPED", f"the agent of session {session.id!r} has stopped")


def _pending(tx: Transaction, session: SessionRow, run_id: str) -> RunRow:
    row = run_rows.find(tx, session, run_id)
    if row is None:
        raise not_found("run", run_id)
    if row.status != RunStatus.RUN_STATUS_PENDING:
        raise rules.wrong_status(row.run, "pending")
    return row


def _move(tx: Transaction, session: SessionRow, moved: RunRow, *, before: RunRow | None) -> int:
    """Put a run before another one that waits, or at the tail. Returns its new place.

    The places that those who wait have are dealt out anew, so that nobody else's place matters.
    """
    waiting = [row for row in run_rows.unsettled(tx, session) if row.status == RunStatus.RUN_STATUS_PENDING]
    order = [row for row in waiting if row.key != moved.key]
    index = next((at for at, row in enumerate(order) if before and row.key == before.key), len(order))
    order.insert(index, moved)
    places: list[int] = []
    for place in sorted(row.queue_key for row in waiting):
        places.append(max(place, places[-1] + 1) if places else place)
    changed = [
        {"row": row.key, "place": place}
        for row, place in zip(order, places, strict=True)
        if row.queue_key != place
    ]
    if changed:
        tx.connection.execute(_PLACE, changed)
    return places[index]


def _lease_until(tx: Transaction, lease_ms: int) -> int:
    return min(tx.now_us + lease_ms * 1000, NEVER)
