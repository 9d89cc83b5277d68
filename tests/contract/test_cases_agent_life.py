"""M: how an agent begins, what it can be asked, and how it ends."""

import asyncio

import pytest

from support.harness import Harness, refused, types
from support.parts import gate, result, text
from support.scripted_agent import ScriptedAgent, noted
from support.setups import on_postgres_too
from turndock.agent.v1 import InterruptOutcome
from turndock.behavior.v1 import PreRunRequest, PreRunResponse
from turndock.errors import Code
from turndock.types.v1 import AgentLimits, AgentPhase, Failure, RunStatus

IDLE = AgentPhase.AGENT_PHASE_IDLE


async def test_M_01_an_agent_is_idle_when_it_has_started(host: Harness) -> None:
    started = (await host.start()).agent
    for status in (started, await host.status()):
        assert status.phase == IDLE
        assert (status.queued, status.current_run_id, status.halted) == (0, "", False)


@on_postgres_too
async def test_M_01_a_name_is_taken_while_its_agent_lives(host: Harness) -> None:
    await host.start([result("first")])
    before = await host.status()
    with refused("ALREADY_EXISTS"):
        await host.start([result("second")])
    assert await host.status() == before
    assert (await host.ask("hi")).response.text == "first"
    await host.stop()
    await host.start([result("second")])
    assert (await host.ask("hi")).response.text == "second"


async def test_M_01_an_agent_needs_a_name_and_a_backend_that_exists(local_host: Harness) -> None:
    with refused("VALIDATION_ERROR") as unnamed:
        await local_host.start(name="")
    with refused("VALIDATION_ERROR") as without:
        await local_host.start(backend="")
    with refused("VALIDATION_ERROR") as unknown:
        await local_host.start(backend="nope")
    with refused("VALIDATION_ERROR") as misbehaved:
        await local_host.start(behavior="nope")
    fields = [caught.value.violations[0].field for caught in (unnamed, without, unknown, misbehaved)]
    assert fields == [
        "definition.agent_name",
        "definition.backend",
        "definition.backend",
        "definition.behavior",
    ]


async def test_M_01_an_unknown_agent_cannot_be_stopped(local_host: Harness) -> None:
    with refused("AGENT_NOT_FOUND"):
        await local_host.stop("nope")


async def test_M_02_a_backend_that_does_not_start_leaves_no_agent(host: Harness) -> None:
    with refused("BACKEND_START_FAILED") as caught:
        await host.start(fail={"start_session": {"reason": "boom", "message": "no power"}})
    assert caught.value.metadata["cause"] == "boom"
    assert "no power" in caught.value.message
    with refused("AGENT_NOT_FOUND"):
        await host.status()
    assert host.backend.record.terminated == 0
    await host.start([result("ok")])
    assert (await host.ask("hi")).response.text == "ok"


@on_postgres_too
async def test_M_05_a_told_run_can_be_polled_at_any_time(host: Harness) -> None:
    await host.start([gate("g"), result("x")], [{"error": "broken"}])
    running, queued = await host.tell("x"), await host.tell("y")
    await host.backend.entered("g")
    assert (await host.poll(running)).status == RunStatus.RUN_STATUS_RUNNING
    assert (await host.poll(queued)).status == RunStatus.RUN_STATUS_PENDING
    host.backend.release("g")
    ended = await host.ended(running)
    assert (ended.status, ended.response.text) == (RunStatus.RUN_STATUS_COMPLETED, "x")
    assert await host.poll(running) == ended
    failed = await host.ended(queued)
    assert (failed.status, failed.failure.reason) == (RunStatus.RUN_STATUS_FAILED, "broken")
    with refused("RUN_NOT_FOUND") as caught:
        await host.poll("random")
    assert caught.value.code is Code.NOT_FOUND


async def test_M_05_a_poll_may_wait_for_a_while(host: Harness) -> None:
    await host.start([gate("g"), result("x")])
    run_id = await host.tell("x")
    assert (await host.poll(run_id, wait_ms=20)).ended_at_us == 0
    waiting = asyncio.create_task(host.poll(run_id, wait_ms=20_000, with_events=True))
    await host.backend.entered("g")
    host.backend.release("g")
    assert [event.type for event in (await waiting).response.events] != []


async def test_M_10_unhalt_and_interrupt_of_an_idle_agent_change_nothing(host: Harness) -> None:
    await host.start([result("ok")])
    before, log = await host.status(), await host.log()
    unhalted = await host.unhalt()
    assert await host.interrupt() == InterruptOutcome.INTERRUPT_OUTCOME_IDLE
    after = await host.status()
    for status in (before, unhalted, after):
        status.ClearField("last_activity_us")  # a call is a sign of life
    assert before == unhalted == after
    assert await host.log() == log
    assert (await host.ask("hi")).response.text == "ok"


