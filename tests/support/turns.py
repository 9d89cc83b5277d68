"""What a test needs to run a backend's turns by itself, without a host."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

from turndock import events, jsontext
from turndock.backend.v1 import (
    Paused,
    PromptRequest,
    Result,
    ResumeSessionRequest,
    StartSessionRequest,
    TerminateSessionRequest,
    UpdateSessionRequest,
)
from turndock.ports import Backend, CheckpointRejected, TurnOutput
from turndock.types.v1 import (
    ApprovalDecision,
    BackendSession,
    Event,
    Failure,
    ToolApprovalDecided,
    ToolApprovalRequested,
)

Decide = Callable[[ToolApprovalRequested], ToolApprovalDecided]


def approve(request: ToolApprovalRequested) -> ToolApprovalDecided:
    return ToolApprovalDecided(
        approval_id=request.approval_id,
        tool_call_id=request.tool_call_id,
        decision=ApprovalDecision.APPROVAL_DECISION_APPROVE,
    )


class RecordingTurn:
    """A TurnContext that keeps what it was told and takes the first checkpoint only."""

    def __init__(self, decide: Decide = approve) -> None:
        self.accepted: BackendSession | None = None
        self.checkpoints: list[str] = []
        self.approvals: list[ToolApprovalRequested] = []
        self._decide = decide

    def accept(self, session: BackendSession) -> None:
        assert self.accepted is None
        self.accepted = session

    async def checkpoint(self, provider_session_id: str) -> None:
        if self.checkpoints and self.checkpoints[0] != provider_session_id:
            raise CheckpointRejected("conflicting_session_id")
        self.checkpoints.append(provider_session_id)

    async def approval(self, request: ToolApprovalRequested) -> ToolApprovalDecided:
        self.approvals.append(request)
        return self._decide(request)


class Conversation:
    """One agent's turns with a backend, as a host would run them."""

    def __init__(self, backend: Backend, *, session_id: str = "ses_1", **config: Any) -> None:
        self.backend = backend
        self.session_id = session_id
        self.config_json = jsontext.canonical(config)
        self.session = BackendSession()
        self.turn = RecordingTurn()
        self.turns = 0

    async def start(self) -> Conversation:
        request = StartSessionRequest(
            session_id=self.session_id, agent_name="ann", config_json=self.config_json
        )
        self.session = (await self.backend.start_session(request)).session
        return self

    async def resume(self, **config: Any) -> Conversation:
        """As after a restart: what was stored, and a configuration that may have changed meanwhile."""
        request = ResumeSessionRequest(
            session_id=self.session_id,
            agent_name="ann",
            config_json=jsontext.canonical(config) if config else self.config_json,
            session=self.session,
        )
        self.session = (await self.backend.resume_session(request)).session
        return self

    def request(self, prompt: str) -> PromptRequest:
        self.turns += 1
        return PromptRequest(
            session=self.session,
            prompt=prompt,
            run_id=f"run_{self.turns}",
            attempt=1,
            turn_token=f"token_{self.turns}",
            session_id=self.session_id,
            agent_name="ann",
        )

    def open(self, request: PromptRequest, turn: RecordingTurn | None = None) -> AsyncGenerator[Any, None]:
        """A turn's outputs, for a test that leaves in the middle of it."""
        self.turn = turn or RecordingTurn()
        return cast(AsyncGenerator[Any, None], self.backend.prompt(request, self.turn))

    async def ask(self, prompt: str, turn: RecordingTurn | None = None) -> list[TurnOutput]:
        """All outputs of a turn that ends by itself; the session is the one after it."""
        return await self.run(self.request(prompt), turn)

    async def run(self, request: PromptRequest, turn: RecordingTurn | None = None) -> list[TurnOutput]:
        outputs: list[TurnOutput] = []
        async with aclosing(self.open(request, turn)) as turn_outputs:
            async for output in turn_outputs:
                outputs.extend(cast(list[TurnOutput], output) if isinstance(output, list) else [output])
                if isinstance(outputs[-1], Result | Failure | Paused):
                    break
        self.session = self.turn.accepted or self.session
        result = outputs[-1] if outputs else None
        if isinstance(result, Result) and "update_session" in self.backend.capabilities:
            update = UpdateSessionRequest(session=self.session, result=result)
            self.session = (await self.backend.update_session(update)).session
        return outputs

    async def terminate(self) -> None:
        await self.backend.terminate_session(TerminateSessionRequest(session=self.session))


def said(outputs: list[TurnOutput]) -> list[Any]:
    """Outputs in short: text as it is, terminals as they are, events by kind."""
    return [events.kind(output) if isinstance(output, Event) else output for output in outputs]


def text(outputs: list[TurnOutput]) -> str:
    """The text of an answer, whether it came bare or, as from another process, in events."""
    pieces = (output.message_streamed.text if isinstance(output, Event) else output for output in outputs)
    return "".join(piece for piece in pieces if isinstance(piece, str))
