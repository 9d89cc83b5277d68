"""E-05: what an event says is shown without its secrets, to the store and to every watcher alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turndock import events, jsontext
from turndock.types.v1 import (
    ApprovalDecision,
    Custom,
    ErrorOccurred,
    Event,
    EventType,
    Failure,
    MessageReceived,
    MessageSent,
    PolicyViolation,
    RunFailed,
    RunStarted,
    TokenUsageUpdated,
    ToolApprovalDecided,
    ToolApprovalRequested,
    Usage,
)
from turndock_server.core.redaction import IDENTIFIERS, NOT_SCANNED, EventRedactor
from turndock_server.observability import Redactor

KEY = "AKIAIOSFODNN7EXAMPLE"


def redactor(*patterns: str, categorized: bool = False, max_depth: int = 10) -> EventRedactor:
    return EventRedactor(Redactor(patterns=patterns, categorized=categorized), max_depth=max_depth)


def said(text: str) -> Event:
    return Event(
        id="evt-1",
        type=EventType.EVENT_TYPE_MESSAGE_RECEIVED,
        message_received=MessageReceived(text=text, role="assistant"),
    )


def with_data(data: Any) -> Event:
    return Event(type=EventType.EVENT_TYPE_MESSAGE_RECEIVED, data_json=jsontext.canonical(data))


def redacted_data(data: Any, **options: Any) -> Any:
    return json.loads(redactor(**options)(with_data(data))[0].data_json)


def test_E_05_a_password_in_a_text_is_replaced_counted_and_marked() -> None:
    event, count = redactor()(said("password=secret123 ok"))
    assert event.message_received.text == "[REDACTED] ok"
    assert count == 1
    assert json.loads(event.metadata_json) == {"turndock.redacted": 1}


def test_E_05_a_secret_can_be_named() -> None:
    event, _ = redactor(categorized=True)(said(KEY))
    assert event.message_received.text == "[REDACTED:aws_access_key]"


def test_E_05_depth_5_is_redacted_and_depth_12_is_not() -> None:
    def nested(depth: int) -> Any:
        value: Any = f"see {KEY}"
        for level in range(depth):
            value = [value] if level % 2 else {"a": value}
        return value

    def text(depth: int) -> str:
        event, _ = redactor()(with_data({"x": nested(depth - 1)}))
        return event.data_json

    for depth in (1, 5, 10):
        assert KEY not in text(depth)
    for depth in (11, 12):
        assert KEY in text(depth)
    assert KEY in redactor(max_depth=2)(with_data({"a": {"b": {"c": KEY}}}))[0].data_json


def test_E_05_numbers_booleans_and_null_are_untouched() -> None:
    written = '{"a":1.10,"b":9007199254740993,"c":true,"d":null,"e":"password=x","f":1E400,"password":12345}'
    event, count = redactor()(Event(type=EventType.EVENT_TYPE_CUSTOM, data_json=written))
    assert event.data_json == written.replace("password=x", "[REDACTED]")
    assert count == 1


@pytest.mark.parametrize("event_type", sorted(NOT_SCANNED))
def test_E_05_some_types_are_never_scanned(event_type: EventType.ValueType) -> None:
    event = Event(type=event_type, data_json='{"a":"password=secret123"}')
    assert redactor()(event) == (event, 0)


def test_E_05_run_started_and_token_usage_are_among_them() -> None:
    started = Event(
        type=EventType.EVENT_TYPE_RUN_STARTED, run_started=RunStarted(prompt="password=secret123")
    )
    usage = Event(
        type=EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED,
        token_usage_updated=TokenUsageUpdated(usage=Usage(model=KEY)),
    )
    for event in (started, usage):
        assert redactor()(event) == (event, 0)


def test_E_05_custom_patterns_are_looked_for_too() -> None:
    event, count = redactor(r"\bTICKET-\d+")(said(f"TICKET-7 and {KEY}"))
    assert event.message_received.text == "[REDACTED] and [REDACTED]"
    assert count == 2


def test_E_05_overlapping_secrets_count_once() -> None:
    event, count = redactor(r"secret\d+ now")(said("password=secret123 now"))
    assert event.message_received.text == "[REDACTED]"
    assert count == 1


def test_an_event_without_secrets_is_passed_on_as_it_is() -> None:
    event = said("nothing to see")
    redacted, count = redactor()(event)
    assert redacted is event
    assert count == 0


def test_the_event_that_was_given_is_not_changed() -> None:
    event = said(f"{KEY} {KEY}")
    event.metadata_json = '{"k":"v"}'
    before = event.SerializeToString(deterministic=True)
    redacted, count = redactor()(event)
    assert event.SerializeToString(deterministic=True) == before
    assert json.loads(redacted.metadata_json) == {"k": "v", "turndock.redacted": 2}
    assert count == 2
    assert redacted.id == "evt-1"
    assert redacted.message_received.role == "assistant"


PAYLOADS: list[tuple[str, Event]] = [
    ("message_sent.text", Event(type=EventType.EVENT_TYPE_MESSAGE_SENT, message_sent=MessageSent(text=KEY))),
    ("message_streamed.text", events.text(KEY)),
    ("thinking", events.thinking(KEY)),
    ("tool_call_started", events.tool_use("call-1", "search", jsontext.canonical({"q": [KEY]}))),
    ("tool_call_completed", events.tool_result("call-1", jsontext.canonical(KEY))),
    ("tool_call_failed", events.tool_failed("call-1", Failure(reason="x", message=f"used {KEY}"))),
    (
        "failure.details_json",
        Event(
            type=EventType.EVENT_TYPE_RUN_FAILED,
            run_failed=RunFailed(failure=Failure(reason="x", details_json=jsontext.canonical({"a": KEY}))),
        ),
    ),
    (
        "error_occurred",
        Event(
            type=EventType.EVENT_TYPE_ERROR_OCCURRED,
            error_occurred=ErrorOccurred(failure=Failure(reason="x", message=KEY)),
        ),
    ),
    (
        "policy_violation",
        Event(type=EventType.EVENT_TYPE_POLICY_VIOLATION, policy_violation=PolicyViolation(message=KEY)),
    ),
    (
        "tool_approval_requested",
        Event(
            type=EventType.EVENT_TYPE_TOOL_APPROVAL_REQUESTED,
            tool_approval_requested=ToolApprovalRequested(
                approval_id="a", arguments_json=jsontext.canonical({"a": KEY})
            ),
        ),
    ),
    (
        "tool_approval_denied",
        Event(
            type=EventType.EVENT_TYPE_TOOL_APPROVAL_DENIED,
            tool_approval_decided=ToolApprovalDecided(
                approval_id="a", decision=ApprovalDecision.APPROVAL_DECISION_REJECT, feedback=KEY
            ),
        ),
    ),
    (
        "custom",
        Event(
            type=EventType.EVENT_TYPE_CUSTOM,
            custom=Custom(name="mine", data_json=jsontext.canonical([{"a": KEY}])),
        ),
    ),
    ("data_json", with_data({"a": KEY})),
]


@pytest.mark.parametrize("event", [event for _, event in PAYLOADS], ids=[name for name, _ in PAYLOADS])
def test_every_text_of_a_payload_is_looked_at(event: Event) -> None:
    redacted, count = redactor()(event)
    assert count == 1
    assert KEY not in str(redacted)
    assert "[REDACTED]" in str(redacted)


def test_identifiers_and_metadata_are_left_alone() -> None:
    event = events.tool_use(KEY, KEY)
    event.provider = event.correlation_id = KEY
    event.metadata_json = jsontext.canonical({"a": KEY})
    assert redactor()(event) == (event, 0)


def test_every_identifier_is_a_field_of_a_payload() -> None:
    names: set[str] = set()
    waiting = [Event.DESCRIPTOR]
    while waiting:
        for field in waiting.pop().fields:
            names.add(field.name)
            if field.message_type is not None:
                waiting.append(field.message_type)
    assert names >= IDENTIFIERS


def test_a_key_may_be_what_makes_a_text_a_secret() -> None:
    data = {"password": "correct horse", "api_key": "abc", "user": "me", "list": [{"token": "t"}, "t"]}
    assert redacted_data(data, categorized=True) == {
        "password": "[REDACTED:password]",
        "api_key": "[REDACTED:api_key]",
        "user": "me",
        "list": [{"token": "[REDACTED:api_key]"}, "t"],
    }
    assert redacted_data({KEY: "hi", "password": ""}) == {KEY: "hi", "password": ""}


def test_texts_with_escapes_and_other_scripts_are_read_as_they_are_meant() -> None:
    data = {"a": f'"{KEY}" é \\ \n', "é\n{": "[not a bracket", "b": "password=geheim\\ü"}
    assert redacted_data(data) == {
        "a": '"[REDACTED]" é \\ \n',
        "é\n{": "[not a bracket",
        "b": "[REDACTED]",
    }
    escaped = Event(type=EventType.EVENT_TYPE_CUSTOM, data_json='{ "a" : "\\u0041KIAIOSFODNN7EXAMPLE" }')
    assert redactor()(escaped)[0].data_json == '{ "a" : "[REDACTED]" }'


def test_what_is_no_json_is_a_text() -> None:
    event = Event(type=EventType.EVENT_TYPE_CUSTOM, data_json=f'{{"a":"\\x {KEY}"')
    redacted, count = redactor()(event)
    assert count == 1
    assert redacted.data_json == '{"a":"\\x [REDACTED]"'


def test_fields_a_later_release_adds_are_kept() -> None:
    event = said(KEY)
    newer = Event.FromString(event.SerializeToString() + b"\xfa\x7f\x03new")
    redacted, _ = redactor()(newer)
    assert redacted.SerializeToString().endswith(b"\xfa\x7f\x03new")
