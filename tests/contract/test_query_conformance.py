"""Every Query passes every case of its contract, and Queries that are broken on purpose do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from support.queries import QUERIES, Stored
from turndock.conformance.query import SUITE, Fixture

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
