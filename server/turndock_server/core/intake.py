"""From what a backend says to events that can be stored: completed, repaired where it must be, and marked.

Client input that is wrong is refused; a backend's output is not, since nobody could send it again. The repairs:

- U+0000 and halves of surrogate pairs become U+FFFD.
- JSON text that breaks a rule of `turndock.jsontext` becomes `{"turndock.unparsed": <its first 1,024 characters>}`.
- An event of a type that is the host's own, or a custom one with a name that is, becomes ERROR_OCCURRED with
  `original_type`, and so does one with a payload that is. Only a title (`events.TITLE`) that is one may come from a
  backend.
- A reference to a payload that is kept elsewhere is taken out: only the host keeps payloads elsewhere.

Each repair is listed in the event's metadata under `turndock.repaired`, by field. What a payload lacks is listed under
`turndock.warnings` and otherwise left alone.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from turndock import events, jsontext
from turndock.errors import TurndockError
from turndock.types.v1 import (
    EVENT_TYPE_CUSTOM,
    EVENT_TYPE_ERROR_OCCURRED,
    EVENT_TYPE_MESSAGE_RECEIVED,
    EVENT_TYPE_MESSAGE_SENT,
    EVENT_TYPE_MESSAGE_STREAMED,
    EVENT_TYPE_POLICY_VIOLATION,
    EVENT_TYPE_RUN_CANCELLED,
    EVENT_TYPE_RUN_COMPLETED,
    EVENT_TYPE_RUN_FAILED,
    EVENT_TYPE_RUN_STARTED,
    EVENT_TYPE_RUN_TIMEOUT,
    EVENT_TYPE_SESSION_CANCELLED,
    EVENT_TYPE_SESSION_COMPLETED,
    EVENT_TYPE_SESSION_CREATED,
    EVENT_TYPE_SESSION_FAILED,
    EVENT_TYPE_SESSION_PAUSED,
    EVENT_TYPE_SESSION_RESUMED,
    EVENT_TYPE_SESSION_STARTED,
    EVENT_TYPE_TOKEN_USAGE_UPDATED,
    EVENT_TYPE_TOOL_APPROVAL_DENIED,
    EVENT_TYPE_TOOL_APPROVAL_GRANTED,
    EVENT_TYPE_TOOL_APPROVAL_REQUESTED,
    EVENT_TYPE_TOOL_CALL_COMPLETED,
    EVENT_TYPE_TOOL_CALL_FAILED,
    EVENT_TYPE_TOOL_CALL_STARTED,
    EVENT_TYPE_TURN_COMPLETED,
    EVENT_TYPE_UNSPECIFIED,
    ErrorOccurred,
    Event,
    EventType,
    Failure,
    MessageStreamed,
)
from turndock_server.core.written import Pen

REPAIRED = "turndock.repaired"
WARNINGS = "turndock.warnings"
UNPARSED = "turndock.unparsed"
RESERVED = "turndock."
"""What the names of the host's own custom events begin with."""
BACKEND_EVENT_ID = "turndock.backend_event_id"
_PREVIEW = 1024

HOST_TYPES: frozenset[int] = frozenset(
    (
        EVENT_TYPE_SESSION_CREATED,
        EVENT_TYPE_SESSION_STARTED,
        EVENT_TYPE_SESSION_PAUSED,
        EVENT_TYPE_SESSION_RESUMED,
        EVENT_TYPE_SESSION_COMPLETED,
        EVENT_TYPE_SESSION_FAILED,
        EVENT_TYPE_SESSION_CANCELLED,
        EVENT_TYPE_RUN_STARTED,
        EVENT_TYPE_RUN_COMPLETED,
        EVENT_TYPE_RUN_FAILED,
        EVENT_TYPE_RUN_CANCELLED,
        EVENT_TYPE_RUN_TIMEOUT,
        EVENT_TYPE_MESSAGE_SENT,
        EVENT_TYPE_TOOL_APPROVAL_REQUESTED,
        EVENT_TYPE_TOOL_APPROVAL_GRANTED,
        EVENT_TYPE_TOOL_APPROVAL_DENIED,
    )
)
"""Types only the host writes: a backend asks for an approval, and the host writes down that it did."""

