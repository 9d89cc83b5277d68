"""What holds for the repository itself."""

import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from support.toolchains import require_tool


def test_the_lock_pins_every_package_and_names_no_host(repository: Path) -> None:
    lines = (repository / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.lstrip().startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.match(r"[a-z0-9.-]+==\S+( ; .+)?$", pin)] == []
    assert [line for line in lines if "://" in line] == []


def test_every_dependency_has_a_floor_and_a_ceiling(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    calendar_versioned = {"xllamacpp"}
    unbounded = [
        requirement
        for requirement in requirements
        if not re.search(r">=[\d.]+,<", requirement)
        and re.split(r"\W", requirement)[0] not in calendar_versioned
    ]
    assert unbounded == []


@pytest.mark.parametrize("package", ["turndock", "turndock_server"])
def test_both_packages_tell_type_checkers_that_they_are_typed(repository: Path, package: str) -> None:
    root = {"turndock": "clients/python", "turndock_server": "server"}[package]
    assert (repository / root / package / "py.typed").exists()


def test_messages_come_without_grpc() -> None:
    """Every package of messages can be used where grpcio is not loaded, but for what `turndock` itself imports."""
    program = (
        "import sys, turndock\nbefore = 'grpc' in sys.modules\nimport turndock.types.v1, turndock.store.v1\n"
    )
    program += "sys.exit(not before and 'grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_missing_tool_is_skipped_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-tool is not installed"):
        require_tool("no-such-tool")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no-such-tool is not installed"):
        require_tool("no-such-tool")


def test_an_installed_tool_is_returned_as_a_path() -> None:
    assert require_tool("sh").exists()
