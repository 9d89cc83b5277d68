"""A backend behind gRPC: the author's class, served."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio

from turndock.backend.v1 import (
    AnswerApprovalRequest,
    AnswerApprovalResponse,
    AnswerCheckpointRequest,
    AnswerCheckpointResponse,
    GrantCreditRequest,
    GrantCreditResponse,
    InterruptRequest,
    InterruptResponse,
    PromptRequest,
    PromptResponse,
    StreamEventsRequest,
    backend_pb2,
)
from turndock.errors import TurndockError, invalid
from turndock.ports import Backend
from turndock.serving.handlers import Context, Handler, add_port
from turndock.serving.outbox import Outbox
from turndock.serving.stream import DEFAULT_DELAY_S, MAX_DELAY_S, EventStream, Lane
from turndock.serving.turn import Turn
from turndock.wire import CONNECTION, find

SERVICE: Final = backend_pb2.DESCRIPTOR.services_by_name["Backend"]

SERVED_OPTIONS: Final = frozenset(("approval", "interrupt", "multiplexed_events"))
"""Abilities that every backend has once it is served here, whatever it overrides."""


def add_backend(server: grpc.aio.Server, backend: Backend) -> None:
    """Serve a backend. Each of its turns is one task, which ends when the call does."""
    service = _BackendService(backend)
    own: dict[str, Handler] = {
        "Prompt": service.prompt,
        "StreamEvents": service.stream_events,
        "GrantCredit": service.grant_credit,
        "AnswerCheckpoint": service.answer_checkpoint,
        "AnswerApproval": service.answer_approval,
        "Interrupt": service.interrupt,
    }
    add_port(server, SERVICE, backend, own=own, encoded=("StreamEvents",))


class _RunningTurn:
    """A turn, the task that runs it, and its place in a shared stream if it has one."""

    def __init__(self, token: str, turn: Turn, task: asyncio.Task[None], lane: Lane | None) -> None:
        self.token = token
        self.turn = turn
        self.task = task
        self.lane = lane

    async def stop(self) -> None:
        """Cancel the author's generator and wait until it has ended."""
        self.task.cancel()
        await asyncio.wait([self.task])


class _BackendService:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._turns: dict[str, _RunningTurn] = {}
        self._streams: dict[str, EventStream] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        """Generators that clean up after their terminal, when their call has ended already."""

    async def prompt(self, request: PromptRequest, context: Context) -> None:
        if not request.turn_token:
            raise invalid("turn_token", "must not be empty")
        if request.turn_token in self._turns:
            raise TurndockError("ALREADY_EXISTS", "a turn with this token is under way")
        await context.send_initial_metadata(())
        if request.multiplexed:
            stream = self._stream(context)
            lane = stream.attach(request)
            try:
                await self._prompt_multiplexed(request, lane, context)
            finally:
                stream.detach(lane)
        else:
            await self._prompt_alone(request, context)

    async def _prompt_alone(self, request: PromptRequest, context: Context) -> None:
        ready = asyncio.Event()
        outbox = Outbox(PromptResponse, ready.set)
        running = self._start(request, outbox, None)
        try:
            while not (outbox.finished and outbox.empty):
                await ready.wait()
                ready.clear()
                if not outbox.empty:
                    await context.write(outbox.take())
            _raise_crash(running.task)
        finally:
            self._leave(running)

    async def _prompt_multiplexed(self, request: PromptRequest, lane: Lane, context: Context) -> None:
        running = self._start(request, lane.outbox, lane)
        try:
            await lane.carried()
            await context.write(PromptResponse(sent_items=lane.outbox.said))
            _raise_crash(running.task)
        finally:
            self._leave(running)

    def _start(self, request: PromptRequest, outbox: Outbox[Any], lane: Lane | None) -> _RunningTurn:
        turn = Turn(request, outbox)
        task = asyncio.create_task(turn.run(self._backend))
        task.add_done_callback(lambda _: outbox.finish())
        running = _RunningTurn(request.turn_token, turn, task, lane)
        self._turns[running.token] = running
        return running

    async def stream_events(self, request: StreamEventsRequest, context: Context) -> None:
        if not request.connection_id:
            raise invalid("connection_id", "must not be empty")
        if request.connection_id in self._streams:
            raise TurndockError("ALREADY_EXISTS", "a stream with this connection id is open")
        delay = request.max_delay_us / 1e6 if request.HasField("max_delay_us") else DEFAULT_DELAY_S
        stream = self._streams[request.connection_id] = EventStream(min(delay, MAX_DELAY_S))
        try:
            await stream.run(context)
        finally:
            del self._streams[request.connection_id]

    async def grant_credit(self, request: GrantCreditRequest, _: Context) -> GrantCreditResponse:
        lane = self._turn(request.turn_token).lane
        if lane is not None:
            lane.grant(request.items, request.bytes)
        return GrantCreditResponse()

    async def answer_checkpoint(
        self, request: AnswerCheckpointRequest, _: Context
    ) -> AnswerCheckpointResponse:
        reason = "" if request.ok else request.reason or "not_current"
        if not self._turn(request.turn_token).turn.answer_checkpoint(request.id, reason):
            raise TurndockError("NOT_FOUND", f"the turn has no checkpoint {request.id!r}")
        return AnswerCheckpointResponse()

    async def answer_approval(self, request: AnswerApprovalRequest, _: Context) -> AnswerApprovalResponse:
        if not self._turn(request.turn_token).turn.answer_approval(request.decision):
            raise TurndockError("NOT_FOUND", f"the turn has no approval {request.decision.approval_id!r}")
        return AnswerApprovalResponse()

    async def interrupt(self, request: InterruptRequest, _: Context) -> InterruptResponse:
        running = self._turn(request.turn_token)
        try:
            if "interrupt" in self._backend.capabilities:
                return await self._backend.interrupt(request)
        finally:
            await running.stop()
        return InterruptResponse()

    def _stream(self, context: Context) -> EventStream:
        stream = self._streams.get(find(context.invocation_metadata(), CONNECTION))
        if stream is None:
            raise TurndockError("INVALID_OPERATION", "no StreamEvents call is open for this connection")
        return stream

    def _turn(self, token: str) -> _RunningTurn:
        try:
            return self._turns[token]
        except KeyError:
            raise TurndockError("TURN_NOT_FOUND", "no turn with this token is under way") from None

    def _leave(self, running: _RunningTurn) -> None:
        """The call has ended. A turn that has not said its terminal is cancelled; one that has may clean up."""
        del self._turns[running.token]
        if running.task.done():
            return
        if not running.turn.ended:
            running.task.cancel()
        self._leaving.add(running.task)
        running.task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it: the turn has logged it


def _raise_crash(task: asyncio.Task[None]) -> None:
    """Raise what the turn ended with; a turn that was stopped just ends."""
    if task.done() and not task.cancelled():
        task.result()
