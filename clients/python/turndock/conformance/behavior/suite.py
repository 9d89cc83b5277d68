"""The suite of `Behavior` and what its cases get."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

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
    HandleStreamEventResponse,
    InitAgentRequest,
    InitAgentResponse,
    PostRunRequest,
    PostRunResponse,
    PostTurnRequest,
    PostTurnResponse,
    PreRunRequest,
    PreRunResponse,
    PreToolRequest,
    PreToolResponse,
    PreTurnRequest,
    PreTurnResponse,
    TerminateAgentRequest,
    TerminateAgentResponse,
)
from turndock.conformance.cases import Suite
from turndock.conformance.claims import ContractBroken, copied, equal, holds
from turndock.errors import TurndockError
from turndock.ports import BEHAVIOR_OPTIONS, Behavior
from turndock.types.v1 import (
    Event,
    Failure,
    Response,
    Run,
    RunOrigin,
    RunStatus,
    Scope,
    ToolApprovalRequested,
)

MAX_STATE_BYTES: Final = 1 << 20

T = TypeVar("T")

SUITE: Final = Suite["Fixture"]("Behavior", BEHAVIOR_OPTIONS)
case = SUITE.case


@dataclass(frozen=True)
class Story:
    """What happens to the agents of the cases, from whoever wrote the behavior: nothing that it would refuse."""

    config_json: str = "{}"
    """The behavior's configuration: a JSON object."""
    prompts: tuple[str, ...] = ("first", "second")
    """Prompts of turns, in order; at least one."""
    answers: tuple[str, ...] = ("one", "two")
    """What the turns answer, in order, as many as there are prompts."""
    failure: Failure = field(default_factory=lambda: Failure(reason="rate_limited", retryable=True))
    """How a turn may fail."""
    notifications: tuple[str, ...] = ('{"n":1}', '"text"')
    """Payloads of notifications: JSON; at least one."""
    tool: ToolApprovalRequested = field(
        default_factory=lambda: ToolApprovalRequested(
            approval_id="ap-1", tool_call_id="call-1", tool_name="search", arguments_json='{"q":"x"}'
        )
    )
    """A tool call that needs leave."""


@dataclass
class Fixture:
    """What a case gets: a behavior, and a partition of its own."""

    behavior: Behavior
    abilities: frozenset[str]
    story: Story = field(default_factory=Story)
    deadline_s: float = 10.0
    """Longest a call may take."""
    scope: Scope = field(default_factory=lambda: Scope(tenant=f"conformance-{uuid.uuid4().hex}"))

    async def start(self, name: str = "ann") -> Agent:
        """A new agent."""
        agent = Agent(self, name)
        await agent.init()
        return agent

    async def answered(self, name: str, call: Awaitable[T]) -> T:
        """A call's answer, within the deadline."""
        try:
            async with asyncio.timeout(self.deadline_s):
                return await call
        except TimeoutError:
            raise ContractBroken(f"{name} must answer; it had {self.deadline_s:g} seconds.") from None


