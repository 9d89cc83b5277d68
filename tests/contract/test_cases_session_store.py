"""The acceptance cases of group S, by their ids: each is what the conformance kit says about it, on every store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.servers import a_server
from support.session_stores import STORES, memory, sql
from turndock import events
from turndock.conformance.artifact_store.suite import stream
from turndock.conformance.session_store import SUITE, Fixture
from turndock.errors import TurndockError
from turndock.ports import SessionStore
from turndock.remote.stores import RemoteArtifactStore, RemoteSessionStore
from turndock.store.v1 import (
    ArtifactHeader,
    ArtifactStoreGetRequest,
    ArtifactStoreHeadRequest,
    DeleteSessionRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import Fence, Session, SessionStatus
from turndock.wire import connect


@pytest.fixture(params=["memory", "sql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[SessionStore]:
    async with STORES[request.param](tmp_path) as opened:
        yield opened


async def keeps(store: SessionStore, requirement: str, *names: str) -> None:
    """The store passes every case of the requirement; `names` are some that must be among them."""
    cases = [case.name for case in SUITE.for_requirement(requirement)]
    assert set(names) <= set(cases)
    report = await SUITE.run(lambda: Fixture(store, SUITE.abilities), abilities=SUITE.abilities, only=cases)
    assert report.results
    assert report.is_conformant, str(report)


async def test_S_01_saving_a_session_is_an_upsert(store: SessionStore) -> None:
    await keeps(store, "S-01", "saving_a_session_again_makes_no_second_one")


async def test_S_02_unknown_sessions_and_runs_are_not_found(store: SessionStore) -> None:
    await keeps(store, "S-02", "an_unknown_session_is_not_found", "an_unknown_run_is_not_found")


async def test_S_03_lists_are_filtered_and_empty_when_nothing_matches(store: SessionStore) -> None:
    await keeps(
        store,
        "S-03",
        "sessions_are_listed_by_status_agent_and_limit",
        "runs_of_an_unknown_session_are_an_empty_list",
    )


async def test_S_04_deleting_is_idempotent(store: SessionStore) -> None:
    await keeps(store, "S-04", "deleting_a_session_is_idempotent")


async def test_S_05_deleting_cascades(store: SessionStore) -> None:
    await keeps(store, "S-05", "deleting_a_session_takes_everything_of_it")


async def test_S_05_the_bytes_of_a_deleted_sessions_artifacts_stay(tmp_path: Path) -> None:
    """What the stores do apart is one deletion where a server puts them together."""
    header = ArtifactHeader(key="report", session_id="ses_1")
    async with a_server(tmp_path) as server, connect(server.endpoint) as channel:
        store, artifacts = RemoteSessionStore(channel), RemoteArtifactStore(channel)
        session = Session(id="ses_1", agent_id="agent-1", status=SessionStatus.SESSION_STATUS_ACTIVE)
        await store.save_session(SaveSessionRequest(session=session))
        await artifacts.put(stream(header, b"bytes"))
        await store.delete_session(DeleteSessionRequest(session_id="ses_1"))
        row = await artifacts.head(ArtifactStoreHeadRequest(key="report"))
        assert not row.HasField("artifact")
        parts = [part async for part in artifacts.get(ArtifactStoreGetRequest(key="report"))]
        assert b"".join(part.chunk for part in parts) == b"bytes"


async def test_S_06_the_active_run_is_read_after_it_is_written(store: SessionStore) -> None:
    await keeps(store, "S-06", "the_active_run_is_the_running_one")


async def test_S_07_sequences_are_dense_per_session(store: SessionStore) -> None:
    await keeps(store, "S-07", "each_session_numbers_its_events_from_one")


async def test_S_09_duplicate_id_returns_the_stored_event(store: SessionStore) -> None:
    await keeps(store, "S-09", "a_duplicate_id_returns_the_stored_event")


async def test_S_11_duplicate_within_a_batch_is_stored_once(store: SessionStore) -> None:
    await keeps(store, "S-11", "a_duplicate_within_a_batch_takes_no_number")


async def test_S_13_a_batch_is_all_or_nothing(store: SessionStore) -> None:
    await keeps(store, "S-13", "a_batch_with_one_bad_event_stores_nothing")


async def test_S_15_parallel_batches_stay_whole(store: SessionStore) -> None:
    await keeps(store, "S-15", "batches_at_the_same_time_stay_whole")


async def test_S_16_three_thousand_events_are_one_batch(store: SessionStore) -> None:
    await keeps(store, "S-16", "three_thousand_events_are_one_batch")


async def test_S_17_filters_combine_and_the_limit_is_last(store: SessionStore) -> None:
    await keeps(store, "S-17", "bounds_are_exclusive_and_filters_combine")


async def test_S_19_a_flush_is_all_or_nothing(store: SessionStore) -> None:
    await keeps(
        store,
        "S-19",
        "a_flush_stores_all_three",
        "a_flush_with_a_bad_event_stores_nothing",
        "a_flush_needs_all_its_parts",
        "a_reader_sees_a_flush_whole",
    )


async def test_S_21_long_polls_end_ok_and_block_nobody(store: SessionStore) -> None:
    await keeps(
        store,
        "S-21",
        "a_wait_without_an_event_ends_ok_and_empty",
        "a_wait_is_not_ended_by_what_does_not_match",
        "a_waiting_reader_holds_up_nobody",
    )


@pytest.mark.parametrize("name", ["memory", "sql"])
async def test_PF_E05_a_clock_that_is_set_back_makes_no_conflict(name: str, tmp_path: Path) -> None:
    """Ten appends within a millisecond, saves in between, the machine's clock 5 s back in the middle."""
    wall = events.now_us()

    def clock() -> int:
        return wall

    opener = {"memory": memory, "sql": sql}[name]
    async with opener(tmp_path, clock) as store:
        fixture = Fixture(store, SUITE.abilities)
        epoch = 0
        await fixture.save(fixture.session())
        for number in range(10):
            if number == 5:
                wall -= 5_000_000
                epoch = (await fixture.claim()).epoch
            fence = Fence(epoch=epoch) if epoch else None
            await fixture.append(fixture.event(), expected={"last_sequence": number}, fence=fence)
            saved = await fixture.save(fixture.session(context_json=f'{{"n":{number}}}'), fence=fence)
            assert saved.last_sequence == number + 1
        stored = [event.stored_at_us for event in (await fixture.log()).events]
        assert stored == sorted(stored)
        with pytest.raises(TurndockError, match="FENCED"):
            await fixture.append(fixture.event())
        await keeps(store, "PF-E05")
