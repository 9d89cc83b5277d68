"""One turn of a backend that runs in this process for a host elsewhere."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from turndock import jsontext
from turndock.backend.v1 import Paused, PromptRequest, Result
from turndock.errors import TurndockError, invalid
from turndock.events import new_id, type_name
from turndock.ports import Backend, CheckpointRejected, Rejected, TurnOutput
from turndock.serving.outbox import Outbox
from turndock.types.v1 import (
    BackendSession,
    ErrorOccurred,
    Event,
    EventType,
    Failure,
    ToolApprovalDecided,
    ToolApprovalRequested,
)
from turndock.wire import MAX_MESSAGE_BYTES, close_stream

_log = logging.getLogger("turndock.serving")

MAX_ITEM_BYTES: Final = MAX_MESSAGE_BYTES - (64 << 10)
"""Largest item that fits into a message together with its envelope."""

_PIECE_CHARACTERS: Final = 64 << 10
_ENVELOPE_BYTES: Final = 24
_STREAMED: Final = (
    EventType.EVENT_TYPE_MESSAGE_STREAMED
)  # looking an enum's member up costs as much as the event
_REPAIRED: Final = jsontext.canonical({"turndock.repaired": ["message_streamed.text"]})


class Turn:
    """Runs the author's generator and says what it yields; the `TurnContext` the author sees.

    What does not fit into a message is dealt with here, since in process it would have fit: a text is split, any other
    event becomes ERROR_OCCURRED with `event_too_large`, a result a failure `result_too_large`.
    """

    def __init__(self, request: PromptRequest, outbox: Outbox[Any]) -> None:
        self.ended = False
        """Whether a terminal was said."""
        self._request = request
        self._outbox = outbox
        self._joiner = jsontext.TextJoiner()
        self._accepted = False
        self._over = False
        self._session: BackendSession | None = None
        self._checkpoints: dict[str, asyncio.Future[str]] = {}
        self._approvals: dict[str, asyncio.Future[ToolApprovalDecided]] = {}

    # --- What the author sees --------------------------------------------------------------------------------------

    def accept(self, session: BackendSession) -> None:
        if self._accepted:
            raise RuntimeError("accept() comes before the turn's first output")
        self._session = session

    async def checkpoint(self, provider_session_id: str) -> None:
        if self._over:
            raise CheckpointRejected("not_current")
        try:
            provider_session_id.encode()
        except UnicodeEncodeError:
            provider_session_id = ""  # cannot travel; the host refuses this as it would refuse that
        answer = asyncio.get_running_loop().create_future()
        await self._begin(len(provider_session_id))
        checkpoint_id = str(len(self._checkpoints) + 1)
        self._checkpoints[checkpoint_id] = answer
        item = self._outbox.add(len(provider_session_id), urgent=True)
        item.checkpoint.id = checkpoint_id
        item.checkpoint.provider_session_id = provider_session_id
        reason: str = await answer
        if reason:
            raise CheckpointRejected(reason)

    async def approval(self, request: ToolApprovalRequested) -> ToolApprovalDecided:
        if self._over:
            raise RuntimeError("the turn has ended")
        asked = ToolApprovalRequested()
        asked.CopyFrom(request)
        asked.approval_id = asked.approval_id or new_id()
        if asked.approval_id in self._approvals:
            raise RuntimeError(f"approval {asked.approval_id!r} was asked for already")
        size = asked.ByteSize()
        if size > MAX_ITEM_BYTES:
            raise invalid("approval_request", f"is {size} bytes; the limit is {MAX_ITEM_BYTES}")
        answer: asyncio.Future[ToolApprovalDecided] = asyncio.get_running_loop().create_future()
        self._approvals[asked.approval_id] = answer
        await self._begin(size)
        self._outbox.add(size, urgent=True).approval_request.CopyFrom(asked)
        return await answer

    # --- What the host answers -------------------------------------------------------------------------------------

    def answer_checkpoint(self, checkpoint_id: str, reason: str) -> bool:
        """Let the author's `checkpoint` return, or raise if there is a reason. False if nobody asked."""
        return _answer(self._checkpoints, checkpoint_id, reason)

    def answer_approval(self, decision: ToolApprovalDecided) -> bool:
        """Let the author's `approval` return. False if nobody asked."""
        return _answer(self._approvals, decision.approval_id, decision)

    # --- The turn --------------------------------------------------------------------------------------------------

    async def run(self, backend: Backend) -> None:
        """Pull the author's generator to its terminal or its end. Raises TASK_CRASHED if it raised."""
        stream = backend.prompt(self._request, self)
        try:
            async for output in stream:
                if isinstance(output, list):
                    for one in output:
                        await self._say(one)
                        if self.ended:
                            return
                else:
                    await self._say(output)
                    if self.ended:
                        return
            await self._begin(0)
            await self._end_text()
        except Rejected as rejected:
            await self._outbox.room(rejected.failure.ByteSize())
            self._outbox.add(rejected.failure.ByteSize()).rejected.CopyFrom(rejected.failure)
            self.ended = True
        except CheckpointRejected:
            # The host knows: it has said so itself, and fails the turn for that reason.
            await self._begin(0)
        except Exception as error:
            _log.exception(
                "the backend raised in turn %s of run %s", self._request.turn_token, self._request.run_id
            )
            await self._begin(0)
            raise TurndockError("TASK_CRASHED", f"{type(error).__name__}: {error}") from error
        finally:
            await self._leave(stream)

    async def _leave(self, stream: object) -> None:
        self._over = True
        for checkpoint in self._checkpoints.values():
            checkpoint.cancel()
        for approval in self._approvals.values():
            approval.cancel()
        try:
            await close_stream(stream)
        except Exception:  # noqa: BLE001 - the turn has its end already; the author reads of this in the log
            _log.exception("the backend raised while it left turn %s", self._request.turn_token)

    async def _say(self, output: TurnOutput) -> None:
        if isinstance(output, str):
            text = self._joiner.feed(output)
            if text or not output:
                await self._say_text(text)
        elif isinstance(output, Event):
            size = output.ByteSize()
            if size > MAX_ITEM_BYTES:
                output = _too_large(output, size)
                size = output.ByteSize()
            await self._begin(size)
            self._outbox.add(size).event.CopyFrom(output)
        else:
            await self._end_text()
            await self._say_terminal(output)
            self.ended = True

    async def _end_text(self) -> None:
        left = self._joiner.end()
        if left:
            await self._say_text(left)

    async def _say_text(self, text: str) -> None:
        """Say a repaired text, in pieces if it is long."""
        while len(text) > _PIECE_CHARACTERS:
            piece, text = text[:_PIECE_CHARACTERS], text[_PIECE_CHARACTERS:]
            await self._say_text(piece)
        size = _ENVELOPE_BYTES + (len(text) if text.isascii() else len(text.encode()))
        if not (self._accepted and self._outbox.has_room(size)):
            await self._begin(size)
        event = self._outbox.add(size).event
        event.type = _STREAMED
        event.message_streamed.text = text
        if jsontext.REPLACEMENT in text:
            event.metadata_json = _REPAIRED  # as the host marks the repairs of a backend in its own process

    async def _say_terminal(self, output: Result | Failure | Paused) -> None:
        size = output.ByteSize()
        if size > MAX_ITEM_BYTES:
            message = f"the terminal is {size} bytes; the limit is {MAX_ITEM_BYTES}"
            output = Failure(reason="result_too_large", message=message)
            size = output.ByteSize()
        await self._begin(size)
        item = self._outbox.add(size)
        if isinstance(output, Result):
            item.result.CopyFrom(output)
        elif isinstance(output, Failure):
            item.error.CopyFrom(output)
        else:
            item.paused.CopyFrom(output)

    async def _begin(self, size: int) -> None:
        """Wait for room for an item, with the acceptance said before the first."""
        if not self._accepted:
            self._accepted = True
            session = self._session
            await self._outbox.room(session.ByteSize() if session else 0)
            item = self._outbox.add(session.ByteSize() if session else 0)
            if session is None:
                item.accepted.SetInParent()
            else:
                item.accepted.session.CopyFrom(session)
        if not self._outbox.has_room(size):
            await self._outbox.room(size)


def _answer(asked: dict[str, asyncio.Future[Any]], name: str, answer: object) -> bool:
    future = asked.get(name)
    if future is None:
        return False
    if not future.done():
        future.set_result(answer)
    return True


def _too_large(event: Event, size: int) -> Event:
    name = type_name(event.type)
    return Event(
        type=EventType.EVENT_TYPE_ERROR_OCCURRED,
        error_occurred=ErrorOccurred(
            original_type=name,
            failure=Failure(
                reason="event_too_large",
                message=f"an event {name} of {size} bytes was left out; the limit is {MAX_ITEM_BYTES}",
                details_json=jsontext.canonical({"size": size, "limit": MAX_ITEM_BYTES}),
            ),
        ),
    )
