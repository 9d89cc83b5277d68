"""P: what an agent begins with when it comes back."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.docking import Mode
from support.harness import Harness, StoreName, harnessed, refused, types
from support.parts import result
from support.snapshots import UNAVAILABLE, RecordingSnapshots
from turndock.errors import Code
from turndock.store.v1 import (
    DeleteSessionRequest,
    Lifecycle,
    PersistStateRequest,
    SaveSessionRequest,
    Snapshot,
)
from turndock.types.v1 import Session, SessionStatus

SETUPS: tuple[tuple[StoreName, Mode], ...] = (
    ("memory", "in_process"),
    ("sqlite", "in_process"),
    ("sqlite", "multiplexed"),
)
FRESH: dict[str, list[str]] = {"responses": [], "errors": [], "events": [], "seen": []}


@pytest.fixture
def snapshots() -> RecordingSnapshots:
    return RecordingSnapshots()


@pytest.fixture(params=SETUPS, ids="-".join)
async def host(
    request: pytest.FixtureRequest, tmp_path: Path, snapshots: RecordingSnapshots
) -> AsyncIterator[Harness]:
    """A host in every setup, with what is docked, persistence included, in this process or behind gRPC."""
    store, mode = request.param
    async with harnessed(store, mode, tmp_path, snapshots=snapshots) as harness:
        yield harness


async def keep(snapshots: RecordingSnapshots, session_id: str, snapshot: Snapshot) -> None:
    """Put a snapshot where an agent will look for it."""
    await snapshots.persist_state(
        PersistStateRequest(
            agent_id="a1",
            conversation_id=session_id,
            lifecycle=Lifecycle.LIFECYCLE_ON_COMPLETION,
            snapshot=snapshot,
        )
    )
    snapshots.calls.clear()


async def save_bare_session(host: Harness, session_id: str = "ses_1") -> None:
    """A session that a client has saved, and that no agent has had."""
    session = Session(
        id=session_id,
        agent_id="somebody",
        status=SessionStatus.SESSION_STATUS_PENDING,
        metadata_json='{"k":1}',
        tags=["t"],
    )
    await host.store.save_session(SaveSessionRequest(session=session))


async def test_P_11_without_a_snapshot_an_agent_begins_fresh(host: Harness) -> None:
    started = await host.start([result("a")])
    assert not started.restored
    assert await host.state() == FRESH


@pytest.mark.parametrize(
    "snapshot",
    [Snapshot(version=1), Snapshot(version=99, state_json='{"responses":["x"]}')],
    ids=["no-state", "newer-version"],
)
async def test_P_11_a_snapshot_that_cannot_be_used_is_warned_of(
    host: Harness, snapshots: RecordingSnapshots, snapshot: Snapshot, caplog: pytest.LogCaptureFixture
) -> None:
    await save_bare_session(host)
    await keep(snapshots, "ses_1", snapshot)
    with caplog.at_level(logging.WARNING):
        started = await host.start([result("a")], session_id="ses_1")
    assert not started.restored
    assert await host.state() == FRESH
    assert any("cannot be used" in record.message for record in caplog.records)


async def test_P_11_when_nobody_knows_no_agent_begins(host: Harness, snapshots: RecordingSnapshots) -> None:
    snapshots.load_trouble = UNAVAILABLE
    with refused("STORAGE_CONNECTION_FAILED") as failed:
        await host.start([result("a")], request_id="q1")
    assert failed.value.code is Code.UNAVAILABLE
    with refused("AGENT_NOT_FOUND"):
        await host.status()
    snapshots.load_trouble = None
    assert not (await host.start([result("a")], request_id="q1")).restored


async def test_a_snapshot_is_what_an_agent_begins_with(host: Harness, snapshots: RecordingSnapshots) -> None:
    await save_bare_session(host)
    await keep(
        snapshots,
        "ses_1",
        Snapshot(
            version=1,
            state_json='{"responses":["before"]}',
            title="Plans",
            provider_session_id="thread-1",
            interrupted=True,
        ),
    )
    started = await host.start([result("a")], session_id="ses_1", request_id="q1")
    assert (started.restored, started.restored_backend, started.agent.title) == (True, True, "Plans")
    assert (await host.state())["responses"] == ["before"]
    assert (await host.stored_session("ses_1")).interrupted
    again = await host.start([result("a")], session_id="ses_1", request_id="q1")
    assert (again.restored, again.restored_backend) == (True, True), "a retry gets the stored answer"
    await host.ask("hi")
    assert host.backend.record.prompts[0].provider_session_id == "thread-1"
    assert (await host.state())["responses"] == ["before", "a"]
    assert snapshots.story == ["on_completion", "flag false"], "it began with the flag raised"


async def test_an_older_snapshot_does_not_undo_what_the_record_knows(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    started = await host.start([result("a")], [result("b")])
    await host.ask("a")
    snapshots.trouble = UNAVAILABLE
    await host.ask("b")
    await host.stop()
    snapshots.trouble = None
    again = await host.start([result("c")], session_id=started.agent.session_id)
    assert again.restored
    assert (await host.state())["responses"] == ["a", "b"]


async def test_a_snapshot_outlives_its_session(host: Harness, snapshots: RecordingSnapshots) -> None:
    """Where snapshots are kept apart from sessions, one whose session was lost is still what its agent begins with."""
    session_id = (await host.start([result("a", sid="thread-1")])).agent.session_id
    await host.ask("a")
    await host.stop()
    assert snapshots.story == ["on_completion", "on_shutdown"]
    await host.store.delete_session(DeleteSessionRequest(session_id=session_id))
    await save_bare_session(host, session_id)
    again = await host.start([result("b")], session_id=session_id)
    assert (again.restored, again.restored_backend) == (True, True)
    assert (await host.state())["responses"] == ["a"]


async def test_a_session_no_agent_has_had_is_taken(local_host: Harness) -> None:
    await save_bare_session(local_host)
    started = await local_host.start([result("a")], session_id="ses_1", request_id="q1")
    assert (started.restored, started.restored_backend) == (False, False)
    session = await local_host.stored_session("ses_1")
    assert (session.agent_id, session.metadata_json, list(session.tags)) == ("a1", '{"k":1}', ["t"])
    assert (await local_host.ask("hi")).response.text == "a"
    assert types(await local_host.log())[0] == "session_started", "the session was there before"
    with refused("SESSION_NOT_FOUND"):
        await local_host.start(name="a2", session_id="ses_2")


async def test_a_retried_start_of_a_continued_session_gets_the_stored_answer(local_host: Harness) -> None:
    session_id = (await local_host.start([result("a", sid="thread-1")])).agent.session_id
    await local_host.ask("a")
    await local_host.stop()
    answers = [
        await local_host.start([result("b")], session_id=session_id, request_id="again") for _ in range(2)
    ]
    assert [(each.restored, each.restored_backend) for each in answers] == [(True, True)] * 2
