"""What is wrong with a configuration, key by key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and how to mend it."""

    key: str
    """The key as the file spells it, such as `server.listen`; empty when it is about the whole."""
    problem: str
    """What is wrong. Never shows the value, which may be a secret."""
    remedy: str = ""
    """What to do about it. Empty when the problem says so already."""
    source: str = ""
    """Where the key was set: a file, an environment variable, the command line. Empty = nowhere, it is a default."""

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.source, self.key) if part)
        text = f"{where}: {self.problem}" if where else self.problem
        return f"{text}. {self.remedy}" if self.remedy else text


class ConfigError(Exception):
    """A configuration that no host can be started with."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))
