"""The acceptance cases of group R, by their ids, and what of them only a look into the database can show."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.maintained import ARCHIVE, MAINTAINED, Maintained, sql
from turndock.conformance.maintenance import SUITE, Fixture
from turndock.conformance.maintenance.archiving import events_in
from turndock.conformance.maintenance.suite import RECEIVED, STREAMED, ago, at_most, keeping
from turndock.errors import TurndockError
from turndock.store.v1 import HealthIssue, MaintenanceStep, RetentionPolicy
from turndock.types.v1 import RunStatus
from turndock_server.stores.maintenance import StoreMaintenance
from turndock_server.stores.maintenance.archive import decoded
from turndock_server.stores.memory_artifacts import MemoryArtifactStore
from turndock_server.stores.sql import SqlMaintenance, SqlSessionStore, pruning


@pytest.fixture(params=["memory", "sql"])
async def maintained(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Maintained]:
    async with MAINTAINED[request.param](tmp_path) as opened:
        yield opened


async def keeps(maintained: Maintained, requirement: str, *names: str) -> None:
    """It passes every case of the requirement; `names` are some that must be among them."""
    cases = [case.name for case in SUITE.for_requirement(requirement)]
    assert set(names) <= set(cases)
    report = await SUITE.run(maintained.fixture, abilities=SUITE.abilities, only=cases)
    assert report.results
    assert report.is_conformant, str(report)


async def test_R_01_a_policy_is_checked_as_a_whole(maintained: Maintained) -> None:
    await keeps(maintained, "R-01", "a_wrong_policy_does_nothing")


async def test_R_02_what_has_expired_is_marked(maintained: Maintained) -> None:
    await keeps(maintained, "R-02", "an_ended_session_expires_by_its_last_change")


async def test_R_04_what_was_marked_long_ago_is_deleted(maintained: Maintained) -> None:
    await keeps(
        maintained,
        "R-04",
        "a_marked_session_is_deleted_with_all_it_has",
        "one_call_does_not_mark_and_delete",
        "hard_deletion_waits_as_long_as_the_policy_says",
    )


async def test_R_06_a_log_is_cut_down_to_what_it_may_have(maintained: Maintained) -> None:
    await keeps(
        maintained,
        "R-06",
        "the_oldest_surplus_is_pruned",
        "low_value_types_go_first_and_protected_ones_never",
        "a_log_within_the_limit_is_left_alone",
    )


async def test_R_09_a_health_check_and_a_report_tell_all(maintained: Maintained) -> None:
    await keeps(
        maintained,
        "R-09",
        "sound_data_has_no_issues",
        "what_has_no_session_is_named_and_counted",
        "a_report_counts_every_step",
    )


# --- What a database may do ------------------------------------------------------------------------------------------


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncGenerator[Fixture]:
    async with sql(tmp_path) as opened:
        yield opened.fixture()


def execute(folder: Path, *statements: str) -> list[Any]:
    """Run statements behind the store's back; the rows of the last."""
    database = sqlite3.connect(folder / "store.db")
    rows: list[Any] = []
    for statement in statements:
        rows = database.execute(statement).fetchall()
    database.commit()
    database.close()
    return rows


async def deletable(fixture: Fixture, session_id: str) -> None:
    await fixture.save(session_id, days=100, deleted_days=60)
    await fixture.ended_run(session_id, "run_1", RunStatus.RUN_STATUS_COMPLETED)
    await fixture.append(session_id, RECEIVED)
    await fixture.files.put(b"bytes", f"{session_id}/file", session_id=session_id)


async def is_whole(fixture: Fixture, session_id: str) -> bool:
    """Whether a session, its run, its event, its counter and its artifact are there."""
    await fixture.sessions.read_session(session_id)
    await fixture.sessions.read_run("run_1", session_id)
    return (
        await fixture.numbers(session_id) == [1]
        and await fixture.sessions.head(session_id) == 1
        and await fixture.files.keys(session_id) == (f"{session_id}/file",)
    )


