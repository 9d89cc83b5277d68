"""Where the acceptance cases run: on which store, and with what is docked in this process or behind gRPC."""

from __future__ import annotations

from typing import Final

import pytest

from support.docking import Mode
from support.harness import StoreName

SETUPS: Final[tuple[tuple[StoreName, Mode], ...]] = (
    ("memory", "in_process"),
    ("sqlite", "in_process"),
    ("remote", "own_streams"),
    ("sqlite", "multiplexed"),
)

on_postgres_too: Final = pytest.mark.parametrize(
    "host", [*SETUPS, ("postgres", "in_process")], ids="-".join, indirect=True
)
"""For cases that are about order, mailboxes, crashes or waiting for people: what a store is there for."""
