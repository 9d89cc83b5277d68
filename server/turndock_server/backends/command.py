"""A backend that is a program: one process a turn, JSON Lines on its standard input and output.

The language is described in `turndock_server.backends.command_lines`. The program gets the prompt as its first line
of input and says what happens, one line each; its turn ends with `result`, `error` or `paused`, or with the program:
without one of these, exit code 0 means that nothing terminal came, any other fails the turn with `command_failed` and
the end of what it wrote to standard error. It has two seconds to leave after it has ended its turn.

Every way of ending a turn ends the program and whatever is left of its process group: SIGTERM, then SIGKILL. The
conversation itself is the program's to keep, under its `provider_session_id` or in the state it gives with `accepted`.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import Field, model_validator

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
from turndock.errors import TurndockError, not_found
from turndock.ports import Backend, CheckpointRejected, Rejected, TurnContext, TurnOutput
from turndock.types.v1 import Failure, ToolApprovalRequested
from turndock_server.backends import command_lines as lines
from turndock_server.backends.sessions import Config, State, parse_config, renamed
from turndock_server.processes import GRACE_S, Child, TooLong, base_environment, exit_text, read_lines

_TERMINALS: Final = (Result, Failure, Paused)
_STDERR_BYTES: Final = 800
_MAX_SESSION_BYTES: Final = 1 << 20

AnswerT = TypeVar("AnswerT")


class Reference(Config):
    """Where a value is that must not be written down: exactly one of the two."""

    env: str | None = None
    """Name of an environment variable of the host."""
    file: str | None = None
    """Path of a file; a line end at its end does not count."""

    @model_validator(mode="after")
    def _one(self) -> Reference:
        if (self.env is None) == (self.file is None):
            raise ValueError("name either `env` or `file`")
        return self

    def read(self) -> str:
        """The value. Raises `OSError` when it is not there."""
        if self.file is not None:
            return Path(self.file).read_text().removesuffix("\n")
        try:
            return os.environ[self.env or ""]
        except KeyError:
            raise OSError(f"environment variable {self.env} is not set") from None


class CommandConfig(Config):
    """Which program takes the turns."""

    argv: list[str] = Field(min_length=1)
    """The program and its arguments. No shell reads them."""
    env: dict[str, Reference] = Field(default_factory=dict[str, Reference])
    """Its environment beside the few variables every child inherits (`PATH`, `HOME`, language), by reference only."""
    cwd: str | None = None
    """Where it works. Unset: where the host does."""


class _NoConfig(Config):
    """An agent has nothing to say about a program the operator chose."""


class CommandState(State):
    """What is remembered between turns."""

    config: CommandConfig | None = None
    """The agent's program; None if it is the operator's."""
    state: Any = None
    """The program's own, as its last `accepted` gave it."""


class CommandBackend(Backend):
    """Runs a program for every turn.

    With a `command` that is the program of every agent, and an agent's configuration is empty. Without one each agent
    brings its own: whoever may start agents may then run any program as the host's user.
    """

    def __init__(
        self, command: CommandConfig | None = None, *, max_line_bytes: int = 1 << 20, grace_s: float = GRACE_S
    ) -> None:
        self._command = command
        self._max_line_bytes = max_line_bytes
        self._grace_s = grace_s
        self._talks: dict[str, _Talk] = {}

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse(session=self._configured(request.config_json).session())

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        configured = self._configured(request.config_json)
        if (
            request.session.data
        ):  # Otherwise the provider's name for the conversation is all the program gets.
            state = CommandState.of(request.session).state
            configured = configured.model_copy(update={"state": state})
        return ResumeSessionResponse(session=configured.session(request.session.provider_session_id))

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        state = CommandState.of(request.session)
        child = await self._started(state)
        talk = _Talk(child, state, request.session.provider_session_id, turn)
        self._talks[request.turn_token] = talk
        ended = False
        try:
            child.write(lines.prompt_line(request, state.state))
            async with aclosing(talk.outputs(self._max_line_bytes)) as batches:
                async for outputs in batches:
                    ended = isinstance(outputs[-1], _TERMINALS)
                    yield outputs
            if not ended:
                await child.exits_within(self._grace_s)
                if failure := await talk.failure():
                    yield failure
        finally:
            self._talks.pop(request.turn_token, None)
            try:
                if ended:
                    child.close_stdin()
                    await child.exits_within(self._grace_s)
            finally:
                await child.stop(self._grace_s)

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        talk = self._talks.get(request.turn_token)
        if talk is None:
            raise not_found("turn", request.turn_token)
        talk.interrupted = True
        await talk.child.stop(self._grace_s)
        return InterruptResponse()

    async def checkpoint_session(self, request: CheckpointSessionRequest) -> CheckpointSessionResponse:
        return CheckpointSessionResponse(session=renamed(request.session, request.provider_session_id))

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        return UpdateSessionResponse(session=renamed(request.session, request.result.provider_session_id))

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()

    def _configured(self, config_json: str) -> CommandState:
        """A fresh state for an agent; its program is known to exist. Raises `TurndockError`."""
        if self._command is not None:
            parse_config(_NoConfig, config_json)
            _check(self._command)
            return CommandState()
        config = parse_config(CommandConfig, config_json)
        _check(config)
        return CommandState(config=config)

    async def _started(self, state: CommandState) -> Child:
        command = self._command or state.config
        try:
            if command is None:
                raise OSError("no program is configured for this agent")
            environment = _environment(command)
            return await Child.start(command.argv, environment=environment, cwd=command.cwd)
        except OSError as error:
            raise Rejected(Failure(reason="command_not_started", message=str(error))) from error


