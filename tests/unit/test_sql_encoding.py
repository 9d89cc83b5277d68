"""Events as bytes: what the SQL store writes is what protobuf would write, and nothing of it is lost."""

from __future__ import annotations

import uuid

import pytest
from google.protobuf.internal import encoder
from hypothesis import given
from hypothesis import strategies as st

from turndock import events
from turndock.errors import TurndockError
from turndock.store.v1 import AppendEventsResponse, GetEventsResponse
from turndock.types.v1 import Event
from turndock_server.core.wireformat import element, varint
from turndock_server.stores.sql import encoding


def event(**fields: object) -> Event:
    made = events.text("hello")
    made.id, made.session_id, made.time_us = events.new_id(), "ses_1", 1
    made.MergeFrom(Event(**fields))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - any field
    return made


@given(st.integers(0, 2**64 - 1))
def test_a_varint_is_protobufs(number: int) -> None:
    assert varint(number) == encoder._VarintBytes(number)  # type: ignore[attr-defined] # no stub has it


def test_a_uuid_is_its_own_key_in_order_of_time() -> None:
    ids = [events.new_id() for _ in range(100)]
    keys = [encoding.event_key(each) for each in ids]
    assert keys == [uuid.UUID(each).bytes for each in ids]
    assert [key[:6] for key in sorted(keys)] == sorted(key[:6] for key in keys)


@pytest.mark.parametrize(
    "other",
    [
        "018F22E2-79B0-7CC3-98C4-DC0C0C07398F",
        "018f22e279b07cc398c4dc0c0c07398f",
        "{018f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
        "018f22e2-79b0-7cc3-98c4-dc0c0c07398f\n",
        "018f22e2-79b0-7cc3-98c4-dc0c0c07398e",
    ],
)
def test_ids_that_differ_have_keys_that_differ(other: str) -> None:
    assert encoding.event_key(other) != encoding.event_key("018f22e2-79b0-7cc3-98c4-dc0c0c07398f")


@given(st.text(min_size=1, max_size=40))
def test_no_digest_is_the_key_of_a_uuid(event_id: str) -> None:
    key = encoding.event_key(event_id)
    assert len(key) == 16
    spelled = str(uuid.UUID(bytes=key))
    assert spelled == event_id or encoding.event_key(spelled) != key


def test_a_run_has_a_key_that_is_never_that_of_no_run() -> None:
    assert encoding.run_key("") == 0
    keys = {encoding.run_key(f"run_{number}") for number in range(1_000)}
    assert len(keys) == 1_000
    assert 0 not in keys
    assert all(-(1 << 63) <= key < 1 << 63 for key in keys)


def test_PF_B33_what_this_release_does_not_know_is_stored_byte_for_byte() -> None:
    known = event()
    newer = known.SerializeToString() + b"\xfa\x7f\x05later" + b"\x80\x80\x01\x07"
    newer = newer.replace(b"\x10\x0f", b"\x10\xe7\x07", 1)  # a type with the number 999
    (draft,) = encoding.drafts([Event.FromString(newer)], "events")
    assert draft[2] == 999
    assert draft[4] == newer
    stored = draft[4] + encoding.SEQUENCE + varint(7) + encoding.stored_suffix("abc", 123)
    read = Event.FromString(stored)
    assert (read.sequence, read.incarnation, read.stored_at_us, read.type) == (7, "abc", 123, 999)
    for name in ("sequence", "incarnation", "stored_at_us"):
        read.ClearField(name)  # pyright: ignore[reportArgumentType] - the loop's type is wider than the literals
    assert read.SerializeToString() == newer


def test_what_a_writer_presets_leaves_no_trace() -> None:
    (draft,) = encoding.drafts([event(sequence=99, incarnation="forged", stored_at_us=5)], "events")
    assert b"forged" not in draft[4]
    assert not Event.FromString(draft[4]).sequence


def test_results_and_pages_are_joined_without_being_parsed() -> None:
    bodies = [event(run_id="x" * size).SerializeToString() for size in (0, 1, 100, 127, 20_000)]
    joined = b"".join(encoding.result_prefix(len(body)) + body for body in bodies)
    response = AppendEventsResponse.FromString(joined)
    assert [each.event.SerializeToString() for each in response.results] == bodies
    assert not any(each.duplicate or each.payload_differs for each in response.results)

    known = encoding.known_result(bodies[0], differs=True) + encoding.known_result(bodies[1], differs=False)
    results = AppendEventsResponse.FromString(known).results
    assert [(each.duplicate, each.payload_differs) for each in results] == [(True, True), (True, False)]
    assert [each.event.SerializeToString() for each in results] == bodies[:2]

    page = GetEventsResponse.FromString(b"".join(map(element, bodies)))
    assert [each.SerializeToString() for each in page.events] == bodies


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"id": "x" * 129}, "id"),
        ({"run_id": "x" * 257}, "run_id"),
        ({"run_id": "a\x01b"}, "run_id"),
        ({"provider": "a\x00b"}, "provider"),
        ({"correlation_id": "a\x00b"}, "correlation_id"),
        ({"metadata_json": "[]"}, "metadata_json"),
        ({"data_json": '{"a": NaN}'}, "data_json"),
        ({"time_us": -5}, "time_us"),
        ({"session_id": "x" * 129}, "session_id"),
    ],
)
def test_a_batch_that_begins_well_is_still_looked_at(wrong: dict[str, object], field: str) -> None:
    fine = event(run_id="y" * 129, provider="p")
    with pytest.raises(TurndockError) as refusal:
        encoding.drafts([fine, fine, event(**wrong)], "events")
    assert [each.field for each in refusal.value.violations] == [f"events[2].{field}"]


def test_a_run_id_that_was_sound_is_no_sound_session_id() -> None:
    long = event(run_id="x" * 200)
    with pytest.raises(TurndockError, match=r"events\[1\]\.session_id"):
        encoding.drafts([long, event(session_id="x" * 200)], "events")


def test_an_event_above_the_limit_is_refused() -> None:
    large = event()
    large.message_streamed.text = "x" * (1 << 20)
    with pytest.raises(TurndockError) as refusal:
        encoding.drafts([event(), large], "events")
    assert refusal.value.reason == "LIMIT_EXCEEDED"
    assert [each.field for each in refusal.value.violations] == ["events[1]"]
