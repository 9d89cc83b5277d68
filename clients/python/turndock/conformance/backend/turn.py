"""One turn of a backend under test: pulled by one task as a host does it, recorded, and ended whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from turndock.backend.v1 import Paused, PromptRequest, Result
from turndock.conformance.claims import ContractBroken, copied, holds
from turndock.ports import Backend, CheckpointRejected, Rejected, TurnOutput
from turndock.types.v1 import (
    ApprovalDecision,
    BackendSession,
    Event,
    EventType,
    Failure,
    ToolApprovalDecided,
    ToolApprovalRequested,
)

TERMINALS: Final = (Result, Failure, Paused)

_GOING: Final = "A turn that cannot go on ends with a Failure, or raises Rejected before anything else"
_STOPPED: Final = "A turn that is stopped ends, and has no last word"

T = TypeVar("T")


async def in_time(call: Awaitable[T], deadline_s: float, sentence: str) -> T:
    """The answer of a call. Fails with the sentence if it does not come within the deadline.

    Not `asyncio.timeout`, which would wait for ever for a call that ignores its cancellation.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait([task], timeout=deadline_s)
        holds(task.done(), f"{sentence} It did not within {deadline_s:g} seconds.")
        return task.result()
    finally:
        task.cancel()


def decided(request: ToolApprovalRequested, decision: ApprovalDecision.ValueType) -> ToolApprovalDecided:
    """What a host says of a request."""
    is_edit = decision == ApprovalDecision.APPROVAL_DECISION_EDIT
    return ToolApprovalDecided(
        approval_id=request.approval_id,
        tool_call_id=request.tool_call_id,
        decision=decision,
        arguments_json=(request.arguments_json or "{}") if is_edit else "",
        feedback="no" if decision == ApprovalDecision.APPROVAL_DECISION_REJECT else "",
    )


