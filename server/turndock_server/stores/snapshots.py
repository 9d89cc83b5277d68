"""Rules every AgentPersistence of this package decides by, apart from where it keeps snapshots."""

from __future__ import annotations

from typing import Final

from turndock import events as event_rules
from turndock import jsontext
from turndock.errors import TurndockError, invalid, not_found
from turndock.store.v1 import (
    LIFECYCLE_UNSPECIFIED,
    LoadStateRequest,
    PersistStateRequest,
    SetInterruptedRequest,
    Snapshot,
)
from turndock_server.stores import checks

MAX_SNAPSHOT_BYTES: Final = 1 << 20

Write = PersistStateRequest | SetInterruptedRequest
Owner = tuple[str, str]
"""Whose a snapshot is: the conversation, or the agent when there is no conversation; the other one is empty."""


def owner_of(request: Write | LoadStateRequest) -> Owner:
    """Whose snapshot a request is about. Raises INVALID_ARGUMENT naming the field."""
    event_rules.check_id(request.agent_id, "agent_id", max_bytes=checks.MAX_AGENT_NAME_BYTES)
    if not request.conversation_id:
        return "", request.agent_id
    event_rules.check_id(request.conversation_id, "conversation_id")
    return request.conversation_id, ""


def check_write(request: Write) -> Owner:
    """Whose snapshot a write is about; refuses one that must not be made."""
    owner = owner_of(request)
    checks.check_request_id(request.request_id)
    checks.check_fence(request.fence if request.HasField("fence") else None)
    if isinstance(request, PersistStateRequest):
        if request.lifecycle == LIFECYCLE_UNSPECIFIED:
            raise invalid("lifecycle", "must be set")
        if not request.HasField("snapshot"):
            raise invalid("snapshot", "must be set")
        _check_snapshot(request.snapshot)
    return owner


def missing(request: LoadStateRequest) -> TurndockError:
    """The error for a snapshot that is not there, or in another partition."""
    return not_found("snapshot", request.conversation_id or request.agent_id)


def _check_snapshot(snapshot: Snapshot) -> None:
    size = snapshot.ByteSize()
    if size > MAX_SNAPSHOT_BYTES:
        raise invalid(
            "snapshot", f"has {size} bytes; the limit is {MAX_SNAPSHOT_BYTES}", reason="LIMIT_EXCEEDED"
        )
    if snapshot.state_json:
        jsontext.check(snapshot.state_json, "snapshot.state_json")
    jsontext.check_object(snapshot.metadata_json, "snapshot.metadata_json")
    for field in ("incarnation", "run_id", "title", "provider_session_id"):
        jsontext.check_text(getattr(snapshot, field), f"snapshot.{field}")
