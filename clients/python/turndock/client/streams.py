"""Streams that survive a lost connection: read, and on a break called again from where the reader stands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import grpc.aio

from turndock import wire
from turndock.client.host import Retry, unreachable
from turndock.errors import TurndockError

Message = TypeVar("Message")

OnLost = Callable[[TurndockError], None]
"""Called when the connection is lost, once until it is back, with what is known of the reason."""

OnResumed = Callable[[], None]
"""Called when a lost connection is back, before anything of it is read."""


class ResumedStream(Generic[Message]):
    """The messages of one call after another, until it is closed.

    `open_call` makes a call for the place where the reader stands. After a break the next read makes another one, with
    pauses that grow; so many `tries` without a message in between end it with the last error, None = never. Any error
    but UNAVAILABLE ends it at once. `on_lost` and `on_resumed` are called in the event loop, where they must not block;
    what they raise reaches the reader.
    """

    def __init__(
        self,
        open_call: Callable[[], grpc.aio.UnaryStreamCall[Any, Message]],
        retry: Retry,
        *,
        tries: int | None,
        on_lost: OnLost | None = None,
        on_resumed: OnResumed | None = None,
    ) -> None:
        self._open_call = open_call
        self._retry = retry
        self._tries = tries
        self._on_lost = on_lost
        self._on_resumed = on_resumed
        self._call: grpc.aio.UnaryStreamCall[Any, Message] | None = None
        self._closed = asyncio.Event()
        self._failures = 0
        self._error: TurndockError | None = None

    def close(self) -> None:
        """End the call under way and make no other; whoever reads gets None. Repeatable, from anywhere in the loop."""
        self._closed.set()
        self._hang_up()

    def interrupt(self, error: TurndockError) -> None:
        """The call is of no more use, as when a server says that it stops. Raises the error after the last try."""
        self._hang_up()
        self._failures += 1
        self._error = error
        if self._failures == 1 and self._on_lost is not None:
            self._on_lost(error)
        if self._tries is not None and self._failures >= self._tries:
            raise error

    async def read(self) -> Message | None:
        """The next message; None when it was closed. Raises `TurndockError`."""
        while not self._closed.is_set():
            if self._error is not None:
                await self._pause(self._error)
                continue
            self._call = self._call or self._open_call()
            try:
                message = await _read(self._call)
            except TurndockError as error:
                if self._closed.is_set():
                    break
                if not unreachable(error):
                    self._hang_up()
                    raise
                self.interrupt(error)
            except BaseException:
                self._hang_up()
                raise
            else:
                resumed, self._failures = self._failures > 0, 0
                if resumed and self._on_resumed is not None:
                    self._on_resumed()
                return message
        return None

    async def _pause(self, error: TurndockError) -> None:
        self._error = None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), self._retry.pause(self._failures, error))

    def _hang_up(self) -> None:
        if self._call is not None:
            call, self._call = self._call, None
            call.cancel()


async def _read(call: grpc.aio.UnaryStreamCall[Any, Message]) -> Message:
    with wire.translated():
        message = await call.read()
    if message is grpc.aio.EOF:
        raise TurndockError("UNAVAILABLE", "the server ended the stream before its last message")
    return cast("Message", message)
