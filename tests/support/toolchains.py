"""Tools a test needs that a machine may lack: skipped there, a failure in CI."""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest


def require_tool(name: str) -> Path:
    """Returns the path of an executable; without it the test is skipped, or fails where CI=true.

    A developer without Go can run the suite; CI cannot lose a tier because an image changed.
    """
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    _missing(f"{name} is not installed")


def _missing(message: str) -> NoReturn:
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(f"{message}, and CI must run every test")
    pytest.skip(message)


def require_package(name: str) -> None:
    """Like `require_tool` for an optional Python package, by the name it is imported by."""
    if importlib.util.find_spec(name) is None:
        _missing(f"the package {name} is not installed")
