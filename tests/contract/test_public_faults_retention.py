"""Faults seen in public in how others delete and prune, with the right outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.harness import Harness, harnessed, numbers, refused
from support.maintained import MAINTAINED, Maintained
from turndock.conformance.maintenance import SUITE, Fixture
from turndock.conformance.maintenance.suite import RECEIVED, STREAMED, keeping
from turndock.errors import TurndockError
from turndock.types.v1 import Cursor, Event, EventType, RunStatus
from turndock_server.stores.maintenance import StoreMaintenance
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.sql import SqlMaintenance, SqlSessionStore


@pytest.fixture(params=["memory", "sql"])
async def maintained(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Maintained]:
    async with MAINTAINED[request.param](tmp_path) as opened:
        yield opened


# --- PF-E27 ----------------------------------------------------------------------------------------------------------


class Paused:
    """A store's upkeep that stops between looking and changing, until it is told to go on."""

    def __init__(self, upkeep: Any) -> None:
        self.looked = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self._upkeep = upkeep

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._upkeep, name)
        if name not in {"soft_delete", "hard_delete"}:
            return call

        async def later(*arguments: Any) -> Any:
            self.looked.set()
            await self.may_go_on.wait()
            return await call(*arguments)

        return later


def paused(maintained: Maintained) -> tuple[Fixture, Paused]:
    assert isinstance(maintained.store, MemorySessionStore | SqlSessionStore)
    upkeep = Paused(maintained.store.upkeep())
    stand_in: Any = upkeep
    maintenance = StoreMaintenance(stand_in)
    return Maintained(maintained.store, maintenance, maintained.artifacts).fixture(), upkeep


@pytest.mark.parametrize("use", ["enqueue", "save_run", "claim", "touch"])
async def test_PF_E27_a_session_that_is_taken_up_meanwhile_stays(use: str, maintained: Maintained) -> None:
    fixture, upkeep = paused(maintained)
    session = await fixture.save("s1", days=100)
    marking = asyncio.create_task(fixture.soft_delete())
    await upkeep.looked.wait()
    run = fixture.sessions.run("run_1", "s1", status=RunStatus.RUN_STATUS_RUNNING)
    if use == "enqueue":
        await fixture.sessions.enqueue(run)
    elif use == "save_run":
        await fixture.sessions.save_run(run)
    elif use == "claim":
        await fixture.sessions.claim("s1")
    else:
        session.ClearField("updated_at_us")
        await fixture.sessions.save(session)
    upkeep.may_go_on.set()
    assert (await marking).sessions_soft_deleted == 0
    assert not await fixture.is_marked("s1")


async def test_PF_E27_no_run_starts_on_a_session_that_is_marked(maintained: Maintained) -> None:
    fixture, upkeep = paused(maintained)
    upkeep.may_go_on.set()
    await fixture.save("s1", days=100)
    assert list((await fixture.soft_delete()).session_ids) == ["s1"]
    with pytest.raises(TurndockError) as refusal:
        await fixture.sessions.enqueue(fixture.sessions.run("run_1", "s1"))
    assert refusal.value.reason == "INVALID_STATUS"


@pytest.mark.parametrize("use", ["save_run", "claim", "restore"])
async def test_PF_E27_a_marked_session_that_is_taken_up_meanwhile_is_not_deleted(
    use: str, maintained: Maintained
) -> None:
    fixture, upkeep = paused(maintained)
    session = await fixture.save("s1", days=100, deleted_days=60)
    await fixture.append("s1", RECEIVED)
    deletion = asyncio.create_task(fixture.hard_delete())
    await upkeep.looked.wait()
    if use == "save_run":
        await fixture.sessions.save_run(fixture.sessions.run("run_1", "s1"))
    elif use == "claim":
        await fixture.sessions.claim("s1")
    else:
        session.ClearField("deleted_at_us")
        await fixture.sessions.save(session)
    upkeep.may_go_on.set()
    assert (await deletion).sessions_hard_deleted == 0
    assert await fixture.numbers("s1") == [1]


async def test_PF_E27_the_cases_of_the_kit_hold(maintained: Maintained) -> None:
    cases = [case.name for case in SUITE.for_requirement("PF-E27")]
    report = await SUITE.run(maintained.fixture, abilities=SUITE.abilities, only=cases)
    assert report.is_conformant, str(report)
    assert len(cases) >= 3


# --- PF-B17 ----------------------------------------------------------------------------------------------------------


async def test_PF_B17_the_order_is_the_same_after_a_prune_and_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await SqlSessionStore.open(path, synchronous="normal")
    fixture = Maintained(store, SqlMaintenance(store), MAINTAINED_NOTHING).fixture()
    tied = [
        fixture.sessions.event(f"e{9_999 - number}", type=STREAMED, time_us=7_000) for number in range(1_000)
    ]
    late = [
        fixture.sessions.event(f"late-{number}", type=STREAMED, time_us=9 - number) for number in range(3)
    ]
    await fixture.sessions.append(*tied)
    await fixture.sessions.append(*late)
    await fixture.prune("ses_1", keeping(500))
    expected = [event.id for event in [*tied, *late]][-500:]
    assert await paged(fixture) == expected
    await store.close()
    again = await SqlSessionStore.open(path)
    try:
        reopened = replace(fixture, store=again)
        assert await paged(reopened) == expected
        assert await paged(reopened, descending=True) == expected[::-1]
        log = await reopened.sessions.log()
        assert (log.head, log.oldest, log.pruned_through) == (1_003, 504, 503)
    finally:
        await again.close()


