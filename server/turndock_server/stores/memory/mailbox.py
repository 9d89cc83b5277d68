"""Mailboxes and ownership: each function is one transaction over the `Database`."""

from __future__ import annotations

from turndock.errors import TurndockError, not_found
from turndock.store.v1 import (
    CancelRunRequest,
    CancelRunResponse,
    ClaimAgentRequest,
    ClaimAgentResponse,
    EditRunRequest,
    EnqueueRunRequest,
    EnqueueRunResponse,
    ReleaseIfEmptyRequest,
    RenewClaimsRequest,
    RenewClaimsResponse,
)
from turndock.types.v1 import Run, RunStatus
from turndock_server.stores import rules
from turndock_server.stores.memory import writing
from turndock_server.stores.memory.database import (
    Database,
    Key,
    Record,
    copy_of,
    in_mailbox_order,
)


def enqueue(database: Database, key: Key, request: EnqueueRunRequest) -> EnqueueRunResponse:
    """EnqueueRun."""
    record, ownership = database.record(key), database.ownership(key)
    now_us = database.now_us()
    owner = ownership.owner if ownership.is_claimed(now_us) else ""
    known = record.runs.get(request.run.id)
    if known is not None:
        if known.request_sha256 != request.run.request_sha256:
            raise rules.token_conflict(request.run.id)
        return EnqueueRunResponse(run=known, duplicate=True, pending_count=len(record.pending()), owner=owner)
    fence = request.fence if request.HasField("fence") else None
    if fence is not None:
        ownership.check(fence, now_us)
    if record.session is None:
        raise not_found("session", key[1])
    if record.session.HasField("deleted_at_us"):
        raise TurndockError("INVALID_STATUS", f"session {key[1]!r} is deleted")
    if record.session.agent.stopped:
        raise TurndockError("AGENT_STOPPED", f"the agent of session {key[1]!r} has stopped")
    pending, running = record.pending(), record.running()
    if request.only_if_idle and (pending or running or record.is_halted):
        raise TurndockError("AGENT_BUSY", f"session {key[1]!r} is not idle")
    if request.HasField("limits"):
        waiting = rules.Waiting(
            count=len(pending),
            prompt_bytes=sum(map(rules.prompt_bytes, pending)),
            dispatches=running is None and not record.is_halted,
        )
        rules.admit(request.run, waiting, request.limits, front=request.front)
        if rules.bounds_scope(request.limits):
            scope = [each for (tenant, _), each in database.records.items() if tenant == key[0]]
            everywhere = [run for each in scope for run in each.pending()]
            size = sum(map(rules.prompt_bytes, everywhere))
            rules.admit_to_scope(
                request.run, waiting, len(everywhere), size, request.limits, front=request.front
            )
    run = writing.put_pending_run(database, record, request.run, front=request.front)
    if fence is not None:
        database.see(key, fence)
    return EnqueueRunResponse(run=run, pending_count=len(pending) + 1, owner=owner)


def claim(database: Database, key: Key, request: ClaimAgentRequest) -> ClaimAgentResponse:
    """ClaimAgent."""
    record, ownership = database.record(key), database.ownership(key)
    session = record.visible_session()
    if session is None:
        raise not_found("session", key[1])
    is_redelivery = bool(request.ticket_id) and request.ticket_id == ownership.ticket_id
    now_us = database.now_us()
    is_anothers = ownership.is_claimed(now_us) and ownership.owner != request.owner
    if is_anothers and not (request.sole_host or is_redelivery):
        raise TurndockError(
            "CLAIM_CONFLICT",
            f"session {key[1]!r} is owned by {ownership.owner!r}",
            metadata={"session_id": key[1], "owner": ownership.owner},
            retry_after_ms=(ownership.lease_ends_us - now_us) // 1000 + 1,
        )
    epoch = ownership.grant(request.owner, request.ticket_id, now_us + request.lease_ms * 1000)
    database.keep_ownership(key, ownership)
    return ClaimAgentResponse(epoch=epoch, session=session, runs=in_mailbox_order(record.open_runs.values()))


def renew(database: Database, keys: list[Key], request: RenewClaimsRequest) -> RenewClaimsResponse:
    """RenewClaims."""
    response = RenewClaimsResponse()
    for key, held in zip(keys, request.claims, strict=True):
        ownership = database.ownership(key)
        if ownership.owner == request.owner and held.epoch == ownership.claim_epoch == ownership.epoch:
            ownership.lease_ends_us = database.now_us() + request.lease_ms * 1000
        else:
            response.lost.append(held)
    return response


def release(database: Database, key: Key, request: ReleaseIfEmptyRequest) -> bool:
    """ReleaseIfEmpty; whether the claim was given up."""
    record, ownership = database.record(key), database.ownership(key)
    ownership.check(request.fence, database.now_us())
    rests = record.is_halted or record.rests(database.now_us())
    if record.pending() and not rests and not request.force:
        return False
    ownership.release()
    return True


def edit(database: Database, key: Key, request: EditRunRequest) -> Run:
    """EditRun. Returns a copy of the run as stored."""
    record = database.record(key)
    run = _pending(record, request.run_id)
    others = [other for other in record.pending() if other.id != run.id]
    if request.before_run_id:
        others.insert(others.index(_pending(record, request.before_run_id)), run)
        _put_in_order(others)
    elif request.to_tail:
        _put_in_order([*others, run])
    if request.HasField("prompt"):
        run.prompt = request.prompt
    return copy_of(run)


def cancel(database: Database, key: Key, request: CancelRunRequest) -> tuple[CancelRunResponse, set[Key]]:
    """CancelRun, and the sessions whose log grew."""
    record = database.record(key)
    run = _known(record, request.run_id)
    if run.status == RunStatus.RUN_STATUS_CANCELLED:
        return CancelRunResponse(run=run), set()
    if run.status != RunStatus.RUN_STATUS_PENDING:
        raise rules.wrong_status(run, "pending")
    batch = writing.number(
        database, key[0], [request.event], records={key[1]: record}, strict=False, field="event"
    )
    run.status = RunStatus.RUN_STATUS_CANCELLED
    run.failure.CopyFrom(request.failure)
    run.ended_at_us = database.now_us()
    record.put_run(run)
    return CancelRunResponse(run=run, result=batch.results[0]), batch.apply(database)


def is_orphan(database: Database, record: Record, *, asked_by: str, sole_host: bool) -> bool:
    """Whether a session has work and nobody who does it."""
    ownership = database.ownership(record.key)
    if ownership.owner == asked_by or (ownership.is_claimed(database.now_us()) and not sole_host):
        return False
    session = record.session
    if session is None or record.rests(database.now_us()):
        return False
    unapplied = session.HasField("agent") and record.last_notification > session.agent.notified_sequence
    has_runs = any(
        run.status != RunStatus.RUN_STATUS_PENDING or not record.is_halted
        for run in record.open_runs.values()
    )
    return has_runs or unapplied


def _known(record: Record, run_id: str) -> Run:
    run = record.runs.get(run_id)
    if run is None:
        raise not_found("run", run_id)
    return run


def _pending(record: Record, run_id: str) -> Run:
    run = _known(record, run_id)
    if run.status != RunStatus.RUN_STATUS_PENDING:
        raise rules.wrong_status(run, "pending")
    return run


def _put_in_order(runs: list[Run]) -> None:
    """Deal the queue keys these runs have out again, in this order; equal ones are moved apart."""
    last: int | None = None
    for run, queue_key in zip(runs, sorted(run.queue_key for run in runs), strict=True):
        last = queue_key if last is None else max(queue_key, last + 1)
        run.queue_key = last
