"""M: what runs when. The mailbox, chained runs, halts, deferred notifications, and the order at a turn's end."""

import asyncio

import pytest

from support.harness import Harness, refused
from support.parts import error, gate, result, text
from support.scripted_agent import HALT, RAISE, ScriptedAgent, chain, noted
from support.setups import on_postgres_too
from turndock.agent.v1 import BusyPolicy
from turndock.behavior.v1 import PostRunRequest, PostRunResponse, PostTurnRequest, PostTurnResponse
from turndock.types.v1 import AgentLimits, AgentPhase, RunOrigin, RunStatus

PENDING = RunStatus.RUN_STATUS_PENDING


@on_postgres_too
async def test_M_03_a_second_caller_waits_and_both_get_their_own_answer(host: Harness) -> None:
    await host.start([gate("g"), result("first")], [result("second")])
    first = host.asking("a")
    await host.backend.entered("g")
    second = host.asking("b")
    assert (await host.until(lambda status: status.queued == 1)).phase == AgentPhase.AGENT_PHASE_PROCESSING
    host.backend.release("g")
    assert (await first).response.text == "first"
    assert (await second).response.text == "second"


@on_postgres_too
async def test_M_07_a_chained_run_goes_before_the_mailbox(host: Harness) -> None:
    host.agent.responses["first"] = chain("chained")
    await host.start([gate("g"), result("first")], [gate("h"), result("chained")], [result("queued")])
    asking = host.asking("a", request_id="r1")
    await host.backend.entered("g")
    told = await host.tell("b")
    host.backend.release("g")
    # The caller has its answer although the chain goes on.
    assert (await asking).response.text == "first"
    await host.backend.entered("h")
    chained = await host.poll("r1/chain/1")
    assert (chained.status, chained.origin) == (RunStatus.RUN_STATUS_RUNNING, RunOrigin.RUN_ORIGIN_CHAIN)
    assert chained.parent_run_id == "r1"
    host.backend.release("h")
    await host.ended(told)
    assert (await host.state())["responses"] == ["first", "chained", "queued"]
    assert [heard.prompt for heard in host.backend.record.prompts] == ["a", "chained", "b"]


async def test_M_08_a_failed_turn_may_chain_too(host: Harness) -> None:
    host.agent.errors["rate_limited"] = chain("retry")
    await host.start([error("rate_limited")], [result("ok")])
    assert (await host.ask("a", request_id="r1")).failure.reason == "rate_limited"
    assert (await host.ended("r1/chain/1")).response.text == "ok"
    state = await host.state()
    assert (state["responses"], state["errors"]) == (["ok"], ["rate_limited"])


async def test_M_08_a_chain_ends_at_its_limit_and_a_new_one_may_begin(local_host: Harness) -> None:
    local_host.agent.responses["again"] = chain("more")
    await local_host.start([result("again")], limits=AgentLimits(max_self_chain=2))
    for request_id in ("r1", "r2"):
        await local_host.ask("a", request_id=request_id)
        await local_host.until_idle()
        ended = await local_host.ended(f"{request_id}/chain/3")
        assert (ended.status, ended.failure.reason) == (RunStatus.RUN_STATUS_FAILED, "self_chain_limit")
    assert len(local_host.backend.record.prompts) == 6


@on_postgres_too
async def test_M_09_a_halted_agent_takes_prompts_and_runs_none(host: Harness) -> None:
    host.agent.responses["halt me"] = HALT
    await host.start([result("halt me")], [result("q")])
    await host.ask("a")
    told = await host.tell("q")
    status = await host.status()
    assert (status.halted, status.phase, status.queued) == (True, AgentPhase.AGENT_PHASE_IDLE, 1)
    assert (await host.poll(told)).status == PENDING
    assert len(host.backend.record.prompts) == 1
    assert not (await host.unhalt()).halted
    assert (await host.ended(told)).response.text == "q"
    assert not (await host.status()).halted


@on_postgres_too
async def test_M_09_a_halted_agent_keeps_its_chained_run_first(host: Harness) -> None:
    host.agent.responses["first"] = chain("chained")
    host.agent.notified["stop"] = HALT
    await host.start([gate("g"), result("first")], [result("chained")], [result("queued")])
    asking = host.asking("a", request_id="r1")
    await host.backend.entered("g")
    told = await host.tell("b")
    await host.notify("stop")
    host.backend.release("g")
    await asking
    status = await host.status()
    assert (status.halted, status.queued) == (True, 2)
    assert await host.runs(PENDING) == ["r1/chain/1", told]
    await host.unhalt()
    await host.ended(told)
    assert (await host.state())["responses"] == ["first", "chained", "queued"]


