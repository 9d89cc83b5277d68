"""The scripted backend, against the backend cases it exists for."""

import asyncio
import base64
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from support.turns import Conversation, RecordingTurn, said, text
from turndock import events
from turndock.backend.v1 import InterruptRequest, Paused, Resume, TerminateSessionRequest
from turndock.errors import TurndockError
from turndock.ports import BackendLost, CheckpointRejected, Rejected
from turndock.types.v1 import (
    ApprovalDecision,
    Event,
    ToolApprovalDecided,
    ToolApprovalRequested,
)
from turndock_server.backends.scripted import ScriptedBackend, ScriptedState
from turndock_server.backends.stage import RemoteStage, Stage, StageControl, serve_stage


async def playing(*scripts: list[dict[str, Any]], **config: Any) -> Conversation:
    return await Conversation(ScriptedBackend(), scripts=list(scripts), **config).start()


def backend(talk: Conversation) -> ScriptedBackend:
    assert isinstance(talk.backend, ScriptedBackend)
    return talk.backend


async def test_B_01_the_parts_come_in_order_and_the_terminal_last() -> None:
    talk = await playing([{"text": "hel"}, {"text": "lo"}, {"usage": [10, 2]}, {"result": "hello"}])
    assert said(await talk.ask("hi")) == ["hel", "lo", "usage", events.result("hello")]
    assert [heard.prompt for heard in backend(talk).record.prompts] == ["hi"]


async def test_B_02_a_result_may_come_without_text() -> None:
    talk = await playing([{"text": "hel"}, {"text": "lo"}, {"result": None}])
    assert said(await talk.ask("hi")) == ["hel", "lo", events.result()]


async def test_B_05_a_script_may_end_without_a_terminal() -> None:
    talk = await playing([{"text": "x"}, {"eof": None}, {"result": "never"}], [{"result": "b"}])
    assert said(await talk.ask("a")) == ["x"]
    assert said(await talk.ask("b")) == [events.result("b")]


async def test_B_06_an_error_has_a_reason_or_is_unknown() -> None:
    talk = await playing(
        [{"error": "rate_limited"}],
        [{"error": None}],
        [{"error": {"reason": "r", "message": "m", "retryable": True}}],
    )
    assert await talk.ask("a") == [events.error("rate_limited")]
    assert await talk.ask("b") == [events.error("unknown")]
    assert await talk.ask("c") == [events.error("r", "m", retryable=True)]


async def test_B_07_a_rejected_prompt_leaves_the_session_alone() -> None:
    talk = await playing([{"reject": "down"}], [{"result": "up"}])
    with pytest.raises(Rejected) as caught:
        await talk.ask("a")
    assert caught.value.failure.reason == "down"
    assert await talk.ask("b") == [events.result("up")]
    record = backend(talk).record
    assert [heard.n for heard in record.prompts] == [0, 0]
    assert [folded.text for folded in record.updates] == ["up"]


async def test_B_10_a_result_names_the_conversation_and_update_session_is_recorded() -> None:
    talk = await playing(
        [{"text": "hi"}, {"result": {"text": "hi", "provider_session_id": "captured-1"}}], [{"result": "b"}]
    )
    await talk.ask("a")
    await talk.ask("b")
    await talk.ask("c")  # the last script is played again
    record = backend(talk).record
    assert [heard.provider_session_id for heard in record.prompts] == ["", "captured-1", "captured-1"]
    assert [heard.n for heard in record.prompts] == [0, 1, 2]
    assert [folded.provider_session_id for folded in record.updates] == ["captured-1", "", ""]
    assert talk.session.provider_session_id == "captured-1"


async def test_B_11_a_checkpoint_is_asked_for_in_the_turn() -> None:
    talk = await playing([{"ckpt": "s-1"}, {"error": "provider_failed"}])
    assert await talk.ask("a") == [events.error("provider_failed")]
    assert talk.turn.checkpoints == ["s-1"]


async def test_B_13_a_refused_checkpoint_breaks_the_turn_or_is_ignored() -> None:
    talk = await playing(
        [{"ckpt?": "first"}, {"ckpt?": "second"}, {"result": "ok"}],
        [{"ckpt": "first"}, {"ckpt": "second"}, {"result": "ok"}],
    )
    assert await talk.ask("a") == [events.result("ok")]
    with pytest.raises(CheckpointRejected, match="conflicting_session_id"):
        await talk.ask("b")