async def test_M_25_pre_run_that_fails_ends_the_agent(host: Harness) -> None:
    gone_wrong = asyncio.Event()

    async def pre_run(_: PreRunRequest) -> PreRunResponse:
        await gone_wrong.wait()
        return PreRunResponse(failure=Failure(reason="setup_impossible"))

    agent = ScriptedAgent(pre_run=pre_run)
    await host.dock_behavior("doomed", agent)
    started = (await host.start([result("never")], behavior="doomed")).agent
    asking = host.asking("x")
    await agent.called("pre_run")
    await host.until(lambda status: status.queued == 1)
    gone_wrong.set()
    assert (await asking).failure.reason == "agent_terminated"
    await agent.called("terminate_agent")
    (terminated,) = agent.requests("terminate_agent")
    assert terminated.reason == "pre_run_failed"
    assert list(terminated.failure.causes) == ["setup_impossible"]
    await host.backend.stage.reached(terminated=1)
    assert host.backend.record.prompts == []
    assert await host.watched_until_end(started.session_id) == "session_failed"
    log = await host.log_of(started.session_id)
    assert types(log)[-2:] == ["run_cancelled", "session_failed"]
    assert log[-1].session_changed.failure.reason == "pre_run_failed"
    with refused("AGENT_NOT_FOUND"):
        await host.status()


@pytest.mark.parametrize("times", [1, 3])
async def test_M_25_pre_run_that_raises_ends_the_agent_too(local_host: Harness, times: int) -> None:
    async def pre_run(_: PreRunRequest) -> PreRunResponse:
        raise RuntimeError("setup_impossible")

    agent = ScriptedAgent(pre_run=pre_run)
    await local_host.dock_behavior("doomed", agent)
    for _ in range(times):
        session_id = (await local_host.start(behavior="doomed")).agent.session_id
        await agent.called("terminate_agent", len(agent.requests("pre_run")))
        assert await local_host.watched_until_end(session_id) == "session_failed"
    assert agent.names().count("terminate_agent") == times


async def test_M_25_prompts_wait_for_pre_run_and_are_not_lost(host: Harness) -> None:
    ready = asyncio.Event()

    async def pre_run(request: PreRunRequest) -> PreRunResponse:
        await ready.wait()
        return PreRunResponse(state_json=noted(request, "events", "prepared"))

    agent = ScriptedAgent(pre_run=pre_run)
    await host.dock_behavior("slow", agent)
    await host.start([result("a")], [result("b")], behavior="slow")
    asking, told = host.asking("a"), None
    await agent.called("pre_run")
    await host.until(lambda status: status.queued == 1)
    told = await host.tell("b")
    assert host.backend.record.prompts == []
    ready.set()
    assert (await asking).response.text == "a"
    assert (await host.ended(told)).response.text == "b"
    assert agent.names().count("pre_run") == 1
    assert (await host.state())["events"] == ["prepared"]


@on_postgres_too
async def test_stopping_kills_the_turn_and_cancels_what_waits(host: Harness) -> None:
    session_id = (await host.start([text("a"), gate("g"), result("never")])).agent.session_id
    running = host.asking("a")
    await host.backend.entered("g")
    waiting = host.asking("b")
    await host.until(lambda status: status.queued == 1)
    status = await host.stop(reason="enough", request_id="stop-1")
    assert status.phase == AgentPhase.AGENT_PHASE_STOPPED
    for answer in (await running, await waiting):
        assert answer.failure.reason == "agent_terminated"
        assert answer.run.status == RunStatus.RUN_STATUS_CANCELLED
    assert host.backend.record.terminated == 1
    assert host.agent.requests("terminate_agent")[0].reason == "enough"
    assert types(await host.log_of(session_id))[-3:] == [
        "run_cancelled",
        "run_cancelled",
        "session_completed",
    ]
    assert await host.stop(request_id="stop-1") == status
    with refused("AGENT_NOT_FOUND"):
        await host.stop(request_id="stop-2")
    with refused("AGENT_NOT_FOUND"):
        await host.tell("c")


@on_postgres_too
async def test_two_who_stop_at_once_stop_it_once(host: Harness) -> None:
    await host.start([gate("g"), result("never")])
    asking = host.asking("a")
    await host.backend.entered("g")
    answers = await asyncio.gather(
        host.stop(request_id="one"), host.stop(request_id="two"), return_exceptions=True
    )
    assert [isinstance(answer, Exception) for answer in answers].count(True) == 1
    assert (await asking).failure.reason == "agent_terminated"
    assert host.backend.record.terminated == 1
    assert host.agent.names().count("terminate_agent") == 1


@on_postgres_too
async def test_a_stopped_session_can_be_continued(host: Harness) -> None:
    session_id = (await host.start([text("a"), result("a", sid="s-1")])).agent.session_id
    await host.ask("a")
    with refused("INVALID_STATUS"):
        await host.start(name="a2", session_id=session_id)
    await host.stop()
    again = await host.start([result("never")], [result("b")], name="a2", session_id=session_id)
    assert (again.restored, again.restored_backend) == (True, True)
    assert again.agent.session_id == session_id
    assert (await host.ask("b", "a2")).response.text == "b"
    assert (await host.state("a2"))["responses"] == ["a", "b"]
    log = await host.log("a2")
    assert [event.sequence for event in log] == list(range(1, len(log) + 1))
    assert types(log).count("session_created") == 1
    assert types(log).count("session_started") == 2


@on_postgres_too
async def test_an_idle_agent_goes_dormant_and_any_call_wakes_it(host: Harness) -> None:
    limits = AgentLimits(idle_shutdown_ms=30)
    await host.start([result("a", sid="s-1")], [result("b")], limits=limits)
    await host.ask("a")
    await host.until(lambda status: status.phase == AgentPhase.AGENT_PHASE_DORMANT)
    assert (await host.ask("b")).response.text == "b"
    assert host.backend.record.prompts[1].provider_session_id == "s-1"
    log = types(await host.log())
    assert log.count("session_resumed") >= 1
    assert (await host.state())["responses"] == ["a", "b"]
