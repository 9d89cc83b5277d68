"""Public faults about turns: terminal events, retries, disconnects, interrupts and the mailbox."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from support.harness import WAIT_S, Harness, refused, types
from support.parts import gate, result, text, tool_result, tool_use
from support.scripted_agent import HALT, ScriptedAgent, noted, state_of
from turndock import events, jsontext, serving, wire
from turndock.agent.v1 import AskRequest
from turndock.agent.v1.agent_host_pb2_grpc import AgentHostStub
from turndock.backend.v1 import (
    Accepted,
    PromptRequest,
    PromptResponse,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
    TurnItem,
)
from turndock.behavior.v1 import (
    HandleEventRequest,
    HandleEventResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    InitAgentRequest,
    InitAgentResponse,
    PostRunRequest,
    PostRunResponse,
)
from turndock.ports import Behavior
from turndock.remote import RemoteBackend
from turndock.serving.backend import SERVICE as BACKEND
from turndock.types.v1 import AgentLimits, AgentPhase, Cursor, RunStatus

Context = grpc.aio.ServicerContext[Any, Any]


class Foreign:
    """A backend as somebody without the SDK may write it: three calls, and a prompt that says how its stream ends."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def start_session(self, _: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse()

    async def terminate_session(self, _: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()

    async def prompt(self, request: PromptRequest, context: Context) -> None:
        items = [TurnItem(index=1, accepted=Accepted())]
        items += [TurnItem(index=number, event=events.text(f"{number}")) for number in (2, 3, 4)]
        await context.write(PromptResponse(items=items))
        match request.prompt:
            case "closes":
                return
            case "breaks":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the machine is on fire")
            case "is silent":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
            case _:
                await context.write(PromptResponse(items=[TurnItem(index=5, result=events.result())]))


@asynccontextmanager
async def foreign_backend() -> AsyncGenerator[tuple[Foreign, RemoteBackend]]:
    backend = Foreign()
    server = wire.new_server()
    serving.add_port(server, BACKEND, backend, own={"Prompt": backend.prompt})
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    async with wire.connect(endpoint) as channel:
        yield backend, RemoteBackend(channel, ["interrupt", "checkpoint_session", "update_session"])
    await server.stop(0)


async def test_PF_B05_three_ways_to_end_without_a_terminal_have_three_reasons(local_host: Harness) -> None:
    async with foreign_backend() as (foreign, remote):
        local_host.backends["foreign"] = remote
        await local_host.start(backend="foreign", limits=AgentLimits(watchdog_ms=1_000))
        for prompt, reason, status in (
            ("closes", "no_terminal_event", RunStatus.RUN_STATUS_FAILED),
            ("breaks", "backend_lost", RunStatus.RUN_STATUS_FAILED),
            ("is silent", "timeout", RunStatus.RUN_STATUS_TIMEOUT),
        ):
            answer = await local_host.ask(prompt)
            assert (answer.failure.reason, answer.run.status) == (reason, status)
            log = await local_host.log(run_id=answer.run.id)
            assert "".join(one.message_streamed.text for one in log) == "234"
            assert [one.type in events.RUN_TERMINAL for one in log].count(True) == 1
            assert log[-1].run_failed.incomplete_text
            assert (await local_host.status()).phase == AgentPhase.AGENT_PHASE_IDLE
        await asyncio.wait_for(foreign.cancelled.wait(), WAIT_S)
        assert (await local_host.ask("ends well")).response.text == "234"


async def test_PF_E20_an_optional_call_that_is_missing_is_no_error_of_the_turn(local_host: Harness) -> None:
    """The description promised calls that answer UNIMPLEMENTED: they are not offered, and that is all."""
    async with foreign_backend() as (_, remote):
        local_host.backends["foreign"] = remote
        await local_host.start(backend="foreign")
        for _ in range(2):
            assert (await local_host.ask("ends well")).response.text == "234"
        asking = local_host.asking("is silent")
        await local_host.until(lambda status: status.current_run_id != "")
        await local_host.interrupt()
        assert (await asking).failure.reason == "interrupted"


async def test_PF_E03_a_partial_answer_is_kept_and_marked(host: Harness) -> None:
    partial = "x" * 2048
    await host.start(
        [text(partial), {"crash": "transport error"}], [text("cut"), result("cut", stop_reason="length")]
    )
    failed = await host.ask("a", request_id="r1")
    assert failed.failure.reason == "task_crashed"
    log = await host.log(run_id="r1")
    assert types(log) == ["run_started", "message_sent", "message_streamed", "run_failed"]
    assert log[2].message_streamed.text == partial
    assert log[3].run_failed.incomplete_text
    cut = await host.ask("b", request_id="r2")
    assert (cut.response.text, cut.response.stop_reason) == ("cut", "length")
    again = await host.poll("r2", with_events=True)
    assert again.response == cut.response
    assert again.response.terminal.run_completed.stop_reason == "length"
    assert (await host.state())["errors"] == ["task_crashed"]


async def test_PF_B07_a_call_that_is_made_again_changes_nothing(host: Harness) -> None:
    first = await host.start([gate("g"), result("ok")], request_id="q0")
    again = await asyncio.gather(*(host.start([gate("g"), result("ok")], request_id="q0") for _ in range(3)))
    assert {one.agent.session_id for one in again} == {first.agent.session_id}
    assert await host.tell("hello", request_id="q1") == "q1"
    await host.backend.entered("g")
    assert await asyncio.gather(*(host.tell("hello", request_id="q1") for _ in range(4))) == ["q1"] * 4
    with refused("IDEMPOTENCY_CONFLICT"):
        await host.tell("other", request_id="q1")
    with refused("IDEMPOTENCY_CONFLICT"):
        await host.start([result("other")], request_id="q0")
    host.backend.release("g")
    ended = await host.ended("q1")
    assert ended.response.text == "ok"
    assert await host.poll("q1") == ended
    assert (await host.ask("hello", request_id="q1")).response.text == "ok"
    assert host.backend.record.started == 1
    assert [heard.prompt for heard in host.backend.record.prompts] == ["hello"]
    log = await host.log()
    assert types(log).count("message_sent") == types(log).count("run_completed") == 1
    assert await host.runs() == ["q1"]


async def test_PF_B07_first_tries_that_come_at_the_same_time_are_one(host: Harness) -> None:
    started = await asyncio.gather(*(host.start([result("ok")], request_id="q0") for _ in range(4)))
    assert len({one.agent.session_id for one in started}) == 1
    await asyncio.gather(*(host.tell("hello", request_id="q1") for _ in range(4)))
    assert (await host.ended("q1")).response.text == "ok"
    assert len(host.backend.record.prompts) == 1
    names = types(await host.log())
    assert (names.count("session_created"), names.count("session_started")) == (1, 1)


async def test_PF_B07_a_caller_who_hangs_up_in_the_middle_can_try_again(host: Harness) -> None:
    await host.start(*[[result(f"{number}")] for number in range(25)])
    for number in range(25):
        telling = asyncio.create_task(host.tell("hello", request_id=f"q{number}"))
        for _ in range(number):
            await asyncio.sleep(0)
        telling.cancel()
        await asyncio.wait((telling,))
        assert (await host.ask("hello", request_id=f"q{number}")).response.text == f"{number}"
    assert len(host.backend.record.prompts) == 25


async def test_PF_B13_a_turn_goes_on_whoever_leaves(host: Harness) -> None:
    await host.start(
        [text("a"), tool_use("t1"), gate("g"), tool_result("t1"), text("b"), result()],
        [gate("h"), result("second")],
    )
    session_id = (await host.status()).session_id
    channel = wire.connect(host.served.address)
    asking = AgentHostStub(channel).Ask(AskRequest(agent_name="a1", prompt="x", request_id="r1"))
    await host.backend.entered("g")
    async with host.watching(Cursor(session_id=session_id)) as watching:
        cursor = (await anext(watching)).cursor
        async for frame in watching:
            cursor = frame.cursor
            if "tool_call_started" in types(list(frame.batch.events)):
                break
    asking.cancel()
    await channel.close()
    assert (await host.status()).phase == AgentPhase.AGENT_PHASE_PROCESSING
    host.backend.release("g")
    ended = await host.ended("r1")
    assert (ended.status, ended.response.text) == (RunStatus.RUN_STATUS_COMPLETED, "ab")
    head = (await host.log())[-1].sequence
    rest = await host.watched(cursor, upto=head)
    assert [one.sequence for one in rest] == list(range(cursor.after_sequence + 1, head + 1))
    with refused("TIMEOUT"):
        await host.ask("y", request_id="r2", timeout=0.05)
    await host.backend.entered("h")
    host.backend.release("h")
    assert (await host.ended("r2")).status == RunStatus.RUN_STATUS_COMPLETED
    names = types(await host.log())
    assert (names.count("run_completed"), names.count("run_cancelled")) == (2, 0)


async def test_PF_E17_no_turn_is_forgotten(host: Harness) -> None:
    for number in range(50):
        await host.start([text("a"), gate("g"), text("b"), result()], name=f"a{number}")
    told = [await host.tell("x", f"a{number}") for number in range(50)]
    await host.backend.entered("g", 50)
    for _ in range(30):
        gc.collect()
        await asyncio.sleep(0)
    host.backend.release("g")
    for number, run_id in enumerate(told):
        assert (await host.ended(run_id, f"a{number}")).response.text == "ab"


class Counting(Behavior):
    """Counts its notifications, and takes its title from a turn's result."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(state_json='{"n":0}')

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        state = state_of(request.state_json) | {"title": request.response.text}
        return HandleResponseResponse(state_json=jsontext.canonical(state))

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        state = state_of(request.state_json)
        added = jsontext.parse(request.payload_json, "payload_json")
        return HandleEventResponse(state_json=jsontext.canonical(state | {"n": state["n"] + added}))


async def test_PF_B21_what_comes_during_a_turn_is_merged_with_what_the_turn_leaves(host: Harness) -> None:
    await host.dock_behavior("counting", Counting())
    await host.start([gate("g"), result("x")], [result("older")], [result("second")], behavior="counting")
    asking = host.asking("first")
    await host.backend.entered("g")
    older = await host.tell("older")
    second = await host.tell("second")
    for _ in range(3):
        await host.notify(1)
    host.backend.release("g")
    await asking
    assert (await host.state())["n"] == 3
    for run_id in (older, second):
        await host.ended(run_id)
    assert await host.state() == {"n": 3, "title": "second"}
    assert [heard.prompt for heard in host.backend.record.prompts] == ["first", "older", "second"]


async def test_PF_B21_a_notification_may_come_while_events_are_looked_at(host: Harness) -> None:
    await host.start([text("a"), gate("g"), text("b"), gate("h"), result()])
    asking = host.asking("x")
    await host.backend.entered("g")
    await host.notify("n1")
    host.backend.release("g")
    await host.backend.entered("h")
    await host.notify("n2")
    host.backend.release("h")
    await asking
    state = await host.state()
    assert state["seen"] == ["text", "text", "result"]
    assert state["events"] == ["n1", "n2"]


async def test_PF_E25_a_halt_that_is_said_three_times_is_one(host: Harness) -> None:
    async def post_run(request: PostRunRequest) -> PostRunResponse:
        return PostRunResponse(state_json=noted(request, "seen", "post_run"))

    agent = ScriptedAgent(responses={"done": HALT}, notified={"stop": HALT}, post_run=post_run)
    await host.dock_behavior("halting", agent)
    await host.start([gate("g"), result("done")], [result("later")], behavior="halting")
    asking = host.asking("x")
    await host.backend.entered("g")
    told = await host.tell("later")
    await host.notify("stop")
    await host.notify("stop")
    await host.notify("plain")
    host.backend.release("g")
    await asking
    assert agent.names().count("post_run") == 1
    assert (await host.state())["events"] == ["stop", "stop", "plain"]
    await host.notify("stop", wait=True)
    await host.notify("more", wait=True)
    assert agent.names().count("post_run") == 1
    status = await host.status()
    assert (status.halted, status.queued) == (True, 1)
    await host.unhalt()
    assert (await host.ended(told)).response.text == "later"
    await host.notify("stop", wait=True)
    assert agent.names().count("post_run") == 2


async def test_PF_E25_a_notification_may_halt_too(host: Harness) -> None:
    async def post_run(_: PostRunRequest) -> PostRunResponse:
        return PostRunResponse()

    agent = ScriptedAgent(notified={"stop": HALT}, post_run=post_run)
    await host.dock_behavior("halting", agent)
    await host.start(behavior="halting")
    await host.notify("stop", wait=True)
    (told,) = agent.requests("post_run")
    assert (told.reason, told.run_id) == ("told to", "")
