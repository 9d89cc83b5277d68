"""Programs as backends: what they say, and what becomes of what makes no sense."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.speaking import program, running
from support.turns import Conversation, RecordingTurn, said, text
from turndock import events
from turndock.backend.v1 import Paused, Resume
from turndock.errors import TurndockError
from turndock.ports import CheckpointRejected, Rejected
from turndock.types.v1 import (
    ApprovalDecision,
    Event,
    EventType,
    Failure,
    ToolApprovalDecided,
    ToolApprovalRequested,
)
from turndock_server.backends.command import CommandBackend, CommandConfig, CommandState


def failure_of(output: object) -> Failure:
    """The trouble an ERROR_OCCURRED event speaks of."""
    assert isinstance(output, Event)
    assert output.type == EventType.EVENT_TYPE_ERROR_OCCURRED
    return output.error_occurred.failure


async def test_everything_a_program_can_say(tmp_path: Path) -> None:
    talk = await running(
        tmp_path,
        """
p = hear()
say("text", text="hel"); say("text", text="lo")
say("thinking", text="hm")
say("tool_use", id="t1", name="read", arguments={"path": "/x", "n": 9007199254740993})
say("tool_result", id="t1", result=[1, None])
say("tool_result", id="t2", name="rm", error={"reason": "denied", "message": "no"})
say("usage", input_tokens=10, output_tokens=2, model="m", cost_usd=0.5)
say("custom", name="heard", data=p)
say("result", text="hello", provider_session_id="s-1", stop_reason="stop", data={"a": 1})
""",
    )
    outputs = await talk.ask("hi")
    heard = outputs[7]
    assert isinstance(heard, Event)
    assert outputs[:6] == [
        "hel",
        "lo",
        events.thinking("hm"),
        events.tool_use("t1", "read", '{"n":9007199254740993,"path":"/x"}'),
        events.tool_result("t1", "[1,null]"),
        events.tool_failed("t2", events.error("denied", "no"), "rm"),
    ]
    usage = events.usage(10, 2, model="m")
    usage.token_usage_updated.usage.cost_usd = 0.5
    assert outputs[6] == usage
    assert json.loads(heard.custom.data_json) == {
        "type": "prompt",
        "prompt": "hi",
        "session": {"state": None, "provider_session_id": ""},
        "session_id": "ses_1",
        "agent_name": "ann",
        "run_id": "run_1",
        "attempt": 1,
        "metadata": {},
    }
    assert outputs[8:] == [
        events.result("hello", provider_session_id="s-1", stop_reason="stop", data_json='{"a":1}')
    ]
    assert talk.session.provider_session_id == "s-1"


async def test_the_session_a_program_accepts_is_the_next_prompts(tmp_path: Path) -> None:
    talk = await running(
        tmp_path,
        """
session = hear()["session"]
say("accepted", session={"state": {"n": (session["state"] or {"n": 0})["n"] + 1}})
say("custom", name="session", data=session)
say("result", provider_session_id="s-1")
""",
    )
    await talk.ask("a")
    (heard, _) = await talk.ask("b")
    assert isinstance(heard, Event)
    assert json.loads(heard.custom.data_json) == {"provider_session_id": "s-1", "state": {"n": 1}}
    state = CommandState.of(talk.session)
    assert state.state == {"n": 2}
    await talk.resume()
    assert CommandState.of(talk.session) == state
    assert talk.session.provider_session_id == "s-1"
    await talk.terminate()


async def test_B_05_a_program_that_ends_well_without_a_terminal_says_nothing_more(tmp_path: Path) -> None:
    talk = await running(tmp_path, "say('text', text='x')")
    assert await talk.ask("a") == ["x"]


async def test_a_program_that_fails_is_a_failure_with_its_complaint(tmp_path: Path) -> None:
    talk = await running(
        tmp_path, "say('text', text='x'); print('y' * 5000 + ' out of luck', file=sys.stderr); sys.exit(3)"
    )
    outputs = await talk.ask("a")
    assert outputs[0] == "x"
    failure = outputs[1]
    assert isinstance(failure, Failure)
    assert failure.reason == "command_failed"
    assert failure.message.startswith("the program exited with code 3: yyy")
    assert failure.message.endswith("out of luck")
    assert len(failure.message.encode()) <= 1024
    assert failure.details_json == '{"exit_code":3}'


async def test_a_program_that_is_killed_by_somebody_is_a_failure(tmp_path: Path) -> None:
    talk = await running(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert await talk.ask("a") == [
        Failure(
            reason="command_failed",
            message="the program was ended by signal 9 (Killed)",
            details_json='{"signal":9}',
        )
    ]


async def test_B_06_errors_have_a_reason_or_are_unknown(tmp_path: Path) -> None:
    talk = await running(tmp_path, "p = hear(); say('error', **json.loads(p['prompt']))")
    assert await talk.ask('{"reason": "rate_limited", "message": "m", "retryable": true}') == [
        events.error("rate_limited", "m", retryable=True)
    ]
    assert await talk.ask("{}") == [events.error("unknown")]


async def test_B_07_a_rejection_comes_first_or_is_an_error(tmp_path: Path) -> None:
    talk = await running(tmp_path, "exec(hear()['prompt']); say('rejected', reason='down', message='m')")
    with pytest.raises(Rejected) as caught:
        await talk.ask("")
    assert caught.value.failure == events.error("down", "m")
    assert await talk.ask("say('text', text='x')") == ["x", events.error("down", "m")]


async def test_B_11_a_checkpoint_is_answered(tmp_path: Path) -> None:
    talk = await running(
        tmp_path,
        """
