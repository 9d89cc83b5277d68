"""Supervisor: one agent plans, others do the work, and the first one puts the results together.

Shows a state that a client acts upon (which tasks are open), results and failures that come back as notifications, and
a second try for a task whose worker failed. The plan is the supervisor's; the client only carries it out.
"""

from __future__ import annotations

import json
from typing import Any

from turndock.behavior.v1 import (
    HandleEventRequest,
    HandleEventResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    InitAgentRequest,
    InitAgentResponse,
)
from turndock.client import AgentHandle, Client, TurnFailed
from turndock.decisions import halt, noreply, prompt, state_of
from turndock.examples.patterns.program import agent, main, state, until
from turndock.jsontext import canonical, parse_object
from turndock.ports import Behavior

TRIES = 2
PLAN = ["walls", "roof", "garden"]


class Supervisor(Behavior):
    """Takes its first answer for the plan, gathers results, and asks for the whole once it has all of them."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(
            state_json=canonical({"open": None, "tries": {}, "results": {}, "whole": None})
        )

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        state = state_of(request)
        if state["open"] is None:
            state["open"] = json.loads(request.response.text)
            return HandleResponseResponse(state_json=canonical(state))
        state["whole"] = request.response.text
        return HandleResponseResponse(state_json=canonical(state), decision=halt("done"))

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        state = state_of(request)
        report = parse_object(request.payload_json, "payload_json")
        task = report["task"]
        state["tries"][task] = state["tries"].get(task, 0) + 1
        if "result" in report or state["tries"][task] >= TRIES:
            state["open"].remove(task)
            state["results"][task] = report.get("result", f"not done: {report.get('failed')}")
        decision = noreply()
        if not state["open"]:
            decision = prompt(
                "Put together: " + "; ".join(state["results"][task] for task in sorted(state["results"]))
            )
        return HandleEventResponse(state_json=canonical(state), decision=decision)


async def work(client: Client, task: str, number: int, backend: str) -> dict[str, Any]:
    """One try at a task, by an agent of its own."""
    script: list[dict[str, Any]] = [{"result": f"{task} built"}]
    if task == "roof" and number == 1:
        script = [{"error": {"reason": "tool_broken"}}]
    config = {"backend": backend, "backend_config": {"scripts": [script]}}
    async with agent(client, f"worker-{task}-{number}", **config) as worker:
        try:
            return {"task": task, "result": (await worker.ask(f"Build the {task}")).text}
        except TurnFailed as failed:
            return {"task": task, "failed": failed.failure.reason}


async def carry_out(client: Client, lead: AgentHandle, backend: str) -> None:
    """Have every open task worked on until none is open."""
    await until(lead, lambda status: '"open":null' not in status.state_json)
    while tasks := (plan := await state(lead))["open"]:
        for task in tasks:
            number = plan["tries"].get(task, 0) + 1
            report = await work(client, task, number, backend)
            await lead.notify(report, request_id=f"{task}-{number}", wait_applied=True)


async def supervisor(
    client: Client, *, behavior: str = "plugin:supervisor", backend: str = "scripted"
) -> dict[str, Any]:
    """The whole, and how often each task was tried."""
    scripts = [[{"result": json.dumps(PLAN)}], [{"result": "A house: walls, roof and garden."}]]
    config = {"backend": backend, "backend_config": {"scripts": scripts}, "behavior": behavior}
    async with agent(client, "lead", **config) as lead:
        await lead.tell("Build a house.")
        await carry_out(client, lead, backend)
        await until(lead, lambda status: status.halted)
        done = await state(lead)
        return {"whole": done["whole"], "tries": done["tries"], "results": done["results"]}


if __name__ == "__main__":
    main("supervisor", supervisor, behavior=Supervisor())
