"""Checkpoints and results: pure functions of a session, which the host calls when it must."""

from __future__ import annotations

from turndock.conformance.backend.sessions import MAX_NAME_BYTES, check_session
from turndock.conformance.backend.suite import (
    CHECKPOINT_SESSION,
    CHECKPOINTING,
    UPDATE_SESSION,
    Fixture,
    case,
)
from turndock.conformance.claims import equal, holds

NAME = "conformance-checkpoint-1"


@case("CheckpointSession", "B-11", needs=[CHECKPOINT_SESSION])
async def checkpoint_session_is_pure(fixture: Fixture) -> None:
    """CheckpointSession of the same session and id returns the same, and applies the provider_session_id."""
    talk = await fixture.start()
    first = await talk.checkpointed(talk.session, NAME)
    equal(first.provider_session_id, NAME, "CheckpointSession must apply the provider_session_id.")
    check_session(first, "The session CheckpointSession returned")
    await talk.checkpointed(talk.session, "conformance-checkpoint-2")
    second = await talk.checkpointed(talk.session, NAME)
    equal(second, first, "CheckpointSession of the same session and id must return the same.")
    equal(
        await talk.checkpointed(first, NAME), first, "The same checkpoint applied again must change nothing."
    )


@case("CheckpointSession", "B-11", needs=[CHECKPOINT_SESSION])
async def a_checkpointed_session_takes_a_prompt(fixture: Fixture) -> None:
    """A checkpoint leaves the session's data usable, applied before the turn as well as after it."""
    for is_after in (False, True):
        talk = await fixture.start(fixture.prompts.checkpointing)
        if is_after or fixture.prompts.checkpointing is None:
            await talk.ask()
        name = talk.session.provider_session_id or NAME
        talk.session = await talk.checkpointed(talk.session, name)
        await talk.ask_on()


@case("Checkpoint", "B-11", "B-12", needs=[CHECKPOINT_SESSION], prompts=[CHECKPOINTING])
async def a_checkpoint_names_the_conversation(fixture: Fixture) -> None:
    """A turn asks for checkpoints by one name only, which the host can store, before its terminal."""
    talk = await fixture.start(fixture.prompt(CHECKPOINTING))
    turn = await talk.ask()
    result = turn.result("The turn of a `checkpointing` prompt")
    names = set(turn.checkpoints)
    holds(names, "The turn of a `checkpointing` prompt must ask for a checkpoint.")
    holds(len(names) == 1, f"A turn must ask for checkpoints by one name; it did by {sorted(names)}.")
    name = names.pop()
    holds(
        0 < len(name.encode()) <= MAX_NAME_BYTES and not any(ord(character) < 32 for character in name),
        f"A checkpoint's name must be 1 to {MAX_NAME_BYTES} bytes without control characters, not {name[:80]!r}.",
    )
    holds(
        result.provider_session_id in {"", name},
        f"The result names the conversation {result.provider_session_id!r}, its checkpoint {name!r}.",
    )
    equal(
        talk.session.provider_session_id, name, "The session after the turn must be that of its checkpoint."
    )


@case("Checkpoint", "B-13", "B-16", prompts=[CHECKPOINTING])
async def a_refused_checkpoint_ends_its_turn_alone(fixture: Fixture) -> None:
    """A turn whose checkpoint is refused ends, by itself or with the refusal, and the next prompt is answered."""
    talk = await fixture.start(fixture.prompt(CHECKPOINTING))
    async with talk.open(refusal="unsupported_checkpoint") as turn:
        await turn.end()
    holds(turn.checkpoints, "The turn of a `checkpointing` prompt must ask for a checkpoint.")
    await talk.ask_on()


@case("UpdateSession", "B-10", needs=[UPDATE_SESSION])
async def update_session_is_pure(fixture: Fixture) -> None:
    """UpdateSession of the same session and result returns the same, and a repeat folds nothing twice."""
    talk = await fixture.start()
    async with talk.open() as turn:
        await turn.end()
    result = turn.result()
    session = turn.accepted[-1] if turn.accepted else talk.session
    first = await talk.updated(session, result)
    check_session(first, "The session UpdateSession returned")
    equal(
        await talk.updated(session, result),
        first,
        "UpdateSession of the same session and result must return the same.",
    )
    talk.session = first
    await talk.ask_on()


@case("UpdateSession", "B-10", needs=[UPDATE_SESSION])
async def update_session_keeps_the_name_of_the_conversation(fixture: Fixture) -> None:
    """UpdateSession takes the result's provider_session_id over, and without one leaves what there was."""
    talk = await fixture.start()
    for _ in range(2):
        async with talk.open() as turn:
            await turn.end()
        result = turn.result()
        session = turn.accepted[-1] if turn.accepted else talk.session
        equal(
            (await talk.updated(session, result)).provider_session_id,
            result.provider_session_id or session.provider_session_id,
            "UpdateSession must take over the result's provider_session_id, and keep the old one if it has none.",
        )
        talk.session = await talk.folded(turn)
