"""The suite of `AgentPersistence` and what its cases get."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from turndock.conformance.cases import Suite
from turndock.ports import AgentPersistence, InterruptedFlag
from turndock.store.v1 import (
    Lifecycle,
    LoadStateRequest,
    LoadStateResponse,
    PersistStateRequest,
    SetInterruptedRequest,
    Snapshot,
)
from turndock.types.v1 import Scope

ABILITIES: Final = frozenset(("set_interrupted", "fences"))
"""`fences`: it refuses writes below the highest epoch it has seen."""
ON_COMPLETION: Final = Lifecycle.LIFECYCLE_ON_COMPLETION
ON_ERROR: Final = Lifecycle.LIFECYCLE_ON_ERROR


@dataclass(frozen=True)
class Fixture:
    """One implementation, one fresh partition of it, and short ways to say what a case does."""

    persistence: AgentPersistence
    abilities: frozenset[str] = ABILITIES
    """Those it is said to have."""
    scope: Scope | None = field(default_factory=lambda: Scope(tenant=f"conformance-{uuid.uuid4().hex}"))

    def other(self) -> Fixture:
        """The same implementation in another fresh partition."""
        return Fixture(self.persistence, self.abilities)

    def within(self, scope: Scope | None) -> Fixture:
        """The same implementation in this partition; None is the unscoped one."""
        return replace(self, scope=scope)

    def saving(self, snapshot: Snapshot | None, agent: str = "a", **fields: Any) -> PersistStateRequest:
        """A PersistState, ON_COMPLETION of conversation `c` unless said otherwise."""
        said: dict[str, Any] = {"conversation_id": "c", "lifecycle": ON_COMPLETION, **fields}
        return PersistStateRequest(scope=self.scope, agent_id=agent, snapshot=snapshot, **said)

    async def save(self, state: str = "{}", agent: str = "a", **fields: Any) -> None:
        """PersistState with this state."""
        await self.persistence.persist_state(self.saving(snapshot_of(state), agent, **fields))

    async def load(self, agent: str = "a", conversation: str = "c") -> LoadStateResponse:
        """LoadState."""
        request = LoadStateRequest(scope=self.scope, agent_id=agent, conversation_id=conversation)
        return await self.persistence.load_state(request)

    async def state(self, agent: str = "a", conversation: str = "c") -> str:
        """LoadState; the state."""
        return (await self.load(agent, conversation)).snapshot.state_json

    async def set_interrupted(self, flag: bool, agent: str = "a", **fields: Any) -> None:
        """SetInterrupted, of conversation `c` unless said otherwise."""
        said: dict[str, Any] = {"conversation_id": "c", **fields}
        request = SetInterruptedRequest(scope=self.scope, agent_id=agent, interrupted=flag, **said)
        await cast("InterruptedFlag", self.persistence).set_interrupted(request)


SUITE: Final = Suite[Fixture]("AgentPersistence", ABILITIES)
"""Every case of the contract."""


def snapshot_of(state: str) -> Snapshot:
    """A snapshot with this state and little else."""
    return Snapshot(version=1, state_json=state, serialized_at_us=1_700_000_000_000_000)