hear(); say("text", text="x"); say("checkpoint", provider_session_id="s-1")
say("custom", name="answer", data=hear()); say("result")
""",
    )
    outputs = await talk.ask("a")
    assert outputs == [
        "x",
        events.custom("answer", '{"ok":true,"provider_session_id":"s-1","type":"checkpoint_answer"}'),
        events.result(),
    ]
    assert talk.turn.checkpoints == ["s-1"]


async def test_B_13_a_refused_checkpoint_ends_the_turn(tmp_path: Path) -> None:
    talk = await running(
        tmp_path,
        """
hear()
for name in ("first", "first", "second"):
    say("checkpoint", provider_session_id=name)
    hear()
say("result")
""",
    )
    with pytest.raises(CheckpointRejected, match="conflicting_session_id"):
        await talk.ask("a")
    assert talk.turn.checkpoints == ["first", "first"]


async def test_H_01_an_approval_is_answered(tmp_path: Path) -> None:
    def edit(request: ToolApprovalRequested) -> ToolApprovalDecided:
        return ToolApprovalDecided(
            approval_id=request.approval_id,
            tool_call_id=request.tool_call_id,
            decision=ApprovalDecision.APPROVAL_DECISION_EDIT,
            arguments_json='{"safe":true}',
            feedback="careful",
        )

    talk = await running(
        tmp_path,
        """
hear(); say("approval", approval_id="a1", tool_name="rm", arguments={"safe": False}, allowed=["edit", "reject"])
say("custom", name="answer", data=hear()); say("result")
""",
    )
    (answer, _) = await talk.ask("a", RecordingTurn(edit))
    assert isinstance(answer, Event)
    assert json.loads(answer.custom.data_json) == {
        "type": "approval_answer",
        "approval_id": "a1",
        "tool_call_id": "a1",
        "decision": "edit",
        "arguments": {"safe": True},
        "feedback": "careful",
    }
    assert talk.turn.approvals == [
        ToolApprovalRequested(
            approval_id="a1",
            tool_call_id="a1",
            tool_name="rm",
            arguments_json='{"safe":false}',
            allowed_decisions=[
                ApprovalDecision.APPROVAL_DECISION_EDIT,
                ApprovalDecision.APPROVAL_DECISION_REJECT,
            ],
        )
    ]


async def test_a_program_that_dies_while_it_waits_for_a_decision_ends_its_turn(tmp_path: Path) -> None:
    class Undecided(RecordingTurn):
        async def approval(self, request: ToolApprovalRequested) -> ToolApprovalDecided:
            await asyncio.Event().wait()
            raise AssertionError

    talk = await running(tmp_path, "say('approval', approval_id='a1'); sys.exit(4)")
    (failure,) = await talk.ask("a", Undecided())
    assert isinstance(failure, Failure)
    assert failure.message == "the program exited with code 4"


async def test_P_03_a_parked_turn_gets_its_decisions_with_the_prompt(tmp_path: Path) -> None:
    talk = await running(
        tmp_path,
        """
