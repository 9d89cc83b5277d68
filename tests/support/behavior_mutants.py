"""Behaviors that break one sentence of their contract each, and the case that must find out."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Final

from turndock import events, jsontext
from turndock.behavior.v1 import (
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
    Proceed,
    Rewrite,
    RewriteArguments,
    TerminateAgentRequest,
    TerminateAgentResponse,
)
from turndock.decisions import HasState, halt, prompt, state_of
from turndock.errors import not_offered
from turndock.ports import BEHAVIOR_OPTIONS, Behavior
from turndock.types.v1 import RunOrigin, RunStatus


def counted(request: HasState, name: str, times: int = 1) -> str:
    """The state with one of its counters raised."""
    state = state_of(request)
    state[name] = state.get(name, 0) + times
    return jsontext.canonical(state)


class Counter(Behavior):
    """Counts its callbacks, offers all of them, and keeps every sentence of the contract."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        if request.HasField("restored_state_json"):
            return InitAgentResponse()
        return InitAgentResponse(state_json='{"responses":0}', backend_config_json="{}")

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        state_json = counted(request, "responses")
        decision = halt("two are enough") if "two" in request.response.text else prompt("next")
        return HandleResponseResponse(state_json=state_json, decision=decision)

    async def handle_error(self, request: HandleErrorRequest) -> HandleErrorResponse:
        return HandleErrorResponse(state_json=counted(request, request.failure.reason))

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        jsontext.parse(request.payload_json, "payload_json")
        return HandleEventResponse(state_json=counted(request, "events"))

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        return HandleStreamEventResponse(state_json=counted(request, "seen", len(request.events)))

    async def pre_run(self, request: PreRunRequest) -> PreRunResponse:
        return PreRunResponse(state_json=counted(request, "runs"))

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        return PreTurnResponse(state_json=counted(request, "turns"), proceed=Proceed())

    async def pre_tool(self, request: PreToolRequest) -> PreToolResponse:
        return PreToolResponse(state_json=counted(request, "tools"), proceed=Proceed())

    async def post_turn(self, request: PostTurnRequest) -> PostTurnResponse:
        return PostTurnResponse(state_json=counted(request, "post_turns"))

    async def post_run(self, request: PostRunRequest) -> PostRunResponse:
        return PostRunResponse(state_json=counted(request, "halts"))

    async def terminate_agent(self, request: TerminateAgentRequest) -> TerminateAgentResponse:
        return TerminateAgentResponse()


class Plain(Behavior):
    """Offers what it has to, and keeps every sentence of the contract."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse()

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        return HandleResponseResponse(state_json=counted(request, "responses"))


class RemembersByItself(Counter):
    """Keeps the count in the process."""

    def __init__(self) -> None:
        self.count = 0

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        answer = await super().handle_response(request)
        self.count += 1
        answer.state_json = jsontext.canonical({"responses": self.count})
        return answer


class MixesAgents(Counter):
    """Keeps the request it works on where the next one finds it."""

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        self.current = request
        await asyncio.sleep(0)
        return await super().handle_response(self.current)


class ForgetsItsState(Counter):
    """Does not take up the state it left."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        if request.HasField("restored_state_json"):
            return InitAgentResponse(state_json='"lost"')
        return await super().init_agent(request)


class IsNeverTheSame(Counter):
    """Makes another agent of each try."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(state_json=jsontext.canonical({"id": uuid.uuid4().hex}))


class WritesIntoRequests(Counter):
    """Uses the request as its scratch paper."""

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        answer = await super().handle_response(request)
        request.state_json = answer.state_json
        return answer


class StateIsNoJson(Counter):
    """Speaks Python."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(state_json="{'responses': 0}")


