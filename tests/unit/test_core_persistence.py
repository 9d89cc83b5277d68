"""What an agent begins with, and what a host makes of those who keep snapshots."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.snapshots import UNAVAILABLE, PlainSnapshots, RecordingSnapshots
from turndock.errors import TurndockError
from turndock.store.v1 import (
    Lifecycle,
    LoadStateRequest,
    LoadStateResponse,
    PersistStateRequest,
    SetInterruptedRequest,
    Snapshot,
)
from turndock.types.v1 import AgentRecord, BackendSession, RunStatus, Session
from turndock_server.core.feed import AgentKey
from turndock_server.core.lifecycle import TERMINAL_EVENT
from turndock_server.core.persistence import IS_INTERRUPTED, Persistence, lifecycle_of, restore

KEY = AgentKey(None, "ses_1")
SNAPSHOT = Snapshot(
    version=1,
    state_json='{"of":"snapshot"}',
    title="Plans",
    provider_session_id="thread-2",
    run_id="r2",
    last_sequence=20,
    incarnation="inc",
)


def session(**record: Any) -> Session:
    """A session with a record of an earlier life."""
    earlier = AgentRecord(
        state_json='{"of":"record"}',
        backend_session=BackendSession(data=b"bytes", provider_session_id="thread-1"),
        last_run_id="r2",
        stopped=True,
    )
    earlier.MergeFrom(AgentRecord(**record))
    return Session(id="ses_1", incarnation="inc", agent=earlier)


def test_a_session_without_anything_begins_fresh() -> None:
    fresh = Session(id="ses_1")
    assert not restore(fresh, None)
    assert not fresh.HasField("agent")


def test_without_a_snapshot_the_record_counts() -> None:
    continued = session()
    assert restore(continued, None)
    assert continued == session()


def test_without_a_record_the_snapshot_counts() -> None:
    bare = Session(id="ses_1", incarnation="another")
    assert restore(bare, SNAPSHOT)
    assert (bare.agent.state_json, bare.agent.title) == (SNAPSHOT.state_json, "Plans")
    assert bare.agent.backend_session == BackendSession(provider_session_id="thread-2")


def test_a_snapshot_of_the_last_turn_counts_and_another_conversations_bytes_do_not() -> None:
    continued = session()
    assert restore(continued, SNAPSHOT)
    assert continued.agent.state_json == SNAPSHOT.state_json
    assert continued.agent.backend_session == BackendSession(provider_session_id="thread-2")


def test_what_the_backend_remembers_of_the_same_conversation_stays() -> None:
    continued = session()
    same = Snapshot()
    same.CopyFrom(SNAPSHOT)
    same.provider_session_id = "thread-1"
    assert restore(continued, same)
    assert continued.agent.backend_session.data == b"bytes"


@pytest.mark.parametrize(
    "record", [{"last_run_id": "r3"}, {"notified_sequence": 21}], ids=["turn", "notified"]
)
def test_a_record_that_is_newer_counts(record: dict[str, Any]) -> None:
    continued = session(**record)
    assert restore(continued, SNAPSHOT)
    assert continued == session(**record)


def test_a_record_of_another_life_of_the_session_is_no_newer() -> None:
    continued = session(last_run_id="r3")
    continued.incarnation = "another"
    assert restore(continued, SNAPSHOT)
    assert continued.agent.state_json == SNAPSHOT.state_json


@pytest.mark.parametrize("flag", [True, False])
def test_the_flag_begins_as_the_snapshot_has_it(flag: bool) -> None:
    continued = session()
    continued.interrupted = not flag
    kept = Snapshot(interrupted=flag)
    kept.MergeFrom(SNAPSHOT)
    restore(continued, kept)
    assert continued.interrupted is flag


def test_every_end_of_a_turn_is_a_point_that_lowers_the_flag() -> None:
    assert {lifecycle_of(status) for status in TERMINAL_EVENT} == {
        point for point, raised in IS_INTERRUPTED.items() if not raised
    }
    assert lifecycle_of(RunStatus.RUN_STATUS_TIMEOUT) == Lifecycle.LIFECYCLE_ON_ERROR


async def test_without_anybody_who_keeps_snapshots_all_is_done() -> None:
    nobody = Persistence()
    assert not nobody.offered
    assert await nobody.persist_state(PersistStateRequest())
    assert await nobody.set_interrupted(SetInterruptedRequest())
    assert await nobody.load_state(KEY, "a") is None


async def test_an_absent_flag_is_no_failure() -> None:
    assert await Persistence(PlainSnapshots()).set_interrupted(SetInterruptedRequest(agent_id="a"))


async def test_a_load_that_raises_or_is_silent_is_an_error_of_the_start() -> None:
    snapshots = RecordingSnapshots()
    persistence = Persistence(snapshots, timeout_s=0.05)
    for trouble, reason in ((UNAVAILABLE, UNAVAILABLE.reason), (RuntimeError("secret"), "STORAGE_ERROR")):
        snapshots.load_trouble = trouble
        with pytest.raises(TurndockError) as failed:
            await persistence.load_state(KEY, "a")
        assert failed.value.reason == reason
        assert "secret" not in failed.value.message

    class Silent(RecordingSnapshots):
        async def load_state(self, request: LoadStateRequest) -> LoadStateResponse:
            await asyncio.Event().wait()
            return LoadStateResponse()

    with pytest.raises(TurndockError, match="TIMEOUT"):
        await Persistence(Silent(), timeout_s=0.05).load_state(KEY, "a")


async def test_a_host_that_stops_waits_no_longer_than_half_a_second() -> None:
    snapshots = RecordingSnapshots()
    snapshots.silent = True
    persistence = Persistence(snapshots, timeout_s=60)
    persistence.hurry()
    async with asyncio.timeout(5):
        assert not await persistence.persist_state(PersistStateRequest(agent_id="a"))
