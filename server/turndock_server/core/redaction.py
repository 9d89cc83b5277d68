"""Takes secrets out of events before anybody sees them: the store and every watcher get the same text.

Pure. What a secret is, the redactor of texts knows; this knows where in an event texts are. A piece of a streamed
message is looked at by itself, so a secret that a backend cuts in two is found in the whole message alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, Protocol

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from turndock import events, jsontext
from turndock.types.v1 import ErrorOccurred, Event, EventType, Response, Run

REDACTED: Final = "turndock.redacted"
"""Key in an event's metadata: how many secrets were taken out."""

MAX_DEPTH: Final = 10
"""Texts within more JSON objects and arrays than this are not looked at."""

NOT_SCANNED: Final[frozenset[int]] = frozenset(
    (
        EventType.EVENT_TYPE_SESSION_CREATED,
        EventType.EVENT_TYPE_SESSION_STARTED,
        EventType.EVENT_TYPE_SESSION_PAUSED,
        EventType.EVENT_TYPE_SESSION_RESUMED,
        EventType.EVENT_TYPE_SESSION_COMPLETED,
        EventType.EVENT_TYPE_SESSION_CANCELLED,
        EventType.EVENT_TYPE_RUN_STARTED,
        EventType.EVENT_TYPE_RUN_COMPLETED,
        EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED,
        EventType.EVENT_TYPE_TURN_COMPLETED,
        EventType.EVENT_TYPE_WORKSPACE_SNAPSHOT_TAKEN,
        EventType.EVENT_TYPE_WORKSPACE_DIFF_COMPUTED,
    )
)
"""Types that record what the host or a counter did; none of them carries what a model or a tool said."""

_SCANNED: Final = frozenset(
    (
        "custom",
        "error_occurred",
        "message_received",
        "message_sent",
        "message_streamed",
        "policy_violation",
        "run_failed",
        "tool_approval_decided",
        "tool_approval_requested",
        "tool_call_completed",
        "tool_call_failed",
        "tool_call_started",
    )
)
"""What does carry it, also in an event whose type says that it carries something else."""

IDENTIFIERS: Final = frozenset(
    (
        "approval_id",
        "causes",
        "name",
        "original_type",
        "policy",
        "principal",
        "reason",
        "role",
        "stop_reason",
        "tool_call_id",
        "tool_name",
    )
)
"""Fields that programs compare. Every other text of a payload is for people or models, and is looked at."""

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"(?:\s*:)?|[{}\[\]]')
"""What matters in JSON text: brackets, texts, and texts that are keys."""

_PLACEHOLDER: Final = re.compile(r"\[REDACTED(?::\w+)?\]")


class TextRedactor(Protocol):
    """Takes secrets out of a text; `turndock_server.observability.Redactor` is one."""

    def count(self, text: str) -> tuple[str, int]:
        """The text without its secrets, and how many it had."""
        ...


def told_of(run: Run, answer: Response | None, redacted: Callable[[Event], Event]) -> Run:
    """The run, with the secrets taken out of what is told of it beside its events, and out of its answer, in place."""
    if run.HasField("failure"):
        failed = Event(
            type=EventType.EVENT_TYPE_ERROR_OCCURRED, error_occurred=ErrorOccurred(failure=run.failure)
        )
        run.failure.CopyFrom(redacted(failed).error_occurred.failure)
    if answer is not None:
        answer.text = redacted(events.text(answer.text)).message_streamed.text
        answer.data_json = redacted(
            Event(type=EventType.EVENT_TYPE_CUSTOM, data_json=answer.data_json)
        ).data_json
    return run


class EventRedactor:
    """Takes secrets out of an event's payload and data. Metadata is the writer's own and stays."""

    def __init__(self, redactor: TextRedactor, *, max_depth: int = MAX_DEPTH) -> None:
        self._count = redactor.count
        self._max_depth = max_depth

    def __call__(self, event: Event) -> tuple[Event, int]:
        """The event without its secrets, marked with their number, and that number; the event itself if it has none."""
        payload = event.WhichOneof("payload")
        if event.type in NOT_SCANNED and payload not in _SCANNED:
            return event, 0
        redacted = Event()
        redacted.CopyFrom(event)
        found = self._message(getattr(redacted, payload)) if payload is not None else 0
        redacted.data_json, in_data = self._json(redacted.data_json)
        found += in_data
        if not found:
            return event, 0
        metadata = jsontext.parse_object(event.metadata_json, "metadata_json")
        metadata[REDACTED] = found
        redacted.metadata_json = jsontext.canonical(metadata)
        return redacted, found

    def _message(self, message: Message) -> int:
        """Redact a message in place; how many secrets it had."""
        total = 0
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                parts = value if field.is_repeated else (value,)
                total += sum(map(self._message, parts))
            elif field.type == FieldDescriptor.TYPE_STRING and field.name not in IDENTIFIERS:
                redact = self._json if field.name.endswith("_json") else self._count
                if field.is_repeated:
                    redacted = [redact(text) for text in value]
                    value[:] = [text for text, _ in redacted]
                    total += sum(found for _, found in redacted)
                else:
                    text, found = redact(value)
                    setattr(message, field.name, text)
                    total += found
        return total

    def _json(self, text: str) -> tuple[str, int]:
        """JSON text without the secrets in its texts. Whatever is no text stays as it is, digit for digit."""
        try:
            return self._texts_in(text)
        except ValueError:  # no JSON after all; whoever stores it has to say so
            return self._count(text)

    def _texts_in(self, text: str) -> tuple[str, int]:
        pieces: list[str] = []
        total = end = depth = 0
        key = ""
        for token in _TOKEN.finditer(text):
            written = token[0]
            if written.endswith(":"):
                key = json.loads(written[:-1])
                continue
            if written in "{[":
                depth += 1
            elif written in "}]":
                depth -= 1
            elif depth <= self._max_depth:
                redacted, found = self._value(key, json.loads(written))
                if found:
                    pieces += text[end : token.start()], jsontext.canonical(jsontext.repair_text(redacted))
                    end = token.end()
                    total += found
            key = ""
        return "".join((*pieces, text[end:])), total

    def _value(self, key: str, text: str) -> tuple[str, int]:
        """A text that stands under a key: the key may be what makes it a secret, as in `{"password": "…"}`."""
        redacted, found = self._count(text)
        if found or not key or not text:
            return redacted, found
        assignment, found = self._count(f"{key}={text}")
        placeholder = _PLACEHOLDER.search(assignment)
        if not found or placeholder is None or assignment.endswith(text):
            return text, 0
        return placeholder[0], 1
