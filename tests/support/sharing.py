"""Processes and stores that share a database."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support import sql_programs
from turndock_server.stores.sql import SqlSessionStore


class Program:
    """A process of `support.sql_programs` that waits at the barrier."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, name: str, database: str | Path, *arguments: object) -> Program:
        """Start it and wait until it stands at the barrier."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            sql_programs.__file__,
            name,
            str(database),
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": str(Path(sql_programs.__file__).parent.parent)},
        )
        program = cls(process)
        assert await program.line() == b"ready\n"
        return program

    def go(self) -> None:
        """Let it pass the barrier."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    def kill(self) -> None:
        """End it in the midst of whatever it does."""
        self._process.kill()

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        return await self._process.wait()

    async def outcome(self) -> Any:
        """What it says at its end."""
        told = await self.line()
        assert await self._process.wait() == 0
        return json.loads(told)

    async def line(self) -> bytes:
        """The next line it says."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()


async def run(name: str, database: str | Path, *arguments: object) -> Any:
    """The outcome of a program that starts at once."""
    program = await Program.start(name, database, *arguments)
    program.go()
    return await program.outcome()


@asynccontextmanager
async def opened(database: str | Path, **options: Any) -> AsyncGenerator[SqlSessionStore]:
    """A store on the database, closed at the end."""
    store = await SqlSessionStore.open(database, **options)
    try:
        yield store
    finally:
        await store.close()
