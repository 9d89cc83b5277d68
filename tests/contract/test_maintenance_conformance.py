"""Every maintenance passes every case of its contract, and those that are broken on purpose do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.maintained import MAINTAINED, Maintained, memory
from support.maintenance_mutants import MUTANTS, Mutant
from turndock.conformance.maintenance import SUITE
from turndock_server.stores.memory.upkeep import MemoryUpkeep

SKIPS: Mapping[str, str] = {}
"""Cases that are left out, and why. None is."""


@pytest.fixture(params=MAINTAINED)
async def maintained(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Maintained]:
    async with MAINTAINED[request.param](tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("case", [case.name for case in SUITE])
async def test_a_maintenance_keeps_its_contract(case: str, maintained: Maintained) -> None:
    report = await SUITE.run(maintained.fixture, abilities=SUITE.abilities, skips=SKIPS, only=[case])
    assert report.is_conformant, str(report)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.kind.__name__}-{mutant.fails}")
async def test_a_broken_maintenance_fails_by_the_case_that_says_so(mutant: Mutant, tmp_path: Path) -> None:
    kind = "upkeep" if issubclass(mutant.kind, MemoryUpkeep) else "maintenance"
    parts: dict[str, Any] = {kind: mutant.kind}
    async with memory(tmp_path, **parts) as broken:
        report = await SUITE.run(broken.fixture, abilities=SUITE.abilities, only=[mutant.fails])
    assert [failure.name for failure in report.failures] == [mutant.fails], str(report)
    assert "Traceback" not in report.failures[0].detail, report.failures[0].detail


def test_the_cases_cover_the_requirements() -> None:
    covered = {requirement for case in SUITE for requirement in case.requirements}
    assert {"R-01", "R-02", "R-04", "R-06", "R-09", "PF-B17", "PF-B39", "PF-E27", "P-13"} <= covered
    assert len(SUITE) >= 40
