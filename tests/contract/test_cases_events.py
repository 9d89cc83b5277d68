"""E: the vocabulary of events, and what becomes of whatever a backend or a caller writes."""

import collections

import pytest

from support.harness import Harness, numbers, refused, types
from support.parts import error, event, gate, result, text, usage
from turndock import events, jsontext, wire
from turndock.errors import TurndockError
from turndock.store.v1 import (
    AppendEventsRequest,
    AppendEventWithSequenceRequest,
    SaveSessionRequest,
)
from turndock.store.v1.session_store_pb2_grpc import SessionStoreStub
from turndock.types.v1 import (
    AgentLimits,
    Event,
    EventType,
    MessageReceived,
    RunStatus,
    Session,
    SessionStatus,
    TokenUsageUpdated,
    Usage,
)
from turndock_server.core.intake import Intake, unknown_type

GROUPS = {
    "session": 7,
    "run": 5,
    "message": 3,
    "tool_call": 3,
    "error": 2,
    "token": 1,
    "turn": 1,
    "workspace": 2,
    "policy": 1,
    "tool_approval": 3,
}


def an_event(event_type: int, **fields: object) -> Event:
    built = Event(id=events.new_id(), session_id="ses_1", time_us=events.now_us(), **fields)  # type: ignore[arg-type]  # whatever the test sets
    built.type = event_type  # type: ignore[assignment]  # also a number that is not in the list
    return built


def test_E_01_there_are_28_types_and_custom() -> None:
    durable = [name for name in events.TYPES if name != "custom"]
    assert len(durable) == 28
    found: collections.Counter[str] = collections.Counter()
    for name in durable:
        group = max((group for group in GROUPS if name.startswith(f"{group}_")), key=len)
        found[group] += 1
    assert found == GROUPS


async def test_E_01_each_type_is_accepted_and_no_other_name(local_host: Harness) -> None:
    store = SessionStoreStub(local_host.served.channel)
    session = Session(id="ses_1", agent_id="ann", status=SessionStatus.SESSION_STATUS_ACTIVE)
    await store.SaveSession(SaveSessionRequest(session=session))
    for number, event_type in enumerate(events.TYPES.values(), start=1):
        request = AppendEventWithSequenceRequest(event=an_event(event_type))
        stored = (await store.AppendEventWithSequence(request)).result.event
        assert (stored.sequence, stored.type) == (number, event_type)
    with refused("INVALID_EVENT_TYPE") as caught, wire.translated():
        await store.AppendEvents(
            AppendEventsRequest(events=[an_event(EventType.EVENT_TYPE_CUSTOM), an_event(0)])
        )
    assert caught.value.violations[0].field == "events[1].type"
    with pytest.raises(TurndockError) as unknown:
        events.parse_type("completely_unknown_type", "type")
    assert unknown.value.reason == "INVALID_EVENT_TYPE"
    assert len(await local_host.log_of("ses_1")) == 29


async def test_E_01_a_number_newer_than_ours_is_kept(local_host: Harness) -> None:
    store = SessionStoreStub(local_host.served.channel)
    request = AppendEventWithSequenceRequest(event=an_event(77, data_json='{"new":true}'))
    await store.AppendEventWithSequence(request)
    (stored,) = await local_host.log_of("ses_1")
    assert (stored.type, stored.data_json) == (77, '{"new":true}')


async def test_E_02_an_unknown_type_becomes_an_error_that_keeps_its_name(host: Harness) -> None:
    """As the backends that read text make it of such a name; the turn goes on."""
    given = unknown_type("completely_unknown_type", '{"a":1}')
    failure = {"reason": given.error_occurred.failure.reason}
    await host.start(
        [
            event(
                type="EVENT_TYPE_ERROR_OCCURRED",
                error_occurred={"original_type": given.error_occurred.original_type, "failure": failure},
                data_json=given.data_json,
            ),
            text("on"),
            result(),
        ]
    )
    assert (await host.ask("x", request_id="r1")).response.text == "on"
    log = await host.log(run_id="r1")
    assert types(log)[2] == "error_occurred"
    assert log[2].error_occurred.original_type == "completely_unknown_type"
    assert log[2].data_json == '{"a":1}'


@pytest.mark.parametrize("name", ["run_completed", "run_failed", "session_completed", "message_sent"])
async def test_E_02_an_event_of_a_type_that_is_the_hosts_own_ends_nothing(host: Harness, name: str) -> None:
    await host.start([event(type=f"EVENT_TYPE_{name.upper()}", data_json='{"a":1}'), text("on"), result()])
    assert (await host.ask("x", request_id="r1")).response.text == "on"
    log = await host.log(run_id="r1")
    assert types(log)[2:4] == ["error_occurred", "message_streamed"]
    assert (log[2].error_occurred.original_type, log[2].data_json) == (name, '{"a":1}')


async def test_E_02_an_event_without_a_type_is_known_by_its_payload_or_kept_as_unspecified(
    host: Harness,
) -> None:
    await host.start([event(message_streamed={"text": "on"}), event(data_json='{"a":1}'), result()])
    assert (await host.ask("x", request_id="r1")).response.text == "on"
    log = await host.log(run_id="r1")
    assert types(log)[2:4] == ["message_streamed", "error_occurred"]
    assert log[3].error_occurred.original_type == "unspecified"


