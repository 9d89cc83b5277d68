"""The wheel in clean environments, with the lowest and the highest dependencies that it allows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import ServerProcess
from support.toolchains import require_registry, require_uv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith((".__main__", ".migrations.env")):  # these two run when they are imported
            importlib.import_module(module.name)
"""
CALL = """
import asyncio, sys
from turndock.client import Client

async def main():
    async with Client(sys.argv[1]) as client:
        agent = await client.start_agent("ann", backend="echo")
        async with agent.watch() as watch:
            print((await agent.ask("hello")).text, (await anext(watch)).sequence)

asyncio.run(main())
"""


def run(*arguments: str | Path) -> str:
    """What a program says; fails with all of it when the program does."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def uv() -> Path:
    uv = require_uv()
    require_registry(uv)
    return uv


@pytest.fixture(scope="module")
def wheel(uv: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(uv, "build", "--quiet", "--wheel", "--out-dir", folder, repository)
    (built,) = folder.glob("*.whl")
    return built


def environment(uv: Path, folder: Path, requirement: str, resolution: str) -> Path:
    """A new environment with just that; its Python."""
    run(uv, "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    run(uv, "pip", "install", "--quiet", "--python", python, "--resolution", resolution, requirement)
    return python


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
async def test_PF_E21_both_packages_work_with_the_oldest_and_the_newest_of_what_they_need(
    uv: Path, wheel: Path, tmp_path: Path, resolution: str
) -> None:
    sdk = environment(uv, tmp_path / "sdk", str(wheel), resolution)
    server = environment(uv, tmp_path / "server", f"turndock[server] @ {wheel.as_uri()}", resolution)
    run(sdk, "-W", "error", "-c", IMPORT_ALL, "turndock")
    run(server, "-W", "error", "-c", IMPORT_ALL, "turndock", "turndock_server")

    process = ServerProcess(tmp_path, '[backends.echo]\nkind = "echo"', python=server)
    try:
        await process.start()
        called = await asyncio.to_thread(run, sdk, "-W", "error", "-c", CALL, process.endpoint)
    finally:
        await process.close()
    assert called == "hello 1\n"
