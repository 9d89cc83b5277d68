"""Every session store passes every case of its contract, and stores that are broken on purpose do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.session_store_mutants import MUTANTS, Mutant
from support.session_stores import STORES, PlainSessionStore, behind_grpc
from turndock.conformance import Outcome
from turndock.conformance.session_store import SUITE, Fixture
from turndock.ports import SessionStore
from turndock_server.stores.memory import MemorySessionStore

ABSENT = "an_absent_ability_says_that_it_is_absent"
SKIPS: Mapping[str, str] = {}
"""Cases that are left out, and why. None is."""


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[SessionStore]:
    async with STORES[request.param](tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("case", [case.name for case in SUITE])
async def test_a_session_store_keeps_its_contract(case: str, store: SessionStore) -> None:
    report = await SUITE.run(
        lambda: Fixture(store, SUITE.abilities), abilities=SUITE.abilities, skips=SKIPS, only=[case]
    )
    assert report.is_conformant, str(report)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.store.__name__}-{mutant.fails}")
async def test_a_broken_store_fails_by_the_case_that_says_so(mutant: Mutant) -> None:
    store = mutant.store()
    report = await SUITE.run(
        lambda: Fixture(store, SUITE.abilities), abilities=SUITE.abilities, only=[mutant.fails]
    )
    assert [failure.name for failure in report.failures] == [mutant.fails], str(report)
    assert "Traceback" not in report.failures[0].detail, "The case must say in a sentence what is wrong."


@pytest.mark.parametrize("is_remote", [False, True], ids=["direct", "grpc"])
async def test_a_store_of_the_fourteen_calls_passes_all_that_needs_no_ability(is_remote: bool) -> None:
    async with AsyncExitStack() as stack:
        store: SessionStore = PlainSessionStore()
        if is_remote:
            store = await stack.enter_async_context(behind_grpc(store))
        report = await SUITE.run(lambda: Fixture(store, frozenset()), abilities=())
    assert report.is_conformant, str(report)
    assert report.count(Outcome.NOT_OFFERED) == sum(1 for case in SUITE if case.needs)
    assert report.count(Outcome.PASSED) >= 100


async def test_a_store_with_more_than_it_is_said_to_have_is_found_out() -> None:
    report = await SUITE.run(lambda: Fixture(MemorySessionStore(), frozenset()), abilities=(), only=[ABSENT])
    assert [failure.name for failure in report.failures] == [ABSENT]


def test_the_cases_cover_the_requirements() -> None:
    covered = {requirement for case in SUITE for requirement in case.requirements}
    assert len(SUITE) >= 150
    assert {f"S-{number:02}" for number in (1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 16, 17, 19, 21)} <= covered
    assert {"PF-B07", "PF-B09", "PF-B11", "PF-B15", "PF-B17", "PF-B23", "PF-B25", "PF-B27"} <= covered
    assert {"PF-B29", "PF-B33", "PF-B35", "PF-E05", "PF-E23", "PF-E27", "PF-E31", "PF-E33"} <= covered
    assert {"P-13", "M-26", "E-01", "HandsOff"} <= covered
