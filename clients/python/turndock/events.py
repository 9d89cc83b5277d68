"""Events: builders for those who emit them, names and checks for those who store them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from typing import Final

from turndock import jsontext
from turndock.backend.v1 import Paused, Result
from turndock.errors import TurndockError, invalid
from turndock.types.v1 import (
    EVENT_TYPE_MESSAGE_STREAMED,
    Custom,
    Event,
    EventType,
    Failure,
    MessageStreamed,
    TokenUsageUpdated,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    Usage,
    WorkspaceChanged,
)

_PREFIX: Final = "EVENT_TYPE_"

TYPE_NAMES: Final[dict[int, str]] = {
    number: name.removeprefix(_PREFIX).lower()
    for name, number in EventType.items()
    if number != EventType.EVENT_TYPE_UNSPECIFIED
}
"""Number → name in snake_case, of the 28 durable types and `custom`."""

TYPES: Final[dict[str, EventType.ValueType]] = {
    name: EventType.Value(_PREFIX + name.upper()) for name in TYPE_NAMES.values()
}
"""Name in snake_case → number."""

RUN_TERMINAL: Final = frozenset(
    (
        EventType.EVENT_TYPE_RUN_COMPLETED,
        EventType.EVENT_TYPE_RUN_FAILED,
        EventType.EVENT_TYPE_RUN_CANCELLED,
        EventType.EVENT_TYPE_RUN_TIMEOUT,
    )
)
"""The types that end a run."""

_KINDS: Final[dict[int, str]] = {
    EventType.EVENT_TYPE_MESSAGE_STREAMED: "text",
    EventType.EVENT_TYPE_TOOL_CALL_STARTED: "tool_use",
    EventType.EVENT_TYPE_TOOL_CALL_COMPLETED: "tool_result",
    EventType.EVENT_TYPE_TOOL_CALL_FAILED: "tool_result",
    EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED: "usage",
    EventType.EVENT_TYPE_TOOL_APPROVAL_REQUESTED: "approval_request",
    EventType.EVENT_TYPE_RUN_COMPLETED: "result",
    EventType.EVENT_TYPE_RUN_FAILED: "error",
    EventType.EVENT_TYPE_RUN_CANCELLED: "error",
    EventType.EVENT_TYPE_RUN_TIMEOUT: "error",
}

TITLE: Final = "turndock.title"
"""Name of the custom event that gives the conversation its title: the one name of the host's own a backend may use."""
MAX_TITLE_BYTES: Final = 1024

_MAX_ID_BYTES = 128


def text(piece: str) -> Event:
    """A piece of the answer's text."""
    return Event(
        type=EventType.EVENT_TYPE_MESSAGE_STREAMED,
        message_streamed=MessageStreamed(text=jsontext.repair_text(piece)),
    )


def title(text: str) -> Event:
    """The conversation's title from now on."""
    data = jsontext.canonical({"title": clean_title(text)})
    return Event(type=EventType.EVENT_TYPE_CUSTOM, custom=Custom(name=TITLE, data_json=data))


def thinking(piece: str) -> Event:
    """A piece of reasoning, no part of the answer's text."""
    return Event(
        type=EventType.EVENT_TYPE_MESSAGE_STREAMED,
        message_streamed=MessageStreamed(text=jsontext.repair_text(piece), thinking=True),
    )


def tool_use(tool_call_id: str, name: str, arguments_json: str = "{}") -> Event:
    """The backend calls a tool."""
    return Event(
        type=EventType.EVENT_TYPE_TOOL_CALL_STARTED,
        tool_call_started=ToolCallStarted(
            tool_call_id=tool_call_id, name=name, arguments_json=arguments_json
        ),
    )


def tool_result(tool_call_id: str, result_json: str = "null", name: str = "") -> Event:
    """A tool returned."""
    return Event(
        type=EventType.EVENT_TYPE_TOOL_CALL_COMPLETED,
        tool_call_completed=ToolCallCompleted(tool_call_id=tool_call_id, name=name, result_json=result_json),
    )


def tool_failed(tool_call_id: str, failure: Failure, name: str = "") -> Event:
    """A tool failed."""
    return Event(
        type=EventType.EVENT_TYPE_TOOL_CALL_FAILED,
        tool_call_failed=ToolCallFailed(tool_call_id=tool_call_id, name=name, failure=failure),
    )


def usage(input_tokens: int | None = None, output_tokens: int | None = None, *, model: str = "") -> Event:
    """The run's token counts so far."""
    return Event(
        type=EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED,
        token_usage_updated=TokenUsageUpdated(
            usage=Usage(input_tokens=input_tokens, output_tokens=output_tokens, model=model)
        ),
    )


def workspace_snapshot(reference: str, artifact_key: str = "") -> Event:
    """A state of the files an agent works on was recorded under this name."""
    return Event(
        type=EventType.EVENT_TYPE_WORKSPACE_SNAPSHOT_TAKEN,
        workspace_changed=WorkspaceChanged(reference=reference, artifact_key=artifact_key),
    )


def workspace_diff(reference: str, base_reference: str, artifact_key: str = "") -> Event:
    """The files changed between two recorded states; the artifact, if there is one, holds how."""
    changed = WorkspaceChanged(reference=reference, base_reference=base_reference, artifact_key=artifact_key)
    return Event(type=EventType.EVENT_TYPE_WORKSPACE_DIFF_COMPUTED, workspace_changed=changed)


