"""A session store with something of everything in it."""

from __future__ import annotations

from sqlalchemy import select

from support.sql_programs import event
from turndock.store.v1 import (
    AppendEventsRequest,
    ClaimAgentRequest,
    DeleteSessionRequest,
    EditRunRequest,
    EnqueueRunRequest,
    FlushRequest,
    Lifecycle,
    PersistStateRequest,
    SaveRunRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import (
    AgentRecord,
    Event,
    EventBatch,
    EventType,
    Fence,
    Run,
    RunStatus,
    Scope,
    Session,
    SessionStatus,
)
from turndock_server.stores.sql import SqlSessionStore, graves, schema
from turndock_server.stores.sql.transaction import Transaction

TENANTS = ("", "acme", "ümläut")
TOKEN = "append-once"
WAKES_AT_US = 1 << 60
"""Until when the parked session of each scope waits."""
TOKENS = 1 << 40
"""What its run has spent."""


def scope(tenant: str) -> Scope | None:
    return Scope(tenant=tenant) if tenant else None


def notified(session_id: str) -> Event:
    made = event(session_id)
    made.type = EventType.EVENT_TYPE_CUSTOM
    made.custom.name = "turndock.notified"
    return made


def fixed_events(session_id: str, count: int) -> list[Event]:
    """Events that are the same whenever they are made."""
    made = [event(session_id, "run_0") for _ in range(count)]
    for number, each in enumerate(made):
        each.id, each.time_us = f"{session_id}-fixed-{number}", number + 1
    return made


async def fill(store: SqlSessionStore, *, is_pruned: bool = True, is_claimed: bool = True) -> None:
    """Write something of everything, in several scopes with the same ids."""
    for tenant in TENANTS:
        where = scope(tenant)
        for number in range(3):
            name = f"ses_{number}"
            session = Session(
                id=name,
                agent_id=f"agent_{number}",
                status=SessionStatus.SESSION_STATUS_ACTIVE,
                tags=["a", "ß"],
                metadata_json='{"big":9007199254740993,"nul":"\\\\u0000"}'.replace("\\\\u0000", "x"),
                agent=AgentRecord(notified_sequence=2, state_json='{"n":1.5}'),
            )
            await store.save_session(SaveSessionRequest(scope=where, session=session))
            batch = [event(name, "run_0", size=number * 1_000), notified(name), event(name)]
            await store.append_events(AppendEventsRequest(scope=where, events=batch))
            await store.append_events(
                AppendEventsRequest(scope=where, events=fixed_events(name, 5), request_id=TOKEN)
            )
            run = Run(id="run_0", session_id=name, status=RunStatus.RUN_STATUS_COMPLETED, prompt="?")
            await store.flush(
                FlushRequest(scope=where, session=session, run=run, events=EventBatch(events=[event(name)]))
            )
            for waiting in range(3):
                queued = Run(
                    id=f"q_{waiting}", session_id=name, prompt=f"p{waiting}", request_sha256=b"x" * 32
                )
                await store.enqueue_run(EnqueueRunRequest(scope=where, run=queued))
            await store.edit_run(
                EditRunRequest(
                    scope=where, session_id=name, run_id="q_2", before_run_id="q_0", prompt="first"
                )
            )
        gone = Session(id="gone", agent_id="gone", status=SessionStatus.SESSION_STATUS_ACTIVE)
        await store.save_session(SaveSessionRequest(scope=where, session=gone))
        fence = None
        if is_claimed:
            claim = ClaimAgentRequest(
                scope=where, session_id="gone", owner="h", ticket_id="t", lease_ms=60_000
            )
            fence = Fence(epoch=(await store.claim_agent(claim)).epoch)
        await store.delete_session(
            DeleteSessionRequest(scope=where, session_id="gone", request_id="d1", fence=fence)
        )
        snapshot = PersistStateRequest(
            scope=where,
            agent_id="agent_0",
            conversation_id="ses_0",
            request_id="p1",
            lifecycle=Lifecycle.LIFECYCLE_ON_COMPLETION,
        )
        snapshot.snapshot.state_json = '{"n":1}'
        await store.agent_persistence.persist_state(snapshot)
        await store.upkeep().remember(tenant, "m1", b"fingerprint", b"answer")
        parked = Session(
            id="ses_parked", agent_id="patient", status=SessionStatus.SESSION_STATUS_PAUSED, tags=["a"]
        )
        parked.agent.parked.wake_at_us = WAKES_AT_US
        run = Run(id="waits", session_id=parked.id, status=RunStatus.RUN_STATUS_RUNNING, provider="p")
        run.usage.total_tokens = TOKENS
        told = EventBatch(events=[event(parked.id, run.id)])
        await store.flush(FlushRequest(scope=where, session=parked, run=run, events=told))
        doomed = fixed_events("doomed", 5)
        await store.append_events(AppendEventsRequest(scope=where, events=doomed))
        # A log and a run of a session that nobody has saved.
        await store.append_events(AppendEventsRequest(scope=where, events=[event("bare")]))
        bare = Run(id="run_0", session_id="bare", status=RunStatus.RUN_STATUS_RUNNING)
        await store.save_run(SaveRunRequest(scope=where, run=bare))
    await store._writer.write(_bury)
    if is_claimed:
        claim = ClaimAgentRequest(session_id="ses_1", owner="host", ticket_id="t", lease_ms=60_000)
        for _ in range(3):
            await store.claim_agent(claim)
    if is_pruned:
        await store._writer.write(_prune)


def _bury(tx: Transaction) -> None:
    """Delete the doomed sessions up to some of their rows, as a process does that dies meanwhile."""
    doomed = tx.connection.execute(select(schema.sessions.c.key).where(schema.sessions.c.id == "doomed"))
    for key in doomed.scalars().all():
        assert graves.bury(tx, key, limit=2)


def _prune(tx: Transaction) -> None:
    tx.connection.exec_driver_sql(
        "DELETE FROM events WHERE sequence <= 2 AND session IN (SELECT key FROM sessions WHERE id = 'ses_2')"
    )
    tx.connection.exec_driver_sql("UPDATE sessions SET pruned_through = 2 WHERE id = 'ses_2'")