p = hear()
if "decisions" in p: say("result", data=p["decisions"][0])
else: say("paused", approvals=[{"approval_id": "a1", "tool_name": "rm", "message": "sure?"}])
""",
    )
    (paused,) = await talk.ask("a")
    assert paused == Paused(
        approvals=[
            ToolApprovalRequested(
                approval_id="a1", tool_call_id="a1", tool_name="rm", arguments_json="{}", message="sure?"
            )
        ]
    )
    request = talk.request("a")
    decision = ToolApprovalDecided(
        approval_id="a1", decision=ApprovalDecision.APPROVAL_DECISION_REJECT, feedback="no"
    )
    request.resume.CopyFrom(Resume(decisions=[decision]))
    assert await talk.run(request) == [
        events.result(data_json='{"approval_id":"a1","decision":"reject","feedback":"no","tool_call_id":""}')
    ]


async def test_E_02_another_type_is_kept_in_an_event_and_ends_nothing(tmp_path: Path) -> None:
    talk = await running(
        tmp_path, "say('completely_unknown_type', a=1); say('end'); say('text', text='x'); say('result')"
    )
    outputs = await talk.ask("a")
    assert failure_of(outputs[0]).reason == "unknown_event_type"
    first = outputs[0]
    assert isinstance(first, Event)
    assert first.error_occurred.original_type == "completely_unknown_type"
    assert first.data_json == '{"a": 1}'
    assert outputs[2:] == ["x", events.result()]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"Loading model...", "Expecting value"),
        (b"[1, 2]", "is no JSON object"),
        (b'{"type": 5}', "`type` is no text"),
        (b"{}", "`type` is missing"),
        (b'{"type": "text"}', "`text` is missing"),
        (b'{"type": "text", "text": null}', "`text` is no text"),
        (b'{"type": "usage", "input_tokens": -1}', "`input_tokens` is no whole number from 0"),
        (b'{"type": "usage", "input_tokens": true}', "`input_tokens` is no whole number from 0"),
        (b'{"type": "usage", "cost_usd": "1"}', "`cost_usd` is no number"),
        (b'{"type": "usage", "input_tokens": NaN}', "NaN is no JSON"),
        (b'{"type": "tool_result", "id": "t", "error": "x"}', "`error` is no object"),
        (b'{"type": "paused", "approvals": {}}', "`approvals` is no list"),
        (b'{"type": "result", "text": 5}', "`text` is no text"),
        (b'{"type": "custom", "name": "x", "data": 1e999}', "Out of range float values"),
        (b'{"type": "text", "text": ' + b"[" * 100_000, "is nested too deeply"),
    ],
)
async def test_a_line_that_makes_no_sense_becomes_an_event(tmp_path: Path, line: bytes, why: str) -> None:
    source = (
        f"os.write(1, {line[:300]!r} + {line[300:301]!r} * {max(len(line) - 300, 0)} + b'\\n'); say('result')"
    )
    talk = await running(tmp_path, source)
    (trouble, result) = await talk.ask("a")
    assert failure_of(trouble).reason == "invalid_line"
    assert why in failure_of(trouble).message
    assert result == events.result()


async def test_a_question_that_makes_no_sense_ends_the_turn(tmp_path: Path) -> None:
    talk = await running(tmp_path, "say('checkpoint', id='s-1'); hear()")
    assert await talk.ask("a") == [
        Failure(reason="invalid_line", message="checkpoint: `provider_session_id` is missing")
    ]


async def test_a_session_that_comes_late_or_is_too_large_is_not_taken(tmp_path: Path) -> None:
    talk = await running(
        tmp_path,
        """
say("accepted", session={"state": "x" * 1048500}); say("text", text="x")
say("accepted", session={"state": 1}); say("result")
""",
    )
    before = talk.session
    outputs = await talk.ask("a")
    assert [failure_of(outputs[index]).reason for index in (0, 2)] == ["invalid_line", "invalid_line"]
    assert "before anything is said" in failure_of(outputs[2]).message
    assert talk.session == before


async def test_PF_B23_text_that_is_no_text_is_repaired_and_marked(tmp_path: Path) -> None:
    talk = await running(
        tmp_path,
        r"""
