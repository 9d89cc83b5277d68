"""Interrupt, Unhalt and Touch with a `request_id`: what a retry does, also over a restart."""

from __future__ import annotations

import asyncio

from support.harness import Harness, refused
from support.parts import gate, result
from support.scripted_agent import HALT
from turndock import wire
from turndock.agent.v1 import (
    InterruptOutcome,
    InterruptRequest,
    InterruptResponse,
    TouchRequest,
    UnhaltRequest,
    UnhaltResponse,
)
from turndock.store.v1 import AppendEventsRequest
from turndock.types.v1 import AgentLimits, AgentPhase, Event, RunStatus
from turndock_server.core import repeats

ACCEPTED = InterruptOutcome.INTERRUPT_OUTCOME_ACCEPTED
IDLE = InterruptOutcome.INTERRUPT_OUTCOME_IDLE
NOT_CURRENT = InterruptOutcome.INTERRUPT_OUTCOME_NOT_CURRENT


async def interrupt(host: Harness, request_id: str, run_id: str = "") -> InterruptResponse:
    with wire.translated():
        request = InterruptRequest(agent_name="a1", request_id=request_id, run_id=run_id)
        return await host.served.stub.Interrupt(request)


async def unhalt(host: Harness, request_id: str) -> UnhaltResponse:
    with wire.translated():
        return await host.served.stub.Unhalt(UnhaltRequest(agent_name="a1", request_id=request_id))


async def controls(host: Harness) -> list[Event]:
    return [
        event
        for event in await host.log()
        if event.custom.name in ("turndock.interrupted", "turndock.unhalted")
    ]


async def test_a_retry_of_an_interrupt_kills_no_other_turn(host: Harness) -> None:
    await host.start([gate("one"), result("1")], [gate("two"), result("2")])
    first = await host.tell("one")
    await host.backend.entered("one")
    second = await host.tell("two")
    answer = await interrupt(host, "i-1")
    assert (answer.outcome, answer.run_id) == (ACCEPTED, first)
    assert (await host.ended(first)).status == RunStatus.RUN_STATUS_CANCELLED
    await host.backend.entered("two")
    assert await interrupt(host, "i-1") == answer
    host.backend.release("two")
    assert (await host.ended(second)).status == RunStatus.RUN_STATUS_COMPLETED
    assert [event.custom.name for event in await controls(host)] == ["turndock.interrupted"]


async def test_a_retry_of_an_interrupt_that_found_nothing_kills_nothing(host: Harness) -> None:
    await host.start([gate("one"), result("1")])
    assert (await interrupt(host, "i-1")).outcome == IDLE
    run_id = await host.tell("one")
    await host.backend.entered("one")
    assert (await interrupt(host, "i-1")).outcome == IDLE
    assert (await interrupt(host, "i-2", "another")).outcome == NOT_CURRENT
    assert (await interrupt(host, "i-2", "another")).outcome == NOT_CURRENT
    host.backend.release("one")
    assert (await host.ended(run_id)).status == RunStatus.RUN_STATUS_COMPLETED


async def test_a_dormant_agent_remembers_and_sleeps_on(host: Harness) -> None:
    await host.start([result("1")], limits=AgentLimits(idle_shutdown_ms=30))
    await host.until(lambda status: status.phase == AgentPhase.AGENT_PHASE_DORMANT)
    assert (await interrupt(host, "i-1")).outcome == IDLE
    assert (await host.status()).phase == AgentPhase.AGENT_PHASE_DORMANT
    assert (await interrupt(host, "i-1")).outcome == IDLE
    assert len(await controls(host)) == 1


async def test_the_same_id_for_another_request_is_a_conflict_and_does_nothing(host: Harness) -> None:
    await host.start([gate("one"), result("1")])
    run_id = await host.tell("one")
    await host.backend.entered("one")
    await host.notify({"n": 1}, request_id="n-1")
    assert (await interrupt(host, "i-1", "another")).outcome == NOT_CURRENT
    for taken in ("i-1", "n-1"):
        with refused("IDEMPOTENCY_CONFLICT"):
            await interrupt(host, taken)
        with refused("IDEMPOTENCY_CONFLICT"):
            await unhalt(host, taken)
    with refused("IDEMPOTENCY_CONFLICT"):
        await host.notify({"n": 1}, request_id="i-1")
    host.backend.release("one")
    assert (await host.ended(run_id)).status == RunStatus.RUN_STATUS_COMPLETED


async def test_a_retry_of_an_unhalt_thaws_nothing_that_was_frozen_again(host: Harness) -> None:
    host.agent.responses |= {"1": HALT, "2": HALT}
    await host.start([result("1")], [result("2")], [result("3")])
    await host.ask("one")
    assert (await host.status()).halted
    assert not (await unhalt(host, "u-1")).agent.halted
    await host.ask("two")
    assert (await unhalt(host, "u-1")).agent.halted
    assert not (await unhalt(host, "u-2")).agent.halted
    assert (await host.ask("three")).response.text == "3"
    assert len(await controls(host)) == 2


async def test_an_unhalt_that_was_noted_and_not_carried_out_is_carried_out_by_its_retry(
    host: Harness,
) -> None:
    host.agent.responses["1"] = HALT
    session_id = (await host.start([result("1")], limits=AgentLimits(idle_shutdown_ms=30))).agent.session_id
    await host.ask("one")
    await host.until(lambda status: status.phase == AgentPhase.AGENT_PHASE_DORMANT)
    noted = repeats.unhalted(session_id, "u-1")  # a host that died at this moment leaves just this
    await host.store.append_events(AppendEventsRequest(events=[noted]))
    assert (await host.status()).halted
    assert not (await unhalt(host, "u-1")).agent.halted


async def test_many_tries_at_once_are_one(host: Harness) -> None:
    await host.start([gate("one"), result("1")], [result("2")])
    run_id = await host.tell("one")
    await host.backend.entered("one")
    answers = await asyncio.gather(*(interrupt(host, "i-1") for _ in range(20)))
    assert {(answer.outcome, answer.run_id) for answer in answers} == {(ACCEPTED, run_id)}
    assert (await host.ended(run_id)).status == RunStatus.RUN_STATUS_CANCELLED
    assert (await host.ask("two")).response.text == "2"
    assert len(await controls(host)) == 1


async def test_touch_stores_nothing(host: Harness) -> None:
    await host.start([result("1")])
    before = await host.log()
    for _ in range(2):
        await host.served.stub.Touch(TouchRequest(agent_name="a1", request_id="t-1"))
    assert await host.log() == before
