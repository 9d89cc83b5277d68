"""Events that are bytes on their way into the log: what protobuf would make of them."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from turndock import events
from turndock.types.v1 import Event, EventType, MessageStreamed
from turndock_server.core.written import Pen, encoded_text, piece_of, read, write

COMMON = Event(session_id="ses_1", run_id="r1", provider="ann", correlation_id="c", schema_version=1)
WELL_FORMED = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


def said(text: str, *, thinking: bool = False) -> bytes:
    payload = MessageStreamed(text=text, thinking=thinking)
    return Event(type=EventType.EVENT_TYPE_MESSAGE_STREAMED, message_streamed=payload).SerializeToString()


@given(WELL_FORMED, st.booleans())
@example("x" * 127, True)
@example("x" * 128, False)
@example("\x10\x01", False)
@example("x" * 16_384, True)
def test_a_piece_of_text_is_known_by_its_bytes(text: str, thinking: bool) -> None:
    assert piece_of(said(text, thinking=thinking)) == (text.encode(), thinking)


@pytest.mark.parametrize(
    "size", [1, 2, 60, 61, 62, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 16_380, 16_384]
)
def test_every_size_is_known(size: int) -> None:
    for thinking in (False, True):
        assert piece_of(said("x" * size, thinking=thinking)) == (b"x" * size, thinking)


@given(WELL_FORMED | st.just(""))
def test_a_text_of_this_process_is_encoded_as_that_of_another(text: str) -> None:
    assert encoded_text(text) == said(text)


@pytest.mark.parametrize(
    "event",
    [
        Event(),
        events.text(""),
        Event(type=EventType.EVENT_TYPE_MESSAGE_STREAMED),
        Event(id="x", type=EventType.EVENT_TYPE_MESSAGE_STREAMED, message_streamed=MessageStreamed(text="x")),
        Event(
            type=EventType.EVENT_TYPE_MESSAGE_STREAMED, message_streamed=MessageStreamed(text="x"), time_us=5
        ),
        Event(
            type=EventType.EVENT_TYPE_MESSAGE_STREAMED,
            message_streamed=MessageStreamed(text="x"),
            provider="p",
        ),
        Event(
            type=EventType.EVENT_TYPE_MESSAGE_STREAMED,
            message_streamed=MessageStreamed(text="x"),
            data_json="{}",
        ),
        Event(type=EventType.EVENT_TYPE_MESSAGE_STREAMED, message_streamed=MessageStreamed(text="a\0b")),
        Event(type=EventType.EVENT_TYPE_MESSAGE_STREAMED, message_streamed=MessageStreamed(thinking=True)),
        Event(type=EventType.EVENT_TYPE_MESSAGE_RECEIVED, message_streamed=MessageStreamed(text="x")),
        Event(message_streamed=MessageStreamed(text="x")),
        events.tool_use("t", "ls"),
        events.usage(1, 2),
    ],
)
def test_whatever_else_is_said_is_looked_at(event: Event) -> None:
    assert piece_of(event.SerializeToString()) is None


def test_what_a_newer_release_adds_to_a_text_is_looked_at() -> None:
    assert piece_of(said("x") + b"\xfa\x7f\x05later") is None


def test_a_pen_completes_what_was_said() -> None:
    pen = Pen(COMMON)
    written = [pen.text(said(text)) for text in ("a", "b")]
    pen.turn_page()
    written.append(pen.text(said("c", thinking=True)))
    stored = read(written)
    assert [event.message_streamed.text for event in stored] == ["a", "b", "c"]
    assert [event.message_streamed.thinking for event in stored] == [False, False, True]
    for (key, event_type, _), event in zip(written, stored, strict=True):
        assert (event.session_id, event.run_id, event.provider) == ("ses_1", "r1", "ann")
        assert (event.correlation_id, event.schema_version) == ("c", 1)
        assert event_type == event.type == EventType.EVENT_TYPE_MESSAGE_STREAMED
        assert key == bytes.fromhex(event.id.replace("-", ""))
        events.check_event(event, "event")
    assert len({event.id for event in stored}) == 3
    assert int.from_bytes(written[1][0], "big") == int.from_bytes(written[0][0], "big") + 1


def test_other_events_are_written_as_they_are() -> None:
    event = Event(id=events.new_id(), type=EventType.EVENT_TYPE_CUSTOM, session_id="s", time_us=5)
    (again,) = read([write(event)])
    assert again == event
