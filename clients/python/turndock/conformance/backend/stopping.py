"""Stopping: a turn ends when the host leaves it, and an interrupt is confirmed."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

from turndock.conformance.backend.suite import INTERRUPT, LONG_RUNNING, Fixture, case
from turndock.conformance.backend.turn import Turn
from turndock.conformance.claims import holds
from turndock.errors import Code, TurndockError

TIMES = 10


@case("Prompt", "Cancellation", prompts=[LONG_RUNNING])
async def a_cancelled_turn_stops(fixture: Fixture) -> None:
    """Cancelling the task that pulls a turn ends the turn, and its session takes another prompt."""
    talk = await fixture.start(fixture.prompt(LONG_RUNNING))
    async with talk.open() as turn:
        await _running(turn)
        await turn.go_on()
        await turn.cancel()
    await talk.ask_on()


@case("Prompt", "Cancellation", prompts=[LONG_RUNNING])
async def a_turn_that_is_left_stops(fixture: Fixture) -> None:
    """Closing a turn's generator ends the turn, and its session takes another prompt."""
    talk = await fixture.start(fixture.prompt(LONG_RUNNING))
    async with talk.open() as turn:
        await _running(turn)
        await turn.leave()
    await talk.ask_on()


@case("Prompt", "Cancellation", prompts=[LONG_RUNNING])
async def a_turn_that_is_cancelled_at_once_stops(fixture: Fixture) -> None:
    """Cancelling a turn that has said nothing yet ends it as well."""
    talk = await fixture.start(fixture.prompt(LONG_RUNNING))
    async with talk.open() as turn:
        await asyncio.sleep(0)
        await turn.cancel()
    await (await fixture.start()).ask_on()


@case("Prompt", "Cancellation", prompts=[LONG_RUNNING])
async def stopping_one_turn_leaves_the_others(fixture: Fixture) -> None:
    """Cancelling a turn does nothing to a turn of another session that runs beside it."""
    talk = await fixture.start()
    stopped = await fixture.start(fixture.prompt(LONG_RUNNING))
    async with talk.open() as turn, stopped.open() as long_turn:
        await _running(long_turn)
        await turn.spoken()
        await long_turn.go_on()
        await long_turn.cancel()
        await turn.end()
    turn.result("A turn beside one that was cancelled")


@case("Interrupt", needs=[INTERRUPT], prompts=[LONG_RUNNING])
async def an_interrupt_is_confirmed(fixture: Fixture) -> None:
    """Interrupt of a running turn returns when its work has stopped, and the session takes another prompt."""
    talk = await fixture.start(fixture.prompt(LONG_RUNNING))
    async with talk.open() as turn:
        await _running(turn)
        await turn.go_on()
        await fixture.interrupt(turn.request.turn_token)
        await turn.drop()
    holds(len(turn.terminals) <= 1, f"An interrupted turn said {len(turn.terminals)} terminals.")
    await talk.ask_on()


@case("Interrupt", needs=[INTERRUPT])
async def an_interrupt_of_an_unknown_turn_is_harmless(fixture: Fixture) -> None:
    """Interrupt of a turn nobody knows, or that has ended, is OK or NOT_FOUND, and stops no other turn."""
    talk = await fixture.start()
    ended = await talk.ask()
    async with talk.open() as turn:
        await turn.spoken()
        for token in (uuid.uuid4().hex, ended.request.turn_token):
            await _interrupt_unknown(fixture, token)
        await turn.end()
    turn.result("A turn beside an interrupt of an unknown one")


@case("Interrupt", "Cancellation", needs=[INTERRUPT], prompts=[LONG_RUNNING])
async def interrupts_and_cancellations_leave_no_task(fixture: Fixture) -> None:
    """Ten turns that were interrupted and cancelled leave no task behind."""
    await _check_no_task_is_left(fixture, interrupts=True)


@case("Cancellation", prompts=[LONG_RUNNING])
async def cancellations_leave_no_task(fixture: Fixture) -> None:
    """Ten turns that were cancelled leave no task behind."""
    await _check_no_task_is_left(fixture, interrupts=False)


async def _check_no_task_is_left(fixture: Fixture, *, interrupts: bool) -> None:
    await _stop_one(fixture, interrupts=interrupts)  # what is made once, for all turns, is no leak
    before = asyncio.all_tasks()
    for _ in range(TIMES):
        await _stop_one(fixture, interrupts=interrupts)
    left = asyncio.all_tasks() - before
    with suppress(TimeoutError):
        async with asyncio.timeout(fixture.deadline_s):
            while len(left) >= TIMES:  # a few may be the transport's, whose tasks come and go as it likes
                _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
    names = sorted({getattr(task.get_coro(), "__qualname__", "") for task in left})
    holds(
        len(left) < TIMES,
        f"{TIMES} stopped turns left {len(left)} tasks behind, of {names}.",
    )


async def _stop_one(fixture: Fixture, *, interrupts: bool) -> None:
    talk = await fixture.start(fixture.prompt(LONG_RUNNING))
    async with talk.open() as turn:
        await _running(turn)
        await turn.go_on()
        if interrupts:
            await fixture.interrupt(turn.request.turn_token)
        await turn.drop()


async def _interrupt_unknown(fixture: Fixture, turn_token: str) -> None:
    try:
        await fixture.interrupt(turn_token)
    except TurndockError as error:
        holds(
            error.code is Code.NOT_FOUND,
            f"Interrupt of an unknown turn must be OK or NOT_FOUND; it was refused with {error.code.name}: {error}",
        )


async def _running(turn: Turn) -> None:
    """Wait until a long turn is on its way."""
    await turn.spoken()
    holds(
        turn.outputs and not turn.is_over, "A `long_running` prompt must say something and then keep going."
    )
    holds(not turn.terminals, "A `long_running` prompt must not end by itself.")
