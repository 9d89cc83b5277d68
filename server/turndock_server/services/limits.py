"""How much of the server one scope may take up at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from turndock.agent.v1 import WatchRequest
from turndock.errors import TurndockError
from turndock.store.v1 import WatchEventsRequest


class Places:
    """So many places per scope. Who has some gives them back whatever becomes of the call."""

    def __init__(self, limit: str, what: str, most: int | None) -> None:
        self._limit = limit
        self._what = what
        self._most = most
        self._taken: Counter[str | None] = Counter()

    def taken(self, tenant: str | None) -> int:
        """How many places a scope has."""
        return self._taken[tenant]

    @contextmanager
    def held(self, tenant: str | None, number: int = 1) -> Generator[None]:
        """Hold places while the block runs. Raises SCOPE_LIMIT_EXCEEDED when there are not so many left."""
        if self._most is None or number == 0:
            yield
            return
        current = self._taken[tenant]
        if current + number > self._most:
            raise TurndockError(
                "SCOPE_LIMIT_EXCEEDED",
                f"the scope has {current} {self._what}; at most {self._most} may be there at the same time",
                metadata={"limit": self._limit, "max": str(self._most), "current": str(current)},
            )
        self._taken[tenant] = current + number
        try:
            yield
        finally:
            self._taken[tenant] -= number
            if not self._taken[tenant]:
                del self._taken[tenant]


@dataclass(frozen=True, slots=True)
class ScopeLimits:
    """What one scope may have at the same time; None = as much as it likes."""

    max_calls: int | None = None
    max_streams: int | None = None
    max_watchers: int | None = None
    calls: Places = field(init=False)
    streams: Places = field(init=False)
    watchers: Places = field(init=False)

    def __post_init__(self) -> None:
        for name, what in _KINDS.items():
            most: int | None = getattr(self, f"max_{name}")
            object.__setattr__(self, name, Places(f"max_{name}_per_scope", what, most))

    @property
    def is_set(self) -> bool:
        """Whether anything is limited."""
        return any(getattr(self, f"max_{name}") is not None for name in _KINDS)

    @contextmanager
    def call(self, tenant: str | None, request: Any, *, streams: bool) -> Generator[None]:
        """Hold what a call takes up while the block runs. Raises SCOPE_LIMIT_EXCEEDED."""
        with (
            self.calls.held(tenant),
            self.streams.held(tenant, int(streams)),
            self.watchers.held(tenant, _watched(request)),
        ):
            yield


_KINDS: Final = {"calls": "calls under way", "streams": "streams", "watchers": "logs that are watched"}


def _watched(request: Any) -> int:
    """How many logs a call watches."""
    if isinstance(request, WatchRequest):
        return len(request.cursors)
    return int(isinstance(request, WatchEventsRequest))
