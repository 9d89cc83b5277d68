"""A backend in this process, and the same backend behind gRPC: the ways a host may have it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Literal, get_args

import pytest

from turndock import events, serving, wire
from turndock.backend.v1 import (
    PromptRequest,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
)
from turndock.events import new_id
from turndock.ports import Backend, CheckpointRejected, TurnContext, TurnOutput
from turndock.remote import MULTIPLEXED, RemoteBackend
from turndock.types.v1 import (
    ApprovalDecision,
    BackendSession,
    Event,
    Scope,
    ToolApprovalDecided,
    ToolApprovalRequested,
)

Mode = Literal["in_process", "own_streams", "multiplexed"]
MODES: tuple[Mode, ...] = get_args(Mode)
REMOTE_MODES: tuple[Mode, ...] = ("own_streams", "multiplexed")

DEADLINE_S = 10.0

every_mode = pytest.mark.parametrize("mode", MODES)
remote_modes = pytest.mark.parametrize("mode", REMOTE_MODES)

Outputs = AsyncIterator[TurnOutput | list[TurnOutput]]
Script = Callable[[PromptRequest, TurnContext], Outputs]


class ScriptedBackend(Backend):
    """Plays an async generator function; offers no optional call."""

    def __init__(self, script: Script) -> None:
        self.script = script

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse(session=BackendSession(data=request.config_json.encode()))

    def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        return self.script(request, turn)

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()


class RecordingHost:
    """A `TurnContext` that answers as it was told and keeps what it was asked."""

    def __init__(self, *, reject: str = "") -> None:
        self.reject = reject
        self.sessions: list[BackendSession] = []
        self.checkpoints: list[str] = []
        self.approvals: list[str] = []

    def accept(self, session: BackendSession) -> None:
        self.sessions.append(session)

    async def checkpoint(self, provider_session_id: str) -> None:
        self.checkpoints.append(provider_session_id)
        if self.reject:
            raise CheckpointRejected(self.reject)

    async def approval(self, request: ToolApprovalRequested) -> ToolApprovalDecided:
        self.approvals.append(request.tool_name)
        return ToolApprovalDecided(
            approval_id=request.approval_id, decision=ApprovalDecision.APPROVAL_DECISION_APPROVE
        )


def a_prompt(text: str = "hi") -> PromptRequest:
    """A prompt of a turn of its own."""
    return PromptRequest(
        scope=Scope(tenant="red"), prompt=text, run_id="run-1", attempt=1, turn_token=new_id()
    )


@contextlib.asynccontextmanager
async def docked(backend: Backend, mode: Mode) -> AsyncGenerator[Backend]:
    """The backend as a host has it in that mode."""
    if mode == "in_process":
        yield backend
        return
    server = wire.new_server()
    serving.add_backend(server, backend)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    capabilities = serving.capabilities_of(backend)
    if mode == "own_streams":
        capabilities -= {MULTIPLEXED}
    try:
        async with wire.connect(endpoint) as channel:
            remote = RemoteBackend(channel, capabilities)
            try:
                yield remote
            finally:
                await remote.close()
    finally:
        await server.stop(0)
        await _turns_have_left()


async def _turns_have_left() -> None:
    """Wait for turns that outlive their call while they clean up: a program's process ends before its test does."""
    turns = [
        task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == "Turn.run"
    ]
    if turns:
        await asyncio.wait(turns, timeout=10)


async def play(
    backend: Backend,
    host: RecordingHost | None = None,
    request: PromptRequest | None = None,
    said: list[TurnOutput] | None = None,
) -> list[TurnOutput]:
    """Everything a turn says, one by one, texts as events; what it said until it raised is in `said`."""
    said = [] if said is None else said
    async with asyncio.timeout(DEADLINE_S):
        async for output in backend.prompt(request or a_prompt(), host or RecordingHost()):
            outputs = output if isinstance(output, list) else [output]
            said += [events.text(one) if isinstance(one, str) else one for one in outputs]
    return said


def texts(said: list[TurnOutput]) -> str:
    """The text of everything a turn said."""
    return "".join(one.message_streamed.text for one in said if isinstance(one, Event))