async def test_M_11_notifications_of_an_idle_agent_are_applied_at_once_and_in_order(host: Harness) -> None:
    await host.start()
    first = await host.notify("e1", request_id="n1")
    second = await host.notify("e2", wait=True)
    assert second.applied
    assert second.sequence == first.sequence + 1
    assert (await host.state())["events"] == ["e1", "e2"]
    again = await host.notify("e1", request_id="n1", wait=True)
    assert (again.sequence, again.applied) == (first.sequence, True)
    with refused("IDEMPOTENCY_CONFLICT"):
        await host.notify("other", request_id="n1")
    assert (await host.state())["events"] == ["e1", "e2"]


@on_postgres_too
async def test_M_11_many_at_once_are_all_applied_in_the_order_of_their_numbers(host: Harness) -> None:
    await host.start([text("a"), result()])
    asking = host.asking("a")
    answers = await asyncio.gather(*(host.notify(number, wait=True) for number in range(30)))
    await asking
    by_number = sorted(range(30), key=lambda number: answers[number].sequence)
    assert (await host.state())["events"] == by_number


@on_postgres_too
async def test_M_12_notifications_are_deferred_to_the_turns_end(host: Harness) -> None:
    await host.start([text("a"), gate("g"), result("done")])
    asking = host.asking("x")
    await host.backend.entered("g")
    for number in range(1, 6):
        assert not (await host.notify(number)).applied
    status = await host.status()
    assert status.pending_notifications == 5
    assert (await host.state())["events"] == []
    host.backend.release("g")
    await asking
    state = await host.state()
    assert state["events"] == [1, 2, 3, 4, 5]
    assert state["responses"] == ["done"]
    assert state["seen"] == ["text", "result"]


@pytest.mark.parametrize("end", ["error", "eof", "crash", "timeout", "interrupt"])
async def test_M_12_whatever_the_end_of_the_turn(host: Harness, end: str) -> None:
    last = {"error": error("e"), "eof": {"eof": None}, "crash": {"crash": "x"}}.get(end, gate("never"))
    limits = AgentLimits(watchdog_ms=300) if end == "timeout" else None
    await host.start([gate("g"), last], limits=limits)
    asking = host.asking("x")
    await host.backend.entered("g")
    await host.notify("e1")
    host.backend.release("g")
    if end == "interrupt":
        await host.backend.entered("never")
        await host.interrupt()
    await asking
    state = await host.state()
    assert state["events"] == ["e1"]
    assert len(state["errors"]) == 1


@on_postgres_too
async def test_M_14_the_prompt_of_a_notification_goes_to_the_tail(host: Harness) -> None:
    host.agent.notified["e1"] = chain("from e1")
    await host.start([gate("g"), result("turn 1")], [result("queued")], [result("e1")])
    asking = host.asking("a")
    await host.backend.entered("g")
    told = await host.tell("queued")
    sequence = (await host.notify("e1", request_id="n1")).sequence
    host.backend.release("g")
    await asking
    ended = await host.ended(f"n1/event/{sequence}")
    assert ended.origin == RunOrigin.RUN_ORIGIN_EVENT
    assert (await host.poll(told)).ended_at_us <= ended.started_at_us
    assert (await host.state())["responses"] == ["turn 1", "queued", "e1"]
    assert [heard.prompt for heard in host.backend.record.prompts] == ["a", "queued", "from e1"]


async def test_M_17_a_notification_that_raises_is_dropped_alone(host: Harness) -> None:
    host.agent.notified["raise"] = RAISE
    await host.start([result("ok")])
    for payload in ("a", "raise", "b"):
        await host.notify(payload, wait=True)
    assert (await host.state())["events"] == ["a", "b"]
    assert (await host.status()).phase == AgentPhase.AGENT_PHASE_IDLE
    assert (await host.ask("hi")).response.text == "ok"