async def test_B_16_optional_calls_can_be_left_out() -> None:
    whole = ScriptedBackend()
    assert whole.capabilities == {"interrupt", "checkpoint_session", "update_session", "resume_session"}
    talk = await Conversation(
        ScriptedBackend([[{"result": "x"}]], without=("resume_session", "checkpoint_session"))
    ).start()
    assert talk.backend.capabilities == {"interrupt", "update_session"}
    with pytest.raises(TurndockError, match="CAPABILITY_NOT_SUPPORTED"):
        await talk.resume()
    assert await talk.ask("a") == [events.result("x")]


async def test_M_02_a_start_can_fail() -> None:
    talk = Conversation(ScriptedBackend(), fail={"start_session": {"message": "boom"}})
    with pytest.raises(TurndockError, match="BACKEND_START_FAILED: boom"):
        await talk.start()
    assert backend(talk).record.terminated == 0


async def test_M_03_a_gate_holds_its_turn_until_it_is_released() -> None:
    talk = await playing([{"gate": "g"}, {"result": "first"}])
    turn = asyncio.ensure_future(talk.ask("a"))
    await backend(talk).entered("g")
    assert not turn.done()
    backend(talk).release("g")
    assert await turn == [events.result("first")]


async def test_M_18_a_turn_that_is_left_is_recorded() -> None:
    talk = await playing([{"text": "x"}, {"gate": "g"}, {"result": "first"}], [{"result": "second"}])
    turn = asyncio.ensure_future(talk.ask("a"))
    await backend(talk).entered("g")
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await backend(talk).stage.reached(left=1)
    assert await talk.ask("b") == [events.result("second")]
    assert [heard.n for heard in backend(talk).record.prompts] == [0, 0]
    assert backend(talk).record.left == 1


async def test_an_interrupted_gate_ends_its_turn() -> None:
    talk = await playing([{"gate": "g"}, {"result": "first"}])
    turn = asyncio.ensure_future(talk.ask("a"))
    await backend(talk).entered("g")
    await talk.backend.interrupt(InterruptRequest(turn_token="token_1", reason="interrupted"))
    assert await turn == [events.error("interrupted")]
    assert backend(talk).record.interrupts == ["interrupted"]
    assert backend(talk).record.left == 0
    with pytest.raises(TurndockError, match="TURN_NOT_FOUND"):
        await talk.backend.interrupt(InterruptRequest(turn_token="token_1"))


async def test_M_21_a_script_may_crash_or_lose_its_connection() -> None:
    talk = await playing([{"text": "x"}, {"crash": "bang"}], [{"lost": "gone"}])
    with pytest.raises(RuntimeError, match="bang"):
        await talk.ask("a")
    with pytest.raises(BackendLost, match="gone"):
        await talk.ask("b")


async def test_the_default_is_played_when_the_scripts_are_used_up() -> None:
    talk = await playing([{"result": "one"}], default=[{"result": "more"}])
    answers = [await talk.ask("x") for _ in range(3)]
    assert answers == [[events.result("one")], [events.result("more")], [events.result("more")]]


async def test_a_fresh_process_goes_on_where_the_session_says() -> None:
    talk = await playing([{"result": "one"}], [{"result": "two"}], [{"result": "three"}])
    await talk.ask("x")
    talk.backend = ScriptedBackend()
    await talk.resume()
    assert await talk.ask("x") == [events.result("two")]
    talk.backend = ScriptedBackend()
    assert await talk.ask("x") == [events.result("three")]
    assert ScriptedState.of(talk.session).n == 3


async def test_every_part_says_what_its_name_says() -> None:
    unknown = Event(type=4711, data_json="{}")  # type: ignore[arg-type]  # a newer release's type
    talk = await playing(
        [
            {"thinking": "hm"},
            {"tool_use": {"id": "t1", "name": "read", "arguments": {"path": "/x"}}},
            {"tool_result": {"id": "t1", "result": [1, 2]}},
            {"tool_result": {"id": "t2", "failure": {"reason": "denied"}}},
            {"custom": {"name": "mood", "data": {"good": True}}},
            {"event": {"type": 4711, "data_json": "{}"}},
            {"event_bytes": base64.b64encode(unknown.SerializeToString()).decode()},
            {"code_points": [0x78, 0xD83D]},
            {"usage": [None, 3]},
            {"result": {"text": "t", "stop_reason": "length", "data": {"a": 1}}},
        ]
    )
    outputs = await talk.ask("x")
    assert outputs == [
        events.thinking("hm"),
        events.tool_use("t1", "read", '{"path":"/x"}'),
        events.tool_result("t1", "[1,2]"),
        events.tool_failed("t2", events.error("denied")),
        events.custom("mood", '{"good":true}'),
        unknown,
        unknown,
        "x\ud83d",
        events.usage(None, 3),
        events.result("t", stop_reason="length", data_json='{"a":1}'),
    ]


