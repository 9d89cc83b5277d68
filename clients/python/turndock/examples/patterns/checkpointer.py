"""Checkpointer: nothing goes on until a person has looked at it.

Shows `halt` as a place to wait at for as long as it takes, over restarts as well: the draft is in the state, prompts
queue meanwhile, and the verdict comes as a notification, after which the mailbox is thawed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turndock.behavior.v1 import (
    HandleEventRequest,
    HandleEventResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    InitAgentRequest,
    InitAgentResponse,
    PostRunRequest,
    PostRunResponse,
)
from turndock.client import AgentHandle, Client
from turndock.decisions import halt, noreply, prompt, state_of
from turndock.examples.patterns.program import agent, main, state, until
from turndock.jsontext import canonical, parse_object
from turndock.ports import Behavior

Review = Callable[[str], str | None]
"""What a person wants changed in a draft; None = nothing."""


class Checkpointer(Behavior):
    """Stops after each draft, and revises it until it is approved."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(state_json=canonical({"draft": None, "approved": None, "stops": 0}))

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        state = state_of(request)
        state["draft"] = request.response.text
        return HandleResponseResponse(state_json=canonical(state), decision=halt("a draft waits for review"))

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        state = state_of(request)
        verdict = parse_object(request.payload_json, "payload_json")
        decision = noreply()
        if verdict.get("approve"):
            state["approved"], state["draft"] = state["draft"], None
        else:
            decision = prompt(f"{state['draft']} ({verdict['revise']})")
        return HandleEventResponse(state_json=canonical(state), decision=decision)

    async def post_run(self, request: PostRunRequest) -> PostRunResponse:
        state = state_of(request)
        state["stops"] += 1
        return PostRunResponse(state_json=canonical(state))


async def reviewed(writer: AgentHandle, review: Review) -> str:
    """Look at drafts until one is approved."""
    while True:
        await until(writer, lambda status: status.halted)
        wish = review((await state(writer))["draft"])
        await writer.notify({"approve": True} if wish is None else {"revise": wish}, wait_applied=True)
        await writer.unhalt()
        if wish is None:
            approved: str = (await state(writer))["approved"]
            return approved


async def checkpointer(
    client: Client, *, behavior: str = "plugin:checkpointer", backend: str = "echo"
) -> dict[str, Any]:
    """The approved text, and how often the agent stopped for a person."""
    wishes = iter(["shorter", "friendlier", None])
    async with agent(client, "writer", backend=backend, behavior=behavior) as writer:
        await writer.tell("Dear customer")
        approved = await reviewed(writer, lambda _: next(wishes))
        return {"approved": approved, "stops": (await state(writer))["stops"]}


if __name__ == "__main__":
    main("checkpointer", checkpointer, behavior=Checkpointer())
