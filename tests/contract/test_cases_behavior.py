"""M: what a host does with what a behavior answers, or does not answer; in process and behind gRPC alike."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.harness import Harness, refused, types
from support.parts import error, gate, result, text
from support.scripted_agent import HALT, ScriptedAgent, chain, noted, state_of
from turndock import jsontext
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
    NextPrompt,
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
    TerminateAgentRequest,
    TerminateAgentResponse,
)
from turndock.errors import not_offered
from turndock.ports import BEHAVIOR_OPTIONS, Behavior
from turndock.types.v1 import AgentLimits, RunStatus
from turndock_server.core.behavior_calls import Patience


class Claiming(ScriptedAgent):
    """Says that it offers everything, and then offers nothing that is optional."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(BEHAVIOR_OPTIONS)

    async def handle_error(self, request: HandleErrorRequest) -> HandleErrorResponse:
        raise self._absent("handle_error")

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        raise self._absent("handle_event")

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        raise self._absent("handle_stream_event")

    async def pre_run(self, request: PreRunRequest) -> PreRunResponse:
        raise self._absent("pre_run")

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        raise self._absent("pre_turn")

    async def pre_tool(self, request: PreToolRequest) -> PreToolResponse:
        raise self._absent("pre_tool")

    async def post_turn(self, request: PostTurnRequest) -> PostTurnResponse:
        raise self._absent("post_turn")

    async def post_run(self, request: PostRunRequest) -> PostRunResponse:
        raise self._absent("post_run")

    async def terminate_agent(self, request: TerminateAgentRequest) -> TerminateAgentResponse:
        raise self._absent("terminate_agent")

    def _absent(self, name: str) -> Exception:
        self.asked.append(name)
        return not_offered(name)


async def test_M_24_a_hook_that_is_absent_after_all_is_passed_over(host: Harness) -> None:
    agent = Claiming()
    agent.responses["second"] = HALT
    await host.dock_behavior("claiming", agent)
    await host.start(
        [text("a"), result("first")],
        [error("broken")],
        [{"approval": {"approval_id": "ap"}}, result("never")],
        [result("second")],
        behavior="claiming",
    )
    await host.notify("e1", wait=True)
    assert (await host.ask("1")).response.text == "first"
    assert (await host.ask("2")).failure.reason == "broken"
    asking = host.asking("3")
    await host.until_asked()
    await host.interrupt()
    assert (await asking).failure.reason == "interrupted"
    assert (await host.ask("4")).response.text == "second"
    assert (await host.status()).halted
    await host.stop()
    assert [heard.prompt for heard in host.backend.record.prompts] == ["1", "2", "3", "4"]
    assert set(agent.asked) == set(BEHAVIOR_OPTIONS)
    if host.mode != "in_process":
        assert len(agent.asked) == len(BEHAVIOR_OPTIONS), "absence is remembered"