class _Talk:
    """One program at work on one prompt."""

    def __init__(
        self, child: Child, state: CommandState, provider_session_id: str, turn: TurnContext
    ) -> None:
        self.child = child
        self.interrupted = False
        self._state = state
        self._provider_session_id = provider_session_id
        self._turn = turn
        self._spoken = False
        self._complaints = asyncio.ensure_future(_tail(child.stderr))

    async def outputs(self, max_line_bytes: int) -> AsyncGenerator[list[TurnOutput]]:
        """What the program says, up to its terminal or its end."""
        async for batch in read_lines(self.child.stdout, max_line_bytes):
            outputs: list[TurnOutput] = []
            for line in batch:
                heard = self._hear(line)
                if isinstance(heard, lines.CheckpointAsked | ToolApprovalRequested):
                    if outputs:
                        yield outputs
                        outputs = []
                    await self._answer(heard)
                elif heard is not None:
                    self._spoken = True
                    outputs.append(heard)
                    if isinstance(heard, _TERMINALS):
                        yield outputs
                        return
            if outputs:
                yield outputs

    async def failure(self) -> Failure | None:
        """Why the program ended without a terminal; None if it ended well, or has only closed its output."""
        code = self.child.returncode
        if self.interrupted:
            return events.error("interrupted")
        if not code:
            return None
        complaint = (await self._complaints).strip()
        message = f"the program {exit_text(code)}" + (f": {complaint}" if complaint else "")
        details = {"exit_code": code} if code > 0 else {"signal": -code}
        return Failure(reason="command_failed", message=message, details_json=jsontext.canonical(details))

    def _hear(self, line: bytes | TooLong) -> TurnOutput | lines.Question | None:
        """What a line says to the host. Raises `Rejected`."""
        try:
            heard = lines.read(line)
        except lines.Unanswerable as error:
            return Failure(reason="invalid_line", message=str(error))
        if isinstance(heard, lines.Rejection):
            if not self._spoken:
                raise Rejected(heard.failure)
            return heard.failure
        if isinstance(heard, lines.Accepted):
            return self._accept(heard)
        return heard

    def _accept(self, accepted: lines.Accepted) -> TurnOutput | None:
        state = CommandState(config=self._state.config, state=accepted.state)
        session = state.session(accepted.provider_session_id or self._provider_session_id)
        if self._spoken:
            return lines.trouble("invalid_line", "`accepted` must come once, before anything is said")
        if len(session.data) > _MAX_SESSION_BYTES:
            return lines.trouble(
                "invalid_line", f"the session's state is larger than {_MAX_SESSION_BYTES} bytes"
            )
        self._spoken = True
        self._turn.accept(session)
        return None

    async def _answer(self, question: lines.Question) -> None:
        if isinstance(question, ToolApprovalRequested):
            decision = await self._while_it_runs(self._turn.approval(question))
            if decision is not None:
                self.child.write(lines.approval_answer(decision))
            return
        name = question.provider_session_id
        try:
            await self._turn.checkpoint(name)
        except CheckpointRejected as refusal:
            self.child.write(lines.checkpoint_answer(name, refusal.reason))
            raise
        self.child.write(lines.checkpoint_answer(name))

    async def _while_it_runs(self, answer: Awaitable[AnswerT]) -> AnswerT | None:
        """The answer, or None if the program ends before it comes."""
        answering = asyncio.ensure_future(answer)
        ending = asyncio.ensure_future(self.child.wait())
        try:
            await asyncio.wait((answering, ending), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            answering.cancel()
            ending.cancel()


async def _tail(reader: asyncio.StreamReader) -> str:
    """The end of what a program complains, read to its end."""
    tail = b""
    while chunk := await reader.read(1 << 16):
        tail = (tail + chunk)[-_STDERR_BYTES:]
    text = jsontext.repair_text(tail.decode(errors="replace"))
    return text.encode()[-_STDERR_BYTES:].decode(errors="ignore")


def _environment(command: CommandConfig) -> dict[str, str]:
    return base_environment() | {name: reference.read() for name, reference in command.env.items()}


def _check(command: CommandConfig) -> None:
    """Say at once what would make every turn fail."""
    try:
        environment = _environment(command)
    except (OSError, ValueError) as error:
        raise TurndockError("BACKEND_START_FAILED", f"env: {error}") from error
    program = command.argv[0]
    if os.sep in program:
        program = os.path.join(command.cwd or "", program)
    if shutil.which(program, path=environment.get("PATH")) is None:
        raise TurndockError("BACKEND_START_FAILED", f"there is no program {shlex.quote(program)}")
