"""The hooks around turns: before the first, before and after each, and at the end."""

from __future__ import annotations

from turndock import jsontext
from turndock.behavior.v1 import Decision
from turndock.conformance.behavior.suite import Fixture, case
from turndock.conformance.claims import ContractBroken, holds
from turndock.errors import TurndockError


@case("PreRun", "M-25", needs=["pre_run"])
async def an_agent_is_prepared(fixture: Fixture) -> None:
    """PreRun lets the agent of the story work, or says by a reason why it cannot."""
    agent = await fixture.start()
    answer = await agent.pre_run()
    holds(
        not answer.HasField("failure") or answer.failure.reason,
        "A failure of PreRun must have a reason.",
    )


@case("PreTurn", "M-23", needs=["pre_turn"])
async def a_turn_is_answered_with_a_meaning(fixture: Fixture) -> None:
    """PreTurn answers each prompt of the story with one of its members, and never with an empty prompt."""
    agent = await fixture.start()
    for number in range(1, len(fixture.story.prompts) + 1):
        answer = await agent.pre_turn(number)
        member = answer.WhichOneof("answer")
        holds(member, "PreTurn must say what becomes of the turn; an answer without a member ends the run.")
        if member == "rewrite":
            holds(answer.rewrite.prompt, "A rewritten prompt must not be empty.")


@case("PreTool", needs=["pre_tool"])
async def a_tool_is_answered_with_a_meaning(fixture: Fixture) -> None:
    """PreTool answers with one of its members; other arguments are JSON."""
    agent = await fixture.start()
    answer = await agent.pre_tool()
    member = answer.WhichOneof("answer")
    holds(member, "PreTool must say what becomes of the tool call.")
    if member == "rewrite":
        try:
            jsontext.parse(answer.rewrite.arguments_json, "arguments_json")
        except TurndockError as error:
            raise ContractBroken(f"Other arguments must be JSON: {error.message}") from None


@case("PostTurn", "M-24", needs=["post_turn"])
async def a_turn_is_looked_back_at(fixture: Fixture) -> None:
    """PostTurn takes a turn that succeeded and one that failed, with every decision, also an unknown one."""
    agent = await fixture.start()
    decision = (await agent.respond(1)).decision
    await agent.post_turn(decision)
    await agent.post_turn(Decision())
    await agent.post_turn(decision, failed=True)


@case("PostRun", "PF-E25", needs=["post_run"])
async def a_halt_is_heard_of(fixture: Fixture) -> None:
    """PostRun takes each halt of an agent."""
    agent = await fixture.start()
    await agent.respond(1)
    await agent.post_run()
    await agent.post_run()


@case("TerminateAgent", "Idempotence", needs=["terminate_agent"])
async def an_agent_may_end_twice(fixture: Fixture) -> None:
    """TerminateAgent is ok when it is repeated, and for an agent this process has never seen."""
    agent = await fixture.start()
    await agent.terminate()
    await agent.terminate()