@on_postgres_too
async def test_M_24_the_order_at_a_turns_end(host: Harness) -> None:
    log: list[str] = []
    decided = asyncio.Event()

    async def post_turn(request: PostTurnRequest) -> PostTurnResponse:
        log.append("post_turn")
        assert request.decision.HasField("halt")
        assert request.response.text == "done"
        assert not request.run.HasField("response")
        assert '"done"' in request.state_json
        await decided.wait()
        return PostTurnResponse(state_json=noted(request, "seen", "post_turn"))

    async def post_run(request: PostRunRequest) -> PostRunResponse:
        log.append("post_run")
        assert (request.reason, request.run_id) == ("told to", "r1")
        assert '"e1"' in request.state_json
        return PostRunResponse(state_json=noted(request, "seen", "post_run"))

    agent = ScriptedAgent(responses={"done": HALT}, post_turn=post_turn, post_run=post_run)
    await host.dock_behavior("hooked", agent)
    await host.start([gate("g"), result("done")], [result("next")], behavior="hooked")
    asking = host.asking("x", request_id="r1")
    await host.backend.entered("g")
    told = await host.tell("next")
    await host.notify("e1")
    host.backend.release("g")
    await agent.called("post_turn")
    # The outcome is stored, but nobody has it yet.
    assert (await host.poll("r1")).status == RunStatus.RUN_STATUS_COMPLETED
    assert (await host.status()).phase == AgentPhase.AGENT_PHASE_PROCESSING
    assert not asking.done()
    decided.set()
    assert (await asking).response.text == "done"
    assert agent.names() == ["init_agent", "handle_response", "post_turn", "handle_event", "post_run"]
    assert (await host.state())["seen"] == ["result", "post_turn", "post_run"]
    assert (await host.poll(told)).status == PENDING
    await host.unhalt()
    await host.ended(told)
    assert agent.names().count("post_run") == 1


async def test_M_24_post_turn_that_raises_changes_nothing(host: Harness) -> None:
    async def post_turn(_: PostTurnRequest) -> PostTurnResponse:
        raise RuntimeError("told to raise")

    agent = ScriptedAgent(responses={"first": chain("chained")}, post_turn=post_turn)
    await host.dock_behavior("hooked", agent)
    await host.start([result("first")], [result("second")], behavior="hooked")
    assert (await host.ask("a", request_id="r1")).response.text == "first"
    assert (await host.ended("r1/chain/1")).response.text == "second"
    assert (await host.state())["responses"] == ["first", "second"]


@on_postgres_too
async def test_M_26_the_mailbox_has_bounds_and_says_which(host: Harness) -> None:
    await host.start([gate("g"), result("1")], [result("2")], limits=AgentLimits(max_pending_prompts=1))
    first = await host.tell("1")
    await host.backend.entered("g")
    second = await host.tell("2")
    for call in (host.tell("3", request_id="r3"), host.ask("3", request_id="r3")):
        with refused("MAX_RUNS_EXCEEDED") as caught:
            await call
        figures = caught.value.metadata
        assert {name: figures[name] for name in ("queue", "limit", "pending_count", "max_count")} == {
            "queue": "prompts",
            "limit": "count",
            "pending_count": "1",
            "max_count": "1",
        }
        with refused("RUN_NOT_FOUND"):
            await host.poll("r3")
    host.backend.release("g")
    for run_id in (first, second):
        await host.ended(run_id)
    assert await host.runs() == [first, second]


@on_postgres_too
async def test_M_26_of_twenty_at_once_exactly_as_many_as_fit_are_accepted(host: Harness) -> None:
    await host.start([gate("g"), result("x")], limits=AgentLimits(max_pending_prompts=3))
    await host.tell("first")
    await host.backend.entered("g")
    told = await asyncio.gather(*(host.tell(str(number)) for number in range(20)), return_exceptions=True)
    accepted = [run_id for run_id in told if isinstance(run_id, str)]
    assert len(accepted) == 3
    assert (await host.status()).queued == 3
    host.backend.release("g")
    for run_id in accepted:
        assert (await host.ended(run_id)).status == RunStatus.RUN_STATUS_COMPLETED


async def test_M_26_with_a_cap_of_zero_an_idle_agent_still_takes_one(host: Harness) -> None:
    await host.start([gate("g"), result("x")], [result("y")], limits=AgentLimits(max_pending_prompts=0))
    first = await host.tell("1")
    await host.backend.entered("g")
    with refused("MAX_RUNS_EXCEEDED"):
        await host.tell("2")
    host.backend.release("g")
    await host.ended(first)
    await host.until_idle()
    assert (await host.ask("3")).response.text == "y"


async def test_M_26_the_bytes_of_prompts_are_bounded_too(host: Harness) -> None:
    await host.start([gate("g"), result("x")], limits=AgentLimits(max_pending_bytes=10))
    await host.tell("x" * 100)
    await host.backend.entered("g")
    await host.tell("12345678")
    with refused("MAX_RUNS_EXCEEDED") as caught:
        await host.tell("é2")
    assert {
        name: caught.value.metadata[name]
        for name in ("limit", "pending_bytes", "incoming_bytes", "max_bytes")
    } == {
        "limit": "bytes",
        "pending_bytes": "8",
        "incoming_bytes": "3",
        "max_bytes": "10",
    }
    await host.tell("12")
    host.backend.release("g")


