"""Turns beside each other: each has its own, and none waits for another."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from turndock.conformance.backend.suite import REPEATING, Conversation, Fixture, case
from turndock.conformance.claims import holds

TURNS = 10


@case("Prompt", prompts=[REPEATING])
async def two_sessions_do_not_mix(fixture: Fixture) -> None:
    """Of two turns at once, one held up in the middle of the other, each says its own and nothing of the other's."""
    first = await fixture.start(fixture.repeating("marigold"))
    second = await fixture.start(fixture.repeating("cobalt"))
    async with first.open() as slow:
        await slow.spoken()
        async with second.open() as fast:
            await fast.end()
        await slow.end()
    for turn, own, others in ((slow, "marigold", "cobalt"), (fast, "cobalt", "marigold")):
        turn.result("The turn of a `repeating` prompt")
        said = f"{turn.text} {turn.answer}"
        holds(own in said, f"The answer must hold the word {own!r}; it is {said[:200]!r}.")
        holds(others not in said, f"A turn said {others!r}, which belongs to the turn of another session.")


@case("Prompt")
async def many_turns_run_at_once(fixture: Fixture) -> None:
    """Ten turns of ten sessions, all under way together, all end with a result."""
    talks = [await fixture.start() for _ in range(TURNS)]
    async with AsyncExitStack() as stack:
        turns = [await stack.enter_async_context(talk.open()) for talk in talks]
        await asyncio.gather(*(turn.spoken() for turn in turns))
        await asyncio.gather(*(turn.end() for turn in turns))
    for turn in turns:
        turn.result("Each of ten turns at once")


@case("Accepted", prompts=[REPEATING])
async def conversations_beside_each_other_go_on(fixture: Fixture) -> None:
    """Conversations that take turns at the same time each go on with their own session."""
    words = ("marigold", "cobalt", "juniper")
    talks = [await fixture.start(fixture.repeating(word)) for word in words]

    async def talk_on(talk: Conversation, word: str) -> None:
        turn = await talk.ask()
        turn.result("The turn of a `repeating` prompt")
        strangers = [other for other in words if other != word and other in turn.answer]
        holds(not strangers, f"A turn said {strangers}, which belongs to the turn of another session.")
        await talk.ask_on()

    await asyncio.gather(*(talk_on(talk, word) for talk, word in zip(talks, words, strict=True)))
