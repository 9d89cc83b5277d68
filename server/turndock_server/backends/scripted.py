"""A backend that plays scripts: for tests, load and demonstrations. Their parts: `turndock_server.backends.script`.

Each prompt of a session plays its next script; after the last one, `default`, or else the last one again. A prompt
counts whatever becomes of its turn. Its session is a counter, which a turn that ends by itself leaves one higher.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

from pydantic import Field, TypeAdapter

from turndock import events, jsontext
from turndock.backend.v1 import (
    CheckpointSessionRequest,
    CheckpointSessionResponse,
    InterruptRequest,
    InterruptResponse,
    Paused,
    PromptRequest,
    Result,
    ResumeSessionRequest,
    ResumeSessionResponse,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
    UpdateSessionRequest,
    UpdateSessionResponse,
)
from turndock.errors import TurndockError, not_found, not_offered
from turndock.ports import (
    BACKEND_OPTIONS,
    Backend,
    BackendLost,
    CheckpointRejected,
    Rejected,
    TurnContext,
    TurnOutput,
)
from turndock.types.v1 import Failure
from turndock_server.backends import script as parts
from turndock_server.backends.script import FailureDetail, Script
from turndock_server.backends.sessions import Config, State, parse_config, renamed
from turndock_server.backends.stage import FoldedResult, HeardPrompt, Record, Stage

CallName = Literal[
    "start_session",
    "resume_session",
    "checkpoint_session",
    "update_session",
    "interrupt",
    "terminate_session",
]
_TERMINALS: Final = (Result, Failure, Paused)
_PAUSE_EVERY: Final = 256
"""Batches after which a flood of texts lets others have the processor."""


class ScriptedConfig(Config):
    """What an agent's backend plays."""

    scripts: list[Script] = Field(default_factory=list[Script])
    default: Script | None = None
    """Played when the scripts are used up. Unset: the last one, again."""
    fail: dict[CallName, FailureDetail] = Field(default_factory=dict[CallName, FailureDetail])
    """Calls that fail, and how."""


class ScriptedState(State):
    """What a scripted session carries."""

    n: int = 0
    config: ScriptedConfig = ScriptedConfig()


