"""A plug-in's backend, which stays the same object whatever becomes of the process behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import cast

from turndock.backend.v1 import (
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
)
from turndock.errors import TurndockError
from turndock.ports import Backend, Rejected, TurnContext, TurnOutput
from turndock.remote import RemoteBackend
from turndock.types.v1 import Failure


class DockedBackend(Backend):
    """Hands every call to the backend the plug-in has now.

    Until the plug-in has answered for the first time, calls raise `TurndockError` (PLUGIN_UNAVAILABLE), and prompts are
    rejected with `plugin_unavailable`.
    """

    def __init__(self, current: Callable[[], RemoteBackend]) -> None:
        self._current = current

    @property
    def capabilities(self) -> frozenset[str]:
        """As the plug-in describes them; none before it has answered."""
        try:
            return self._current().capabilities
        except TurndockError:
            return frozenset()

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        try:
            backend = self._current()
        except TurndockError as error:
            failure = Failure(reason="plugin_unavailable", message=error.message, retryable=True)
            raise Rejected(failure) from error
        outputs = cast(AsyncGenerator[TurnOutput | list[TurnOutput]], backend.prompt(request, turn))
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return await self._current().start_session(request)

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return await self._current().terminate_session(request)

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        return await self._current().interrupt(request)

    async def checkpoint_session(self, request: CheckpointSessionRequest) -> CheckpointSessionResponse:
        return await self._current().checkpoint_session(request)

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        return await self._current().update_session(request)

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        return await self._current().resume_session(request)