async def test_a_load_of_texts_comes_in_batches() -> None:
    talk = await playing([{"emit": {"count": 1000, "size": 4, "batch": 300}}, {"result": None}])
    async with aclosing(talk.open(talk.request("x"))) as outputs:
        batches = [output async for output in outputs]
    assert [len(batch) for batch in batches[:-1]] == [300, 300, 300, 100]
    assert text(await talk.ask("x")) == "".join(f"{number:04}" for number in range(1000))


async def test_H_01_an_approval_is_asked_for_and_its_decision_carried_out() -> None:
    asked = {"approval_id": "a1", "tool_name": "delete", "arguments": {"path": "/x"}, "allowed": ["approve"]}
    talk = await playing([{"approval": asked}, {"result": "done"}])

    def reject(request: ToolApprovalRequested) -> ToolApprovalDecided:
        return ToolApprovalDecided(
            approval_id=request.approval_id, decision=ApprovalDecision.APPROVAL_DECISION_REJECT
        )

    assert await talk.ask("x") == [events.tool_result("a1", '{"path":"/x"}'), events.result("done")]
    rejected = await talk.ask("x", RecordingTurn(reject))
    assert rejected[0] == events.tool_failed("a1", events.error("rejected", "rejected by a human reviewer"))
    assert [request.tool_call_id for request in talk.turn.approvals] == ["a1"]


async def test_P_03_a_parked_turn_is_taken_up_with_its_decisions() -> None:
    talk = await playing([{"paused": [{"approval_id": "a1", "tool_name": "rm"}]}], [{"result": "done"}])
    (paused,) = await talk.ask("x")
    assert isinstance(paused, Paused)
    assert [approval.approval_id for approval in paused.approvals] == ["a1"]
    request = talk.request("x")
    decision = ToolApprovalDecided(
        approval_id="a1",
        decision=ApprovalDecision.APPROVAL_DECISION_EDIT,
        arguments_json='{"safe":true}',
    )
    request.resume.CopyFrom(Resume(decisions=[decision]))
    assert await talk.run(request) == [events.tool_result("a1", '{"safe":true}'), events.result("done")]
    assert backend(talk).record.prompts[-1].decisions == ["edit"]


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"txet": "x"}, "config_json.scripts.0.0"),
        ({"text": 5}, "config_json.scripts.0.0.text.text"),
        ({"text": "x", "gate": "g"}, "config_json.scripts.0.0"),
        ("text", "config_json.scripts.0.0"),
    ],
)
async def test_a_wrong_part_is_refused_by_its_place(part: Any, field: str) -> None:
    with pytest.raises(TurndockError) as caught:
        await playing([part])
    assert [violation.field for violation in caught.value.violations] == [field]


async def test_terminations_are_counted() -> None:
    talk = await playing([])
    await talk.terminate()
    await talk.terminate()
    assert backend(talk).record.terminated == 2
    failing = await playing([], fail={"terminate_session": {"message": "no"}})
    with pytest.raises(TurndockError, match="INTERNAL_ERROR: no"):
        await failing.backend.terminate_session(TerminateSessionRequest(session=failing.session))


@pytest.fixture(params=["here", "there"])
async def tester(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    stage = Stage()
    if request.param == "here":
        yield stage, stage
    else:
        async with serve_stage(stage, tmp_path / "s"):
            yield stage, RemoteStage(tmp_path / "s")


async def test_a_tester_may_be_in_another_process(tester: tuple[Stage, StageControl]) -> None:
    stage, remote = tester
    talk = await Conversation(ScriptedBackend([[{"gate": "g"}, {"result": "x"}]], stage=stage)).start()
    turn = asyncio.ensure_future(talk.ask("a"))
    await remote.entered("g", 1)
    await remote.reached(prompts=1)
    record = await remote.recorded()
    assert [heard.prompt for heard in record.prompts] == ["a"]
    waiting = asyncio.ensure_future(remote.reached(updates=1))
    await remote.release("g")
    assert await turn == [events.result("x")]
    await waiting
    assert (await remote.recorded()).updates[0].text == "x"


async def test_a_tester_that_leaves_holds_nothing_up(tmp_path: Path) -> None:
    stage = Stage()
    async with serve_stage(stage, tmp_path / "s"):
        remote = RemoteStage(tmp_path / "s")
        waiting = asyncio.ensure_future(remote.entered("never"))
        await remote.release("g")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await remote.entered("never", 0)
        with pytest.raises(ValueError, match="no_such_count"):
            await remote.reached(no_such_count=1)
    with pytest.raises(ConnectionError):
        await remote.recorded()
