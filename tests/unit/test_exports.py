"""Exports as text: lines that lose nothing, and chats that a model API takes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turndock import exports
from turndock.errors import TurndockError, not_found
from turndock.store.v1 import ExportEnd, ExportSessionResponse, RunBatch
from turndock.types.v1 import (
    Artifact,
    ArtifactReference,
    Custom,
    Event,
    EventBatch,
    EventType,
    Failure,
    MessageReceived,
    MessageSent,
    MessageStreamed,
    Run,
    RunCompleted,
    Session,
    TokenUsageUpdated,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    Usage,
)

UNKNOWN_FIELD = b"\xc2\x3e\x03abc"
"""Field 1000, which no release has."""

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
counts = st.integers(-(1 << 63), (1 << 63) - 1)
usages = st.builds(
    Usage,
    input_tokens=st.none() | counts,
    output_tokens=st.none() | counts,
    model=texts,
    cost_usd=st.none() | st.floats(),
)
all_events = st.builds(
    Event,
    id=texts,
    type=st.sampled_from(EventType.values()) | st.integers(101, 200),
    session_id=texts,
    time_us=counts,
    sequence=st.integers(0, (1 << 64) - 1),
    data_json=st.sampled_from(("", '{"id":9007199254740993,"count":7,"flag":true,"price":0.1}', "{ }")),
    token_usage_updated=st.none() | st.builds(TokenUsageUpdated, usage=usages),
)
records = st.one_of(
    all_events,
    st.builds(Session, id=texts, tags=st.lists(texts, max_size=3), deleted_at_us=st.none() | counts),
    st.builds(
        Run, id=texts, usage=usages, request_sha256=st.binary(max_size=32), cost_usd=st.none() | st.floats()
    ),
    st.builds(Artifact, key=texts, size=st.integers(0, (1 << 64) - 1), sha256=st.binary(max_size=32)),
    st.builds(ExportEnd, run_count=counts, head=st.integers(0, (1 << 64) - 1)),
)


@settings(max_examples=300, deadline=None)
@given(records, st.booleans())
def test_a_line_comes_back_as_what_it_was(record: exports.Record, is_newer: bool) -> None:
    if is_newer:
        record.MergeFromString(UNKNOWN_FIELD)
    line = exports.to_line(record)
    assert "\n" not in line
    again = exports.parse_line(line, 1)
    assert type(again) is type(record)
    assert again is not None
    assert again.SerializeToString(deterministic=True) == record.SerializeToString(deterministic=True)


def test_PF_B25_numbers_in_a_line_are_numbers_with_every_digit() -> None:
    data = '{"count":7,"flag":true,"id":9007199254740993,"one":1,"price":0.1}'
    event = Event(id="e", sequence=9007199254740993, time_us=1, data_json=data, custom=Custom(name="n"))
    line = exports.to_line(event)
    assert '"sequence":9007199254740993' in line
    written = json.loads(line)["event"]
    assert (written["sequence"], written["data_json"]) == (9007199254740993, data)
    assert exports.parse_line(line, 1) == event


def test_PF_B33_what_this_release_does_not_know_is_in_the_line_and_comes_back() -> None:
    event = Event(id="e", time_us=1, sequence=4)
    event.MergeFromString(b"\x10\x65")  # type 101, which no release has
    event.MergeFromString(b"\xa2\x0d\x04\x0a\x02hi")
    written = json.loads(exports.to_line(event))
    assert (written["event"]["type"], written["event"]["sequence"]) == (101, 4)
    again = exports.parse_line(json.dumps(written), 1)
    assert again is not None
    assert again.SerializeToString() == event.SerializeToString()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no json",
        "[]",
        "{}",
        '{"what":{}}',
        '{"run":{},"event":{}}',
        '{"run":{"id":7}}',
        '{"run":{"nothing":"x"}}',
        '{"run":[]}',
        '{"run":null}',
        '{"event":{},"bytes":"!"}',
        '{"event":{},"bytes":"//8="}',
        '{"format":"turndock.export","version":2}',
        '{"format":"something","version":1}',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_none_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(TurndockError, match="line 12") as refusal:
        exports.parse_line(line, 12)
    assert refusal.value.reason == "VALIDATION_ERROR"


async def stream(*parts: ExportSessionResponse) -> AsyncIterator[ExportSessionResponse]:
    for part in parts:
        yield part


async def test_an_export_is_a_header_and_a_line_for_each_record() -> None:
    parts = stream(
        ExportSessionResponse(session=Session(id="s")),
        ExportSessionResponse(runs=RunBatch(runs=[Run(id="r1"), Run(id="r2")])),
        ExportSessionResponse(events=EventBatch(events=[Event(id="e")])),
        ExportSessionResponse(end=ExportEnd(run_count=2, event_count=1)),
    )
    lines = [line async for line in exports.json_lines(parts)]
    assert lines[0] == exports.HEADER
    assert exports.parse_line(lines[0], 1) is None
    read = [exports.parse_line(line, number) for number, line in enumerate(lines[1:], 2)]
    assert [type(record).__name__ for record in read] == ["Session", "Run", "Run", "Event", "ExportEnd"]


async def test_an_export_without_its_end_is_no_export() -> None:
    with pytest.raises(TurndockError, match="broke off"):
        [line async for line in exports.json_lines(stream(ExportSessionResponse(session=Session(id="s"))))]


async def test_an_export_that_fails_at_once_writes_not_even_a_header() -> None:
    async def parts() -> AsyncIterator[ExportSessionResponse]:
        async for part in stream():
            yield part
        raise not_found("session", "s")

    with pytest.raises(TurndockError, match="not found"):
        await anext(exports.json_lines(parts()))


def event(run_id: str = "run", **payload: Any) -> Event:
    return Event(run_id=run_id, **payload)


CONVERSATION = [
    event(message_sent=MessageSent(text="weather?")),
    event(message_streamed=MessageStreamed(text="hm", thinking=True)),
    event(message_streamed=MessageStreamed(text="Let me ")),
    event(message_streamed=MessageStreamed(text="look.")),
    event(tool_call_started=ToolCallStarted(tool_call_id="c1", name="get", arguments_json='{"city":"Ulm"}')),
    event(tool_call_started=ToolCallStarted(tool_call_id="c2", name="get", arguments_json='{"city":"Bonn"}')),
    event(
        tool_call_failed=ToolCallFailed(tool_call_id="c2", failure=Failure(reason="tool_error", message="no"))
    ),
    event(tool_call_completed=ToolCallCompleted(tool_call_id="c1", result_json='"sun"')),
    event(message_streamed=MessageStreamed(text="Sun.")),
    event(message_received=MessageReceived(text="Let me look.Sun.")),
    event(type=EventType.EVENT_TYPE_RUN_COMPLETED, run_completed=RunCompleted()),
]


def test_a_chat_for_openai() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"city":"Ulm"}'}}
    other = {"id": "c2", "type": "function", "function": {"name": "get", "arguments": '{"city":"Bonn"}'}}
    assert exports.openai_messages(CONVERSATION) == [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [call, other]},
        {"role": "tool", "tool_call_id": "c1", "content": '"sun"'},
        {"role": "tool", "tool_call_id": "c2", "content": "tool_error: no"},
        {"role": "assistant", "content": "Sun."},
    ]


def test_a_chat_for_anthropic() -> None:
    assert exports.anthropic_messages(CONVERSATION) == [
        {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "c1", "name": "get", "input": {"city": "Ulm"}},
                {"type": "tool_use", "id": "c2", "name": "get", "input": {"city": "Bonn"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": '"sun"'},
                {"type": "tool_result", "tool_use_id": "c2", "content": "tool_error: no", "is_error": True},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Sun."}]},
    ]


def test_a_whole_answer_counts_for_what_was_streamed_of_it() -> None:
    said = [
        event(message_sent=MessageSent(text="q")),
        event(message_streamed=MessageStreamed(text="hel")),
        event(message_streamed=MessageStreamed(text="lo")),
        event(message_received=MessageReceived(text="hello")),
    ]
    assert [message["content"] for message in exports.openai_messages(said)] == ["q", "hello"]


def test_what_a_failed_turn_streamed_is_kept_and_its_open_call_has_an_outcome() -> None:
    said = [
        event(message_sent=MessageSent(text="q")),
        event(message_streamed=MessageStreamed(text="half an ans")),
        event(type=EventType.EVENT_TYPE_RUN_FAILED),
        event("next", message_sent=MessageSent(text="again")),
        event("next", tool_call_started=ToolCallStarted(tool_call_id="c1", name="get")),
    ]
    messages = exports.openai_messages(said)
    assert [message["content"] for message in messages] == ["q", "half an ans", "again", None, "no result"]
    assert exports.anthropic_messages(said)[-1]["content"][0]["is_error"] is True


def test_ids_of_calls_do_not_repeat_and_outcomes_have_their_call() -> None:
    said: list[Event] = []
    for number, run_id in enumerate(("one", "two")):
        call = ToolCallStarted(tool_call_id="c", name="get")
        said.append(event(run_id, sequence=number + 1, tool_call_started=call))
        said.append(
            event(run_id, tool_call_completed=ToolCallCompleted(tool_call_id="c", result_json=str(number)))
        )
    said.append(event(tool_call_completed=ToolCallCompleted(tool_call_id="pruned", result_json="1")))
    messages = exports.openai_messages(said)
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert ids == ["c", "c-2"]
    assert [(m["tool_call_id"], m["content"]) for m in messages if m["role"] == "tool"] == [
        ("c", "0"),
        ("c-2", "1"),
    ]


def test_a_message_that_is_elsewhere_leaves_a_word() -> None:
    reference = ArtifactReference(key="k", size=5)
    said = [Event(type=EventType.EVENT_TYPE_MESSAGE_SENT, offloaded=reference)]
    assert exports.openai_messages(said) == [{"role": "user", "content": "[5 bytes in artifact k]"}]
