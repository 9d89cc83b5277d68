"""Every session store passes every case of its contract, and stores that are broken on purpose do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from support.session_store_mutants import MUTANTS, Mutant
from support.session_stores import STORES
from turndock.conformance.session_store import SUITE, Fixture
from turndock.ports import SessionStore

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


def test_the_cases_cover_the_requirements() -> None:
    covered = {requirement for case in SUITE for requirement in case.requirements}
    assert len(SUITE) >= 150
    assert {f"S-{number:02}" for number in (1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 16, 17, 19, 21)} <= covered
    assert {"PF-B07", "PF-B09", "PF-B11", "PF-B15", "PF-B17", "PF-B23", "PF-B25", "PF-B27"} <= covered
    assert {"PF-B29", "PF-B33", "PF-B35", "PF-E05", "PF-E23", "PF-E27", "PF-E31", "PF-E33"} <= covered
    assert {"P-13", "M-26", "E-01", "HandsOff"} <= covered
