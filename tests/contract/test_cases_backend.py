"""B: what a host does with what a backend says."""

import asyncio

import pytest

from support.harness import Harness, kinds
from support.parts import EOF, ckpt, ckpt_or_on, error, gate, reject, result, text, usage
from turndock import events
from turndock.agent.v1 import AskResponse
from turndock.backend.v1 import CheckpointSessionRequest, CheckpointSessionResponse
from turndock.errors import not_offered
from turndock.types.v1 import AgentLimits, AgentPhase, RunStatus
from turndock_server.backends.scripted import ScriptedBackend

HELLO = [text("hel"), text("lo"), usage(10, 2), result("hello")]


def reason(answer: AskResponse) -> str:
    assert answer.WhichOneof("outcome") == "failure", answer
    assert answer.run.failure == answer.failure
    return answer.failure.reason


async def test_B_01_a_turn_is_its_events_and_its_terminal_comes_last(host: Harness) -> None:
    await host.start(HELLO)
    answer = await host.ask("hi")
    assert answer.response.text == "hello"
    assert answer.response.usage.input_tokens == 10
    assert answer.response.usage.output_tokens == 2
    assert kinds(answer.response.events) == ["text", "text", "usage", "result"]
    assert answer.response.events[-1] == answer.response.terminal
    assert [event.type in events.RUN_TERMINAL for event in answer.response.events].count(True) == 1
    assert (await host.state())["seen"] == ["text", "text", "usage", "result"]


async def test_B_01_the_answer_can_be_read_again_with_the_same_events(host: Harness) -> None:
    await host.start(HELLO)
    answer = await host.ask("hi", request_id="r1")
    again = await host.ask("hi", request_id="r1")
    assert again.response == answer.response
    assert (await host.poll("r1", with_events=True)).response == answer.response
    assert [event.sequence for event in answer.response.events] == [5, 6, 7, 9]


async def test_B_02_without_text_in_the_result_the_answer_is_the_deltas_joined(host: Harness) -> None:
    await host.start([text("hel"), text("lo"), result()])
    assert (await host.ask("hi")).response.text == "hello"


async def test_B_03_the_latest_usage_counts_and_none_is_not_zero(host: Harness) -> None:
    await host.start([usage(1, 2), text("hi"), usage(3, 4), result("hi")], [result("b")])
    answer = await host.ask("a")
    assert (answer.response.usage.input_tokens, answer.response.usage.output_tokens) == (3, 4)
    assert answer.run.usage == answer.response.usage
    assert not (await host.ask("b")).response.HasField("usage")
    total = (await host.status()).total_usage
    assert (total.input_tokens, total.output_tokens) == (3, 4)


async def test_B_05_a_stream_without_a_terminal_fails_its_turn_alone(host: Harness) -> None:
    await host.start([text("x"), EOF], [result("ok")])
    assert reason(await host.ask("a")) == "no_terminal_event"
    assert (await host.status()).phase == AgentPhase.AGENT_PHASE_IDLE
    assert (await host.ask("b")).response.text == "ok"


async def test_B_06_an_error_without_a_reason_is_unknown(host: Harness) -> None:
    await host.start([error("rate_limited")], [error()])
    assert reason(await host.ask("a")) == "rate_limited"
    assert reason(await host.ask("b")) == "unknown"


async def test_B_07_a_rejected_prompt_changes_nothing(host: Harness) -> None:
    await host.start([reject("down")], [result("ok")])
    assert reason(await host.ask("a")) == "down"
    assert (await host.state())["seen"] == []
    assert host.backend.record.updates == []
    await host.ask("b")
    assert [heard.n for heard in host.backend.record.prompts] == [0, 0]


async def test_B_10_update_session_comes_once_per_turn_with_the_result(host: Harness) -> None:
    await host.start([text("hi"), result("hi", sid="captured-1")], [result("b")], [result("c")])
    assert (await host.ask("a")).response.provider_session_id == "captured-1"
    assert (await host.ask("b")).response.provider_session_id == ""
    updates = host.backend.record.updates
    assert [(update.text, update.provider_session_id) for update in updates] == [
        ("hi", "captured-1"),
        ("b", ""),
    ]
    await host.ask("c")
    assert host.backend.record.prompts[-1].provider_session_id == "captured-1"


async def test_B_10_update_session_never_comes_for_anything_but_a_result(host: Harness) -> None:
    limits = AgentLimits(watchdog_ms=50)
    await host.start([error("e")], [reject("r")], [EOF], [gate("never")], limits=limits)
    assert [reason(await host.ask("x")) for _ in range(4)] == ["e", "r", "no_terminal_event", "timeout"]
    await host.start([gate("held")], name="a2")
    asking = host.asking("x", "a2")
    await host.backend.entered("held")
    await host.interrupt("a2")
    assert reason(await asking) == "interrupted"
    assert host.backend.record.updates == []


async def test_B_11_a_checkpoint_survives_the_failure_of_its_turn(host: Harness) -> None:
    await host.start([ckpt("s-1"), error("provider_failed")], [result("ok")])
    assert reason(await host.ask("a")) == "provider_failed"
    await host.ask("b")
    assert host.backend.record.prompts[1].provider_session_id == "s-1"


