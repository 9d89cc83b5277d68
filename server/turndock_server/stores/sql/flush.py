"""Flush: a session, a run and events in one transaction."""

from __future__ import annotations

from turndock.store.v1 import FlushRequest, FlushResponse
from turndock.types.v1 import Run
from turndock_server.stores import rules
from turndock_server.stores.sql import rows, runs, sessions
from turndock_server.stores.sql.appends import Append, Book
from turndock_server.stores.sql.tokens import once
from turndock_server.stores.sql.transaction import Transaction


def flush(tx: Transaction, append: Append, request: FlushRequest) -> FlushResponse:
    """Flush. `append` are the request's events."""
    session = rows.load(tx, append.partition, request.session.id)

    def write() -> FlushResponse:
        session.check_fence(append.fence, tx.now_us)
        sessions.check_agent_name(tx, session, request.session)
        stored = runs.find(tx, session, request.run.id)
        if request.HasField("expected_run_status"):
            runs.check_status(stored, request.run.id, request.expected_run_status)
        known_chained = _known_chained_run(tx, session, request)
        book = Book(tx)
        book.open(append.partition, (session,))
        if tx.is_careful:
            book.look_up((append,))
        results = book.number(append)
        # Nothing is refused from here on.
        session.see(append.fence)
        session_key = rows.put(
            tx, session, sessions.saved(sessions.complete(session, request.session, tx.now_us))
        )
        sessions.put_tags(tx, session, request.session)
        runs.put(tx, session_key, stored, _run_to_store(request))
        book.write_events()
        response = FlushResponse.FromString(b"".join(results))
        response.head = session.last_sequence
        if request.HasField("chained_run"):
            chained = known_chained or runs.put_pending(tx, session_key, request.chained_run, front=True)
            response.chained_run.CopyFrom(chained)
        return response

    return once(tx, session, request, FlushResponse, write)


def _known_chained_run(tx: Transaction, session: rows.SessionRow, request: FlushRequest) -> Run | None:
    """The chained run if an earlier try of this flush has stored it."""
    if not request.HasField("chained_run"):
        return None
    stored = runs.find(tx, session, request.chained_run.id)
    if stored is None:
        return None
    run = stored.run
    if run.request_sha256 != request.chained_run.request_sha256:
        raise rules.token_conflict(run.id)
    return run


def _run_to_store(request: FlushRequest) -> Run:
    if not request.provider_metadata_json:
        return request.run
    run = Run()
    run.CopyFrom(request.run)
    run.provider_metadata_json = request.provider_metadata_json
    return run
