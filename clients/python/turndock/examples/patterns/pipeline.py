"""Pipeline: items pass through stages, each an agent of its own, several items under way at once.

Shows a `pre_turn` hook that puts a stage's instruction before each prompt, and request ids that name item and stage: a
pipeline that is run again, after a crash or for good measure, finds what is done and does only the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from turndock.behavior.v1 import (
    HandleResponseRequest,
    HandleResponseResponse,
    InitAgentRequest,
    InitAgentResponse,
    PreTurnRequest,
    PreTurnResponse,
    Rewrite,
)
from turndock.client import AgentHandle, Client
from turndock.decisions import state_of
from turndock.examples.patterns.program import agent, main
from turndock.ports import Behavior

STAGES = ("Translate", "Shorten", "Check")


class Stage(Behavior):
    """Does one thing to everything; its configuration is its state."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(state_json=request.config_json)

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        instruction = state_of(request)["instruction"]
        return PreTurnResponse(rewrite=Rewrite(prompt=f"{instruction}: {request.run.prompt}"))

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        return HandleResponseResponse()


async def through(stages: Sequence[AgentHandle], item: str, text: str) -> str:
    """An item's way: what one stage answers is the next one's prompt."""
    for stage in stages:
        text = (await stage.ask(text, request_id=f"{item}-{stage.name}")).text
    return text


async def pipeline(
    client: Client, *, behavior: str = "plugin:pipeline", backend: str = "echo", passes: int = 2
) -> Mapping[str, object]:
    """What came out, and how many turns that took, however often it was run."""
    items = {"letter": "Lieber Leser", "note": "Bitte klingeln"}
    async with AsyncExitStack() as stack:
        stages: list[AgentHandle] = []
        for instruction in STAGES:
            config = {"behavior": behavior, "behavior_config": {"instruction": instruction}}
            name = instruction.lower()
            stages.append(await stack.enter_async_context(agent(client, name, backend=backend, **config)))
        texts: list[str] = []
        for _ in range(passes):
            texts = await asyncio.gather(*(through(stages, item, text) for item, text in items.items()))
        turns = sum([(await stage.status()).turn_count for stage in stages])
        return {"out": dict(zip(items, texts, strict=True)), "turns": turns}


if __name__ == "__main__":
    main("pipeline", pipeline, behavior=Stage())
