"""A behavior as a plug-in process that a test kills in the middle of its callbacks: what it heard is in a file.

An agent's configuration names the callback in which its process hangs: `{"hangs_in": "post_turn"}`. It does so
the first time only, over the lives of the process. The state counts the callbacks that took effect.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path
from typing import Any

from turndock import jsontext, serving
from turndock.behavior.v1 import (
    Decision,
    Halt,
    HandleErrorRequest,
    HandleErrorResponse,
    HandleEventRequest,
    HandleEventResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    HandleStreamEventRequest,
    HandleStreamEventResponse,
    InitAgentRequest,
    InitAgentResponse,
    NextPrompt,
    PostRunRequest,
    PostRunResponse,
    PostTurnRequest,
    PostTurnResponse,
    PreRunRequest,
    PreRunResponse,
    PreToolRequest,
    PreToolResponse,
    PreTurnRequest,
    PreTurnResponse,
    Proceed,
    TerminateAgentRequest,
    TerminateAgentResponse,
)
from turndock.ports import Behavior


class Counting(Behavior):
    """Chains after the answer `chain`, halts after `halt`; tells the socket at `told` when it hangs."""

    def __init__(self, heard: Path, told: Path) -> None:
        self._heard = heard
        self._told = told

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(state_json=request.config_json)

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        state_json = await self._took_effect("handle_response", request)
        match request.response.text:
            case "chain":
                decision = Decision(prompt=NextPrompt(text="next"))
            case "halt":
                decision = Decision(halt=Halt(reason="told to"))
            case _:
                decision = Decision()
        return HandleResponseResponse(state_json=state_json, decision=decision)

    async def handle_error(self, request: HandleErrorRequest) -> HandleErrorResponse:
        return HandleErrorResponse(state_json=await self._took_effect("handle_error", request))

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        return HandleEventResponse(state_json=await self._took_effect("handle_event", request))

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        state_json = await self._took_effect("handle_stream_event", request, len(request.events))
        return HandleStreamEventResponse(state_json=state_json)

    async def pre_run(self, request: PreRunRequest) -> PreRunResponse:
        return PreRunResponse(state_json=await self._took_effect("pre_run", request))

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        return PreTurnResponse(state_json=await self._took_effect("pre_turn", request), proceed=Proceed())

    async def pre_tool(self, request: PreToolRequest) -> PreToolResponse:
        return PreToolResponse(state_json=await self._took_effect("pre_tool", request), proceed=Proceed())

    async def post_turn(self, request: PostTurnRequest) -> PostTurnResponse:
        return PostTurnResponse(state_json=await self._took_effect("post_turn", request))

    async def post_run(self, request: PostRunRequest) -> PostRunResponse:
        return PostRunResponse(state_json=await self._took_effect("post_run", request))

    async def terminate_agent(self, request: TerminateAgentRequest) -> TerminateAgentResponse:
        await self._took_effect("terminate_agent", request)
        return TerminateAgentResponse()

    async def _took_effect(self, name: str, request: Any, times: int = 1) -> str:
        state: dict[str, Any] = jsontext.parse_object(request.state_json, "state_json")
        callback = f"{request.agent_name} {name} "
        line = f"{callback}{request.request_id}\n"
        heard_before = self._heard.exists() and callback in self._heard.read_text()
        with self._heard.open("a") as heard:
            heard.write(line)
        if state.get("hangs_in") == name and not heard_before:
            _, writer = await asyncio.open_unix_connection(self._told)
            writer.write(line.encode())
            await asyncio.Event().wait()  # until the process is killed
        state[name] = state.get(name, 0) + times
        return jsontext.canonical(state)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("heard", type=Path)
    parser.add_argument("told", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    asyncio.run(serving.serve(name="counting", version="1", behavior=Counting(options.heard, options.told)))


if __name__ == "__main__":
    main()