class Minimal(Behavior):
    """Offers what it has to."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse()

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        state = state_of(request.state_json)
        state["turns"] = state.get("turns", 0) + 1
        return HandleResponseResponse(state_json=jsontext.canonical(state))


async def test_M_24_two_callbacks_are_a_behavior(host: Harness) -> None:
    await host.dock_behavior("minimal", Minimal())
    await host.start([result("a")], [error("broken")], [result("b")], behavior="minimal")
    assert await host.state() == {}
    await host.notify("e1", wait=True)
    for prompt in ("1", "2", "3"):
        await host.ask(prompt)
    assert await host.state() == {"turns": 2}
    await host.stop()


BIG = jsontext.canonical({"text": "x" * (1 << 20)})
INVALID: dict[str, dict[str, Any]] = {
    "a state that is no JSON": {"state_json": "{"},
    "a state with a key twice": {"state_json": '{"a":1,"a":2}'},
    "an empty state": {"state_json": ""},
    "a state above 1 MiB": {"state_json": BIG},
    "a prompt without text": {"decision": Decision(prompt=NextPrompt())},
    "a prompt that is too long": {"decision": chain("x" * ((1 << 20) + 1))},
    "metadata that is no object": {"decision": Decision(prompt=NextPrompt(text="x", metadata_json="[1]"))},
}


@pytest.mark.parametrize("given", INVALID)
async def test_M_17_an_answer_that_is_invalid_is_none(host: Harness, given: str) -> None:
    class Invalid(ScriptedAgent):
        async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
            await super().handle_response(request)
            answer: dict[str, Any] = {"state_json": '{"wrong":true}'} | INVALID[given]
            return HandleResponseResponse(**answer)

    agent = Invalid()
    await host.dock_behavior("invalid", agent)
    await host.start([result("a")], [result("b")], behavior="invalid")
    assert (await host.ask("1")).response.text == "a"
    assert (await host.ask("2")).response.text == "b"
    assert (await host.state())["responses"] == []
    assert len(await host.runs()) == 2


async def test_M_23_a_rewrite_to_nothing_is_a_skip(host: Harness) -> None:
    async def pre_turn(request: PreTurnRequest) -> PreTurnResponse:
        return PreTurnResponse(rewrite=Rewrite())

    await host.dock_behavior("empty", ScriptedAgent(pre_turn=pre_turn))
    await host.start([result("never")], behavior="empty")
    assert (await host.ask("1")).failure.reason == "pre_turn_skipped"
    assert host.backend.record.prompts == []


async def test_M_24_a_hook_that_takes_too_long_has_failed(host: Harness) -> None:
    async def post_turn(request: PostTurnRequest) -> PostTurnResponse:
        await asyncio.Event().wait()
        raise AssertionError("nobody waits so long")

    agent = ScriptedAgent(responses={"first": chain("chained")}, post_turn=post_turn)
    await host.dock_behavior("slow", agent)
    host.patience["slow"] = Patience(timeout_s=0.1, wait_s=0)
    await host.start([result("first")], [result("second")], behavior="slow")
    assert (await host.ask("a", request_id="r1")).response.text == "first"
    assert (await host.ended("r1/chain/1")).response.text == "second"
    assert (await host.state())["responses"] == ["first", "second"]


async def test_M_02_an_init_agent_that_takes_too_long_starts_nothing(host: Harness) -> None:
    class Slow(ScriptedAgent):
        async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
            await asyncio.Event().wait()
            raise AssertionError("nobody waits so long")

    await host.dock_behavior("slow", Slow())
    host.patience["slow"] = Patience(timeout_s=0.1, wait_s=0)
    with refused("AGENT_INIT_FAILED"):
        await host.start(behavior="slow")
    with refused("AGENT_NOT_FOUND"):
        await host.status()
    assert host.backend.record.started == 0


async def test_M_02_an_init_agent_that_fails_starts_no_backend_and_is_not_told_of_an_end(
    host: Harness,
) -> None:
    class Failing(ScriptedAgent):
        async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
            await super().init_agent(request)
            raise ValueError("no such topic")

    agent = Failing()
    await host.dock_behavior("failing", agent)
    with refused("AGENT_INIT_FAILED"):
        await host.start(behavior="failing")
    assert host.backend.record.started == 0
    assert agent.names() == ["init_agent"]


async def test_init_agent_chooses_the_backends_configuration_and_bounds(host: Harness) -> None:
    class Choosing(ScriptedAgent):
        async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
            await super().init_agent(request)
            return InitAgentResponse(
                state_json='{"responses":[]}',
                backend_config_json=jsontext.canonical({"scripts": [[result("chosen")]]}),
                limits=AgentLimits(max_turns=1, watchdog_ms=5_000),
            )

    await host.dock_behavior("choosing", Choosing())
    await host.start([result("given")], behavior="choosing", limits=AgentLimits(watchdog_ms=7_000))
    assert (await host.ask("1")).response.text == "chosen"
    assert (await host.ask("2")).failure.reason == "budget_exceeded"
    limits = (await host.status()).definition.limits
    assert (limits.max_turns, limits.watchdog_ms) == (1, 7_000)


async def test_M_24_each_callback_has_an_id_of_its_own(host: Harness) -> None:
    async def proceed(request: PreTurnRequest) -> PreTurnResponse:
        return PreTurnResponse(proceed=Proceed())

    async def told(request: PostRunRequest) -> PostRunResponse:
        return PostRunResponse(state_json=noted(request, "seen", request.reason))

    async def post_turn(request: PostTurnRequest) -> PostTurnResponse:
        return PostTurnResponse()

    async def pre_run(request: PreRunRequest) -> PreRunResponse:
        return PreRunResponse()

    agent = ScriptedAgent(
        responses={"halt": HALT},
        notified={"halt": HALT},
        pre_run=pre_run,
        pre_turn=proceed,
        post_turn=post_turn,
        post_run=told,
    )
    await host.dock_behavior("hooked", agent)
    session_id = (await host.start([text("a"), result("halt")], behavior="hooked")).agent.session_id
    await host.ask("1")
    await host.unhalt()
    for _ in range(2):
        await host.notify("halt", wait=True)
        await host.unhalt()
    await host.ask("2")
    assert agent.names().count("post_run") == 4
    await host.stop()
    await host.start([result("b")], name="a2", session_id=session_id, behavior="hooked")
    await host.ask("3", "a2")
    await host.stop("a2")
    ids = [(call.name, call.request.request_id) for call in agent.calls]
    assert len(set(ids)) == len(ids)
    assert all(request_id for _, request_id in ids)


async def test_M_24_a_decision_on_a_newer_member_is_noreply(host: Harness) -> None:
    unknown = bytes([0x9A, 0x06, 0x02, 0x0A, 0x00])  # field 99, a message

    class Newer(ScriptedAgent):
        async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
            answer = await super().handle_response(request)
            return HandleResponseResponse(state_json=answer.state_json, decision=Decision.FromString(unknown))

    await host.dock_behavior("newer", Newer())
    await host.start([result("a")], behavior="newer")
    assert (await host.ask("1")).response.text == "a"
    status = await host.until_idle()
    assert (status.halted, status.queued) == (False, 0)
    assert (await host.state())["responses"] == ["a"]


async def test_M_12_what_is_decided_in_the_drain_holds_for_the_caller(host: Harness) -> None:
    host.agent.notified["stop"] = HALT
    await host.start([gate("g"), result("a")], [result("b")])
    asking = host.asking("1")
    await host.backend.entered("g")
    await host.notify("stop")
    host.backend.release("g")
    await asking
    assert (await host.status()).halted
    told = await host.tell("2")
    assert (await host.poll(told)).status == RunStatus.RUN_STATUS_PENDING
    assert "run_started" not in types(await host.log(run_id=told))
