"""Retry: a turn that failed is tried again, later and later, and not for ever.

Shows `handle_error` with `retryable`, a chained prompt as the next try, a pause in `pre_turn` that grows with the
tries, and `halt` where trying again is of no use, so that what waits is kept for a person to look at.
"""

from __future__ import annotations

import asyncio
from typing import Any

from turndock.behavior.v1 import (
    HandleErrorRequest,
    HandleErrorResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    InitAgentRequest,
    InitAgentResponse,
    PreTurnRequest,
    PreTurnResponse,
    Proceed,
)
from turndock.client import AgentHandle, Client, TurnFailed
from turndock.decisions import halt, prompt, state_of
from turndock.examples.patterns.program import agent, main
from turndock.jsontext import canonical, parse_object
from turndock.ports import Behavior


class Retry(Behavior):
    """Tries `max_tries` times, and waits `pause_s`, twice that, four times that, … before each further try."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        config = {"max_tries": 3, "pause_s": 1.0} | parse_object(request.config_json, "config_json")
        return InitAgentResponse(state_json=canonical(config | {"failed": []}))

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        state = state_of(request)
        if state["failed"]:
            await asyncio.sleep(state["pause_s"] * 2 ** (len(state["failed"]) - 1))
        return PreTurnResponse(proceed=Proceed())

    async def handle_error(self, request: HandleErrorRequest) -> HandleErrorResponse:
        state = state_of(request)
        state["failed"].append(request.failure.reason)
        if request.failure.retryable and len(state["failed"]) < state["max_tries"]:
            decision = prompt(request.run.prompt)
        else:
            decision = halt(f"gave up after {len(state['failed'])} tries: {request.failure.reason}")
            state["failed"] = []
        return HandleErrorResponse(state_json=canonical(state), decision=decision)

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        state = state_of(request)
        state["failed"] = []
        return HandleResponseResponse(state_json=canonical(state))


async def retry(
    client: Client, *, behavior: str = "plugin:retry", backend: str = "scripted", pause_s: float = 0.05
) -> dict[str, Any]:
    """What was answered in the end and at which try, and what became of an error that nobody can retry."""
    busy = [{"error": {"reason": "rate_limited", "retryable": True}}]
    scripts = [busy, busy, [{"result": "at last"}], [{"error": {"reason": "no_credit"}}]]
    config = {"behavior": behavior, "behavior_config": {"pause_s": pause_s}}
    async with agent(
        client, "stubborn", backend=backend, backend_config={"scripts": scripts}, **config
    ) as stubborn:
        answer, tries = await persistent(stubborn, "Anyone there?", "question")
        refused = ""
        try:
            await stubborn.ask("And now?")
        except TurnFailed as failed:
            refused = failed.failure.reason
        halted = (await stubborn.status()).halted
        return {"answer": answer, "tries": tries, "refused": refused, "halted": halted}


async def persistent(stubborn: AgentHandle, question: str, run_id: str) -> tuple[str, int]:
    """The answer, and at which try it came; each further try is a chained run."""
    await stubborn.tell(question, request_id=run_id)
    tries = 0
    while True:
        tries += 1
        try:
            answer = await stubborn.result(run_id if tries == 1 else f"{run_id}/chain/{tries - 1}")
        except TurnFailed as failed:
            if not failed.failure.retryable:
                raise
        else:
            return answer.text, tries


if __name__ == "__main__":
    main("retry", retry, behavior=Retry())
