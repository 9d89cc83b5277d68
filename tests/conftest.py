"""What every test gets."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from support import postgres, toolchains

# Examples are drawn anew on every developer's run and are the same on every run in CI.
hypothesis.settings.register_profile("turndock", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("turndock")


@pytest.fixture
def require_tool() -> Callable[[str], Path]:
    """`require_tool(name)` returns an executable's path or skips the test; see support.toolchains."""
    return toolchains.require_tool


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the work tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def _end_postgres() -> Iterator[None]:
    """The PostgreSQL server, if a test has started it, ends with the test run."""
    yield
    postgres.remove_shared()


@pytest.fixture(autouse=True)
def _share_databases() -> Iterator[None]:
    """A PostgreSQL database that a test has used is emptied for the next one."""
    yield
    postgres.recycle()
