"""What a turn writes down."""

import pytest

from turndock import events, jsontext
from turndock.agent.v1 import AgentStatus
from turndock.backend.v1 import Result
from turndock.behavior.v1 import NextPrompt
from turndock.types.v1 import (
    AgentPhase,
    BackendSession,
    Event,
    Failure,
    Response,
    Run,
    RunOrigin,
    RunStatus,
    Usage,
)
from turndock_server.core import transcript
from turndock_server.core.lifecycle import Kill, Outcome

RUN = Run(
    id="r1",
    session_id="ses_1",
    status=RunStatus.RUN_STATUS_RUNNING,
    prompt="hi",
    provider="ann",
    correlation_id="corr_1",
    attempt=2,
)


def names(written: list[Event]) -> list[str]:
    return [events.type_name(event.type) for event in written]


def outcome(terminal: Result | Failure, **fields: object) -> Outcome:
    return Outcome(terminal=terminal, session=BackendSession(), **fields)  # type: ignore[arg-type]  # whatever the test sets


def test_a_turn_opens_with_what_was_asked_and_what_the_backend_gets() -> None:
    started, sent = transcript.opening(RUN, "[p] hi")
    assert names([started, sent]) == ["run_started", "message_sent"]
    said = started.run_started
    assert (said.attempt, said.original_prompt, said.prompt, said.rewritten) == (2, "hi", "[p] hi", True)
    assert (sent.message_sent.text, sent.message_sent.role) == ("[p] hi", "user")
    assert not transcript.opening(RUN, "hi")[0].run_started.rewritten
    for event in (started, sent):
        events.check_event(event, "event")
        assert (event.run_id, event.provider, event.correlation_id) == ("r1", "ann", "corr_1")


@pytest.mark.parametrize(
    ("result", "streamed", "text"),
    [
        (Result(text="whole"), "pieces", "whole"),
        (Result(), "pieces", "pieces"),
        (Result(text=""), "pieces", ""),
    ],
)
def test_a_turn_that_succeeded_closes_with_its_message(result: Result, streamed: str, text: str) -> None:
    ended = transcript.ended_run(RUN, outcome(result, text=streamed), decision_pending=True)
    closing = transcript.closing(ended, outcome(result, text=streamed, duration_us=7))
    assert names(closing) == (["message_received", "run_completed"] if text else ["run_completed"])
    if text:
        assert (closing[0].message_received.text, closing[0].message_received.role) == (text, "assistant")
    assert closing[-1].run_completed.duration_us == 7
    assert (ended.status, ended.decision_pending) == (RunStatus.RUN_STATUS_COMPLETED, True)


@pytest.mark.parametrize(
    ("kill", "name"),
    [(None, "run_failed"), (Kill.INTERRUPT, "run_cancelled"), (Kill.WATCHDOG, "run_timeout")],
)
def test_a_turn_that_did_not_says_why_and_closes_its_tools(kill: Kill | None, name: str) -> None:
    failure = Failure(reason=kill.value if kill else "broken", message="m", retryable=True)
    how = outcome(failure, kill=kill, text="partial", open_tools={"t1": "ls", "t2": "rm"})
    ended = transcript.ended_run(RUN, how, decision_pending=False)
    closing = transcript.closing(ended, how)
    assert names(closing) == ["tool_call_failed", "tool_call_failed", name]
    closed = [(event.tool_call_failed.tool_call_id, event.tool_call_failed.name) for event in closing[:2]]
    assert closed == [("t1", "ls"), ("t2", "rm")]
    assert closing[0].tool_call_failed.failure.reason == "cancelled"
    assert closing[-1].run_failed.failure == ended.failure == failure
    assert closing[-1].run_failed.incomplete_text
    assert ended.ended_at_us > 0


def test_a_failure_always_has_a_reason() -> None:
    ended = transcript.ended_run(RUN, outcome(Failure()), decision_pending=False)
    assert ended.failure.reason == "unknown"