HOST_PAYLOADS: frozenset[str] = frozenset(
    (
        "session_changed",
        "run_started",
        "run_completed",
        "run_failed",
        "message_sent",
        "tool_approval_requested",
        "tool_approval_decided",
    )
)
"""What those types carry, which nobody else's event may carry under another type."""

_JSON_FIELDS: dict[str, tuple[str, ...]] = {
    "tool_call_started": ("arguments_json",),
    "tool_call_completed": ("result_json",),
    "custom": ("data_json",),
}
_TEXT_FIELDS: dict[str, tuple[str, ...]] = {
    "message_streamed": ("text",),
    "message_received": ("text",),
    "tool_call_started": ("tool_call_id", "name"),
    "tool_call_completed": ("tool_call_id", "name"),
    "tool_call_failed": ("tool_call_id", "name"),
    "custom": ("name",),
    "policy_violation": ("policy", "message"),
}
PAYLOAD_TYPES: dict[str, EventType.ValueType] = {
    "message_streamed": EVENT_TYPE_MESSAGE_STREAMED,
    "message_received": EVENT_TYPE_MESSAGE_RECEIVED,
    "tool_call_started": EVENT_TYPE_TOOL_CALL_STARTED,
    "tool_call_completed": EVENT_TYPE_TOOL_CALL_COMPLETED,
    "tool_call_failed": EVENT_TYPE_TOOL_CALL_FAILED,
    "token_usage_updated": EVENT_TYPE_TOKEN_USAGE_UPDATED,
    "turn_completed": EVENT_TYPE_TURN_COMPLETED,
    "policy_violation": EVENT_TYPE_POLICY_VIOLATION,
    "custom": EVENT_TYPE_CUSTOM,
}


class Intake:
    """Makes the events of one turn storable, in their order."""

    __slots__ = ("_common", "_joiner", "_pen")

    def __init__(self, session_id: str, run_id: str, provider: str, correlation_id: str) -> None:
        self._common = Event(
            session_id=session_id,
            run_id=run_id,
            provider=provider,
            correlation_id=correlation_id,
            schema_version=1,
        )
        self._joiner = jsontext.TextJoiner()
        self._pen: Pen | None = None

    def pen(self) -> Pen:
        """Writes what needs no second look, for events that come together."""
        if self._pen is None:
            self._pen = Pen(self._common)
        else:
            self._pen.turn_page()
        return self._pen

    def joined(self, piece: str) -> str | None:
        """A bare piece of text without half characters; None if all of it is kept back for its other half."""
        repaired = self._joiner.feed(piece)
        return repaired if repaired or not piece else None

    def end(self) -> Event | None:
        """The event for a piece that was kept back and whose other half never came."""
        left = self._joiner.end()
        return self.text(left) if left else None

    def event(self, given: Event) -> Event:
        """A complete, storable copy of an event; the given one is left alone."""
        event = Event()
        event.CopyFrom(given)
        marks: dict[str, Any] = {}
        is_forged = event.HasField("offloaded")
        # Known once an event is stored, or kept elsewhere because of its size.
        for name in ("sequence", "incarnation", "stored_at_us", "offloaded"):
            event.ClearField(name)
        _settle_type(event)
        if event.id:
            marks[BACKEND_EVENT_ID] = event.id
        self._complete(event)
        repaired = _repair(event)
        if is_forged:
            repaired.append("offloaded")
        if repaired:
            marks[REPAIRED] = repaired
        warnings = _warnings(event)
        if warnings:
            marks[WARNINGS] = warnings
        if marks:
            _mark(event, marks)
        return event

    def own(self, event: Event) -> Event:
        """The host's own event of this turn, completed in place."""
        self._complete(event)
        return event

    def text(self, text: str) -> Event:
        """The event for a repaired piece of text."""
        event = Event(type=EVENT_TYPE_MESSAGE_STREAMED, message_streamed=MessageStreamed(text=text))
        self._complete(event)
        if jsontext.REPLACEMENT in text:
            _mark(event, {REPAIRED: ["message_streamed.text"]})
        return event

    def _complete(self, event: Event) -> None:
        provider, correlation_id, schema_version = event.provider, event.correlation_id, event.schema_version
        event.MergeFrom(self._common)
        # What the backend said itself stands; all of it is rare.
        if provider:
            event.provider = provider
        if correlation_id:
            event.correlation_id = correlation_id
        if schema_version:
            event.schema_version = schema_version
        event.id = events.new_id()
        if event.time_us <= 0:
            event.time_us = events.now_us()