class ScriptedBackend(Backend):
    """Plays scripts and records what it hears.

    `scripts` serve sessions whose own configuration has none. `without` names optional calls not to offer.
    """

    def __init__(
        self,
        scripts: Sequence[Sequence[Mapping[str, Any]]] = (),
        *,
        without: Collection[str] = (),
        stage: Stage | None = None,
    ) -> None:
        self.stage = stage or Stage()
        self._scripts = TypeAdapter(list[Script]).validate_json(jsontext.canonical(scripts))
        self._without = frozenset(without)
        self._heard: dict[tuple[str | None, str], int] = {}
        self._interrupted: dict[str, asyncio.Event] = {}

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(BACKEND_OPTIONS) - self._without

    @property
    def record(self) -> Record:
        """What happened so far."""
        return self.stage.record

    def release(self, gate: str) -> None:
        """Open a gate, for those who wait and for all who come."""
        self.stage.open(gate)

    async def entered(self, gate: str, times: int = 1) -> None:
        """Wait until turns have come to the gate so many times."""
        await self.stage.entered(gate, times)

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        config = parse_config(ScriptedConfig, request.config_json)
        self.record.started += 1
        self._heard.pop(_key(request), None)
        self._called("start_session", config)
        return StartSessionResponse(session=ScriptedState(config=config).session())

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        config = parse_config(ScriptedConfig, request.config_json)
        self._called("resume_session", config)
        self.record.resumed += 1
        self.stage.changed()
        state = ScriptedState(
            n=ScriptedState.of(request.session).n if request.session.data else 0, config=config
        )
        return ResumeSessionResponse(session=state.session(request.session.provider_session_id))

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        state = ScriptedState.of(request.session)
        self.record.prompts.append(_heard(request, state))
        self.stage.changed()
        script = self._next_script(request, state)
        if isinstance(first := script[0] if script else None, parts.Reject):
            raise Rejected(first.failure())
        turn.accept(
            ScriptedState(n=state.n + 1, config=state.config).session(request.session.provider_session_id)
        )
        interrupted = self._interrupted[request.turn_token] = asyncio.Event()
        ended = False
        try:
            for decision in request.resume.decisions:
                yield parts.outcome(decision)
            for part in script:
                if isinstance(part, parts.Eof):
                    return
                if isinstance(part, parts.Emit):
                    for number, batch in enumerate(part.emit.batches(), start=1):
                        yield batch
                        if number % _PAUSE_EVERY == 0:
                            await asyncio.sleep(0)
                elif (output := await self._perform(part, turn, interrupted)) is not None:
                    ended = isinstance(output, _TERMINALS)
                    yield output
                    if ended:
                        return
        except (asyncio.CancelledError, GeneratorExit):
            if not ended:
                self.record.left += 1
                self.stage.changed()
            raise
        finally:
            self._interrupted.pop(request.turn_token, None)

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        self._called("interrupt")
        self.record.interrupts.append(request.reason)
        self.stage.changed()
        interrupted = self._interrupted.get(request.turn_token)
        if interrupted is None:
            raise not_found("turn", request.turn_token)
        interrupted.set()
        return InterruptResponse()

    async def checkpoint_session(self, request: CheckpointSessionRequest) -> CheckpointSessionResponse:
        self._called("checkpoint_session", ScriptedState.of(request.session).config)
        self.record.checkpoints.append(request.provider_session_id)
        self.stage.changed()
        return CheckpointSessionResponse(session=renamed(request.session, request.provider_session_id))

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        self._called("update_session", ScriptedState.of(request.session).config)
        result = request.result
        self.record.updates.append(
            FoldedResult(
                text=result.text if result.HasField("text") else None,
                provider_session_id=result.provider_session_id,
                stop_reason=result.stop_reason,
                data_json=result.data_json,
            )
        )
        self.stage.changed()
        return UpdateSessionResponse(session=renamed(request.session, result.provider_session_id))

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        self.record.terminated += 1
        self.stage.changed()
        config = None
        with suppress(TurndockError):  # a session it does not know has nothing to release
            config = ScriptedState.of(request.session).config
        self._called("terminate_session", config)
        return TerminateSessionResponse()

    def _called(self, call: CallName, config: ScriptedConfig | None = None) -> None:
        """Refuse the call if it is not offered, or is to fail."""
        if call in self._without:
            raise not_offered(f"Backend.{call}")
        detail = config.fail.get(call) if config else None
        if detail is not None:
            fallback = "BACKEND_START_FAILED" if call == "start_session" else "INTERNAL_ERROR"
            raise TurndockError(detail.reason or fallback, detail.message)

    def _next_script(self, request: PromptRequest, state: ScriptedState) -> Script:
        scripts = state.config.scripts or self._scripts
        key = _key(request)
        position = self._heard.get(key, state.n)
        self._heard[key] = position + 1
        if position < len(scripts):
            return scripts[position]
        if state.config.default is not None:
            return state.config.default
        return scripts[-1] if scripts else []

    async def _perform(
        self, part: parts.Part, turn: TurnContext, interrupted: asyncio.Event
    ) -> TurnOutput | None:
        match part:
            case parts.Said():
                return part.output()
            case parts.Gate():
                return await self._gate(part.gate, interrupted)
            case parts.Checkpoint():
                await turn.checkpoint(part.ckpt)
            case parts.TriedCheckpoint():
                with suppress(CheckpointRejected):
                    await turn.checkpoint(part.ckpt)
            case parts.Approval():
                asked = part.approval.request()
                return parts.outcome(await turn.approval(asked), asked.arguments_json)
            case parts.Lost():
                raise BackendLost(part.lost)
            case parts.Crash():
                raise RuntimeError(part.crash)
            case parts.Reject():
                raise Rejected(part.failure())
            case parts.Emit() | parts.Eof():
                raise AssertionError("is played by `prompt` itself")
        return None

    async def _gate(self, gate: str, interrupted: asyncio.Event) -> TurnOutput | None:
        """Wait at a gate; an interrupted turn does not wait any longer and ends."""
        waits = [asyncio.ensure_future(wait) for wait in (self.stage.pass_gate(gate), interrupted.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return events.error("interrupted") if interrupted.is_set() else None


def _key(request: StartSessionRequest | PromptRequest) -> tuple[str | None, str]:
    return request.scope.tenant if request.HasField("scope") else None, request.session_id


def _heard(request: PromptRequest, state: ScriptedState) -> HeardPrompt:
    return HeardPrompt(
        prompt=request.prompt,
        n=state.n,
        provider_session_id=request.session.provider_session_id,
        session_id=request.session_id,
        agent_name=request.agent_name,
        run_id=request.run_id,
        attempt=request.attempt,
        metadata_json=request.metadata_json,
        decisions=[parts.decision_name(decision) for decision in request.resume.decisions],
    )
