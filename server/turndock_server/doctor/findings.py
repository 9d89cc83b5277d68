"""What a check says."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.StrEnum):
    """How much it matters."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check found."""

    level: Level
    """An ERROR keeps a server from starting, or from doing what it is told."""
    subject: str
    """The key or thing it is about: `server.listen`, `plugins.model`."""
    what: str
    """What is so."""
    mend: str = ""
    """What to do about it; empty when nothing needs to be done."""
