"""An AgentPersistence that keeps snapshots in memory, with every promise of the contract but to outlive the process."""

from __future__ import annotations

from dataclasses import dataclass, field

from turndock.store.v1 import (
    LoadStateRequest,
    LoadStateResponse,
    PersistStateRequest,
    PersistStateResponse,
    SetInterruptedRequest,
    SetInterruptedResponse,
)
from turndock_server.stores import checks, rules, snapshots


@dataclass(slots=True)
class _Conversation:
    saved: bytes | None = None
    """The encoded LoadStateResponse."""
    is_interrupted: bool = False
    epoch: int = 0
    """Highest seen."""
    answered: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Retry tokens and what they were used for."""


class MemoryAgentPersistence:
    """`turndock.ports.AgentPersistence` and `InterruptedFlag`.

    Every change happens in one step of the event loop, so no call sees half of another.
    """

    def __init__(self) -> None:
        self._conversations: dict[tuple[str, snapshots.Owner], _Conversation] = {}

    async def persist_state(self, request: PersistStateRequest) -> PersistStateResponse:
        conversation = self._to_write(request)
        if conversation is not None:
            saved = LoadStateResponse(snapshot=request.snapshot, lifecycle=request.lifecycle)
            conversation.saved = saved.SerializeToString()
        return PersistStateResponse()

    async def load_state(self, request: LoadStateRequest) -> LoadStateResponse:
        found = self._conversations.get((checks.partition(request), snapshots.owner_of(request)))
        if found is None or found.saved is None:
            raise snapshots.missing(request)
        return LoadStateResponse.FromString(found.saved)

    async def set_interrupted(self, request: SetInterruptedRequest) -> SetInterruptedResponse:
        conversation = self._to_write(request)
        if conversation is not None:
            conversation.is_interrupted = request.interrupted
        return SetInterruptedResponse()

    async def forget_session(self, partition: str, session_id: str) -> None:
        """Drop what belongs to a conversation, retry tokens included. Repeatable."""
        self._conversations.pop((partition, (session_id, "")), None)

    def _to_write(self, request: snapshots.Write) -> _Conversation | None:
        """What a write changes; None if it was made before. Raises FENCED, IDEMPOTENCY_CONFLICT."""
        partition = checks.partition(request)
        owner = snapshots.check_write(request)
        conversation = self._conversations.get((partition, owner)) or _Conversation()
        fingerprint = rules.fingerprint(request) if request.request_id else b""
        known = conversation.answered.get(request.request_id)
        if known is not None:
            if known != fingerprint:
                raise rules.token_conflict(request.request_id)
            return None
        if request.HasField("fence"):
            if request.fence.epoch < conversation.epoch:
                raise rules.fenced(owner[0] or owner[1], request.fence.epoch, conversation.epoch)
            conversation.epoch = request.fence.epoch
        if request.request_id:
            conversation.answered[request.request_id] = fingerprint
        self._conversations[partition, owner] = conversation
        return conversation
