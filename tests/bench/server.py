"""A host process for the benchmarks: `server.py <settings as JSON>`."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path

from bench.harness import HERE, READY
from turndock_server.config import (
    BackendSettings,
    PluginSettings,
    ServerSettings,
    Settings,
    StoreSettings,
)
from turndock_server.process import run


def main() -> None:
    """Serve until SIGTERM."""
    given = json.loads(sys.argv[1])
    command = shlex.join([sys.executable, str(HERE / "load_backend.py")])
    settings = Settings(
        data=Path(given["data"]),
        server=ServerSettings(listen="127.0.0.1:0", grace_seconds=0),
        store=StoreSettings(kind=given.get("store", "sqlite"), synchronous=given.get("synchronous", "full")),
        plugins={"load": PluginSettings(endpoint=f"exec:{command}", required=True)},
        backends={
            "load": BackendSettings(kind="plugin", plugin="load"),
            "scripted": BackendSettings(kind="scripted"),
            "echo": BackendSettings(kind="echo"),
        },
    )
    sys.exit(asyncio.run(run(settings, on_serving=lambda at: print(READY, at, flush=True))))


if __name__ == "__main__":
    main()
