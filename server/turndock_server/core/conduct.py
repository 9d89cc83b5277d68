"""One agent's behavior and the state it keeps: every call to it, and what a call that fails means.

A behavior never breaks a turn. A hook that raises, takes too long or answers nonsense is logged and counts as what its
method below says; its change of state is dropped. A hook that turns out to be absent is passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from turndock import events, jsontext
from turndock.behavior.v1 import (
    Decision,
    HandleErrorRequest,
    HandleErrorResponse,
    HandleEventRequest,
    HandleEventResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    HandleStreamEventRequest,
    Noreply,
    PostRunRequest,
    PostTurnRequest,
    PostTurnResponse,
    PreRunRequest,
    PreToolRequest,
    PreToolResponse,
    PreTurnRequest,
    PreTurnResponse,
    RequireApproval,
    TerminateAgentRequest,
)
from turndock.errors import TurndockError, invalid, is_not_offered
from turndock.ports import Behavior
from turndock.types.v1 import Event, Failure, Response, Run, Scope, Session, ToolApprovalRequested
from turndock_server.core.behavior_calls import BehaviorAway, BehaviorCalls

log = logging.getLogger(__name__)

NOREPLY = Decision(noreply=Noreply())
_TITLED = (HandleResponseResponse, HandleErrorResponse, HandleEventResponse, PostTurnResponse)
"""The answers that may carry a title."""
MAX_STATE_BYTES = 1 << 20
LAST_WORD_S = 10.0
"""How long an agent that ends waits for its behavior to say good-bye."""


class _Answer(Protocol):
    """Every answer of a behavior may carry a new state."""

    state_json: str

    def HasField(self, field_name: Any, /) -> bool: ...  # protobuf's own name


class _Request(Protocol):
    """Every request carries the state, but for the one that makes an agent."""

    state_json: str


Q = TypeVar("Q", bound=_Request)
A = TypeVar("A", bound=_Answer)


class _Absent(Exception):
    """The behavior does not offer the hook after all."""


class _Failed(Exception):
    """The hook failed, and the log says how."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `pre_turn` makes of a run."""

    prompt: str
    failure: Failure | None = None
    """Set when the turn does not take place."""
    halt: bool = False
    denied: bool = False
    """Whether it may not take place, so that the log has to say so."""
    approval: ToolApprovalRequested | None = None
    """Set when a person has to agree first; `prompt` is then what the backend gets if nothing else is said."""


