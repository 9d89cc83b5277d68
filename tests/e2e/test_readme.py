"""What README.md tells people to type and to write, typed and written."""

import asyncio
import os
import shlex
import signal
import sys
import tomllib
from pathlib import Path

import pytest

from support import commands
from support.commands import Finished
from support.pages import Page

pytestmark = pytest.mark.slow

ADDRESS = "127.0.0.1:7420"
"""Where the page's server listens; a test's is elsewhere."""


@pytest.fixture
def readme(repository: Path) -> Page:
    return Page(repository / "README.md")


@pytest.fixture
def where(tmp_path: Path) -> dict[str, str]:
    """Variables by which a server and its commands find each other, with this environment's programs on the path."""
    address = f"unix:{tmp_path / 'api'}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"TURNDOCK_SERVER": address, "TURNDOCK_SERVER__LISTEN": address, "PATH": path}


async def run_program(path: Path) -> Finished:
    """Run a Python program to its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        path,
        env=commands.environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    return await commands.finish(process)


async def test_the_clients_print_what_their_comments_say(readme: Page, tmp_path: Path) -> None:
    async with commands.serving(tmp_path, "--listen", "127.0.0.1:0") as server:
        for name, code in {"ann": "import Client\n", "bob": "import SyncClient"}.items():
            program = tmp_path / f"{name}.py"
            program.write_text(readme.block("python", code).replace(ADDRESS, server.address))
            ended = await run_program(program)
            assert (ended.code, ended.err) == (0, "")
            first, *log = ended.out.splitlines()
            assert first == f"Hello, {name.capitalize()}!"
            assert [log[0], log[-1]] == ["10 run_started", "16 result"] if name == "ann" else log == []


async def test_the_tour_can_be_walked(readme: Page, tmp_path: Path, where: dict[str, str]) -> None:
    before, after = (
        [shlex.split(line, comments=True)[1:] for line in block.splitlines()] for block in readme.blocks("sh")
    )
    doctor, serve = before
    assert serve == ["serve"]
    examined = await commands.run(*doctor, cwd=tmp_path, variables=where)
    assert examined.out.endswith("Nothing is wrong.\n")

    async with commands.serving(tmp_path, variables=where) as server:
        *quick, watch = after
        ended = [await commands.run(*arguments, cwd=tmp_path, variables=where) for arguments in quick]
        assert [one.code for one in ended] == [0] * len(quick)
        assert ended[1].out == "Hello?\n"

        watching = await commands.start(*watch, cwd=tmp_path, variables=where)
        assert watching.stdout is not None
        await said(watching.stdout, "session_created")
        await server.stop(signal.SIGKILL)
        async with commands.serving(tmp_path, variables=where):
            again = await commands.run("ask", "-a", "tom", "once more", cwd=tmp_path, variables=where)
            assert again.out == "once more\n"
            await said(watching.stdout, "'once more'")
            watching.send_signal(signal.SIGINT)
            assert (await commands.finish(watching)).code == 130


async def said(output: asyncio.StreamReader, text: str) -> None:
    """Read on until a line has the text."""
    async with asyncio.timeout(commands.LIMIT_S):
        while text not in (line := (await output.readline()).decode()):
            assert line, f"the output ended without {text}"


async def shouts(folder: Path, variables: dict[str, str]) -> None:
    """Serve what is in the folder, and see that its backend answers."""
    async with commands.serving(folder, variables=variables):
        start = ("agents", "start", "sue", "--backend", "shout")
        started = await commands.run(*start, cwd=folder, variables=variables)
        assert started.code == 0, started
        asked = await commands.run("ask", "--agent", "sue", "hello", cwd=folder, variables=variables)
        assert (asked.code, asked.out.strip()) == (0, "HELLO"), asked


async def test_the_backend_answers_as_a_plug_in(readme: Page, tmp_path: Path, where: dict[str, str]) -> None:
    (tmp_path / "shout.py").write_text(readme.block("python", "class Shout"))
    (tmp_path / "turndock.toml").write_text(readme.block("toml", "[plugins.shout]"))
    await shouts(tmp_path, where)


async def test_the_backend_answers_in_the_servers_process(
    readme: Page, tmp_path: Path, where: dict[str, str]
) -> None:
    site = tmp_path / "site"
    information = site / "shout-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "shout.py").write_text(readme.block("python", "class Shout"))
    # What an installer makes of the page's lines of pyproject.toml.
    [(group, points)] = tomllib.loads(readme.block("toml", "entry-points"))["project"]["entry-points"].items()
    lines = [f"{name} = {point}" for name, point in points.items()]
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shout\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("\n".join((f"[{group}]", *lines)))
    (tmp_path / "turndock.toml").write_text(readme.block("toml", 'kind = "shout"'))
    await shouts(tmp_path, {**where, "PYTHONPATH": str(site)})
