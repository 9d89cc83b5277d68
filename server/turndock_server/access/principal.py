"""A caller whose credentials were accepted."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from turndock.errors import TurndockError


class Role(enum.IntEnum):
    """What credentials allow. Each role may do what those before it may."""

    NONE = 0
    """Nothing: accepted credentials to which no role was given."""
    OBSERVER = 1
    """To read and to watch."""
    CONTROLLER = 2
    """To start, prompt, change and stop agents, and to write to the stores."""
    ADMIN = 3
    """Everything; with credentials that have no scope, in every scope and in the unscoped partition."""

    @classmethod
    def of(cls, name: str) -> Role:
        """The role of that name in small letters. Raises `KeyError`."""
        return cls[name.upper()]

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, and what for."""

    name: str
    """For logs: the name of a token, the subject of a JSON Web Token, the name of a certificate."""
    role: Role
    scope: str | None = None
    """The only tenant the credentials are good for; None = they are bound to none."""
    expires_at: float | None = None
    """When the credentials stop being valid, in seconds since 1970; None = never."""


def unauthenticated(why: str) -> TurndockError:
    """The error for credentials that are missing or not accepted."""
    return TurndockError("UNAUTHENTICATED", why)