class Conduct:
    """Calls one agent's behavior; without one, every decision is NOREPLY."""

    __slots__ = (
        "_agent_name",
        "_behavior",
        "_calls",
        "_lock",
        "_max_prompt_bytes",
        "_scope",
        "_session_id",
        "_start_id",
        "_title",
        "state_json",
    )

    def __init__(
        self,
        behavior: Behavior | None,
        calls: BehaviorCalls,
        scope: Scope | None,
        session: Session,
        *,
        max_prompt_bytes: int,
    ) -> None:
        self._behavior = behavior
        self._calls = calls
        self._lock: asyncio.Lock | None = None
        self._max_prompt_bytes = max_prompt_bytes
        self._scope = scope
        self._session_id = session.id
        self._agent_name = session.agent.definition.agent_name
        self._start_id = session.agent.start_request_id
        self._title: str | None = None
        self.state_json = session.agent.state_json

    def take_title(self) -> str | None:
        """The title the behavior has given the conversation since this was last asked; None = none."""
        title, self._title = self._title, None
        return title

    @property
    def present(self) -> bool:
        """Whether there is a behavior at all."""
        return self._behavior is not None

    @property
    def observes(self) -> bool:
        """Whether the behavior wants to see a turn's events."""
        return self._offers("handle_stream_event")

    async def pre_run(self) -> Failure | None:
        """Before the first turn. Unlike every other hook, one that fails ends the agent."""
        if self._behavior is None or not self._offers("pre_run"):
            return None
        request = PreRunRequest(**self._about(f"{self._start_id}/pre_run"))
        try:
            answer = await self._calls.make(self._behavior.pre_run, request)
            self._keep_state("pre_run", answer)
        except BehaviorAway:
            raise
        except TurndockError as error:
            if is_not_offered(error):
                return None
            return Failure(reason=error.reason.lower(), message=error.message)
        except Exception as error:
            log.exception("pre_run of agent %s raised", self._agent_name)
            return Failure(reason="pre_run_raised", message=f"{type(error).__name__}: {error}"[:1024])
        return answer.failure if answer.HasField("failure") else None

    async def pre_turn(self, run: Run) -> Verdict:
        """Before each turn. A raise is a skip; an answer without a meaning is `pre_turn_invalid`."""
        if self._behavior is None or not self._offers("pre_turn"):
            return Verdict(run.prompt)
        request = PreTurnRequest(**self._about(f"{run.id}/{run.attempt}/pre_turn"), run=run)
        try:
            answer = await self._made("pre_turn", self._behavior.pre_turn, request)
        except _Absent:
            return Verdict(run.prompt)
        except _Failed:
            return _no_turn(run, "pre_turn_skipped", "the pre_turn hook failed")
        return self._verdict(run, answer)

    @property
    def judges_tools(self) -> bool:
        """Whether the behavior wants to be asked about tool calls."""
        return self._offers("pre_tool")

    async def pre_tool(self, run: Run, call: ToolApprovalRequested) -> PreToolResponse | None:
        """Before a tool runs, in the middle of a turn. None if the behavior has nothing to say, or failed to."""
        if self._behavior is None or not self.judges_tools:
            return None
        which = call.approval_id or call.tool_call_id or events.new_id()
        request = PreToolRequest(
            **self._about(f"{run.id}/{run.attempt}/{which}/pre_tool"),
            run_id=run.id,
            attempt=run.attempt,
            call=call,
        )
        return await self._call("pre_tool", self._behavior.pre_tool, request)

    async def observe(self, run: Run, seen: Sequence[Event]) -> None:
        """During a turn, in the events' order."""
        if self._behavior is None or not self.observes:
            return
        request = HandleStreamEventRequest(
            **self._about(f"{seen[0].id}/seen"), run_id=run.id, attempt=run.attempt, events=seen
        )
        await self._call("handle_stream_event", self._behavior.handle_stream_event, request)

    async def respond(self, run: Run, response: Response) -> Decision:
        """After a turn that succeeded. A raise is NOREPLY."""
        if self._behavior is None:
            return NOREPLY
        request = HandleResponseRequest(
            **self._about(f"{run.id}/response"), run=_without_outcome(run), response=response
        )
        answer = await self._call("handle_response", self._behavior.handle_response, request)
        return answer.decision if answer else NOREPLY

    async def fail(self, run: Run, failure: Failure) -> Decision:
        """After a turn that failed. A raise is NOREPLY."""
        if self._behavior is None or not self._offers("handle_error"):
            return NOREPLY
        request = HandleErrorRequest(
            **self._about(f"{run.id}/error"), run=_without_outcome(run), failure=failure
        )
        answer = await self._call("handle_error", self._behavior.handle_error, request)
        return answer.decision if answer else NOREPLY

    async def handle(self, notification: Event, *, halted: bool) -> Decision:
        """A notification. A raise drops it and its change of state."""
        if self._behavior is None or not self._offers("handle_event"):
            return NOREPLY
        request = HandleEventRequest(
            **self._about(notification.id),
            payload_json=notification.custom.data_json,
            sequence=notification.sequence,
            time_us=notification.time_us,
            halted=halted,
        )
        answer = await self._call("handle_event", self._behavior.handle_event, request)
        return answer.decision if answer else NOREPLY

    async def post_turn(
        self, run: Run, response: Response | None, failure: Failure | None, decision: Decision
    ) -> None:
        """After the decision; can change the state, not what follows."""
        if self._behavior is None or not self._offers("post_turn"):
            return
        request = PostTurnRequest(
            **self._about(f"{run.id}/post_turn"),
            run=_without_outcome(run),
            response=response,
            failure=failure,
            decision=decision,
        )
        await self._call("post_turn", self._behavior.post_turn, request)

    async def post_run(self, reason: str, run_id: str, cause: str) -> None:
        """Once for each time the agent halts; `cause` is the id of the run or notification that made it."""
        if self._behavior is None or not self._offers("post_run"):
            return
        request = PostRunRequest(**self._about(f"{cause}/post_run"), reason=reason, run_id=run_id)
        await self._call("post_run", self._behavior.post_run, request)

    async def terminate(self, reason: str, failure: Failure | None = None) -> None:
        """The agent ends."""
        if self._behavior is None or not self._offers("terminate_agent"):
            return
        request = TerminateAgentRequest(
            **self._about(f"{self._start_id}/terminate"), reason=reason, failure=failure
        )
        try:
            await self._calls.once(self._behavior.terminate_agent, request, within_s=LAST_WORD_S)
        except Exception as error:
            if not is_not_offered(error):
                log.exception("terminate_agent of agent %s raised", self._agent_name)

    def _verdict(self, run: Run, answer: PreTurnResponse) -> Verdict:
        verdict = _no_turn(run, "pre_turn_invalid", "the pre_turn hook answered nothing that has a meaning")
        match answer.WhichOneof("answer"):
            case "proceed":
                verdict = Verdict(run.prompt)
            case "rewrite":
                verdict = Verdict(jsontext.repair_text(answer.rewrite.prompt))
            case "skip":
                verdict = _no_turn(run, "pre_turn_skipped", answer.skip.reason)
            case "halt":
                halted = Failure(reason="pre_turn_halted", message=answer.halt.reason)
                verdict = Verdict(run.prompt, halted, halt=True)
            case "deny":
                verdict = Verdict(run.prompt, denial(answer.deny.failure, "pre_turn_denied"), denied=True)
            case "require_approval":
                verdict = _if_approved(run, answer.require_approval)
            case _:
                pass
        return verdict

    @property
    def _one_at_a_time(self) -> asyncio.Lock:
        # Made when it is needed: an idle agent must cost next to nothing.
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    def _offers(self, call: str) -> bool:
        return self._behavior is not None and call in self._behavior.capabilities

    def _about(self, request_id: str) -> dict[str, Any]:
        return {
            "scope": self._scope,
            "request_id": request_id,
            "session_id": self._session_id,
            "agent_name": self._agent_name,
            "state_json": self.state_json,
        }

    async def _call(self, hook: str, call: Callable[[Q], Awaitable[A]], request: Q) -> A | None:
        """The hook's answer with its state kept; None if it failed or is absent."""
        try:
            return await self._made(hook, call, request)
        except (_Absent, _Failed):
            return None

    async def _made(self, hook: str, call: Callable[[Q], Awaitable[A]], request: Q) -> A:
        """The hook's answer with its state kept. Raises `_Absent`, `_Failed`, `BehaviorAway`."""
        try:
            # During a turn two may come at once, and each must be given the state the other left.
            async with self._one_at_a_time:
                request.state_json = self.state_json
                answer = await self._calls.make(call, request)
                self._check(hook, answer)
                self._keep_state(hook, answer)
        except BehaviorAway:
            raise
        except Exception as error:
            if is_not_offered(error):
                raise _Absent from error
            log.warning("%s of agent %s failed", hook, self._agent_name, exc_info=True)
            raise _Failed from error
        return answer

    def _check(self, hook: str, answer: object) -> None:
        """Refuse an answer that the host could not carry out. Raises `TurndockError` (VALIDATION_ERROR)."""
        if isinstance(answer, HandleResponseResponse | HandleErrorResponse | HandleEventResponse):
            if answer.decision.HasField("prompt"):
                asked = answer.decision.prompt
                self._check_prompt(asked.text, f"{hook}.decision.prompt.text")
                jsontext.check_object(asked.metadata_json, f"{hook}.decision.prompt.metadata_json")
        elif isinstance(answer, PreTurnResponse) and answer.HasField("rewrite"):
            self._check_prompt(answer.rewrite.prompt, f"{hook}.rewrite.prompt")
        elif isinstance(answer, PreTurnResponse) and answer.require_approval.HasField("prompt"):
            self._check_prompt(answer.require_approval.prompt, f"{hook}.require_approval.prompt")
        elif isinstance(answer, PreToolResponse) and answer.HasField("rewrite"):
            jsontext.parse(answer.rewrite.arguments_json, f"{hook}.rewrite.arguments_json")

    def _check_prompt(self, prompt: str, field: str) -> None:
        size = len(prompt.encode())
        if not size:
            raise invalid(field, "must not be empty")
        if size > self._max_prompt_bytes:
            raise invalid(field, f"is {size} bytes; the limit is {self._max_prompt_bytes}")

    def _keep_state(self, hook: str, answer: _Answer) -> None:
        if answer.HasField("state_json"):
            check_state(answer.state_json, f"{hook}.state_json")
            self.state_json = answer.state_json
        if isinstance(answer, _TITLED) and answer.HasField("title"):
            self._title = events.clean_title(answer.title)


