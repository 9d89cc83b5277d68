"""Debate: two agents answer each other for some rounds, each prompted by what the other said.

Shows notifications that ask for a prompt, and a courier between two logs. The courier's request ids follow from the
events it carries, so that a courier that is started again carries nothing twice.
"""

from __future__ import annotations

from turndock.behavior.v1 import (
    HandleEventRequest,
    HandleEventResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    InitAgentRequest,
    InitAgentResponse,
)
from turndock.client import AgentHandle, Client
from turndock.decisions import halt, noreply, prompt, state_of
from turndock.examples.patterns.program import agent, main
from turndock.jsontext import canonical, parse_object
from turndock.ports import Behavior
from turndock.types.v1 import EventType

LINES = {
    "cat": ("Cats are clean.", "Cats need no walk.", "Cats purr."),
    "dog": ("Dogs are loyal.", "A walk is good for you.", "Dogs sing."),
}


class Debater(Behavior):
    """Answers what it is told, and rests after its last word."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        config = parse_object(request.config_json, "config_json")
        return InitAgentResponse(state_json=canonical({"rounds": config["rounds"], "said": 0}))

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        said = parse_object(request.payload_json, "payload_json")["said"]
        over = request.halted or state_of(request)["said"] >= state_of(request)["rounds"]
        return HandleEventResponse(decision=noreply() if over else prompt(f"They say: {said} Your answer?"))

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        state = state_of(request)
        state["said"] += 1
        decision = halt("that was my last word") if state["said"] >= state["rounds"] else noreply()
        return HandleResponseResponse(state_json=canonical(state), decision=decision)


async def carry(client: Client, one: AgentHandle, other: AgentHandle, words: int) -> list[str]:
    """Tell each what the other says, until so many words are said."""
    sessions = {(await who.status()).session_id: who for who in (one, other)}
    said: list[str] = []
    async with client.watch(*sessions, types=[EventType.EVENT_TYPE_MESSAGE_RECEIVED]) as log:
        async for event in log:
            said.append(event.message_received.text)
            listener = other if sessions[event.session_id] is one else one
            await listener.notify(
                {"said": said[-1]}, request_id=f"{event.session_id}-{event.sequence}", wait_applied=True
            )
            if len(said) == words:
                return said
    raise RuntimeError("the debate ended early")


async def debate(client: Client, *, behavior: str = "plugin:debate", backend: str = "scripted") -> list[str]:
    """Everything that was said, in order."""

    def side(name: str) -> dict[str, object]:
        scripts = [[{"result": line}] for line in LINES[name]]
        config = {"behavior": behavior, "behavior_config": {"rounds": len(scripts)}}
        return {"backend": backend, "backend_config": {"scripts": scripts}, **config}

    async with (
        agent(client, "cat-lover", **side("cat")) as cat,
        agent(client, "dog-lover", **side("dog")) as dog,
    ):
        await cat.tell("Which are better, cats or dogs?")
        return await carry(client, cat, dog, words=6)


if __name__ == "__main__":
    main("debate", debate, behavior=Debater())
