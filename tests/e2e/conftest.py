"""What every test with real servers gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.servers import beside
from turndock_server.backends.scripted import ScriptedBackend


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncGenerator[ScriptedBackend]:
    """A backend in this process, which outlives every server."""
    backend = ScriptedBackend()
    async with beside(f"unix:{tmp_path / 'backend'}", backend=backend):
        yield backend