async def test_reject_is_refused_while_anything_runs_or_waits(host: Harness) -> None:
    host.agent.responses["halt"] = HALT
    await host.start([gate("g"), result("halt")], [result("b")])
    asking = host.asking("a")
    await host.backend.entered("g")
    with refused("AGENT_BUSY"):
        await host.tell("b", busy_policy=BusyPolicy.BUSY_POLICY_REJECT)
    host.backend.release("g")
    await asking
    with refused("AGENT_BUSY"):
        await host.tell("b", busy_policy=BusyPolicy.BUSY_POLICY_REJECT)
    await host.unhalt()
    told = await host.tell("b", busy_policy=BusyPolicy.BUSY_POLICY_REJECT)
    assert (await host.ended(told)).response.text == "b"


async def test_interrupt_as_busy_policy_kills_the_turn_and_runs_next(host: Harness) -> None:
    await host.start([gate("g"), result("never")], [result("urgent")], [result("queued")])
    asking = host.asking("a")
    await host.backend.entered("g")
    told = await host.tell("b")
    answer = await host.ask("now", busy_policy=BusyPolicy.BUSY_POLICY_INTERRUPT)
    assert answer.response.text == "urgent"
    assert (await asking).failure.reason == "interrupted"
    assert (await host.ended(told)).response.text == "queued"


@on_postgres_too
async def test_queued_runs_can_be_listed_edited_moved_and_cancelled(host: Harness) -> None:
    await host.start([gate("g"), result("x")], [result("y")])
    running = await host.tell("running", request_id="r0")
    await host.backend.entered("g")
    for name in ("a", "b", "c", "d"):
        await host.tell(name, request_id=name)
    assert await host.runs(PENDING) == ["a", "b", "c", "d"]
    assert (await host.edit("c", prompt="C", before_run_id="a")).prompt == "C"
    await host.edit("a", to_tail=True)
    assert await host.runs(PENDING) == ["c", "b", "d", "a"]
    for _ in range(2):
        assert (await host.cancel("b", request_id="x1")).status == RunStatus.RUN_STATUS_CANCELLED
    assert (await host.poll("b")).failure.reason == "cancelled"
    with refused("INVALID_STATUS"):
        await host.edit("r0", prompt="too late")
    with refused("INVALID_STATUS"):
        await host.cancel("r0")
    with refused("RUN_NOT_FOUND"):
        await host.cancel("nope")
    host.backend.release("g")
    for run_id in (running, "c", "d", "a"):
        await host.ended(run_id)
    assert [heard.prompt for heard in host.backend.record.prompts] == ["running", "C", "d", "a"]
    assert host.agent.names().count("handle_error") == 0


@on_postgres_too
async def test_an_ask_whose_caller_hangs_up_while_it_waits_is_cancelled(host: Harness) -> None:
    await host.start([gate("g"), result("x")], [result("never")])
    running = host.asking("a", request_id="a")
    await host.backend.entered("g")
    waiting = host.asking("b", request_id="b")
    await host.until(lambda status: status.queued == 1)
    for call in (running, waiting):
        call.cancel()
    cancelled = await host.ended("b")
    assert (cancelled.status, cancelled.failure.reason) == (RunStatus.RUN_STATUS_CANCELLED, "caller_gone")
    host.backend.release("g")
    assert (await host.ended("a")).status == RunStatus.RUN_STATUS_COMPLETED


async def test_an_ask_that_runs_out_of_time_leaves_its_run_alone(host: Harness) -> None:
    await host.start([gate("g"), result("x")], [result("b")])
    await host.tell("a")
    await host.backend.entered("g")
    with refused("TIMEOUT"):
        await host.ask("b", request_id="b", timeout=0.5)
    assert (await host.poll("b")).status == PENDING
    again = host.asking("b", request_id="b")
    host.backend.release("g")
    assert (await again).response.text == "b"


@on_postgres_too
async def test_a_prompt_that_interrupts_is_next_also_before_a_chained_run(host: Harness) -> None:
    host.agent.errors["interrupted"] = chain("again")
    await host.start([gate("g")], [result("now")], [result("chained")], [result("queued")])
    asking = host.asking("a", request_id="r1")
    await host.backend.entered("g")
    told = await host.tell("b")
    answer = await host.ask("now", busy_policy=BusyPolicy.BUSY_POLICY_INTERRUPT)
    assert (await asking).failure.reason == "interrupted"
    assert answer.response.text == "now"
    await host.ended(told)
    assert [heard.prompt for heard in host.backend.record.prompts] == ["a", "now", "again", "b"]
