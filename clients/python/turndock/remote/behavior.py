"""A behavior over a channel."""

from __future__ import annotations

from collections.abc import Iterable

import grpc.aio

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
    behavior_pb2,
)
from turndock.ports import Behavior
from turndock.remote.calls import DEFAULT_TIMEOUT_S, Remote, Unary


class _Calls(Remote, service=behavior_pb2.DESCRIPTOR.services_by_name["Behavior"]):
    init_agent: Unary[InitAgentRequest, InitAgentResponse]
    handle_response: Unary[HandleResponseRequest, HandleResponseResponse]
    handle_error: Unary[HandleErrorRequest, HandleErrorResponse]
    handle_event: Unary[HandleEventRequest, HandleEventResponse]
    handle_stream_event: Unary[HandleStreamEventRequest, HandleStreamEventResponse]
    pre_run: Unary[PreRunRequest, PreRunResponse]
    pre_turn: Unary[PreTurnRequest, PreTurnResponse]
    pre_tool: Unary[PreToolRequest, PreToolResponse]
    post_turn: Unary[PostTurnRequest, PostTurnResponse]
    post_run: Unary[PostRunRequest, PostRunResponse]
    terminate_agent: Unary[TerminateAgentRequest, TerminateAgentResponse]


class RemoteBehavior(Behavior):
    """`ports.Behavior` over a channel.

    `capabilities` are those the plug-in's description names, but for what turned out to be absent: an optional call
    that answered UNIMPLEMENTED once is not made again. `timeout` is how long a call may take, in seconds. What did not
    reach the plug-in, or lost its answer on the way, raises `TurndockError` (PLUGIN_UNAVAILABLE); the same request may
    then be sent again.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        capabilities: Iterable[str] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._calls = _Calls(channel, timeout=timeout)
        self._capabilities = frozenset(capabilities)

    @property
    def capabilities(self) -> frozenset[str]:
        return self._capabilities - self._calls.absent

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return await self._calls.init_agent(request)

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        return await self._calls.handle_response(request)

    async def handle_error(self, request: HandleErrorRequest) -> HandleErrorResponse:
        return await self._calls.handle_error(request)

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        return await self._calls.handle_event(request)

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        return await self._calls.handle_stream_event(request)

    async def pre_run(self, request: PreRunRequest) -> PreRunResponse:
        return await self._calls.pre_run(request)

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        return await self._calls.pre_turn(request)

    async def pre_tool(self, request: PreToolRequest) -> PreToolResponse:
        return await self._calls.pre_tool(request)

    async def post_turn(self, request: PostTurnRequest) -> PostTurnResponse:
        return await self._calls.post_turn(request)

    async def post_run(self, request: PostRunRequest) -> PostRunResponse:
        return await self._calls.post_run(request)

    async def terminate_agent(self, request: TerminateAgentRequest) -> TerminateAgentResponse:
        return await self._calls.terminate_agent(request)