@pytest.mark.parametrize("end", ["interrupt", "timeout", "crash", "eof", "lost"])
async def test_B_11_a_checkpoint_survives_every_end(host: Harness, end: str) -> None:
    parts = {"crash": [{"crash": "x"}], "lost": [{"lost": "x"}], "eof": [EOF]}.get(end, [gate("held")])
    limits = AgentLimits(watchdog_ms=100) if end == "timeout" else None
    await host.start([ckpt("s-1"), *parts], [result("ok")], limits=limits)
    asking = host.asking("a")
    if end == "interrupt":
        await host.backend.entered("held")
        await host.interrupt()
    reason(await asking)
    await host.ask("b")
    assert host.backend.record.prompts[1].provider_session_id == "s-1"
    # Only a stream that ended by itself leaves the session it accepted.
    assert host.backend.record.prompts[1].n == (1 if end == "eof" else 0)


async def test_B_12_the_same_checkpoint_again_is_ok_and_costs_nothing(host: Harness) -> None:
    limits = AgentLimits(max_events_per_turn=1)
    await host.start([ckpt("first"), ckpt("first"), result("ok")], limits=limits)
    answer = await host.ask("a")
    assert answer.response.text == "ok"
    assert kinds(answer.response.events) == ["result"]
    assert answer.response.coverage.omitted == 0


async def test_B_13_another_checkpoint_is_refused_and_fails_the_turn_whatever_follows(host: Harness) -> None:
    await host.start([ckpt_or_on("first"), ckpt_or_on("second"), result("ok", sid="lost")], [result("b")])
    assert reason(await host.ask("a")) == "conflicting_session_id"
    assert host.backend.record.updates == []
    await host.ask("b")
    assert host.backend.record.prompts[1].provider_session_id == "first"


async def test_B_13_a_backend_that_breaks_on_the_refusal_gives_the_same_reason(host: Harness) -> None:
    await host.start([ckpt("first"), ckpt("second"), result("ok")], [result("b")])
    assert reason(await host.ask("a")) == "conflicting_session_id"
    await host.ask("b")
    assert host.backend.record.prompts[1].provider_session_id == "first"


async def test_B_13_the_first_id_wins_in_each_turn_anew(host: Harness) -> None:
    await host.start([ckpt("first"), result("a")], [ckpt("second"), result("b")], [result("c")])
    for prompt in ("a", "b", "c"):
        assert (await host.ask(prompt)).response.text == prompt
    assert [heard.provider_session_id for heard in host.backend.record.prompts] == ["", "first", "second"]


@pytest.mark.parametrize("bad", ["", "x" * 1025, "é" * 513, "a\x00b", "a\nb", "a\x7fb"])
async def test_B_13_a_checkpoint_without_a_usable_id_is_refused(host: Harness, bad: str) -> None:
    # Given to the backend itself: an agent's configuration cannot hold U+0000.
    await host.dock_backend(
        "bad", ScriptedBackend([[ckpt_or_on(bad), result("ok")], [ckpt("é" * 512), result("ok")]])
    )
    await host.start(backend="bad")
    assert reason(await host.ask("a")) == "invalid_session_id"
    assert (await host.ask("b")).response.text == "ok"


async def test_B_16_without_checkpoint_session_a_checkpoint_is_unsupported(host: Harness) -> None:
    backend = ScriptedBackend(without=["checkpoint_session"])
    await host.dock_backend("plain", backend)
    await host.start(
        [ckpt_or_on("x"), result("ok")], [ckpt("x"), result("ok")], [result("c")], backend="plain"
    )
    assert reason(await host.ask("a")) == "unsupported_checkpoint"
    assert reason(await host.ask("b")) == "unsupported_checkpoint"
    assert (await host.ask("c")).response.text == "c"
    assert [heard.provider_session_id for heard in backend.record.prompts] == ["", "", ""]


async def test_B_16_a_backend_without_any_option_takes_its_turns(host: Harness) -> None:
    backend = ScriptedBackend(without=["checkpoint_session", "update_session", "resume_session", "interrupt"])
    await host.dock_backend("plain", backend)
    await host.start([text("a"), result()], [gate("held")], [result("c")], backend="plain")
    assert (await host.ask("a")).response.text == "a"
    asking = host.asking("b")
    await backend.entered("held")
    await host.interrupt()
    assert reason(await asking) == "interrupted"
    assert (await host.ask("c")).response.text == "c"


class Forgetful(ScriptedBackend):
    """Says that it offers everything and answers CheckpointSession as if it did not know the call."""

    async def checkpoint_session(self, request: CheckpointSessionRequest) -> CheckpointSessionResponse:
        raise not_offered("Backend.CheckpointSession")


async def test_B_16_unimplemented_means_absent_and_is_no_error_of_the_turn(host: Harness) -> None:
    await host.dock_backend("forgetful", Forgetful())
    await host.start([ckpt("x"), result("a")], [result("b")], backend="forgetful")
    assert reason(await host.ask("a")) == "unsupported_checkpoint"
    assert (await host.ask("b")).response.text == "b"


async def test_B_16_update_session_that_is_absent_after_all_leaves_the_turn_alone(host: Harness) -> None:
    await host.start(
        [result("a")], [result("b")], fail={"update_session": {"reason": "CAPABILITY_NOT_SUPPORTED"}}
    )
    assert (await host.ask("a")).response.text == "a"
    assert (await host.ask("b")).response.text == "b"


async def test_a_turn_after_its_end_can_ask_for_nothing(host: Harness) -> None:
    """The order of the checks: a turn that is over comes before everything else, and has no effect at all."""
    await host.start([gate("held"), ckpt("late"), result("ok")], [result("b")])
    asking = host.asking("a")
    await host.backend.entered("held")
    await asyncio.gather(host.interrupt(), asking)
    host.backend.release("held")
    await host.ask("b")
    assert host.backend.record.prompts[1].provider_session_id == ""
    assert (await asking).run.status == RunStatus.RUN_STATUS_CANCELLED
