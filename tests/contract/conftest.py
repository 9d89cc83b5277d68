"""Where the acceptance cases run: on which store, and with what is docked in this process or behind gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.docking import Mode
from support.harness import Harness, StoreName, harnessed

SETUPS: tuple[tuple[StoreName, Mode], ...] = (
    ("memory", "in_process"),
    ("sqlite", "in_process"),
    ("remote", "own_streams"),
    ("sqlite", "multiplexed"),
)


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