@pytest.mark.parametrize("table", ["events", "runs", "sessions"])
async def test_R_05_if_one_delete_of_the_cascade_fails_nothing_is_deleted(
    table: str, on_disk: Fixture, tmp_path: Path
) -> None:
    for session_id in ("a", "b", "c"):
        await deletable(on_disk, session_id)
    which = (
        "OLD.id = 'b'" if table == "sessions" else "(SELECT id FROM sessions WHERE key = OLD.session) = 'b'"
    )
    trigger = (
        f"CREATE TRIGGER stuck BEFORE DELETE ON {table} WHEN {which} BEGIN SELECT RAISE(ABORT, 'stuck'); END"
    )
    execute(tmp_path, trigger)
    with pytest.raises(TurndockError) as failure:
        await on_disk.hard_delete()
    assert failure.value.reason == "STORAGE_ERROR"
    assert failure.value.metadata == {"session_id": "b", "sessions_hard_deleted": "1"}
    assert await is_whole(on_disk, "b")
    assert await is_whole(on_disk, "c"), "The call ended at the first failure."

    report = await on_disk.execute()
    (error,) = report.errors
    assert (error.step, error.session_id) == (MaintenanceStep.MAINTENANCE_STEP_HARD_DELETE, "b")
    assert await is_whole(on_disk, "b")

    execute(tmp_path, "DROP TRIGGER stuck")
    assert list((await on_disk.hard_delete()).session_ids) == ["b", "c"]


async def test_R_09_a_counter_that_is_too_low_is_named(on_disk: Fixture, tmp_path: Path) -> None:
    await on_disk.save("ses_1")
    await on_disk.append("ses_1", RECEIVED, RECEIVED)
    execute(tmp_path, "UPDATE sessions SET last_sequence = 1")
    (issue,) = await on_disk.health()
    assert issue.kind == HealthIssue.KIND_SEQUENCE_MISMATCH
    assert (issue.session_id, issue.counter, issue.max_sequence) == ("ses_1", 1, 2)
    for figure in ("ses_1", "1", "2"):
        assert figure in issue.message


async def test_R_09_one_failing_step_does_not_stop_the_later_ones(on_disk: Fixture, tmp_path: Path) -> None:
    await on_disk.save("old", days=100)
    await on_disk.append("long", *[STREAMED] * 4)
    await on_disk.append("stuck", *[STREAMED] * 4)
    await on_disk.files.put(b"lost", "lost", session_id="missing")
    execute(
        tmp_path,
        "CREATE TRIGGER marks BEFORE UPDATE OF deleted_at ON sessions BEGIN SELECT RAISE(ABORT, 'no marks'); END",
        "CREATE TRIGGER stuck BEFORE DELETE ON events WHEN (SELECT id FROM sessions WHERE key = OLD.session) = 'stuck'"
        " BEGIN SELECT RAISE(ABORT, 'stuck'); END",
    )
    report = await on_disk.execute(keeping(1))
    steps = [(error.step, error.session_id, error.reason) for error in report.errors]
    assert steps == [
        (MaintenanceStep.MAINTENANCE_STEP_SOFT_DELETE, "", "STORAGE_ERROR"),
        (MaintenanceStep.MAINTENANCE_STEP_PRUNE, "stuck", "STORAGE_ERROR"),
    ]
    assert "no marks" in report.errors[0].message
    assert report.errors[1].scope.tenant == on_disk.scope.tenant
    assert (report.sessions_soft_deleted, report.events_pruned, report.artifacts_cleaned) == (0, 3, 1)
    assert await on_disk.numbers("stuck") == [1, 2, 3, 4]


