"""What an agent's loop is given: the journal, what is docked, and the ear of its host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turndock.errors import invalid
from turndock.ports import Backend, Behavior
from turndock.types.v1 import Failure, Response, Run
from turndock_server.core.behavior_calls import Patience
from turndock_server.core.feed import AgentKey
from turndock_server.core.journal import Journal
from turndock_server.core.offload import Offloader
from turndock_server.core.persistence import Persistence

if TYPE_CHECKING:
    from turndock_server.core.agent_state import AgentState


class AgentEnds(Exception):
    """Raised by the loop when the agent cannot go on at all: its `pre_run` hook failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Environment:
    """What every agent of a host shares."""

    journal: Journal
    offloader: Offloader
    backends: Mapping[str, Backend]
    behaviors: Mapping[str, Behavior]
    settled: Callable[[AgentKey, Run, Response | None], None]
    """Tells callers that wait for a run that it has ended."""
    publish_status: Callable[[AgentState], None]
    """Shows an agent's status to whoever watches it."""
    redact_text: Callable[[str], str] = str
    """Takes secrets out of a response's text, as the journal does out of events."""
    backend_wait_s: float = 30.0
    """How long a start, or a turn, waits for a backend that cannot be reached or does not answer."""
    persistence: Persistence = field(default_factory=Persistence)
    """What keeps snapshots."""
    patience: Mapping[str, Patience] = field(default_factory=dict[str, Patience])
    """How long behaviors are waited for, by name; of those not named here, as `Patience` says."""
    max_prompt_bytes: int = 1 << 20
    """Largest prompt that a behavior may ask for."""

    def backend(self, name: str) -> Backend:
        """The backend of that name. Raises INVALID_ARGUMENT naming those there are."""
        try:
            return self.backends[name]
        except KeyError:
            raise invalid("definition.backend", _not_one_of(name, self.backends)) from None

    def behavior(self, name: str) -> Behavior | None:
        """The behavior of that name; None for no name. Raises INVALID_ARGUMENT naming those there are."""
        if not name:
            return None
        try:
            return self.behaviors[name]
        except KeyError:
            raise invalid("definition.behavior", _not_one_of(name, self.behaviors)) from None


def _not_one_of(name: str, offered: Mapping[str, object]) -> str:
    if not offered:
        return f"{name!r} is unknown: the server's configuration has none"
    return f"{name!r} is not one of {sorted(offered)}"
