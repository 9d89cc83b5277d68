"""Where somebody sits who uses Turndock: a folder, a server in it, a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from support import commands
from support.commands import Finished


class Desk:
    """A folder with a configuration, a server in it, and a terminal."""

    def __init__(self, folder: Path, configuration: str = "") -> None:
        self.folder = folder
        self._address = f"unix:{folder / 'api'}"
        self.variables = {
            "TURNDOCK_SERVER": self._address,
            "TURNDOCK_SERVER__LISTEN": self._address,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        (folder / "turndock.toml").write_text(configuration)

    async def turndock(self, *arguments: str) -> Finished:
        """Run a command to its end."""
        return await commands.run(*arguments, cwd=self.folder, variables=self.variables)

    async def ok(self, *arguments: str) -> str:
        """What a command prints that succeeds."""
        ended = await self.turndock(*arguments)
        assert ended.code == 0, ended
        return ended.out

    async def example(self, name: str, *arguments: str) -> asyncio.subprocess.Process:
        """Start an example beside the server."""
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"turndock.examples.{name}",
            *arguments,
            "--server",
            self._address,
            cwd=self.folder,
            env=commands.environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
