"""Turns: how they end, whatever the prompt, and that nothing they were given is changed."""

from __future__ import annotations

from turndock.backend.v1 import (
    CheckpointSessionRequest,
    ResumeSessionRequest,
    StartSessionRequest,
    TerminateSessionRequest,
    UpdateSessionRequest,
)
from turndock.conformance.backend.suite import (
    CHECKPOINT_SESSION,
    FAILING,
    RESUME_SESSION,
    UPDATE_SESSION,
    Fixture,
    Prompt,
    case,
)
from turndock.conformance.claims import copied, equal, holds
from turndock.types.v1 import Failure

PROMPTS = {
    "a blank": " ",
    "line ends and control characters": "one\r\ntwo\n\n\tthree\x07\x1b[31m\x7f",
    "emoji": "👩🏽‍🚀 🏳️‍🌈 e\u0301 \U0010fffd",
    "right to left": "\u202eשלום مرحبا\u202c \u200f\u2067",
    "JSON": '{"type": "result", "text": "\\ud83d", "a": [1e999, {}]}',
    "two lines of JSON": '{"type":"result","text":"x"}\n{"type":"error","reason":"y"}\n',
    "control tokens": "<|im_end|>\n<|im_start|>assistant\n<|endoftext|></s>[INST]",
    "a command line": "$(reboot); `id` && --help -- '\"",
    "a format": "%s %n {0} {prompt!r} {{}} \\u0041",
    "100 KiB": "conformance " * (100 * 1024 // 12),
}
"""What people type. The host hands over no empty prompt and none with U+0000."""


@case("Prompt", "B-01")
async def a_turn_ends_with_one_terminal_and_it_is_last(fixture: Fixture) -> None:
    """A turn ends with exactly one terminal, which comes last: nothing follows, and the generator ends."""
    turn = await (await fixture.start()).ask()
    turn.check_one_terminal()
    turn.result()


@case("Prompt", "B-06", prompts=[FAILING])
async def a_failure_says_why(fixture: Fixture) -> None:
    """A turn that fails ends with a Failure that has a reason, or raises Rejected with one."""
    turn = await (await fixture.start(fixture.prompt(FAILING))).ask()
    turn.check_one_terminal("The turn of a `failing` prompt")
    failure = turn.rejection or turn.outputs[-1]
    if not isinstance(failure, Failure):
        holds(False, f"The turn of a `failing` prompt must end with a Failure, not {type(failure).__name__}.")
        return
    holds(failure.reason.strip(), "A Failure must have a reason: a short name that programs can tell apart.")


@case("Prompt", "B-07", prompts=[FAILING])
async def a_session_goes_on_after_a_failure(fixture: Fixture) -> None:
    """A turn that failed leaves its session as good as it was: the next prompt is answered."""
    talk = await fixture.start(fixture.prompt(FAILING))
    await talk.ask()
    await talk.ask_on()


@case("Prompt", "PF-B23")
async def any_prompt_gives_a_turn_that_ends(fixture: Fixture) -> None:
    """Whatever the prompt's text, its turn ends with one terminal or is rejected, and the next one is answered."""
    for what, text in PROMPTS.items():
        talk = await fixture.start()
        turn = await talk.ask(Prompt(text))
        turn.check_one_terminal(f"The turn of a prompt of {what}")
    await (await fixture.start()).ask_on()


@case("HandsOff", "Prompt")
async def a_turn_changes_no_message_it_is_given(fixture: Fixture) -> None:
    """The request of a turn is the same after the turn as before, its session included."""
    turn = await (await fixture.start()).ask()
    turn.result()
    equal(turn.request, turn.given, "A backend must not change the PromptRequest it is given.")


@case("HandsOff")
async def a_unary_call_changes_no_message_it_is_given(fixture: Fixture) -> None:
    """The request of every unary call is the same after the call as before."""
    talk, backend = await fixture.start(), fixture.backend
    async with talk.open() as turn:
        await turn.end()
    session = turn.accepted[-1] if turn.accepted else talk.session
    config = talk.config_json

    start = StartSessionRequest(scope=fixture.scope, session_id=talk.session_id, config_json=config)
    given = copied(start)
    await fixture.answered("StartSession", backend.start_session(start))
    equal(start, given, "A backend must not change the StartSessionRequest it is given.")

    if CHECKPOINT_SESSION in fixture.abilities:
        checkpoint = CheckpointSessionRequest(
            scope=fixture.scope, session=session, provider_session_id="conformance-1"
        )
        given_checkpoint = copied(checkpoint)
        await fixture.answered("CheckpointSession", backend.checkpoint_session(checkpoint))
        equal(
            checkpoint,
            given_checkpoint,
            "A backend must not change the CheckpointSessionRequest it is given.",
        )
    if UPDATE_SESSION in fixture.abilities:
        update = UpdateSessionRequest(scope=fixture.scope, session=session, result=turn.result())
        given_update = copied(update)
        await fixture.answered("UpdateSession", backend.update_session(update))
        equal(update, given_update, "A backend must not change the UpdateSessionRequest it is given.")
    if RESUME_SESSION in fixture.abilities:
        resume = ResumeSessionRequest(
            scope=fixture.scope, session_id=talk.session_id, config_json=config, session=session
        )
        given_resume = copied(resume)
        await fixture.answered("ResumeSession", backend.resume_session(resume))
        equal(resume, given_resume, "A backend must not change the ResumeSessionRequest it is given.")
    terminate = TerminateSessionRequest(scope=fixture.scope, session=session)
    given_terminate = copied(terminate)
    await fixture.answered("TerminateSession", backend.terminate_session(terminate))
    equal(terminate, given_terminate, "A backend must not change the TerminateSessionRequest it is given.")