class Agent:
    """One agent as a host has it: its state, and the calls that a host makes about it."""

    def __init__(self, fixture: Fixture, name: str = "ann") -> None:
        self.session_id = f"ses-{uuid.uuid4().hex}"
        self.name = name
        self.state_json = ""
        self._fixture = fixture
        self._calls = 0
        self._decided: list[tuple[HandleResponseRequest, HandleResponseResponse]] = []

    @property
    def behavior(self) -> Behavior:
        """The behavior under test."""
        return self._fixture.behavior

    def about(self, name: str) -> dict[str, Any]:
        """What every request carries."""
        self._calls += 1
        return {
            "scope": self._fixture.scope,
            "request_id": f"{self.session_id}/{name}/{self._calls}",
            "session_id": self.session_id,
            "agent_name": self.name,
            "state_json": self.state_json,
        }

    def init_request(self, restored: str | None = None) -> InitAgentRequest:
        """The request that makes it."""
        about = self.about("init")
        del about["state_json"]
        return InitAgentRequest(
            **about,
            config_json=self._fixture.story.config_json,
            backend_config_json="{}",
            restored_state_json=restored,
        )

    async def init(self, restored: str | None = None) -> InitAgentResponse:
        """Make it, or make it again from what is left of it."""
        request = self.init_request(restored)
        answer = await self._answered("InitAgent", self.behavior.init_agent(request))
        self.state_json = answer.state_json if answer.HasField("state_json") else restored or "{}"
        return answer

    def run(self, number: int, status: RunStatus.ValueType) -> Run:
        """A run of the story."""
        prompts = self._fixture.story.prompts
        return Run(
            id=f"run-{number}",
            session_id=self.session_id,
            status=status,
            origin=RunOrigin.RUN_ORIGIN_ASK,
            prompt=prompts[(number - 1) % len(prompts)],
            attempt=1,
        )

    def response_request(self, number: int) -> HandleResponseRequest:
        """That the turn of this number, which counts from 1, succeeded."""
        answers = self._fixture.story.answers
        text = answers[(number - 1) % len(answers)]
        return HandleResponseRequest(
            **self.about("response"),
            run=self.run(number, RunStatus.RUN_STATUS_COMPLETED),
            response=Response(text=text),
        )

    async def respond(self, number: int = 1) -> HandleResponseResponse:
        """Have it decide what follows a turn that succeeded."""
        request = self.response_request(number)
        asked = copied(request)
        answer = self._kept(await self._answered("HandleResponse", self.behavior.handle_response(request)))
        self._decided.append((asked, copied(answer)))
        return answer

    async def same_by_itself(self) -> None:
        """Fail unless everything it was answered with is answered again when it is asked alone."""
        for request, before in self._decided:
            call = self.behavior.handle_response(copied(request))
            equal(
                await self._answered("HandleResponse", call),
                before,
                "An answer must follow from the request, and not from what other agents do.",
            )

    def error_request(self, failure: Failure, status: RunStatus.ValueType) -> HandleErrorRequest:
        """That a turn failed."""
        return HandleErrorRequest(**self.about("error"), run=self.run(1, status), failure=failure)

    async def fail(
        self, failure: Failure | None = None, status: RunStatus.ValueType = RunStatus.RUN_STATUS_FAILED
    ) -> HandleErrorResponse:
        """Have it decide what follows a turn that failed."""
        request = self.error_request(failure or self._fixture.story.failure, status)
        return self._kept(await self._answered("HandleError", self.behavior.handle_error(request)))

    def event_request(self, payload_json: str) -> HandleEventRequest:
        """That somebody notified it."""
        about = self.about("event")
        return HandleEventRequest(
            **about, payload_json=payload_json, sequence=self._calls, time_us=events.now_us()
        )

    async def hear(self, payload_json: str) -> HandleEventResponse:
        """Have it take a notification."""
        request = self.event_request(payload_json)
        return self._kept(await self._answered("HandleEvent", self.behavior.handle_event(request)))

    async def see(self, seen: Sequence[Event]) -> HandleStreamEventResponse:
        """Show it events of a turn."""
        request = HandleStreamEventRequest(**self.about("seen"), run_id="run-1", attempt=1, events=seen)
        call = self.behavior.handle_stream_event(request)
        return self._kept(await self._answered("HandleStreamEvent", call))

    async def pre_run(self) -> PreRunResponse:
        """Before its first turn."""
        request = PreRunRequest(**self.about("pre_run"))
        return self._kept(await self._answered("PreRun", self.behavior.pre_run(request)))

    async def pre_turn(self, number: int = 1) -> PreTurnResponse:
        """Before a turn."""
        request = PreTurnRequest(**self.about("pre_turn"), run=self.run(number, RunStatus.RUN_STATUS_PENDING))
        return self._kept(await self._answered("PreTurn", self.behavior.pre_turn(request)))

    async def pre_tool(self) -> PreToolResponse:
        """Before a tool."""
        request = PreToolRequest(
            **self.about("pre_tool"), run_id="run-1", attempt=1, call=self._fixture.story.tool
        )
        return self._kept(await self._answered("PreTool", self.behavior.pre_tool(request)))

    async def post_turn(self, decision: Decision, *, failed: bool = False) -> PostTurnResponse:
        """After a turn and its decision."""
        status = RunStatus.RUN_STATUS_FAILED if failed else RunStatus.RUN_STATUS_COMPLETED
        request = PostTurnRequest(
            **self.about("post_turn"),
            run=self.run(1, status),
            response=None if failed else Response(text=self._fixture.story.answers[0]),
            failure=self._fixture.story.failure if failed else None,
            decision=decision,
        )
        return self._kept(await self._answered("PostTurn", self.behavior.post_turn(request)))

    async def post_run(self) -> PostRunResponse:
        """Once it is halted."""
        request = PostRunRequest(**self.about("post_run"), reason="enough", run_id="run-1")
        return self._kept(await self._answered("PostRun", self.behavior.post_run(request)))

    async def terminate(self) -> TerminateAgentResponse:
        """At its end."""
        request = TerminateAgentRequest(**self.about("terminate"), reason="stopped")
        return await self._answered("TerminateAgent", self.behavior.terminate_agent(request))

    async def _answered(self, name: str, call: Awaitable[T]) -> T:
        return await self._fixture.answered(name, call)

    def _kept(self, answer: T) -> T:
        """The answer, with its state taken over as a host does."""
        stated: Any = answer
        if stated.HasField("state_json"):
            check_state(stated.state_json)
            self.state_json = stated.state_json
        return answer


def check_state(state_json: str) -> None:
    """Fail unless a host would keep this state."""
    try:
        jsontext.parse(state_json, "state_json")
    except TurndockError as error:
        raise ContractBroken(f"The state must be JSON that a host keeps: {error.message}") from None
    size = len(state_json.encode())
    holds(size <= MAX_STATE_BYTES, f"The state must not be above {MAX_STATE_BYTES} bytes; it has {size}.")


def check_decision(decision: Decision) -> None:
    """Fail unless a host would carry this decision out."""
    if decision.HasField("prompt"):
        holds(decision.prompt.text, "A decision for one more turn must have a prompt that is not empty.")
        try:
            jsontext.parse_object(decision.prompt.metadata_json, "metadata_json")
        except TurndockError as error:
            raise ContractBroken(f"A prompt's metadata must be a JSON object: {error.message}") from None
