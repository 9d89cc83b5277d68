"""Every Query passes every case of its contract, and Queries that are broken on purpose do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from support.queries import QUERIES, Stored
from support.query_mutants import MUTANTS, Mutant
from turndock.conformance import Outcome
from turndock.conformance.query import ARTIFACTS, SUITE, Fixture
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

SKIPS: Mapping[str, str] = {}
"""Cases that are left out, and why. None is."""


@pytest.fixture(params=QUERIES)
async def stored(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Stored]:
    async with QUERIES[request.param](tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("case", [case.name for case in SUITE])
async def test_a_query_keeps_its_contract(case: str, stored: Stored) -> None:
    report = await SUITE.run(
        lambda: Fixture(stored.query, stored.store, stored.artifacts),
        abilities=SUITE.abilities,
        skips=SKIPS,
        only=[case],
    )
    assert report.is_conformant, str(report)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.query.__name__}-{mutant.fails}")
async def test_a_broken_query_fails_by_the_case_that_says_so(mutant: Mutant) -> None:
    store, artifacts = MemorySessionStore(), MemoryArtifactStore()
    query = mutant.query(store._database, artifacts)
    report = await SUITE.run(
        lambda: Fixture(query, store, artifacts), abilities=SUITE.abilities, only=[mutant.fails]
    )
    assert [failure.name for failure in report.failures] == [mutant.fails], str(report)


async def test_a_query_without_artifacts_passes_all_that_needs_none() -> None:
    store = MemorySessionStore()
    report = await SUITE.run(lambda: Fixture(store.query(), store), abilities=())
    assert report.is_conformant, str(report)
    assert report.count(Outcome.NOT_OFFERED) == sum(1 for case in SUITE if ARTIFACTS in case.needs)


def test_the_cases_cover_the_requirements() -> None:
    covered = {requirement for case in SUITE for requirement in case.requirements}
    assert {"Q-01", "Q-02", "Q-03", "Q-06", "Q-07", "Q-08", "Q-10", "P-13", "E-06"} <= covered
    assert {"PF-B17", "PF-B23", "PF-B25", "PF-B29", "PF-B33", "PF-E07", "PF-E23", "PF-E33"} <= covered
    assert len(SUITE) >= 60
