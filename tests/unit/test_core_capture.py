"""Which of a turn's events its response carries."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from turndock import events, jsontext
from turndock.types.v1 import AgentLimits, CaptureMode, Event
from turndock_server.core.capture import Capture, CaptureOverflow


def take(capture: Capture, event: Event) -> bool:
    return capture.take(events.kind(event), event.ByteSize())


def test_what_is_kept_is_a_beginning_and_never_a_sieve() -> None:
    capture = Capture(max_events=10, max_bytes=120, lossless=False)
    kept = [take(capture, events.text(size * "x")) for size in (40, 90, 1)]
    assert kept == [True, False, False]
    coverage = capture.coverage()
    assert (coverage.observed, coverage.retained, coverage.omitted) == (3, 1, 2)
    assert coverage.first_omission == "bytes/text"
    assert coverage.mode == CaptureMode.CAPTURE_MODE_COMPACT


def test_nothing_left_out_is_said_by_an_empty_text() -> None:
    capture = Capture(max_events=2, max_bytes=1000, lossless=False)
    assert take(capture, events.usage(1, 1))
    assert take(capture, events.text("x"))
    assert capture.coverage().first_omission == ""
    assert not take(capture, events.tool_use("t", "ls"))
    assert capture.coverage().first_omission == "events/tool_use"


def test_a_lossless_capture_says_which_event_it_has_no_room_for() -> None:
    capture = Capture(max_events=1, max_bytes=1000, lossless=True)
    take(capture, events.text("x"))
    with pytest.raises(CaptureOverflow) as caught:
        take(capture, events.usage(1, 2))
    failure = caught.value.failure
    assert failure.reason == "event_capture_overflow"
    details = jsontext.parse_object(failure.details_json, "details_json")
    assert details == {
        "limit": "events",
        "max_events": 1,
        "max_bytes": 1000,
        "retained_events": 1,
        "retained_bytes": events.text("x").ByteSize(),
        "rejected_event_kind": "usage",
        "rejected_event_bytes": events.usage(1, 2).ByteSize(),
    }


def test_the_limits_of_an_agent_count_also_when_they_are_zero() -> None:
    assert Capture.within(AgentLimits()).max_events == 1_000
    assert Capture.within(AgentLimits()).max_bytes == 1 << 20
    none = Capture.within(AgentLimits(max_events_per_turn=0, capture_mode=CaptureMode.CAPTURE_MODE_LOSSLESS))
    assert (none.max_events, none.lossless) == (0, True)


@given(st.lists(st.integers(0, 300)), st.integers(0, 8), st.integers(0, 600))
def test_the_bounds_hold_and_the_figures_agree(sizes: list[int], max_events: int, max_bytes: int) -> None:
    capture = Capture(max_events, max_bytes, lossless=False)
    given_events = [events.text(size * "x") for size in sizes]
    kept = [event for event in given_events if take(capture, event)]
    assert kept == given_events[: len(kept)]
    assert len(kept) <= max_events
    assert sum(event.ByteSize() for event in kept) == capture.retained_bytes <= max_bytes
    coverage = capture.coverage()
    assert coverage.observed == len(sizes) == coverage.retained + coverage.omitted
    assert bool(coverage.first_omission) == (coverage.omitted > 0)
