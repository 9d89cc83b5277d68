"""Programs for tests that need real processes, and a way to wait for the end of anybody's process."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from textwrap import dedent


def python(folder: Path, source: str, *arguments: str) -> list[str]:
    """Arguments that run a small Python program, which starts fast because it gets no site packages."""
    path = folder / f"program-{len(list(folder.iterdir()))}.py"
    path.write_text(dedent(source))
    return [sys.executable, "-I", "-S", "-u", str(path), *arguments]


async def gone(pid: int) -> None:
    """Wait until a process, whoever started it, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
