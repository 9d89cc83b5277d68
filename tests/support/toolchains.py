"""Tools a test needs that a machine may lack: skipped there, a failure in CI."""

import importlib.util
import os
import shutil
import subprocess
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
    missing(f"{name} is not installed")


def missing(message: str) -> NoReturn:
    """Skips the test, or fails it where CI=true."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(f"{message}, and CI must run every test")
    pytest.skip(message)


def require_package(name: str) -> None:
    """Like `require_tool` for an optional Python package, by the name it is imported by."""
    if importlib.util.find_spec(name) is None:
        missing(f"the package {name} is not installed")


def require_uv() -> Path:
    """Like `require_tool` for `uv`, which is a package of the development environment."""
    require_package("uv")
    import uv

    return Path(uv.find_uv_bin())


def require_registry(uv: Path) -> None:
    """Like `require_tool` for a package registry that answers."""
    probe: list[str | Path] = [uv, "pip", "compile", "--quiet", "--no-deps", "--no-cache", "-"]
    asked = subprocess.run(probe, input="protobuf", capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        missing("no package registry can be reached")
