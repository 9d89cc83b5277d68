"""Programs that speak to a command backend, and conversations with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.programs import python
from support.turns import Conversation
from turndock_server.backends.command import CommandBackend

PRELUDE = """
import json, os, signal, subprocess, sys
def say(type, **fields):
    print(json.dumps({"type": type, **fields}), flush=True)
def hear():
    return json.loads(sys.stdin.readline())
"""


def program(folder: Path, source: str) -> list[str]:
    """Arguments that run a program which may `say` and `hear`."""
    return python(folder, PRELUDE + source)


async def running(folder: Path, source: str, **config: Any) -> Conversation:
    """A conversation with such a program."""
    return await Conversation(CommandBackend(grace_s=0.5), argv=program(folder, source), **config).start()
