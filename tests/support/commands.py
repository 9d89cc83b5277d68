"""The command `turndock` as its users run it: in a process of its own, a server among them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 60.0
"""No command of a test takes longer."""


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str


def environment(**values: str) -> dict[str, str]:
    """This process's, without what configures Turndock, and with `values`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNDOCK_")}
    return {**inherited, "COLUMNS": "120", "TERM": "dumb", **values}


async def start(
    *arguments: str, cwd: Path, variables: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start `turndock` with these arguments."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "turndock_server",
        *arguments,
        cwd=cwd,
        env=environment(**(variables or {})),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def finish(process: asyncio.subprocess.Process, stdin: bytes = b"") -> Finished:
    """Give a command its input and wait for its end."""
    try:
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate(stdin)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return Finished(process.returncode, out.decode(), err.decode())


async def run(
    *arguments: str, cwd: Path, variables: Mapping[str, str] | None = None, stdin: bytes = b""
) -> Finished:
    """Run `turndock` with these arguments to its end."""
    return await finish(await start(*arguments, cwd=cwd, variables=variables), stdin)


class Server:
    """`turndock serve` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address
        """Where it listens, as it said."""

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> Finished:
        """Signal it, and wait for its end."""
        self.process.send_signal(number)
        return await finish(self.process)


@asynccontextmanager
async def serving(
    directory: Path, *options: str, variables: Mapping[str, str] | None = None
) -> AsyncGenerator[Server]:
    """A server whose files are below `directory`. It is killed if the test has not stopped it."""
    process = await start("serve", *options, cwd=directory, variables=variables)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise AssertionError(f"the server did not start: {await finish(process)}")
        yield Server(process, address)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