async def paged(fixture: Fixture, *, descending: bool = False) -> list[str]:
    """Ids of the whole log, in pages of 7."""
    ids: list[str] = []
    bound: dict[str, Any] = {}
    while page := (await fixture.sessions.log(limit=7, descending=descending, **bound)).events:
        ids += [event.id for event in page]
        bound = {"before_sequence" if descending else "after_sequence": page[-1].sequence}
    return ids


MAINTAINED_NOTHING: Any = None
"""No artifact store: the test has no artifacts."""


# --- PF-B39 ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Harness]:
    async with harnessed(request.param, "in_process", tmp_path) as harness:
        yield harness


def of(host: Harness) -> Fixture:
    """The host's store with its maintenance, in the unscoped partition."""
    assert isinstance(host.store, MemorySessionStore | SqlSessionStore)
    maintenance = StoreMaintenance(host.store.upkeep(), artifacts=host.artifacts)
    fixture = Maintained(host.store, maintenance, host.artifacts).fixture()
    unscoped: Any = None  # as in every request that names no scope
    return replace(fixture, scope=unscoped)


async def furnish(fixture: Fixture) -> list[Event]:
    """100 events: ten that are worth something, one of them of a run that waits for a decision; the last is not."""
    await fixture.save("s1", status=1)
    await fixture.ended_run("s1", "open", RunStatus.RUN_STATUS_RUNNING)
    stored: list[Event] = []
    for number in range(1, 101):
        kind, run_id = STREAMED, ""
        if number == 20:
            kind, run_id = EventType.EVENT_TYPE_TOOL_APPROVAL_REQUESTED, "open"
        elif number in {1, 60, 61, 90}:
            kind = EventType.EVENT_TYPE_RUN_STARTED
        elif number in {30, 55, 70, 80, 95}:
            kind = RECEIVED
        stored += await fixture.append("s1", kind, run_id=run_id)
    return stored


async def test_PF_B39_a_watcher_gets_all_that_is_left_and_is_told_of_the_rest(host: Harness) -> None:
    fixture = of(host)
    await furnish(fixture)
    live = asyncio.create_task(host.watched(Cursor(session_id="s1", after_sequence=100), upto=101))
    report = await fixture.execute(keeping(10))
    assert report.events_pruned == 90
    left = [1, 20, 30, 55, 60, 61, 70, 80, 90, 95]
    assert await fixture.numbers("s1") == left
    assert await fixture.health() == []

    # The watch is of the host, so it is the host that has to append.
    journal = host.served.host.journal
    event = fixture.sessions.event("next", "s1")
    await journal.append_events(_append(event))
    assert [each.sequence for each in await live] == [101], "The next number is 101."

    after = [number for number in left if number > 50] + [101]
    for _ in range(3):  # a watcher that comes back with its cursor gets the same, again and again
        assert numbers(await host.watched(Cursor(session_id="s1", after_sequence=50), upto=101)) == after
    skipped: list[tuple[int, int]] = []
    seen: list[int] = []
    async with host.watching(Cursor(session_id="s1", after_sequence=50)) as frames:
        async for frame in frames:
            seen += [each.sequence for each in frame.batch.events]
            if frame.HasField("skipped"):
                skipped.append((frame.skipped.from_sequence, frame.skipped.to_sequence))
            if frame.HasField("caught_up"):
                break
    assert seen == after
    told = {number for first, last in skipped for number in range(first, last + 1)}
    assert told | set(seen) == set(range(51, 102)), "Every number is delivered or named as pruned, once."
    assert not told & set(seen)


async def test_PF_B39_a_cursor_with_nothing_left_after_it_is_told_where_to_go_on(host: Harness) -> None:
    fixture = of(host)
    await fixture.save("s1", status=1)
    await fixture.append("s1", RECEIVED, *[STREAMED] * 99)
    await fixture.execute(keeping(1))
    assert await fixture.numbers("s1") == [1]
    with refused("SEQUENCE_COMPACTED") as caught:
        await host.watched(Cursor(session_id="s1", after_sequence=50), upto=101)
    assert caught.value.metadata == {"oldest": "1", "pruned_through": "100"}
    live = asyncio.create_task(host.watched(Cursor(session_id="s1", after_sequence=100), upto=101))
    await host.served.host.journal.append_events(_append(fixture.sessions.event("next", "s1")))
    assert numbers(await live) == [101]
    with refused("SEQUENCE_COMPACTED"):  # what it has missed is gone, whatever came since
        await host.watched(Cursor(session_id="s1", after_sequence=50), upto=101)
    assert numbers(await host.watched(Cursor(session_id="s1"), upto=101)) == [1, 101]


async def test_PF_B39_after_a_restart_all_is_as_it_was(tmp_path: Path) -> None:
    async with harnessed("sqlite", "in_process", tmp_path) as host:
        fixture = of(host)
        await furnish(fixture)
        await fixture.execute(keeping(10))
        await fixture.ended_run("s1", "open", RunStatus.RUN_STATUS_FAILED)
        before = await fixture.sessions.log("s1")
    async with harnessed("sqlite", "in_process", tmp_path) as host:
        fixture = of(host)
        after = await fixture.sessions.log("s1")
        assert after == before
        assert after.pruned_through == before.pruned_through == 100
        assert (await fixture.append("s1", RECEIVED))[0].sequence == after.head + 1
        assert await fixture.health() == []
        watched = await host.watched(Cursor(session_id="s1", after_sequence=50), upto=after.head + 1)
        assert numbers(watched) == [55, 60, 61, 70, 80, 90, 95, 101]


def _append(event: Event) -> Any:
    from turndock.store.v1 import AppendEventsRequest

    return AppendEventsRequest(events=[event])
