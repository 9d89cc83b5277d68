"""Public faults about what a log and a state can hold: text, numbers, depth, events of newer releases."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.harness import Harness, harnessed, refused, types
from support.hosting import make_host, served
from support.parts import event, event_bytes, result, text, tool_use
from turndock import jsontext
from turndock.behavior.v1 import (
    HandleEventRequest,
    HandleEventResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    InitAgentRequest,
    InitAgentResponse,
)
from turndock.ports import Behavior
from turndock.store.v1 import GetSessionRequest
from turndock.types.v1 import AgentPhase, Cursor, Custom, Event, EventType, MessageStreamed

EXACT = '{"big":9223372036854775807,"count":7,"flag":true,"id":9007199254740993,"one":1,"price":0.1}'


@pytest.fixture(params=("memory", "sqlite", "remote"))
async def stored(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """A host on every store, one of them in a process of its own for all the host knows; plug-ins behind gRPC."""
    async with harnessed(request.param, "multiplexed", tmp_path) as harness:
        yield harness


def marks(one: Event) -> dict[str, Any]:
    found: dict[str, Any] = jsontext.parse_object(one.metadata_json, "metadata_json")
    return found


async def test_PF_B23_text_that_cannot_be_kept_is_replaced_and_marked_alike_on_every_store(
    host: Harness,
) -> None:
    await host.start(
        [
            {"code_points": [0x61, 0, 0x62]},
            {"code_points": [0x78, 0xD83D]},
            {"code_points": [0xDE00]},
            {"code_points": [0xD83D]},
            event_bytes(Event(custom=Custom(name="k\0"), metadata_json='{"k\\u0000":1}').SerializeToString()),
            result(),
        ]
    )
    answer = await host.ask("x", request_id="r1")
    assert answer.response.text == "a\N{REPLACEMENT CHARACTER}bx\N{GRINNING FACE}\N{REPLACEMENT CHARACTER}"
    log = await host.log(run_id="r1")
    texts = [one for one in log if one.HasField("message_streamed")]
    assert "".join(one.message_streamed.text for one in texts) == answer.response.text
    assert marks(texts[0]) == {"turndock.repaired": ["message_streamed.text"]}
    assert marks(texts[-1]) == {"turndock.repaired": ["message_streamed.text"]}
    custom = next(one for one in log if one.HasField("custom"))
    assert custom.custom.name == "k\N{REPLACEMENT CHARACTER}"
    repaired = marks(custom)
    assert sorted(repaired["turndock.repaired"]) == ["custom.name", "metadata_json"]
    assert repaired["turndock.unparsed"] == '{"k\\u0000":1}'
    assert (await host.poll("r1", with_events=True)).response == answer.response


async def test_PF_B23_the_text_of_callers_is_refused_by_its_field(local_host: Harness) -> None:
    await local_host.start()
    calls = {
        "prompt": local_host.tell("a\0b"),
        "metadata_json": local_host.tell("a", metadata_json='{"k\\u0000":1}'),
        "request_id": local_host.tell("a", request_id="a\0b"),
        "definition.agent_name": local_host.start(name="a\0b"),
    }
    for field, call in calls.items():
        with refused("VALIDATION_ERROR") as caught:
            await call
        assert caught.value.violations[0].field == field
    assert (await local_host.status()).queued == 0


class Keeping(Behavior):
    """Keeps the last notification as its state, byte for byte."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(state_json=request.restored_state_json or "{}")

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        return HandleResponseResponse()

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        return HandleEventResponse(state_json=request.payload_json)


async def test_PF_B25_numbers_keep_their_type_and_every_digit(stored: Harness) -> None:
    await stored.dock_behavior("keeping", Keeping())
    await stored.start(
        [
            event(type="EVENT_TYPE_CUSTOM", custom={"name": "c", "data_json": EXACT}, data_json=EXACT),
            result("ok", data={"id": 9007199254740993, "one": 1, "price": 0.1}),
        ],
        behavior="keeping",
    )
    await stored.notify(jsontext.parse(EXACT, "EXACT"), wait=True)
    assert (await stored.status()).state_json == EXACT
    answer = await stored.ask("x", request_id="r1", metadata_json=EXACT)
    custom = next(one for one in answer.response.events if one.HasField("custom"))
    assert (custom.data_json, custom.custom.data_json) == (EXACT, EXACT)
    assert answer.response.data_json == '{"id":9007199254740993,"one":1,"price":0.1}'
    assert answer.run.metadata_json == EXACT
    # Another host over the same store.
    await stored.served.host.stop(1.0)
    again = make_host(stored.store, stored.backends, stored.behaviors)
    async with served(again) as stored.served:
        assert (await stored.status()).phase == AgentPhase.AGENT_PHASE_DORMANT
        assert (await stored.status()).state_json == EXACT
        assert (await stored.poll("r1", with_events=True)).response == answer.response
        await stored.ask("y")
        assert (await stored.status()).state_json == EXACT
        assert stored.backend.record.prompts[0].metadata_json == EXACT