def warnings(stored: Event) -> list[str]:
    found: list[str] = jsontext.parse_object(stored.metadata_json, "metadata_json").get(
        "turndock.warnings", []
    )
    return found


async def test_E_03_a_payload_that_lacks_something_is_stored_with_warnings(host: Harness) -> None:
    await host.start(
        [
            event(type="EVENT_TYPE_MESSAGE_RECEIVED", data_json="{}"),
            event(type="EVENT_TYPE_TOKEN_USAGE_UPDATED", token_usage_updated={"usage": {"input_tokens": -1}}),
            event(
                type="EVENT_TYPE_MESSAGE_RECEIVED", message_received={"text": "whole", "role": "assistant"}
            ),
            result(),
        ]
    )
    await host.ask("x", request_id="r1")
    log = await host.log(run_id="r1")
    assert [len(warnings(stored)) for stored in log[2:5]] == [2, 1, 0]
    assert all(stored.sequence for stored in log)
    assert [word for warning in warnings(log[2]) for word in ("text", "role") if f".{word} " in warning] == [
        "text",
        "role",
    ]


def test_E_03_the_intake_leaves_what_it_was_given_alone() -> None:
    given = Event(type=EventType.EVENT_TYPE_MESSAGE_RECEIVED, message_received=MessageReceived())
    before = given.SerializeToString()
    assert len(warnings(Intake("ses_1", "r1", "ann", "").event(given))) == 2
    negative = Event(
        type=EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED,
        token_usage_updated=TokenUsageUpdated(usage=Usage(output_tokens=-5)),
    )
    assert len(warnings(Intake("ses_1", "r1", "ann", "").event(negative))) == 1
    assert given.SerializeToString() == before


async def test_E_03_structure_is_strict_and_nothing_is_stored(local_host: Harness) -> None:
    store = SessionStoreStub(local_host.served.channel)
    fine = an_event(EventType.EVENT_TYPE_CUSTOM)
    for field, value in (("session_id", ""), ("id", ""), ("time_us", 0), ("data_json", "[]")):
        broken = an_event(EventType.EVENT_TYPE_CUSTOM)
        setattr(broken, field, value)
        with refused("VALIDATION_ERROR") as caught, wire.translated():
            await store.AppendEvents(AppendEventsRequest(events=[fine, broken]))
        assert caught.value.violations[0].field == f"events[1].{field}"
    assert await local_host.log_of("ses_1") == []


async def test_E_06_what_a_successful_turn_leaves(host: Harness) -> None:
    await host.start([text("hel"), text("lo"), usage(5, 1), usage(10, 2), result("hello")])
    answer = await host.ask("hi", request_id="r1")
    log = await host.log(run_id="r1")
    assert types(log) == [
        "run_started",
        "message_sent",
        "message_streamed",
        "message_streamed",
        "token_usage_updated",
        "token_usage_updated",
        "message_received",
        "run_completed",
    ]
    assert [one.message_streamed.text for one in log[2:4]] == ["hel", "lo"]
    assert log[6].message_received.text == "hello"
    assert numbers(log) == list(range(log[0].sequence, log[0].sequence + len(log)))
    for found in (answer.response.usage, answer.run.usage, (await host.poll("r1")).usage):
        assert (found.input_tokens, found.output_tokens) == (10, 2)
    assert {one.run_id for one in log} == {"r1"}
    assert all(one.provider == "scripted" and one.schema_version == 1 for one in log)


async def test_E_06_exactly_as_the_design_page_says(host: Harness) -> None:
    await host.start([text("hel"), text("lo"), usage(10, 2), result("hello")])
    await host.ask("hi", request_id="r1")
    assert types(await host.log(run_id="r1")) == [
        "run_started",
        "message_sent",
        "message_streamed",
        "message_streamed",
        "token_usage_updated",
        "message_received",
        "run_completed",
    ]


async def test_E_06_what_a_failed_turn_leaves(host: Harness) -> None:
    await host.start([text("a"), {"error": {"reason": "rate_limited", "message": "slow down"}}])
    await host.ask("hi", request_id="r1")
    log = await host.log(run_id="r1")
    assert types(log) == ["run_started", "message_sent", "message_streamed", "run_failed"]
    failed = log[-1].run_failed
    assert (failed.failure.reason, failed.failure.message) == ("rate_limited", "slow down")
    assert failed.incomplete_text
    assert (await host.poll("r1")).status == RunStatus.RUN_STATUS_FAILED


async def test_E_06_what_a_killed_turn_leaves(host: Harness) -> None:
    await host.start([gate("g")], [gate("g2")], limits=AgentLimits(watchdog_ms=2_000))
    asking = host.asking("hi", request_id="r1")
    await host.backend.entered("g")
    await host.interrupt()
    await asking
    await host.start([gate("never")], name="a2", limits=AgentLimits(watchdog_ms=40))
    await host.ask("hi", "a2", request_id="r2")
    assert types(await host.log(run_id="r1"))[2:] == ["run_cancelled"]
    assert types(await host.log("a2", run_id="r2"))[2:] == ["run_timeout"]


async def test_E_06_the_correlation_of_a_prompt_is_on_all_its_events(host: Harness) -> None:
    await host.start([text("a"), result()], [error("e")])
    for number in ("1", "2"):
        await host.ask("hi", request_id=f"r{number}", correlation_id=f"corr_{number}")
        assert {one.correlation_id for one in await host.log(run_id=f"r{number}")} == {f"corr_{number}"}