def test_the_latest_usage_is_the_runs() -> None:
    usage = Usage(input_tokens=3, output_tokens=4, cost_usd=0.5)
    ended = transcript.ended_run(RUN, outcome(Result(), usage=usage, turn_count=2), decision_pending=False)
    assert (ended.usage, ended.cost_usd, ended.turn_count) == (usage, 0.5, 2)
    assert not transcript.ended_run(RUN, outcome(Result()), decision_pending=False).HasField("usage")
    assert RUN.status == RunStatus.RUN_STATUS_RUNNING


def test_a_response_in_a_row_has_no_events() -> None:
    answer = Response(text="x")
    transcript.with_events(answer, [Event(id="a")], Event(id="b"))
    assert ([event.id for event in answer.events], answer.terminal.id) == (["a"], "b")
    bare = transcript.without_events(answer)
    assert (bare.text, len(bare.events), bare.HasField("terminal")) == ("x", 0, False)


def test_chained_runs_count_from_the_first_of_the_chain() -> None:
    prompt = NextPrompt(text="a\0", metadata_json="{}")
    first = transcript.chained_run(RUN, prompt)
    second = transcript.chained_run(first, prompt)
    assert [first.id, second.id] == ["r1/chain/1", "r1/chain/2"]
    assert (second.parent_run_id, second.correlation_id) == ("r1/chain/1", "corr_1")
    assert (first.origin, first.status) == (RunOrigin.RUN_ORIGIN_CHAIN, RunStatus.RUN_STATUS_PENDING)
    assert first.prompt == f"a{jsontext.REPLACEMENT}"
    from_event = transcript.chained_run(Run(id="n1/event/3", session_id="ses_1"), prompt)
    assert from_event.id == "n1/event/3/chain/1"


def test_a_notification_is_known_by_its_request() -> None:
    first = transcript.notification("ses_1", "n1", '{"a":1}')
    again = transcript.notification("ses_1", "n1", '{"a":1}')
    other = transcript.notification("ses_1", "n2", '{"a":1}')
    assert first.id == again.id != other.id
    assert transcript.notification("ses_2", "n1", "{}").id != first.id
    events.check_event(first, "event")
    first.sequence = 3
    run = transcript.event_run("ses_1", first, NextPrompt(text="p"))
    assert (run.id, run.correlation_id, run.origin) == ("n1/event/3", "n1", RunOrigin.RUN_ORIGIN_EVENT)


def test_a_cancelled_run_has_its_terminal_event() -> None:
    cancelled = transcript.cancelled_run(RUN, "caller_gone")
    request = transcript.cancel_request(None, cancelled, "q1")
    assert (request.run_id, request.request_id, request.failure.reason) == ("r1", "q1", "caller_gone")
    assert names([request.event]) == ["run_cancelled"]
    assert request.event.run_failed.failure.reason == "caller_gone"
    assert not request.event.run_failed.incomplete_text


def test_another_attempt_waits_again_and_says_what_does_not_count() -> None:
    again = transcript.next_attempt(RUN)
    assert (again.status, again.attempt, again.started_at_us) == (RunStatus.RUN_STATUS_PENDING, 3, 0)
    closing = transcript.superseding(RUN, {"t1": "ls"}, ())
    assert names(closing) == ["tool_call_failed", "custom"]
    assert closing[-1].custom.name == "turndock.attempt_superseded"
    assert closing[-1].custom.data_json == '{"attempt":2,"run_id":"r1"}'


def test_a_shutdown_says_who_why_and_since_when() -> None:
    status = AgentStatus(agent_name="a1", session_id="ses_1", phase=AgentPhase.AGENT_PHASE_IDLE)
    event = transcript.shutdown_event(status, "inactivity", 5)
    data = jsontext.parse_object(event.custom.data_json, "data_json")
    assert event.custom.name == "turndock.agent_shutdown"
    assert data.pop("shutdown_at_us") > 5
    assert data == {
        "agent_id": "a1",
        "reason": "inactivity",
        "status": "idle",
        "interrupt_restorable": False,
        "last_activity_at_us": 5,
    }
