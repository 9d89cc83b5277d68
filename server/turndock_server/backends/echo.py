"""A backend that says what it hears: for first steps, and for looking at everything around it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from pydantic import Field

from turndock import events
from turndock.backend.v1 import (
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
from turndock.ports import Backend, TurnContext, TurnOutput
from turndock_server.backends.sessions import Config, State, parse_config, renamed

_WORD = re.compile(r"\S+\s*|\s+")
_AT_ONCE = 256


class EchoConfig(Config):
    """How an agent's echo speaks."""

    delay_ms: int = Field(default=0, ge=0, le=60_000)
    """Milliseconds before each word, so that a person can watch or interrupt a turn."""


class EchoState(State):
    """What an echo remembers."""

    config: EchoConfig = EchoConfig()
    turns: int = 0


class EchoBackend(Backend):
    """Answers a prompt with its own words, one piece of text each. A word counts as a token."""

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        state = EchoState(config=parse_config(EchoConfig, request.config_json))
        return StartSessionResponse(session=state.session())

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        config = parse_config(EchoConfig, request.config_json)
        state = EchoState.resumed(request.session).model_copy(update={"config": config})
        return ResumeSessionResponse(session=state.session(request.session.provider_session_id))

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        state = EchoState.of(request.session)
        provider_session_id = request.session.provider_session_id or f"echo-{request.session_id}"
        turn.accept(
            state.model_copy(update={"turns": state.turns + 1}).session(request.session.provider_session_id)
        )
        words: list[TurnOutput] = [*_WORD.findall(request.prompt)]
        if state.config.delay_ms:
            for word in words:
                await asyncio.sleep(state.config.delay_ms / 1000)
                yield word
        else:
            for start in range(0, len(words), _AT_ONCE):
                yield words[start : start + _AT_ONCE]
        tokens = len(request.prompt.split())
        yield events.usage(tokens, tokens, model="echo")
        yield events.result(request.prompt, provider_session_id=provider_session_id, stop_reason="stop")

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        return UpdateSessionResponse(session=renamed(request.session, request.result.provider_session_id))

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()