async def test_no_transaction_has_more_rows_than_the_policy_says(
    on_disk: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    prune = pruning.prune

    def noted(tx: Any, partition: Any, chosen: Sequence[Any]) -> int:
        sizes.append(len(chosen))
        return prune(tx, partition, chosen)

    monkeypatch.setattr(pruning, "prune", noted)
    await on_disk.append("ses_1", *[STREAMED] * 2_000)
    await on_disk.execute(keeping(1, batch_size=300))
    assert sizes == [300] * 6 + [199]
    assert await on_disk.numbers() == [2_000]


# --- The archive -----------------------------------------------------------------------------------------------------


class FullArchive(MemoryArtifactStore):
    """Takes so many artifacts and no more."""

    def __init__(self, room: int, failure: Exception | None = None) -> None:
        super().__init__()
        self._room = room
        self._failure = failure or TurndockError("STORAGE_ERROR", "no room")

    async def put(self, requests: Any) -> Any:
        if not self._room:
            raise self._failure
        self._room -= 1
        return await super().put(requests)


async def with_archive(maintained: Maintained, archive: MemoryArtifactStore) -> Fixture:
    assert isinstance(maintained.maintenance, StoreMaintenance)
    maintained.maintenance._archives = {ARCHIVE: archive}
    return Maintained(maintained.store, maintained.maintenance, maintained.artifacts, archive).fixture()


@pytest.mark.parametrize("failure", [None, RuntimeError("out of order")], ids=["refuses", "raises"])
async def test_nothing_is_pruned_that_could_not_be_archived(
    failure: Exception | None, maintained: Maintained
) -> None:
    fixture = await with_archive(maintained, FullArchive(1, failure))
    await fixture.append("ses_1", *[STREAMED] * 10)
    policy = keeping(1, batch_size=4, archive_before_prune=True, archive_store=ARCHIVE)
    with pytest.raises(TurndockError) as caught:
        await fixture.prune("ses_1", policy)
    assert caught.value.reason == "STORAGE_ERROR"
    assert "could not be archived" in caught.value.message
    assert await fixture.numbers() == [5, 6, 7, 8, 9, 10]
    (key,) = await fixture.archived.keys()
    assert [event.sequence for event in events_in(await fixture.archived.get(key))] == [1, 2, 3, 4]

    await fixture.append("ses_2", *[STREAMED] * 10)
    await fixture.files.put(b"lost", "lost", session_id="missing")
    policy.max_total_events.CopyFrom(at_most(1))
    report = await fixture.execute(policy)
    (error,) = report.errors
    assert error.step == MaintenanceStep.MAINTENANCE_STEP_ARCHIVE
    assert (report.events_pruned, report.events_archived, report.artifacts_cleaned) == (0, 0, 1)
    assert len(await fixture.numbers("ses_2")) == 10


async def test_an_archive_that_another_policy_left_is_not_overwritten(maintained: Maintained) -> None:
    archive = MemoryArtifactStore()
    fixture = await with_archive(maintained, archive)
    stored = await fixture.append("ses_1", *[STREAMED] * 6)
    left = f"archive/ses_1/{stored[0].incarnation}/1-5"
    await fixture.archived.put(b"what a call that was killed has archived", left)
    policy = keeping(1, archive_before_prune=True, archive_store=ARCHIVE)
    answer = await fixture.prune("ses_1", policy)
    assert (answer.events_pruned, answer.events_archived) == (5, 5)
    assert await fixture.archived.get(left) == b"what a call that was killed has archived"
    numbers = [
        event.sequence for key in answer.archive_keys for event in decoded(await fixture.archived.get(key))
    ]
    assert numbers == [1, 2, 3, 4, 5]


async def test_a_call_that_died_after_archiving_archives_the_same_again(maintained: Maintained) -> None:
    archive = MemoryArtifactStore()
    fixture = await with_archive(maintained, archive)
    stored = await fixture.append("ses_1", *[STREAMED] * 3)
    assert isinstance(maintained.maintenance, StoreMaintenance)
    upkeep: Any = maintained.maintenance._upkeep
    policy = keeping(1, archive_before_prune=True, archive_store=ARCHIVE)
    prune, upkeep.prune = upkeep.prune, _dies
    with pytest.raises(asyncio.CancelledError):
        await fixture.prune("ses_1", policy)
    assert await fixture.numbers() == [1, 2, 3]
    upkeep.prune = prune
    answer = await fixture.prune("ses_1", policy)
    assert list(answer.archive_keys) == [f"archive/ses_1/{stored[0].incarnation}/1-2"]
    assert await fixture.archived.keys() == tuple(answer.archive_keys)


async def _dies(*_: object) -> int:
    raise asyncio.CancelledError


def test_bytes_that_are_no_archive_are_refused() -> None:
    for content in (b"\x05abc", b"\x80", b"\x80" * 6):
        with pytest.raises(ValueError, match="the archive ends in the middle"):
            decoded(content)


# --- One store, several processes ------------------------------------------------------------------------------------


async def test_two_maintainers_at_once_prune_no_more_than_one(tmp_path: Path) -> None:
    async with sql(tmp_path) as first, sql_again(tmp_path) as second:
        fixtures = [first.fixture()]
        fixtures.append(replace(fixtures[0], maintenance=second))
        await fixtures[0].append("ses_1", *[STREAMED] * 300)
        answers = await asyncio.gather(
            *(fixture.prune("ses_1", keeping(40, batch_size=7)) for fixture in fixtures)
        )
        assert await fixtures[0].numbers() == list(range(261, 301))
        assert sum(answer.events_pruned for answer in answers) == 260


class sql_again:
    """The maintenance of another process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __aenter__(self) -> SqlMaintenance:
        self._store = await SqlSessionStore.open(self._folder / "store.db")
        return SqlMaintenance(self._store)

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()


async def test_an_age_is_never_before_the_epoch(maintained: Maintained) -> None:
    fixture = maintained.fixture()
    await fixture.save("ses_1", days=10_000)
    forever = at_most((1 << 63) - 1)
    policy = RetentionPolicy(max_session_age_days=forever, max_completed_session_age_days=forever)
    assert (await fixture.soft_delete(policy)).sessions_soft_deleted == 0
    assert ago(1) > 0