os.write(1, b'{"type": "text", "text": "a\\u0000b"}\n')
os.write(1, b'{"type": "text", "text": "x\\ud83d"}\n{"type": "text", "text": "\\ude00"}\n')
os.write(1, b'{"type": "text", "text": "\xff"}\n')
os.write(1, b'{"type": "tool_use", "id": "\\ud83d", "name": "n", "arguments": {"k": "\\ud83d"}}\n')
os.write(1, b'{"type": "tool_use", "id": "\xff", "name": "n"}\n')
say("result")
""",
    )
    outputs = await talk.ask("a")
    # Pieces of text stay as they are: the host joins halves of characters over pieces.
    assert outputs[:4] == ["a\0b", "x\ud83d", "\ude00", "\ufffd"]
    half = events.tool_use("\ufffd", "n", '{"k": "\\ud83d"}')
    half.metadata_json = '{"turndock.repaired":["id"]}'
    no_utf8 = events.tool_use("\ufffd", "n")
    no_utf8.metadata_json = '{"turndock.repaired":["line"]}'
    assert outputs[4:6] == [half, no_utf8]


async def test_a_huge_line_is_left_out_and_reported(tmp_path: Path) -> None:
    talk = await running(
        tmp_path, "say('text', text='x' * (3 << 20)); say('text', text='y' * 1000000); say('result')"
    )
    (trouble, piece, result) = await talk.ask("a")
    assert failure_of(trouble) == Failure(
        reason="line_too_long", message=f"a line of {(3 << 20) + 28} bytes was left out"
    )
    assert piece == "y" * 1_000_000
    assert result == events.result()


async def test_a_line_without_an_end_counts_and_empty_ones_do_not(tmp_path: Path) -> None:
    talk = await running(
        tmp_path, r"""os.write(1, b'\n\r\n {"type": "text", "text": "x"}\r\n{"type": "result"}')"""
    )
    assert await talk.ask("a") == ["x", events.result()]


async def test_secrets_are_given_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_KEY", "from-env")
    (tmp_path / "key").write_text("from-file\n")
    talk = await running(
        tmp_path,
        "say('result', text=os.environ['A'] + ' ' + os.environ['B'] + ' ' + os.getcwd())",
        env={"A": {"env": "HOST_KEY"}, "B": {"file": str(tmp_path / "key")}},
        cwd=str(tmp_path),
    )
    assert b"from-" not in talk.session.data
    assert await talk.ask("a") == [events.result(f"from-env from-file {tmp_path}")]
    monkeypatch.delenv("HOST_KEY")
    with pytest.raises(Rejected) as caught:
        await talk.ask("a")
    assert caught.value.failure == Failure(
        reason="command_not_started", message="environment variable HOST_KEY is not set"
    )


@pytest.mark.parametrize(
    ("config", "reason", "why"),
    [
        ({}, "VALIDATION_ERROR", "config_json.argv: Field required"),
        ({"argv": []}, "VALIDATION_ERROR", "config_json.argv"),
        ({"argv": ["sh"], "env": {"A": "secret"}}, "VALIDATION_ERROR", "config_json.env.A"),
        ({"argv": ["sh"], "env": {"A": {}}}, "VALIDATION_ERROR", "name either `env` or `file`"),
        ({"argv": ["sh"], "env": {"A": {"env": "NO_SUCH"}}}, "BACKEND_START_FAILED", "NO_SUCH is not set"),
        ({"argv": ["no-such-program"]}, "BACKEND_START_FAILED", "there is no program no-such-program"),
        (
            {"argv": ["./no-such"], "cwd": "/tmp"},
            "BACKEND_START_FAILED",
            "there is no program /tmp/./no-such",
        ),
    ],
)
async def test_what_would_fail_every_turn_fails_the_start(
    config: dict[str, Any], reason: str, why: str
) -> None:
    with pytest.raises(TurndockError) as caught:
        await Conversation(CommandBackend(), **config).start()
    assert caught.value.reason == reason
    assert why in caught.value.message


async def test_a_program_that_is_gone_rejects_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "answer"
    path.write_text('#!/bin/sh\nread prompt\necho \'{"type": "result", "text": "hi"}\'\n')
    path.chmod(0o700)
    talk = await Conversation(CommandBackend(), argv=[str(path)]).start()
    assert await talk.ask("a") == [events.result("hi")]
    path.unlink()
    with pytest.raises(Rejected) as caught:
        await talk.ask("a")
    assert caught.value.failure.reason == "command_not_started"


async def test_the_operators_program_is_not_the_agents_to_choose(tmp_path: Path) -> None:
    operators = CommandBackend(CommandConfig(argv=program(tmp_path, "say('result', text='operator')")))
    talk = await Conversation(operators).start()
    assert await talk.ask("a") == [events.result("operator")]
    with pytest.raises(TurndockError, match=r"VALIDATION_ERROR: config_json\.argv"):
        await Conversation(operators, argv=[sys.executable]).start()


async def test_a_large_prompt_does_not_block_a_program_that_speaks_first(tmp_path: Path) -> None:
    talk = await running(
        tmp_path,
        "for _ in range(300): say('text', text='x' * 1000)\nsay('result', text=hear()['prompt'][-1])",
    )
    outputs = await talk.ask("y" * 1_000_000)
    assert text(outputs) == "x" * 300_000
    assert said(outputs)[-1] == events.result("y")
