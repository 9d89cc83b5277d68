"""Research: an agent that prompts itself through its questions, writes a report, and rests.

Shows chained prompts (`prompt` after a response goes before the mailbox), a state that grows with the work, and `halt`
as the end of a plan. The client asks once and waits for the halt.
"""

from __future__ import annotations

from turndock.behavior.v1 import (
    HandleResponseRequest,
    HandleResponseResponse,
    InitAgentRequest,
    InitAgentResponse,
)
from turndock.client import Client
from turndock.decisions import halt, prompt, state_of
from turndock.examples.patterns.program import agent, main, state, until
from turndock.jsontext import canonical, parse_object
from turndock.ports import Behavior

QUESTIONS = ("What causes tides?", "Why are there two a day?", "Who knew it first?")


class Research(Behavior):
    """Asks one question after the other, then for a report."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        questions = parse_object(request.config_json, "config_json")["questions"]
        return InitAgentResponse(state_json=canonical({"left": questions, "findings": [], "report": None}))

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        state = state_of(request)
        answer = request.response.text
        if request.run.metadata_json == '{"phase":"report"}':
            state["report"] = answer
            decision = halt("the report is written")
        else:
            state["findings"].append(answer)
            if state["left"]:
                decision = prompt(state["left"].pop(0))
            else:
                decision = prompt(f"Write a report from: {' '.join(state['findings'])}", {"phase": "report"})
        return HandleResponseResponse(state_json=canonical(state), decision=decision)


async def research(client: Client, *, behavior: str = "plugin:research", backend: str = "echo") -> str:
    """The report."""
    config = {"questions": [*QUESTIONS]}
    async with agent(client, "researcher", backend=backend, behavior=behavior, behavior_config=config) as who:
        await who.tell("Tides, in short.")
        await until(who, lambda status: status.halted)
        report: str = (await state(who))["report"]
        return report


if __name__ == "__main__":
    main("research", research, behavior=Research())