def kept_in(log: list[Event]) -> str:
    """The session the events are kept in."""
    return log[0].session_id


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [30, 40, 63, 64, 200])
async def test_PF_B27_depth_is_kept_up_to_the_limit_and_beyond_it_replaced_by_a_preview(
    stored: Harness, levels: int
) -> None:
    arguments = jsontext.canonical({"deep": nested(levels)})
    deep = Event(type=EventType.EVENT_TYPE_TOOL_CALL_STARTED)
    deep.tool_call_started.tool_call_id = "t1"
    deep.tool_call_started.arguments_json = arguments
    await stored.start([text("a"), event_bytes(deep.SerializeToString()), text("b"), result()])
    answer = await stored.ask("x", request_id="r1")
    assert answer.response.text == "ab"
    log = await stored.log(run_id="r1")
    assert await stored.watched(Cursor(session_id=kept_in(log)), upto=log[-1].sequence) == await stored.log()
    kept = next(one for one in log if one.HasField("tool_call_started"))
    if levels + 1 <= jsontext.MAX_DEPTH:
        assert kept.tool_call_started.arguments_json == arguments
        assert not kept.metadata_json
    else:
        preview = jsontext.parse_object(kept.tool_call_started.arguments_json, "arguments_json")
        assert preview == {"turndock.unparsed": arguments[:1024]}
        assert marks(kept) == {"turndock.repaired": ["tool_call_started.arguments_json"]}
    assert types(log)[2:] == [
        "message_streamed",
        "tool_call_started",
        "message_streamed",
        "tool_call_failed",
        "message_received",
        "run_completed",
    ]


async def test_PF_B27_the_metadata_of_a_session_may_be_as_deep(stored: Harness) -> None:
    deep = jsontext.canonical({"deep": nested(40)})
    session_id = (await stored.start(metadata_json=deep)).agent.session_id
    found = await stored.store.get_session(GetSessionRequest(session_id=session_id))
    assert found.session.metadata_json == deep
    with refused("VALIDATION_ERROR") as caught:
        await stored.start(name="a2", metadata_json=jsontext.canonical({"deep": nested(200)}))
    assert caught.value.violations[0].field == "metadata_json"


async def test_PF_B27_depth_of_callers_is_refused_by_its_field(local_host: Harness) -> None:
    await local_host.start()
    await local_host.tell("x", metadata_json=jsontext.canonical({"deep": nested(40)}))
    with refused("VALIDATION_ERROR") as caught:
        await local_host.tell("x", metadata_json=jsontext.canonical({"deep": nested(64)}))
    assert caught.value.violations[0].field == "metadata_json"


def of_a_newer_release() -> bytes:
    """An event of a type, with a payload and with a field that this release does not know."""
    known = Event(type=77, data_json='{"new":true}', metadata_json='{"m":1}')  # type: ignore[arg-type]  # no type of ours
    unknown_payload = b"\xc2\x06\x03abc"  # field 104, bytes
    unknown_field = b"\xc8\x06\x2a"  # field 105, a number
    return known.SerializeToString() + unknown_payload + unknown_field


async def test_PF_B33_what_a_newer_backend_sends_is_kept_byte_for_byte(stored: Harness) -> None:
    given = of_a_newer_release()
    await stored.start([text("a"), event_bytes(given), text("b"), result()])
    answer = await stored.ask("x", request_id="r1")
    assert answer.response.text == "ab"
    log = await stored.log(run_id="r1")
    assert types(log) == [
        "run_started",
        "message_sent",
        "message_streamed",
        "77",
        "message_streamed",
        "message_received",
        "run_completed",
    ]
    kept = log[3]
    for name in (
        "id",
        "session_id",
        "run_id",
        "time_us",
        "sequence",
        "incarnation",
        "stored_at_us",
        "schema_version",
        "provider",
    ):
        kept.ClearField(name)
    assert kept.SerializeToString() == given
    assert await stored.watched(Cursor(session_id=kept_in(log)), upto=log[-1].sequence) == await stored.log()
    newer = next(one for one in answer.response.events if one.type == 77)
    assert b"\xc2\x06\x03abc" in newer.SerializeToString()


async def test_PF_B33_a_known_event_with_an_unknown_field_keeps_it(stored: Harness) -> None:
    given = (
        Event(
            type=EventType.EVENT_TYPE_MESSAGE_STREAMED, message_streamed=MessageStreamed(text="hi")
        ).SerializeToString()
        + b"\xc8\x06\x2a"
    )
    await stored.start([event_bytes(given), result()])
    answer = await stored.ask("x", request_id="r1")
    assert answer.response.text == "hi"
    kept = (await stored.log(run_id="r1"))[2]
    assert b"\xc8\x06\x2a" in kept.SerializeToString()


async def test_tool_arguments_that_are_no_json_are_kept_as_text(host: Harness) -> None:
    broken = Event(type=EventType.EVENT_TYPE_TOOL_CALL_STARTED)
    broken.tool_call_started.tool_call_id = "t1"
    broken.tool_call_started.arguments_json = '{"half":'
    await host.start([event_bytes(broken.SerializeToString()), tool_use("t2"), result()])
    await host.ask("x", request_id="r1")
    log = await host.log(run_id="r1")
    assert log[2].tool_call_started.arguments_json == '{"turndock.unparsed":"{\\"half\\":"}'
    assert log[3].tool_call_started.arguments_json == "{}"
