"""The mailbox over the fourteen calls: what it makes of sessions that wait for approvals."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from support.session_stores import PlainSessionStore
from turndock.store.v1 import (
    ClaimAgentRequest,
    EnqueueRunRequest,
    ListOrphansRequest,
    ReleaseIfEmptyRequest,
    SaveRunRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import (
    AgentDefinition,
    AgentRecord,
    Fence,
    ParkedTurn,
    Run,
    RunStatus,
    Session,
    SessionStatus,
)
from turndock_server.stores.serial_mailbox import SerialMailbox

PAST_US, FAR_OFF_US = 1, 32_503_680_000_000_000


@pytest.fixture
def mailbox() -> SerialMailbox:
    return SerialMailbox(cast("Any", PlainSessionStore()))


async def parked(mailbox: SerialMailbox, session_id: str, wake_at_us: int | None) -> None:
    """A session whose turn is parked, with another run behind it."""
    store = mailbox._store
    record = AgentRecord(
        definition=AgentDefinition(agent_name=session_id, backend="b"),
        parked=ParkedTurn(run_id="parked", wake_at_us=wake_at_us),
    )
    session = Session(
        id=session_id, agent_id=session_id, status=SessionStatus.SESSION_STATUS_PAUSED, agent=record
    )
    await store.save_session(SaveSessionRequest(session=session))
    run = Run(id="parked", session_id=session_id, prompt="hi", status=RunStatus.RUN_STATUS_RUNNING)
    await store.save_run(SaveRunRequest(run=run))
    waits = Run(id="waits", session_id=session_id, prompt="hi")
    await mailbox.enqueue_run(EnqueueRunRequest(run=waits))


async def orphans(mailbox: SerialMailbox) -> list[str]:
    answer = await mailbox.list_orphans(ListOrphansRequest(owner="host", sole_host=True))
    return sorted(session.id for session in answer.sessions)


async def test_a_paused_session_has_no_work_before_its_time(mailbox: SerialMailbox) -> None:
    await parked(mailbox, "early", PAST_US)
    await parked(mailbox, "late", FAR_OFF_US)
    await parked(mailbox, "never", None)
    assert await orphans(mailbox) == ["early"]


async def test_what_expires_later_is_found_by_a_later_look(mailbox: SerialMailbox) -> None:
    assert await orphans(mailbox) == []
    await parked(mailbox, "late", FAR_OFF_US)
    await parked(mailbox, "due", time.time_ns() // 1000)
    assert await orphans(mailbox) == ["due"]
    await mailbox.claim_agent(ClaimAgentRequest(session_id="due", owner="host", ticket_id="t", lease_ms=1000))
    assert await orphans(mailbox) == []


async def test_what_waits_behind_a_parked_turn_does_not_hold_its_owner(mailbox: SerialMailbox) -> None:
    await parked(mailbox, "s", None)
    claim = await mailbox.claim_agent(
        ClaimAgentRequest(session_id="s", owner="host", ticket_id="t", lease_ms=1000)
    )
    release = ReleaseIfEmptyRequest(session_id="s", fence=Fence(epoch=claim.epoch))
    assert (await mailbox.release_if_empty(release)).released