def check_state(state_json: str, field: str) -> None:
    """Refuse a state that is no JSON or larger than it may be. Raises `TurndockError` (VALIDATION_ERROR)."""
    if (size := len(state_json.encode())) > MAX_STATE_BYTES:
        raise invalid(field, f"is {size} bytes; the limit is {MAX_STATE_BYTES}")
    jsontext.parse(state_json, field)


def denial(failure: Failure, reason: str) -> Failure:
    """The failure a behavior chose, or one of this reason if it chose none."""
    return failure if failure.reason else Failure(reason=reason, message=failure.message)


def _no_turn(run: Run, reason: str, message: str) -> Verdict:
    return Verdict(run.prompt, Failure(reason=reason, message=message))


def _if_approved(run: Run, wanted: RequireApproval) -> Verdict:
    asked = ToolApprovalRequested()
    asked.CopyFrom(wanted.request)
    prompt = jsontext.repair_text(wanted.prompt) if wanted.HasField("prompt") else run.prompt
    asked.arguments_json = asked.arguments_json or jsontext.canonical({"prompt": prompt})
    return Verdict(prompt, approval=asked)


def _without_outcome(run: Run) -> Run:
    """The run as hooks get it that are told of its outcome beside it."""
    bare = Run()
    bare.CopyFrom(run)
    bare.ClearField("response")
    bare.ClearField("failure")
    return bare
