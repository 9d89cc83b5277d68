"""Every agent persistence passes every case of its contract, and those that are broken on purpose do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.snapshot_mutants import MUTANTS, Mutant
from support.snapshots import PERSISTENCES, PlainSnapshots, behind_grpc
from turndock.conformance.agent_persistence import SUITE, Fixture
from turndock.conformance.agent_persistence.suite import ON_COMPLETION
from turndock.errors import TurndockError
from turndock.ports import AgentPersistence, InterruptedFlag
from turndock.store.v1 import (
    ClaimAgentRequest,
    DeleteSessionRequest,
    GetSessionRequest,
    PersistStateRequest,
    SaveSessionRequest,
    Snapshot,
)
from turndock.types.v1 import Fence, Scope, Session, SessionStatus
from turndock_server.stores.memory_snapshots import MemoryAgentPersistence
from turndock_server.stores.sql import SqlSessionStore

RED = Scope(tenant="red")


# A channel in between is the same for every database.
WAYS = [
    (name, way) for name in PERSISTENCES for way in ("direct", "grpc") if (name, way) != ("postgres", "grpc")
]


@pytest.fixture(params=WAYS, ids="-".join)
async def persistence(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[AgentPersistence]:
    name, way = request.param
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(PERSISTENCES[name](tmp_path))
        yield await stack.enter_async_context(behind_grpc(local)) if way == "grpc" else local


@pytest.mark.parametrize("case", [case.name for case in SUITE])
async def test_an_agent_persistence_keeps_its_contract(case: str, persistence: AgentPersistence) -> None:
    report = await SUITE.run(lambda: Fixture(persistence), abilities=SUITE.abilities, only=[case])
    assert report.is_conformant, str(report)


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=lambda mutant: f"{mutant.persistence.__name__}-{mutant.fails}"
)
async def test_a_broken_persistence_fails_by_the_case_that_says_so(mutant: Mutant) -> None:
    broken = mutant.persistence()
    report = await SUITE.run(lambda: Fixture(broken), abilities=SUITE.abilities, only=[mutant.fails])
    assert [failure.name for failure in report.failures] == [mutant.fails], str(report)
    assert "Traceback" not in report.failures[0].detail, "The case must say in a sentence what is wrong."


@pytest.mark.parametrize("is_remote", [False, True], ids=["direct", "grpc"])
async def test_one_without_the_flag_passes_all_that_needs_none(is_remote: bool) -> None:
    async with AsyncExitStack() as stack:
        plain: AgentPersistence = PlainSnapshots()
        if is_remote:
            plain = await stack.enter_async_context(behind_grpc(plain))
        abilities = frozenset(("fences",))
        report = await SUITE.run(lambda: Fixture(plain, abilities), abilities=abilities)
    assert report.is_conformant, str(report)


async def test_one_with_more_than_it_is_said_to_have_is_found_out() -> None:
    absent = "an_absent_flag_says_that_it_is_absent"
    report = await SUITE.run(
        lambda: Fixture(MemoryAgentPersistence(), frozenset()), abilities=(), only=[absent]
    )
    assert [failure.name for failure in report.failures] == [absent]


def test_the_cases_cover_the_requirements() -> None:
    covered = {requirement for case in SUITE for requirement in case.requirements}
    assert {
        "P-01",
        "P-02",
        "P-03",
        "P-11",
        "P-13",
        "PF-B07",
        "PF-B25",
        "PF-B35",
        "PF-E05",
        "HandsOff",
    } <= covered
    assert len(SUITE) >= 25


# --- A snapshot beside its session: one database ---------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "sqlite+aiosqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[SqlSessionStore]:
    opened = await SqlSessionStore.open(
        f"{request.param}:///{tmp_path / 'turndock.db'}", synchronous="normal"
    )
    yield opened
    await opened.close()


async def saved_session(store: SqlSessionStore) -> None:
    session = Session(id="ses_1", agent_id="a", status=SessionStatus.SESSION_STATUS_ACTIVE)
    await store.save_session(SaveSessionRequest(scope=RED, session=session))


async def test_a_deleted_session_takes_its_snapshot_along(store: SqlSessionStore) -> None:
    red = Fixture(store.agent_persistence, scope=RED)
    await saved_session(store)
    await red.save('{"n":1}', conversation_id="ses_1", request_id="q1")
    await red.save('{"n":2}', conversation_id="ses_2")
    await store.delete_session(DeleteSessionRequest(scope=RED, session_id="ses_1"))
    with pytest.raises(TurndockError, match="NOT_FOUND"):
        await red.load(conversation="ses_1")
    await red.save('{"n":3}', conversation_id="ses_1", request_id="q1")
    assert await red.state(conversation="ses_1") == '{"n":3}', "its retry tokens went along"
    assert await red.state(conversation="ses_2") == '{"n":2}'


async def test_the_session_shows_its_flag(store: SqlSessionStore) -> None:
    red = Fixture(store.agent_persistence, scope=RED)
    await saved_session(store)
    for flag in (True, False):
        await red.set_interrupted(flag, conversation_id="ses_1")
        found = await store.get_session(GetSessionRequest(scope=RED, session_id="ses_1"))
        assert found.session.interrupted is flag


async def test_a_live_agents_snapshot_is_its_owners(store: SqlSessionStore) -> None:
    red = Fixture(store.agent_persistence, scope=RED)
    await saved_session(store)
    claim = await store.claim_agent(
        ClaimAgentRequest(scope=RED, session_id="ses_1", owner="h", ticket_id="t", lease_ms=60_000)
    )
    with pytest.raises(TurndockError, match="FENCED"):
        await red.save('{"n":1}', conversation_id="ses_1")
    await red.save('{"n":2}', conversation_id="ses_1", fence=Fence(epoch=claim.epoch))
    assert await red.state(conversation="ses_1") == '{"n":2}'


async def test_a_snapshot_outlives_its_process(tmp_path: Path) -> None:
    for attempt in (1, 2):
        opened = await SqlSessionStore.open(tmp_path / "turndock.db")
        red = Fixture(opened.agent_persistence, scope=RED)
        if attempt == 1:
            await red.save('{"n":1}')
        assert await red.state() == '{"n":1}'
        await opened.close()


async def test_P_13_another_scope_finds_and_changes_nothing(persistence: AgentPersistence) -> None:
    red, blue = Fixture(persistence, scope=RED), Fixture(persistence, scope=Scope(tenant="blue"))
    await red.save('{"of":"red"}', conversation_id="c1")
    with pytest.raises(TurndockError) as unknown:
        await blue.load(conversation="c1")
    with pytest.raises(TurndockError) as missing:
        await blue.load(conversation="c9")
    assert unknown.value.reason == missing.value.reason == "NOT_FOUND"
    assert unknown.value.message.replace("c1", "c9") == missing.value.message
    await blue.save('{"of":"blue"}', conversation_id="c1")
    assert isinstance(persistence, InterruptedFlag)
    await blue.set_interrupted(True, conversation_id="c1")
    assert await red.state(conversation="c1") == '{"of":"red"}'
    nobody = red.within(None)
    with pytest.raises(TurndockError, match="NOT_FOUND"):
        await nobody.load(conversation="c1")
    await persistence.persist_state(
        PersistStateRequest(
            agent_id="a", conversation_id="c1", lifecycle=ON_COMPLETION, snapshot=Snapshot(state_json="{}")
        )
    )
    assert await nobody.state(conversation="c1") == "{}"
    assert await red.state(conversation="c1") == '{"of":"red"}'
