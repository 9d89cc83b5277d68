"""A host with nothing configured: `bare_server.py <data directory>`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from turndock_server.config import ServerSettings, Settings
from turndock_server.process import run


def main() -> None:
    """Serve until SIGTERM."""
    settings = Settings(data=Path(sys.argv[1]), server=ServerSettings(listen="127.0.0.1:0"))
    sys.exit(asyncio.run(run(settings, on_serving=lambda at: print("READY", at, flush=True))))


if __name__ == "__main__":
    main()
