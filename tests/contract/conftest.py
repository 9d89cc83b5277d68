"""The hosts of the acceptance cases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.harness import Harness, harnessed
from support.setups import SETUPS


@pytest.fixture(params=SETUPS, ids="-".join)
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """A host in every setup."""
    store, mode = request.param
    async with harnessed(store, mode, tmp_path) as harness:
        yield harness


@pytest.fixture(params=("memory", "sqlite"))
async def local_host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """A host on every store, with everything in this process: where the case is not about the backend."""
    async with harnessed(request.param, "in_process", tmp_path) as harness:
        yield harness
