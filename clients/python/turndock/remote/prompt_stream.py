"""Turns on streams of their own."""

from __future__ import annotations

from collections.abc import Sequence

import grpc.aio

from turndock.backend.v1 import PromptRequest, PromptResponse, TurnItem
from turndock.errors import TurndockError
from turndock.remote.calls import UNAVAILABLE
from turndock.remote.turns import turn_error
from turndock.wire import translated


class PromptStream:
    """The items of one Prompt call."""

    def __init__(self, call: grpc.aio.UnaryStreamCall[PromptRequest, PromptResponse]) -> None:
        self._call = call

    async def next(self) -> Sequence[TurnItem] | None:
        try:
            with translated(unavailable=UNAVAILABLE):
                response = await self._call.read()
        except TurndockError as error:
            raise turn_error(error) from None
        return response.items if isinstance(response, PromptResponse) else None

    def leave(self) -> None:
        self._call.cancel()
