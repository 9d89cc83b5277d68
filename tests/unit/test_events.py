"""Events: names, ids, builders, and what a store must refuse."""

from __future__ import annotations

import os
import uuid

import pytest

from turndock import events
from turndock.errors import TurndockError
from turndock.types.v1 import EVENT_TYPE_CUSTOM, EVENT_TYPE_MESSAGE_STREAMED, Event, EventType, Failure


def test_E_01_there_are_28_types_and_custom() -> None:
    assert len(events.TYPE_NAMES) == 29
    groups = [name.split("_")[0] for name in events.TYPE_NAMES.values()]
    counted = {
        group: groups.count(group) for group in ("session", "run", "message", "error", "workspace", "policy")
    }
    assert counted == {"session": 7, "run": 5, "message": 3, "error": 2, "workspace": 2, "policy": 1}
    assert events.parse_type("message_received", "type") == EventType.EVENT_TYPE_MESSAGE_RECEIVED
    with pytest.raises(TurndockError) as refused:
        events.parse_type("completely_unknown_type", "types[0]")
    assert refused.value.reason == "INVALID_EVENT_TYPE"
    assert refused.value.violations[0].field == "types[0]"


def test_ids_are_time_ordered_uuids() -> None:
    ids = [events.new_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    parsed = [uuid.UUID(each) for each in ids]
    assert {each.version for each in parsed} == {7}
    assert {each.variant for each in parsed} == {uuid.RFC_4122}
    milliseconds = [each.int >> 80 for each in parsed]
    assert milliseconds == sorted(milliseconds)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_makes_other_ids() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, events.new_id()[14:].encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 64).decode() != events.new_id()[14:]
    os.close(reading)
    os.close(writing)


def test_kinds_are_what_backends_call_them() -> None:
    said = [
        events.text("a"),
        events.thinking("b"),
        events.tool_use("1", "t"),
        events.tool_result("1"),
        events.tool_failed("1", Failure(reason="x")),
        events.usage(1, 2),
        events.custom("mine"),
        Event(type=999),  # type: ignore[arg-type]  # a number of a later release
    ]
    assert [events.kind(event) for event in said] == [
        "text",
        "thinking",
        "tool_use",
        "tool_result",
        "tool_result",
        "usage",
        "custom",
        "999",
    ]


def test_terminals() -> None:
    assert not events.result().HasField("text")
    assert events.result("x", stop_reason="length").stop_reason == "length"
    assert events.error().reason == "unknown"


def an_event(**fields: object) -> Event:
    given = {"id": "e", "type": EVENT_TYPE_MESSAGE_STREAMED, "session_id": "s", "time_us": 1} | fields
    return Event(**given)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"id": ""}, "events[2].id", "VALIDATION_ERROR"),
        ({"id": "x" * 129}, "events[2].id", "VALIDATION_ERROR"),
        ({"id": "ä" * 65}, "events[2].id", "VALIDATION_ERROR"),
        ({"id": "a\nb"}, "events[2].id", "VALIDATION_ERROR"),
        ({"session_id": ""}, "events[2].session_id", "VALIDATION_ERROR"),
        ({"type": 0}, "events[2].type", "INVALID_EVENT_TYPE"),
        ({"time_us": 0}, "events[2].time_us", "VALIDATION_ERROR"),
        ({"metadata_json": "[]"}, "events[2].metadata_json", "VALIDATION_ERROR"),
        ({"data_json": "{"}, "events[2].data_json", "VALIDATION_ERROR"),
        ({"data_json": '{"a":"' + "x" * (1 << 20) + '"}'}, "events[2]", "LIMIT_EXCEEDED"),
    ],
)
def test_a_bad_event_is_refused_by_its_field(fields: dict[str, object], field: str, reason: str) -> None:
    with pytest.raises(TurndockError) as refused:
        events.check_event(an_event(**fields), "events[2]")
    assert (refused.value.violations[0].field, refused.value.reason) == (field, reason)


def test_a_good_event_passes_also_with_an_unknown_type_or_a_foreign_id() -> None:
    events.check_event(an_event(), "event")
    events.check_event(an_event(id="ä" * 64), "event")
    events.check_event(an_event(type=999), "event")
    events.check_event(an_event(type=EVENT_TYPE_CUSTOM), "event")
