"""A plug-in's behavior, which stays the same object whatever becomes of the process behind it."""

from __future__ import annotations

from collections.abc import Callable

from turndock.behavior.v1 import (
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
from turndock.errors import TurndockError
from turndock.ports import BEHAVIOR_OPTIONS, Behavior


class DockedBehavior(Behavior):
    """Hands every call to the behavior the plug-in has now.

    Until the plug-in has answered for the first time, calls raise `TurndockError` (PLUGIN_UNAVAILABLE).
    """

    def __init__(self, current: Callable[[], Behavior]) -> None:
        self._current = current

    @property
    def capabilities(self) -> frozenset[str]:
        """As the plug-in describes them. All of them before it has answered: a hook must not be passed over unasked."""
        try:
            return self._current().capabilities
        except TurndockError:
            return frozenset(BEHAVIOR_OPTIONS)

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return await self._current().init_agent(request)

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        return await self._current().handle_response(request)

    async def handle_error(self, request: HandleErrorRequest) -> HandleErrorResponse:
        return await self._current().handle_error(request)

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        return await self._current().handle_event(request)

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        return await self._current().handle_stream_event(request)

    async def pre_run(self, request: PreRunRequest) -> PreRunResponse:
        return await self._current().pre_run(request)

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        return await self._current().pre_turn(request)

    async def pre_tool(self, request: PreToolRequest) -> PreToolResponse:
        return await self._current().pre_tool(request)

    async def post_turn(self, request: PostTurnRequest) -> PostTurnResponse:
        return await self._current().post_turn(request)

    async def post_run(self, request: PostRunRequest) -> PostRunResponse:
        return await self._current().post_run(request)

    async def terminate_agent(self, request: TerminateAgentRequest) -> TerminateAgentResponse:
        return await self._current().terminate_agent(request)