class Turn:
    """A turn under way, and the `TurnContext` it speaks to. Use it as a context manager: leaving it ends the turn."""

    def __init__(
        self,
        backend: Backend,
        request: PromptRequest,
        *,
        deadline_s: float,
        stop_s: float,
        refusal: str = "",
        decision: ApprovalDecision.ValueType | None = ApprovalDecision.APPROVAL_DECISION_APPROVE,
    ) -> None:
        self.request = request
        """What the backend was given."""
        self.given = copied(request)
        """The same as it was when it was given."""
        self.outputs: list[TurnOutput] = []
        self.accepted: list[BackendSession] = []
        self.accepted_late = False
        """Whether a session was accepted when something had been said already."""
        self.checkpoints: list[str] = []
        self.requests: list[ToolApprovalRequested] = []
        """What it asked people to decide on while it was open."""
        self.rejection: Failure | None = None
        self._backend = backend
        self._deadline_s = deadline_s
        self._stop_s = stop_s
        self._refusal = refusal
        self._decision = decision
        self._asked = asyncio.Event()
        self._crash: Exception | None = None
        self._spoken = asyncio.Event()
        self._going = asyncio.Event()
        self._pulled_on = asyncio.Event()
        self._leaving = False
        self._task = asyncio.create_task(self._pull(), name=f"conformance turn {request.turn_token}")

    # --- The host's side -------------------------------------------------------------------------------------------

    def accept(self, session: BackendSession) -> None:
        self.accepted_late = self.accepted_late or bool(self.outputs)
        self.accepted.append(copied(session))

    async def checkpoint(self, provider_session_id: str) -> None:
        self.checkpoints.append(provider_session_id)
        if self._refusal:
            raise CheckpointRejected(self._refusal)

    async def approval(self, request: ToolApprovalRequested) -> ToolApprovalDecided:
        self.requests.append(copied(request))
        self._asked.set()
        if self._decision is None:
            await asyncio.Event().wait()  # Nobody answers.
        return decided(request, self._decision or ApprovalDecision.APPROVAL_DECISION_EXPIRED)

    # --- The case's side -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Turn:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task], timeout=min(1.0, self._stop_s))

    @property
    def is_over(self) -> bool:
        """Whether its generator has ended."""
        return self._task.done()

    async def spoken(self) -> None:
        """Wait for its first output. It says nothing more until `go`."""
        await in_time(self._spoken.wait(), self._deadline_s, "A turn must say something, or end.")
        self._check_crash()

    async def asked(self) -> None:
        """Wait until it asks for an approval, saying whatever it says before."""
        self.go()
        await in_time(self._asked.wait(), self._deadline_s, "A turn of an `asking` prompt must ask, or end.")

    def go(self) -> None:
        """Let it say the rest."""
        self._going.set()

    async def go_on(self) -> None:
        """Let it say the rest, and return when its generator is at work on that."""
        self.go()
        await in_time(
            self._pulled_on.wait(), self._deadline_s, "A turn must go on when it is asked for more."
        )

    async def end(self) -> Turn:
        """Let it run to its end. Fails if it does not end, or raises what no turn may raise."""
        self.go()
        await self._wait("A turn must come to its end by itself.", self._deadline_s)
        self._check_crash()
        return self

    async def cancel(self) -> None:
        """Cancel the task that pulls it, and wait for its end."""
        self._task.cancel()
        await self._wait("A turn whose task is cancelled must stop its work and end.", self._stop_s)
        self._check_crash(_STOPPED)

    async def leave(self) -> None:
        """Close its generator after an output, and wait for its end."""
        self._leaving = True
        self.go()
        await self._wait("A turn whose generator is closed must stop its work and end.", self._stop_s)
        self._check_crash(_STOPPED)

    async def drop(self) -> None:
        """Cancel it when it was interrupted: how it ends is nobody's concern, but it ends."""
        self._task.cancel()
        await self._wait("A turn that was interrupted and cancelled must end.", self._stop_s)

    async def _wait(self, sentence: str, limit_s: float) -> None:
        await asyncio.wait([self._task], timeout=limit_s)
        holds(self._task.done(), f"{sentence} It did not within {limit_s:g} seconds.")

    def _check_crash(self, sentence: str = _GOING) -> None:
        if self._crash is not None:
            raise ContractBroken(f"{sentence}; this one raised {type(self._crash).__name__}: {self._crash}")

    # --- What it said ----------------------------------------------------------------------------------------------

    @property
    def terminals(self) -> list[TurnOutput]:
        """The outputs that end a turn."""
        return [output for output in self.outputs if isinstance(output, TERMINALS)]

    @property
    def events(self) -> list[Event]:
        """The outputs that are events. Text that came as `str` is not among them."""
        return [output for output in self.outputs if isinstance(output, Event)]

    @property
    def text(self) -> str:
        """All streamed text, joined with nothing between. Reasoning is no part of it."""
        pieces: list[str] = []
        for output in self.outputs:
            if isinstance(output, str):
                pieces.append(output)
            elif isinstance(output, Event) and output.type == EventType.EVENT_TYPE_MESSAGE_STREAMED:
                pieces.append("" if output.message_streamed.thinking else output.message_streamed.text)
        return "".join(pieces)

    @property
    def answer(self) -> str:
        """The result's text, or else all streamed text."""
        result = self.result()
        return result.text if result.HasField("text") else self.text

    def check_one_terminal(self, what: str = "A turn") -> None:
        """Fail unless exactly one terminal came, and came last; a rejected turn says nothing at all."""
        if self.rejection is not None:
            holds(not self.outputs, f"{what} that raises Rejected must have said nothing before.")
            return
        count = len(self.terminals)
        holds(
            count > 0, f"{what} must end with a terminal (Result, Failure or Paused); it ended without one."
        )
        holds(count == 1, f"{what} must end with exactly one terminal; it said {count}.")
        after = type(self.outputs[-1]).__name__
        holds(
            isinstance(self.outputs[-1], TERMINALS),
            f"{what}'s terminal comes last; something ({after}) came after it.",
        )

    def result(self, what: str = "The turn of an `answering` prompt") -> Result:
        """Its result. Fails if it ended otherwise."""
        if self.rejection is not None:
            raise ContractBroken(f"{what} must end with a Result; it was rejected: {self.rejection.reason}")
        self.check_one_terminal(what)
        terminal = self.outputs[-1]
        if isinstance(terminal, Result):
            return terminal
        told = f"Failure {terminal.reason!r}" if isinstance(terminal, Failure) else "Paused"
        raise ContractBroken(f"{what} must end with a Result; it ended with {told}.")

    async def _pull(self) -> None:
        try:
            stream = self._backend.prompt(self.request, self)
            try:
                async for said in stream:
                    self.outputs += said if isinstance(said, list) else [said]
                    self._spoken.set()
                    await self._going.wait()
                    if self._leaving:
                        break
                    self._pulled_on.set()  # and, without a pause, on into the generator
            finally:
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()
        except Rejected as rejected:
            self.rejection = rejected.failure
        except CheckpointRejected:
            pass  # the refusal it was given, which a backend lets pass
        except Exception as error:  # noqa: BLE001 - whatever a backend raises is a finding, told by `_check_crash`
            self._crash = error
        finally:
            self._spoken.set()