def unknown_type(name: str, data_json: str = "") -> Event:
    """What becomes of an event whose type's name nobody knows: ERROR_OCCURRED, with the name kept."""
    return Event(
        type=EVENT_TYPE_ERROR_OCCURRED,
        error_occurred=ErrorOccurred(
            failure=Failure(reason="unknown_event_type", message=f"{name!r} is no event type"),
            original_type=name,
        ),
        data_json=data_json,
    )


def _settle_type(event: Event) -> None:
    payload = event.WhichOneof("payload")
    if event.type == EVENT_TYPE_UNSPECIFIED and payload in PAYLOAD_TYPES:
        event.type = PAYLOAD_TYPES[payload]
    refused = _refused_name(event)
    if refused:
        replaced = unknown_type(refused, event.data_json)
        replaced.metadata_json = event.metadata_json
        replaced.time_us = event.time_us
        event.CopyFrom(replaced)


def _refused_name(event: Event) -> str:
    """The name of a type, or of a custom event, that is not a backend's to use; empty if it may be used."""
    if event.type == EVENT_TYPE_UNSPECIFIED:
        return "unspecified"
    if event.type in HOST_TYPES:
        return events.type_name(event.type)
    payload = event.WhichOneof("payload")
    if payload in HOST_PAYLOADS:
        return payload
    if not event.custom.name.startswith(RESERVED) or events.title_of(event):
        return ""
    return event.custom.name


def _repair(event: Event) -> list[str]:
    """Repair the event in place; the fields that needed it."""
    repaired: list[str] = []
    for field in ("metadata_json", "data_json"):
        if getattr(event, field) and not _keep_json(event, field, must_be_object=True):
            repaired.append(field)
    payload = event.WhichOneof("payload")
    if payload is None:
        return repaired
    message = getattr(event, payload)
    for field in _TEXT_FIELDS.get(payload, ()):
        text = getattr(message, field)
        if "\0" in text:
            setattr(message, field, jsontext.repair_text(text))
            repaired.append(f"{payload}.{field}")
    for field in _JSON_FIELDS.get(payload, ()):
        if getattr(message, field) and not _keep_json(message, field):
            repaired.append(f"{payload}.{field}")
    return repaired


def _keep_json(message: Message, field: str, *, must_be_object: bool = False) -> bool:
    text: str = getattr(message, field)
    try:
        if must_be_object:
            jsontext.check_object(text, field)
        else:
            jsontext.check(text, field)
    except TurndockError:
        setattr(message, field, jsontext.canonical({UNPARSED: jsontext.repair_text(text[:_PREVIEW])}))
        return False
    return True


def _warnings(event: Event) -> list[str]:
    """What the payload lacks. Advice for readers; never a reason to refuse an event."""
    if event.type == EVENT_TYPE_MESSAGE_RECEIVED:
        message = event.message_received
        return [
            f"message_received.{field} is not set"
            for field, value in (("text", message.text), ("role", message.role))
            if not value
        ]
    if event.type == EVENT_TYPE_TOKEN_USAGE_UPDATED:
        usage = event.token_usage_updated.usage
        return [
            f"token_usage_updated.usage.{field} is negative"
            for field in ("input_tokens", "output_tokens", "total_tokens")
            if usage.HasField(field) and getattr(usage, field) < 0
        ]
    if event.type == EVENT_TYPE_TOOL_CALL_STARTED and not event.tool_call_started.tool_call_id:
        return ["tool_call_started.tool_call_id is not set"]
    return []


def _mark(event: Event, marks: dict[str, Any]) -> None:
    metadata = jsontext.parse_object(event.metadata_json, "metadata_json")
    event.metadata_json = jsontext.canonical(metadata | marks)