def custom(name: str, data_json: str = "") -> Event:
    """Something of a kind outside the list."""
    return Event(type=EventType.EVENT_TYPE_CUSTOM, custom=Custom(name=name, data_json=data_json))


def result(
    text: str | None = None, *, provider_session_id: str = "", stop_reason: str = "", data_json: str = ""
) -> Result:
    """Terminal: the turn succeeded. Without a text, the answer is all streamed text."""
    return Result(
        text=None if text is None else jsontext.repair_text(text),
        provider_session_id=provider_session_id,
        stop_reason=stop_reason,
        data_json=data_json,
    )


def error(reason: str = "", message: str = "", *, retryable: bool = False) -> Failure:
    """Terminal: the turn failed. Without a reason it is `unknown`."""
    return Failure(reason=reason or "unknown", message=message, retryable=retryable)


def paused(approvals: Iterable[ToolApprovalRequested]) -> Paused:
    """Terminal: the turn waits for decisions and cannot be kept open."""
    return Paused(approvals=approvals)


def kind(event: Event) -> str:
    """What a backend calls this event: `text`, `thinking`, `tool_use`, `tool_result`, `usage`, `result`, `error`, …

    Types without a name of their own among backends are called by their type's name.
    """
    if event.type == EVENT_TYPE_MESSAGE_STREAMED and event.message_streamed.thinking:
        return "thinking"
    return _KINDS.get(event.type) or type_name(event.type)


def type_name(event_type: int) -> str:
    """The type's name in snake_case, or its number for a type this release does not know."""
    return TYPE_NAMES.get(event_type) or str(event_type)


def parse_type(name: str, field: str) -> EventType.ValueType:
    """The type of that name. Raises `TurndockError` (INVALID_EVENT_TYPE) naming `field` for any other name."""
    try:
        return TYPES[name]
    except KeyError:
        raise invalid(field, f"{name!r} is no event type", reason="INVALID_EVENT_TYPE") from None


def now_us() -> int:
    """The time of day in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def title_of(event: Event) -> str:
    """The title an event gives the conversation; empty if it gives none."""
    if event.custom.name != TITLE:
        return ""
    try:
        given = jsontext.parse_object(event.custom.data_json, "custom.data_json").get("title")
    except TurndockError:
        return ""
    return clean_title(given) if isinstance(given, str) else ""


def clean_title(text: str) -> str:
    """A title as it is kept: one line without what no store can keep, at most `MAX_TITLE_BYTES` of UTF-8."""
    line = " ".join(jsontext.repair_text(text).split())
    return line.encode()[:MAX_TITLE_BYTES].decode(errors="ignore")


def new_id() -> str:
    """A fresh event id: a time-ordered UUID (version 7 of RFC 9562)."""
    value = (time.time_ns() // 1_000_000) << 80 | _random.getrandbits(80)
    value = value & ~(0xF << 76) & ~(0x3 << 62) | (0x7 << 76) | (0x2 << 62)
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


# Ids must differ, they need not be unguessable: seeded by the system once, and again in every forked process.
_random = random.Random(os.urandom(32))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(32)))


def check_id(value: str, field: str, *, max_bytes: int = _MAX_ID_BYTES) -> None:
    """Refuse an id that is empty, longer than `max_bytes` of UTF-8, or holds control characters."""
    if not value:
        raise invalid(field, "must not be empty")
    if len(value.encode()) > max_bytes:
        raise invalid(field, f"is longer than {max_bytes} bytes")
    if not value.isprintable() and any(character < " " or character == "\x7f" for character in value):
        raise invalid(field, "contains control characters")


def _is_plain_id(value: str) -> bool:
    return 0 < len(value) <= _MAX_ID_BYTES and value.isascii() and value.isprintable()


def check_event(event: Event, field: str, *, max_bytes: int = 1 << 20) -> None:
    """Refuse an event a store must not take, naming the field below `field` that is wrong.

    Structure is strict: id, type, session and time must be there, JSON must be JSON, the size is bounded. What the
    payload holds is the writer's affair. Raises `TurndockError` (VALIDATION_ERROR or INVALID_EVENT_TYPE).
    """
    # Stores run this on every event: what is plainly right costs no text about what might be wrong.
    if not _is_plain_id(event.session_id):
        check_id(event.session_id, f"{field}.session_id")
    if not _is_plain_id(event.id):
        check_id(event.id, f"{field}.id")
    if not event.type:
        raise invalid(f"{field}.type", "must be set", reason="INVALID_EVENT_TYPE")
    if event.time_us <= 0:
        raise invalid(f"{field}.time_us", "must be above 0 (microseconds since the Unix epoch)")
    if event.metadata_json:
        jsontext.check_object(event.metadata_json, f"{field}.metadata_json")
    if event.data_json:
        jsontext.check_object(event.data_json, f"{field}.data_json")
    size = event.ByteSize()
    if size > max_bytes:
        raise invalid(
            field, f"is {size} bytes; the limit for an event is {max_bytes}", reason="LIMIT_EXCEEDED"
        )
