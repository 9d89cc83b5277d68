"""Turns that share one stream: the host's side of StreamEvents.

One call carries the items of all turns. A task reads it and puts each turn's items into that turn's queue; what a turn
has worked off is given back as credit, so that a turn whose host is slow holds up itself alone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Final

import grpc.aio

from turndock.backend.v1 import (
    GrantCreditRequest,
    PromptRequest,
    PromptResponse,
    StreamEventsRequest,
    StreamEventsResponse,
    TurnItem,
    TurnItems,
)
from turndock.backend.v1.backend_pb2_grpc import BackendStub
from turndock.errors import Code, TurndockError
from turndock.ports import BackendLost
from turndock.remote.calls import UNAVAILABLE
from turndock.remote.turns import turn_error
from turndock.wire import CONNECTION, translated

CREDIT_ITEMS: Final = 4096
"""Items a turn may be ahead of the host."""

CREDIT_BYTES: Final = 1 << 20
"""Bytes a turn may be ahead of the host."""

_log = logging.getLogger("turndock.remote")


class SharedStream:
    """The StreamEvents call of one backend. Opened when a turn needs it, and again after it was lost."""

    def __init__(self, stub: BackendStub, *, timeout: float, max_delay_us: int | None = None) -> None:
        self._stub = stub
        self._timeout = timeout
        self._max_delay_us = max_delay_us
        self._opening = asyncio.Lock()
        self._connection_id = ""
        self._reader: asyncio.Task[None] | None = None
        self._turns: dict[str, SharedTurn] = {}
        self._grants: set[asyncio.Task[None]] = set()

    async def prompt(self, request: PromptRequest) -> SharedTurn:
        """Start a turn whose items come over this stream.

        Raises `TurndockError`, with CAPABILITY_NOT_SUPPORTED when the backend has no such stream.
        """
        async with self._opening:
            if self._reader is None or self._reader.done():
                await self._open()
        shared = PromptRequest()
        shared.CopyFrom(request)
        shared.multiplexed = True
        shared.initial_credit_items = CREDIT_ITEMS
        shared.initial_credit_bytes = CREDIT_BYTES
        call = self._stub.Prompt(shared, metadata=((CONNECTION, self._connection_id),))
        turn = self._turns[request.turn_token] = SharedTurn(self, request, call)
        return turn

    async def close(self) -> None:
        """End the call; turns under way end `BackendLost`."""
        tasks = [*self._grants, *([self._reader] if self._reader else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def leave(self, token: str) -> None:
        """Items of this turn are of no interest any more."""
        self._turns.pop(token, None)

    def grant(self, request: GrantCreditRequest) -> None:
        """Give credit back, in the background."""
        task = asyncio.create_task(self._grant(request))
        self._grants.add(task)
        task.add_done_callback(self._grants.discard)

    async def _open(self) -> None:
        self._connection_id = secrets.token_hex(16)
        request = StreamEventsRequest(connection_id=self._connection_id, max_delay_us=self._max_delay_us)
        call = self._stub.StreamEvents(request)
        try:
            with translated(unavailable=UNAVAILABLE):
                # The backend knows the connection once it has answered; a Prompt before that would be refused.
                async with asyncio.timeout(self._timeout):
                    await call.initial_metadata()
                if call.done():
                    await call.read()  # raises what went wrong
                    raise TurndockError(UNAVAILABLE, "the backend ended StreamEvents at once")
        except TimeoutError:
            call.cancel()
            raise TurndockError(UNAVAILABLE, "the backend does not open StreamEvents") from None
        except BaseException:
            call.cancel()
            raise
        self._reader = asyncio.create_task(self._read(call))

    async def _read(self, call: grpc.aio.UnaryStreamCall[StreamEventsRequest, StreamEventsResponse]) -> None:
        reason = "the stream of events was closed"
        try:
            while True:
                with translated(unavailable=UNAVAILABLE):
                    response = await call.read()
                if not isinstance(response, StreamEventsResponse):
                    reason = "the backend ended the stream of events"
                    return
                for items in response.turns:
                    turn = self._turns.get(items.turn_token)
                    if turn is not None:  # else it has ended here already
                        turn.arrived(items)
        except TurndockError as error:
            reason = f"{error.reason}: {error.message}"
        finally:
            call.cancel()
            turns, self._turns = self._turns, {}
            if turns:
                _log.warning("the stream of events was lost with %d turns under way: %s", len(turns), reason)
            for turn in turns.values():
                turn.lose(BackendLost(reason))

    async def _grant(self, request: GrantCreditRequest) -> None:
        try:
            with translated(unavailable=UNAVAILABLE):
                await self._stub.GrantCredit(request, timeout=self._timeout)
        except TurndockError as error:
            if error.code in {Code.NOT_FOUND, Code.UNIMPLEMENTED}:
                return  # the turn has ended, or the backend keeps no count
            turn = self._turns.get(request.turn_token)
            if turn is not None:
                turn.lose(BackendLost(f"credit could not be granted: {error}"))


class SharedTurn:
    """One turn's queue, and its Prompt call, which stays open without items until the turn has ended."""

    def __init__(
        self,
        stream: SharedStream,
        request: PromptRequest,
        call: grpc.aio.UnaryStreamCall[PromptRequest, PromptResponse],
    ) -> None:
        self._stream = stream
        self._request = request
        self._call = call
        self._queue: deque[TurnItems] = deque()
        self._changed = asyncio.Event()
        self._taken = 0
        self._allowed = CREDIT_ITEMS
        self._worked_off = GrantCreditRequest()
        self._working_on: TurnItems | None = None
        self._last: int | None = None
        """How many items there are in all; None = not known."""
        self._ended = False
        """Whether the Prompt call has ended."""
        self._error: Exception | None = None
        """What it ended with, if that is not OK."""
        self._lost: BackendLost | None = None
        """Why nothing more will come over the shared stream."""
        self._follower = asyncio.create_task(self._follow())

    async def next(self) -> Sequence[TurnItem] | None:
        self._give_back()
        while not self._queue:
            if self._lost is not None:
                raise self._lost
            if self._ended and (self._last is None or self._taken >= self._last):
                if self._error is not None:
                    raise self._error
                return None
            await self._changed.wait()
            self._changed.clear()
        self._working_on = batch = self._queue.popleft()
        items = list(batch.items)  # once, as each look at an item makes an object of it
        self._check_order(items)
        return items

    def leave(self) -> None:
        self._stream.leave(self._request.turn_token)
        self._follower.cancel()
        self._call.cancel()

    def arrived(self, items: TurnItems) -> None:
        """Items came over the shared stream."""
        self._allowed -= len(items.items)
        if self._allowed < 0:
            self.lose(BackendLost("the backend sent more items than it had credit for"))
            self._stream.leave(self._request.turn_token)
        else:
            self._queue.append(items)
            self._changed.set()

    def lose(self, error: BackendLost) -> None:
        """Nothing more will come over the shared stream."""
        self._lost = error
        self._changed.set()

    def _check_order(self, items: Sequence[TurnItem]) -> None:
        first = self._taken + 1
        self._taken += len(items)
        given, due = [item.index for item in items], range(first, self._taken + 1)
        if given != [*due]:
            self.leave()
            wrong, right = next(pair for pair in zip(given, due, strict=True) if pair[0] != pair[1])
            raise BackendLost(f"the backend sent item {wrong} of the turn where {right} was due")

    def _give_back(self) -> None:
        """Grant again what was worked off, when it is half of the credit."""
        if self._working_on is None:
            return
        worked_off = self._worked_off
        worked_off.items += len(self._working_on.items)
        worked_off.bytes += self._working_on.ByteSize()
        self._working_on = None
        if worked_off.items >= CREDIT_ITEMS // 2 or worked_off.bytes >= CREDIT_BYTES // 2:
            worked_off.turn_token = self._request.turn_token
            if self._request.HasField("scope"):
                worked_off.scope.CopyFrom(self._request.scope)
            self._worked_off = GrantCreditRequest()
            self._allowed += worked_off.items
            self._stream.grant(worked_off)

    async def _follow(self) -> None:
        """Wait for the Prompt call's end, which says how many items there are and whether the backend raised."""
        error: Exception | None = None
        try:
            while True:
                with translated(unavailable=UNAVAILABLE):
                    response = await self._call.read()
                if not isinstance(response, PromptResponse):
                    break
                if response.HasField("sent_items"):
                    self._last = response.sent_items
            if self._last is None:
                error = BackendLost("the backend ended the turn without saying how many items it had")
        except TurndockError as failure:
            error = turn_error(failure)
        self._ended, self._error = True, error
        self._changed.set()