class ConfiguresAList(Counter):
    """Gives the backend a list."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(state_json="{}", backend_config_json="[]")


class AsksForNothing(Counter):
    """Chains a prompt without text."""

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        return HandleResponseResponse(state_json=counted(request, "responses"), decision=prompt(""))


class CountsBatches(Counter):
    """Takes as many events as come at once for one."""

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        return HandleStreamEventResponse(state_json=counted(request, "seen"))


class KnowsAllTypes(Counter):
    """Has no patience with types it does not know."""

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        for event in request.events:
            events.TYPE_NAMES[event.type]
        return await super().handle_stream_event(request)


class KnowsAllRuns(Counter):
    """Has no patience with a newer host."""

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        RunStatus.Name(request.run.status)
        RunOrigin.Name(request.run.origin)
        return await super().handle_response(request)


class KnowsAllFailures(Counter):
    """Has an answer to the failures it knows."""

    async def handle_error(self, request: HandleErrorRequest) -> HandleErrorResponse:
        {"rate_limited": 1, "timeout": 2, "interrupted": 3}[request.failure.reason]
        return await super().handle_error(request)


class StumblesOverNotifications(Counter):
    """Never gets over a notification it did not expect."""

    stumbled = False

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        if self.stumbled or request.payload_json == "null":
            self.stumbled = True
            raise not_offered("HandleEvent")
        return await super().handle_event(request)


class SaysNothingBeforeTurns(Counter):
    """Leaves the question open."""

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        return PreTurnResponse()


class RewritesToNothing(Counter):
    """Takes the prompt away."""

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        return PreTurnResponse(rewrite=Rewrite())


class RewritesToNoJson(Counter):
    """Gives a tool arguments that are no JSON."""

    async def pre_tool(self, request: PreToolRequest) -> PreToolResponse:
        return PreToolResponse(rewrite=RewriteArguments(arguments_json="path=/tmp"))


class FailsWithoutAReason(Counter):
    """Cannot work, and does not say why."""

    async def pre_run(self, request: PreRunRequest) -> PreRunResponse:
        answer = PreRunResponse()
        answer.failure.SetInParent()
        return answer


class EndsOnce(Counter):
    """Ends an agent it has not ended yet."""

    def __init__(self) -> None:
        self.ended: set[str] = set()

    async def terminate_agent(self, request: TerminateAgentRequest) -> TerminateAgentResponse:
        if request.session_id in self.ended:
            raise not_offered("TerminateAgent")
        self.ended.add(request.session_id)
        return TerminateAgentResponse()


class HidesACallback(Counter):
    """Offers a callback without saying so."""

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(BEHAVIOR_OPTIONS) - {"post_run"}


class NeverAnswers(Counter):
    """Waits for something that does not come."""

    async def post_run(self, request: PostRunRequest) -> PostRunResponse:
        await asyncio.Event().wait()
        return PostRunResponse()


@dataclass(frozen=True)
class Mutant:
    """A broken behavior, and the case it must fail by."""

    behavior: type[Behavior]
    fails: str


MUTANTS: Final = (
    Mutant(RemembersByItself, "the_state_in_the_request_counts"),
    Mutant(RemembersByItself, "an_earlier_state_is_gone_back_to"),
    Mutant(RemembersByItself, "a_decision_that_is_asked_for_again_is_the_same"),
    Mutant(MixesAgents, "agents_at_once_do_not_mix"),
    Mutant(ForgetsItsState, "an_agent_goes_on_from_the_state_it_left"),
    Mutant(IsNeverTheSame, "a_start_that_is_repeated_is_answered_alike"),
    Mutant(WritesIntoRequests, "requests_are_left_alone"),
    Mutant(StateIsNoJson, "a_first_state_is_json"),
    Mutant(ConfiguresAList, "a_backend_configuration_is_an_object"),
    Mutant(AsksForNothing, "a_success_is_decided_on"),
    Mutant(CountsBatches, "it_does_not_matter_how_events_are_batched"),
    Mutant(KnowsAllTypes, "events_of_every_type_are_taken"),
    Mutant(KnowsAllRuns, "what_a_newer_host_sends_is_taken"),
    Mutant(KnowsAllFailures, "every_failure_of_a_host_is_decided_on"),
    Mutant(StumblesOverNotifications, "a_strange_notification_spoils_nothing"),
    Mutant(SaysNothingBeforeTurns, "a_turn_is_answered_with_a_meaning"),
    Mutant(RewritesToNothing, "a_turn_is_answered_with_a_meaning"),
    Mutant(RewritesToNoJson, "a_tool_is_answered_with_a_meaning"),
    Mutant(FailsWithoutAReason, "an_agent_is_prepared"),
    Mutant(EndsOnce, "an_agent_may_end_twice"),
    Mutant(HidesACallback, "the_capabilities_name_the_optional_callbacks"),
    Mutant(NeverAnswers, "a_halt_is_heard_of"),
)
