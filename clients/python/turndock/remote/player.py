"""What a remote turn says, played to the host: outputs to be yielded, questions to be answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from turndock.backend.v1 import (
    AnswerApprovalRequest,
    AnswerCheckpointRequest,
    Checkpoint,
    PromptRequest,
    TurnItem,
)
from turndock.errors import Code, TurndockError
from turndock.ports import BackendLost, CheckpointRejected, Rejected, TurnContext, TurnOutput
from turndock.remote.calls import Unary
from turndock.types.v1 import Scope, ToolApprovalRequested


@dataclass(frozen=True, slots=True)
class Approvals:
    """Approvals a turn asked for at once, which are put to the host at once."""

    requests: list[ToolApprovalRequested]


Question = Checkpoint | Approvals
"""What a turn waits for."""

_INTERRUPTING: Final = (Checkpoint, ToolApprovalRequested, Rejected)
"""What is dealt with after all that came before it."""

_TERMINALS: Final = frozenset(("result", "error", "paused"))


class Answers(Protocol):
    """The calls that answer a turn."""

    answer_checkpoint: Unary[AnswerCheckpointRequest, Any]
    answer_approval: Unary[AnswerApprovalRequest, Any]


class Player:
    """One turn's items on their way to its `TurnContext`."""

    def __init__(self, answers: Answers, request: PromptRequest, turn: TurnContext) -> None:
        self.ended = False
        """Whether the terminal was seen."""
        self._answers = answers
        self._token = request.turn_token
        self._scope: Scope | None = request.scope if request.HasField("scope") else None
        self._turn = turn
        self._accepted = False
        self._rejection: CheckpointRejected | None = None

    def steps(self, items: Sequence[TurnItem]) -> Iterator[list[TurnOutput] | Question]:
        """Outputs to yield and questions to answer, in the order of the items.

        Raises `Rejected`, and `BackendLost` when the first item is none a turn may begin with.
        """
        outputs: list[TurnOutput] = []
        approvals: list[ToolApprovalRequested] = []
        for item in items:
            # Events first and by themselves, since nearly all items are: what else there is, is looked for in order.
            if self._accepted and not approvals and item.HasField("event"):
                outputs.append(item.event)
                continue
            said = self._hear(item)
            if said is None:
                continue
            if approvals and not isinstance(said, ToolApprovalRequested):
                yield Approvals(approvals)
                approvals = []
            if isinstance(said, _INTERRUPTING) and outputs:
                yield outputs
                outputs = []
            if isinstance(said, Rejected):
                raise said
            if isinstance(said, Checkpoint):
                yield said
            elif isinstance(said, ToolApprovalRequested):
                approvals.append(said)
            else:
                outputs.append(said)
                if self.ended:
                    break
        if approvals:
            yield Approvals(approvals)
        if outputs:
            yield outputs

    def _hear(self, item: TurnItem) -> TurnOutput | Checkpoint | ToolApprovalRequested | Rejected | None:
        """What an item says; None if that is nothing for the host. Members of a newer release are passed over."""
        kind = item.WhichOneof("item")
        if kind == "event" and self._accepted:
            return item.event
        if kind == "accepted":
            self._accepted = True
            if item.accepted.HasField("session"):
                self._turn.accept(item.accepted.session)
            return None
        if kind is None:
            return None
        if kind == "rejected":
            return Rejected(item.rejected)
        if not self._accepted:
            raise BackendLost(f"the backend's turn began with {kind} instead of accepted or rejected")
        self.ended = kind in _TERMINALS
        said: TurnOutput | Checkpoint | ToolApprovalRequested = getattr(item, kind)
        return said

    async def answer(self, question: Question) -> None:
        """Put a question to the host and its answer to the backend."""
        if isinstance(question, Checkpoint):
            await self._checkpoint(question)
        elif len(question.requests) == 1:
            await self._approval(question.requests[0])
        else:
            asked = [asyncio.create_task(self._approval(request)) for request in question.requests]
            try:
                await asyncio.gather(*asked)
            finally:
                for task in asked:
                    task.cancel()

    def end(self) -> None:
        """The stream ended without a terminal. Raises `CheckpointRejected` if that was why."""
        if self._rejection is not None:
            raise self._rejection

    async def _checkpoint(self, checkpoint: Checkpoint) -> None:
        answer = AnswerCheckpointRequest(turn_token=self._token, id=checkpoint.id, scope=self._scope)
        try:
            await self._turn.checkpoint(checkpoint.provider_session_id)
            answer.ok = True
        except CheckpointRejected as rejected:
            # The turn fails for that reason whatever follows; what the backend does about it is its affair.
            self._rejection = rejected
            answer.reason = rejected.reason
        await self._send("checkpoint", self._answers.answer_checkpoint(answer))

    async def _approval(self, request: ToolApprovalRequested) -> None:
        decision = await self._turn.approval(request)
        answer = AnswerApprovalRequest(turn_token=self._token, decision=decision, scope=self._scope)
        answer.decision.approval_id = request.approval_id
        await self._send("approval", self._answers.answer_approval(answer))

    async def _send(self, what: str, call: Coroutine[Any, Any, Any]) -> None:
        try:
            await call
        except TurndockError as error:
            if error.code is not Code.NOT_FOUND:  # else the turn has ended meanwhile, as its stream will say
                raise BackendLost(f"the {what} could not be answered: {error}") from None
