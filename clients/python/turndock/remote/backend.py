"""A backend over a channel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc.aio

from turndock.backend.v1 import (
    AnswerApprovalRequest,
    AnswerCheckpointRequest,
    CheckpointSessionRequest,
    CheckpointSessionResponse,
    InterruptRequest,
    InterruptResponse,
    PromptRequest,
    ResumeSessionRequest,
    ResumeSessionResponse,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
    UpdateSessionRequest,
    UpdateSessionResponse,
    backend_pb2,
)
from turndock.backend.v1.backend_pb2_grpc import BackendStub
from turndock.errors import TurndockError, is_not_offered
from turndock.ports import Backend, BackendLost, TurnContext, TurnOutput
from turndock.remote.calls import DEFAULT_TIMEOUT_S, Remote, Unary
from turndock.remote.player import Player
from turndock.remote.prompt_stream import PromptStream
from turndock.remote.shared_stream import SharedStream
from turndock.remote.turns import TurnItems

MULTIPLEXED = "multiplexed_events"
"""The capability of a backend that can send the items of all turns on one stream."""


class _Calls(Remote, service=backend_pb2.DESCRIPTOR.services_by_name["Backend"]):
    start_session: Unary[StartSessionRequest, StartSessionResponse]
    terminate_session: Unary[TerminateSessionRequest, TerminateSessionResponse]
    interrupt: Unary[InterruptRequest, InterruptResponse]
    checkpoint_session: Unary[CheckpointSessionRequest, CheckpointSessionResponse]
    update_session: Unary[UpdateSessionRequest, UpdateSessionResponse]
    resume_session: Unary[ResumeSessionRequest, ResumeSessionResponse]
    answer_checkpoint: Unary[AnswerCheckpointRequest, Any]
    answer_approval: Unary[AnswerApprovalRequest, Any]


class RemoteBackend(Backend):
    """`ports.Backend`. `capabilities` are those the plug-in's description names.

    A turn behaves as one in this process does, and besides may raise `BackendLost` (the connection broke, or the
    backend broke the rules of its stream) and `BackendCrashed` (the backend's code raised). Call `close` in the end.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        capabilities: Iterable[str] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_delay_us: int | None = None,
    ) -> None:
        self._calls = _Calls(channel, timeout=timeout)
        self._stub = BackendStub(channel)
        self._capabilities = frozenset(capabilities)
        self._shared: SharedStream | None = None
        if MULTIPLEXED in self._capabilities:
            self._shared = SharedStream(self._stub, timeout=timeout, max_delay_us=max_delay_us)

    @property
    def capabilities(self) -> frozenset[str]:
        return self._capabilities

    async def close(self) -> None:
        """End what is open. Turns under way end `BackendLost`."""
        if self._shared is not None:
            await self._shared.close()

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return await self._calls.start_session(request)

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return await self._calls.terminate_session(request)

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        return await self._calls.interrupt(request)

    async def checkpoint_session(self, request: CheckpointSessionRequest) -> CheckpointSessionResponse:
        return await self._calls.checkpoint_session(request)

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        return await self._calls.update_session(request)

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        return await self._calls.resume_session(request)

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        items = await self._begin(request)
        player = Player(self._calls, request, turn)
        try:
            while (batch := await items.next()) is not None:
                for step in player.steps(batch):
                    if isinstance(step, list):
                        yield step
                    else:
                        await player.answer(step)
                if player.ended:
                    return
            player.end()
        finally:
            items.leave()

    async def _begin(self, request: PromptRequest) -> TurnItems:
        if self._shared is not None:
            try:
                return await self._shared.prompt(request)
            except TurndockError as error:
                if not is_not_offered(error):
                    raise BackendLost(f"{error.reason}: {error.message}") from None
                self._shared = None
        return PromptStream(self._stub.Prompt(request))
