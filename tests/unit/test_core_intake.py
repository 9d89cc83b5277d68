"""What becomes of whatever a backend says."""

from typing import Any

import pytest

from turndock import events, jsontext
from turndock.types.v1 import (
    ArtifactReference,
    Custom,
    Event,
    EventType,
    MessageReceived,
    MessageStreamed,
    ToolCallStarted,
)
from turndock_server.core.intake import HOST_PAYLOADS, HOST_TYPES, PAYLOAD_TYPES, Intake


def intake(**fields: str) -> Intake:
    return Intake("ses_1", fields.get("run_id", "r1"), "ann", fields.get("correlation_id", ""))


def marks(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = jsontext.parse_object(event.metadata_json, "metadata_json")
    return found


def test_a_bare_text_becomes_a_complete_event() -> None:
    event = intake(correlation_id="corr_1").text("hi")
    assert (event.session_id, event.run_id, event.provider, event.correlation_id) == (
        "ses_1",
        "r1",
        "ann",
        "corr_1",
    )
    assert (event.type, event.message_streamed.text) == (EventType.EVENT_TYPE_MESSAGE_STREAMED, "hi")
    assert (event.schema_version, event.metadata_json) == (1, "")
    assert len(event.id) == 36
    assert event.time_us > 1_600_000_000_000_000
    events.check_event(event, "event")


def test_half_a_pair_is_kept_back_until_the_other_half_comes() -> None:
    joining = intake()
    assert joining.joined("\ud83d") is None
    assert joining.joined("\ude00!") == "\N{GRINNING FACE}!"
    assert joining.end() is None
    assert joining.joined("\ud83d") is None
    left = joining.end()
    assert left is not None
    assert left.message_streamed.text == jsontext.REPLACEMENT
    assert marks(left) == {"turndock.repaired": ["message_streamed.text"]}


def test_an_empty_text_is_an_event_too() -> None:
    assert intake().joined("") == ""
    event = intake().text("")
    assert event.HasField("message_streamed")
    assert event.message_streamed.text == ""


def test_what_a_backend_sets_is_kept_but_for_what_is_the_hosts() -> None:
    given = Event(
        id="their-id",
        session_id="another",
        run_id="another",
        time_us=5,
        provider="model-x",
        schema_version=3,
        correlation_id="theirs",
        custom=Custom(name="k", data_json="[1]"),
        data_json='{"a":1}',
        metadata_json='{"m":1}',
    )
    event = intake(correlation_id="ours").event(given)
    assert (event.session_id, event.run_id) == ("ses_1", "r1")
    assert (event.time_us, event.provider, event.schema_version) == (5, "model-x", 3)
    assert (event.correlation_id, event.data_json) == ("theirs", '{"a":1}')
    assert event.id != "their-id"
    assert marks(event) == {"m": 1, "turndock.backend_event_id": "their-id"}
    assert event.type == EventType.EVENT_TYPE_CUSTOM
    assert given.id == "their-id"


@pytest.mark.parametrize("host_type", sorted(HOST_TYPES))
def test_types_of_the_host_are_replaced_and_named(host_type: int) -> None:
    event = intake().event(Event(type=host_type, data_json='{"a":1}', time_us=7))  # type: ignore[arg-type]  # a number of the list
    assert event.type == EventType.EVENT_TYPE_ERROR_OCCURRED
    assert event.error_occurred.original_type == events.type_name(host_type)
    assert (event.data_json, event.time_us) == ('{"a":1}', 7)


def test_all_other_types_pass() -> None:
    others = set(events.TYPES.values()) - set(HOST_TYPES)
    assert len(others) == 13
    for event_type in others:
        assert intake().event(Event(type=event_type)).type == event_type


@pytest.mark.parametrize("payload", sorted(HOST_PAYLOADS))
@pytest.mark.parametrize(
    "event_type", [EventType.EVENT_TYPE_CUSTOM, EventType.EVENT_TYPE_TURN_COMPLETED, 9999]
)
def test_what_only_the_host_says_is_not_taken_under_another_type(payload: str, event_type: int) -> None:
    given = Event(type=event_type)  # type: ignore[arg-type]  # a type of a later release
    getattr(given, payload).SetInParent()
    event = intake().event(given)
    assert event.type == EventType.EVENT_TYPE_ERROR_OCCURRED
    assert event.error_occurred.original_type == payload
    assert not event.HasField("run_completed")


def test_the_payloads_of_the_hosts_types_are_the_hosts_own() -> None:
    of_backends = {"error_occurred", "workspace_changed", *PAYLOAD_TYPES}
    every = {field.name for field in Event.DESCRIPTOR.oneofs_by_name["payload"].fields}
    assert every - of_backends == HOST_PAYLOADS


def test_what_is_known_once_an_event_is_stored_is_not_taken_from_a_backend() -> None:
    given = Event(custom=Custom(name="k"), sequence=7, incarnation="i", stored_at_us=1)
    given.offloaded.CopyFrom(ArtifactReference(key="another's", size=1))
    event = intake().event(given)
    assert (event.sequence, event.incarnation, event.stored_at_us) == (0, "", 0)
    assert not event.HasField("offloaded")
    assert marks(event) == {"turndock.repaired": ["offloaded"]}
    assert event.custom.name == "k"


def test_json_that_is_none_is_replaced_by_its_beginning() -> None:
    broken = "{" + "x" * 3000
    event = intake().event(Event(tool_call_started=ToolCallStarted(tool_call_id="t", arguments_json=broken)))
    kept = jsontext.parse_object(event.tool_call_started.arguments_json, "arguments_json")
    assert kept == {"turndock.unparsed": broken[:1024]}
    assert marks(event) == {"turndock.repaired": ["tool_call_started.arguments_json"]}


def test_metadata_that_is_no_object_is_kept_beside_the_mark() -> None:
    event = intake().event(Event(custom=Custom(name="k"), metadata_json="[1]", data_json="7"))
    assert marks(event) == {
        "turndock.unparsed": "[1]",
        "turndock.repaired": ["metadata_json", "data_json"],
    }
    assert event.data_json == '{"turndock.unparsed":"7"}'


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (Event(message_received=MessageReceived()), 2),
        (Event(message_received=MessageReceived(text="x")), 1),
        (Event(message_received=MessageReceived(text="x", role="assistant")), 0),
        (events.usage(-1, -2), 2),
        (events.usage(0, 0), 0),
        (Event(tool_call_started=ToolCallStarted(name="ls")), 1),
        (Event(message_streamed=MessageStreamed()), 0),
    ],
)
def test_what_a_payload_lacks_is_a_warning(given: Event, count: int) -> None:
    assert len(marks(intake().event(given)).get("turndock.warnings", [])) == count
