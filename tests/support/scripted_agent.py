"""ScriptedAgent: a behavior with a decision table.

Its state is `{"responses": […], "errors": […], "events": […], "seen": […]}`: texts of responses, reasons of failures,
payloads of notifications, kinds of a turn's events. What it decides is looked up by exactly these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from turndock import events, jsontext
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
    Noreply,
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
    TerminateAgentRequest,
    TerminateAgentResponse,
)
from turndock.errors import not_offered
from turndock.ports import Behavior

Q = TypeVar("Q")
A = TypeVar("A")
Hook = Callable[[Q], Awaitable[A]]
Move = Decision | type[Exception]
"""A decision, or what is raised instead."""

NOREPLY = Decision(noreply=Noreply())
HALT = Decision(halt=Halt(reason="told to"))
RAISE = RuntimeError
FRESH: Mapping[str, list[Any]] = {"responses": [], "errors": [], "events": [], "seen": []}


def chain(prompt: str) -> Decision:
    return Decision(prompt=NextPrompt(text=prompt))


class Call(NamedTuple):
    """A call the agent got."""

    name: str
    request: Any


class ScriptedAgent(Behavior):
    """Decides by table and keeps count. Hooks that are not given are not offered."""

    def __init__(
        self,
        *,
        responses: Mapping[str, Move] | None = None,
        errors: Mapping[str, Move] | None = None,
        notified: Mapping[Any, Move] | None = None,
        pre_run: Hook[PreRunRequest, PreRunResponse] | None = None,
        pre_turn: Hook[PreTurnRequest, PreTurnResponse] | None = None,
        pre_tool: Hook[PreToolRequest, PreToolResponse] | None = None,
        post_turn: Hook[PostTurnRequest, PostTurnResponse] | None = None,
        post_run: Hook[PostRunRequest, PostRunResponse] | None = None,
    ) -> None:
        self.responses = dict(responses or {})
        self.errors = dict(errors or {})
        self.notified = dict(notified or {})
        self.calls: list[Call] = []
        self._hooks: dict[str, Hook[Any, Any] | None] = {
            "pre_run": pre_run,
            "pre_turn": pre_turn,
            "pre_tool": pre_tool,
            "post_turn": post_turn,
            "post_run": post_run,
        }
        self._change = asyncio.Event()

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities - {name for name, hook in self._hooks.items() if hook is None}

    def names(self) -> list[str]:
        """The calls so far but for those that come with every event of a turn."""
        return [call.name for call in self.calls if call.name != "handle_stream_event"]

    def requests(self, name: str) -> list[Any]:
        """The requests of the calls of that name."""
        return [call.request for call in self.calls if call.name == name]

    async def called(self, name: str, times: int = 1) -> None:
        """Wait until the call has come so many times."""
        while len(self.requests(name)) < times:
            await self._change.wait()

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        self._hear("init_agent", request)
        if request.HasField("restored_state_json"):
            return InitAgentResponse()
        return InitAgentResponse(state_json=jsontext.canonical(FRESH))

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        self._hear("handle_response", request)
        text = request.response.text
        decision = _decide(self.responses.get(text))
        return HandleResponseResponse(state_json=noted(request, "responses", text), decision=decision)

    async def handle_error(self, request: HandleErrorRequest) -> HandleErrorResponse:
        self._hear("handle_error", request)
        reason = request.failure.reason
        decision = _decide(self.errors.get(reason))
        return HandleErrorResponse(state_json=noted(request, "errors", reason), decision=decision)

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        self._hear("handle_event", request)
        payload = jsontext.parse(request.payload_json, "payload_json")
        key = payload if isinstance(payload, str | int) else request.payload_json
        decision = _decide(self.notified.get(key))
        return HandleEventResponse(state_json=noted(request, "events", payload), decision=decision)

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        self._hear("handle_stream_event", request)
        kinds = [events.kind(event) for event in request.events]
        return HandleStreamEventResponse(state_json=noted(request, "seen", *kinds))

    async def terminate_agent(self, request: TerminateAgentRequest) -> TerminateAgentResponse:
        self._hear("terminate_agent", request)
        return TerminateAgentResponse()

    async def pre_run(self, request: PreRunRequest) -> PreRunResponse:
        answer: PreRunResponse = await self._hook("pre_run", request)
        return answer

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        answer: PreTurnResponse = await self._hook("pre_turn", request)
        return answer

    async def pre_tool(self, request: PreToolRequest) -> PreToolResponse:
        answer: PreToolResponse = await self._hook("pre_tool", request)
        return answer

    async def post_turn(self, request: PostTurnRequest) -> PostTurnResponse:
        answer: PostTurnResponse = await self._hook("post_turn", request)
        return answer

    async def post_run(self, request: PostRunRequest) -> PostRunResponse:
        answer: PostRunResponse = await self._hook("post_run", request)
        return answer

    async def _hook(self, name: str, request: Any) -> Any:
        hook = self._hooks[name]
        if hook is None:
            raise not_offered(f"Behavior.{name}")
        self._hear(name, request)
        return await hook(request)

    def _hear(self, name: str, request: Any) -> None:
        self.calls.append(Call(name, request))
        change, self._change = self._change, asyncio.Event()
        change.set()


def state_of(state_json: str) -> dict[str, Any]:
    """A state as a value."""
    state: dict[str, Any] = jsontext.parse_object(state_json, "state_json")
    return state


def noted(request: Any, list_name: str, *entries: Any) -> str:
    """The request's state with entries put at the end of one of its lists."""
    state = state_of(request.state_json)
    state[list_name] = [*state.get(list_name, []), *entries]
    return jsontext.canonical(state)


def _decide(move: Move | None) -> Decision:
    if isinstance(move, type):
        raise move("told to raise")
    return move or NOREPLY
