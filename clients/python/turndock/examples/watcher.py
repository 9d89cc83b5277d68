"""Prints an agent's log and goes on where it was: across restarts of the server, and of this program itself."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

from google.protobuf import json_format

from turndock import events
from turndock.client import DEFAULT_ENDPOINT, Client
from turndock.types.v1 import Cursor


def load(place: Path) -> Cursor | int:
    """Where the last watcher was; the log's beginning if there was none."""
    return json_format.Parse(place.read_text(), Cursor()) if place.exists() else 0


def save(place: Path, cursor: Cursor) -> None:
    """Remember where this one is; a crash leaves the old place or the new one."""
    new = place.with_name(f"{place.name}.new")
    new.write_text(json_format.MessageToJson(cursor))
    new.replace(place)


async def follow(endpoint: str, name: str, place: Path) -> None:
    """Print every event once and in order, until cancelled."""
    async with Client(endpoint) as client, client.agent(name).watch(load(place)) as log:
        async for event in log:
            print(event.sequence, events.kind(event), flush=True)
            # What is killed between these two lines prints the event again. Where that must not be, the cursor belongs
            # into the transaction that stores the effect.
            save(place, log.cursors[0])


def main() -> None:
    """Follow until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m turndock.examples.watcher", description=__doc__)
    parser.add_argument("agent", help="its name")
    parser.add_argument("--place", type=Path, default=Path("watcher.json"), help="file that keeps the cursor")
    parser.add_argument("--server", default=DEFAULT_ENDPOINT)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(follow(options.server, options.agent, options.place))


if __name__ == "__main__":
    main()
