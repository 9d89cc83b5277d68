"""Every behavior passes every case of its contract, in process and served; behaviors broken on purpose do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from support.behavior_mutants import MUTANTS, Counter, HidesACallback, Mutant, Plain
from support.scripted_agent import ScriptedAgent
from turndock import serving, wire
from turndock.conformance import Outcome, Report
from turndock.conformance.behavior import SUITE, Fixture, Story
from turndock.ports import BEHAVIOR_OPTIONS, Behavior
from turndock.remote import RemoteBehavior

Where = Literal["in_process", "served"]
ALL = frozenset(BEHAVIOR_OPTIONS)
SUBJECTS: dict[str, type[Behavior]] = {"counter": Counter, "plain": Plain, "scripted": ScriptedAgent}


@asynccontextmanager
async def docked(behavior: Behavior, where: Where) -> AsyncGenerator[Behavior]:
    """The behavior as a host has it."""
    if where == "in_process":
        yield behavior
        return
    server = wire.new_server()
    serving.add_behavior(server, behavior)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with wire.connect(endpoint) as channel:
            yield RemoteBehavior(channel, serving.capabilities_of(behavior))
    finally:
        await server.stop(0)


@pytest.mark.parametrize("where", ["in_process", "served"])
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("case", [case.name for case in SUITE])
async def test_a_behavior_keeps_its_contract(case: str, name: str, where: Where) -> None:
    behavior = SUBJECTS[name]()
    abilities = behavior.capabilities
    async with docked(behavior, where) as at_host:
        report = await SUITE.run(lambda: Fixture(at_host, abilities), abilities=abilities, only=[case])
    assert report.is_conformant, str(report)


async def test_the_behavior_the_broken_ones_are_made_from_is_whole() -> None:
    report = await broken(Counter(), None)
    assert report.is_conformant, str(report)
    assert report.count(Outcome.PASSED) == len(SUITE)


async def broken(behavior: Behavior, case: str | None) -> Report:
    return await SUITE.run(
        lambda: Fixture(behavior, ALL, deadline_s=0.3), abilities=ALL, only=None if case is None else [case]
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.behavior.__name__}-{mutant.fails}")
async def test_a_broken_behavior_fails_by_the_case_that_says_so(mutant: Mutant) -> None:
    report = await broken(mutant.behavior(), mutant.fails)
    assert [failure.name for failure in report.failures] == [mutant.fails], str(report)


async def test_a_behavior_with_more_than_it_is_said_to_have_is_found_out() -> None:
    absent, abilities = "an_absent_callback_says_that_it_is_absent", ALL - {"post_run"}
    report = await SUITE.run(lambda: Fixture(HidesACallback(), abilities), abilities=abilities, only=[absent])
    assert [failure.name for failure in report.failures] == [absent]
    assert "post_run" in report.failures[0].detail


def test_the_cases_cover_the_requirements() -> None:
    covered = {requirement for case in SUITE for requirement in case.requirements}
    assert len(SUITE) >= 24
    assert {f"M-{number:02}" for number in (7, 8, 9, 11, 17, 18, 20, 21, 23, 24, 25)} <= covered
    assert {"B-16", "PF-B33", "PF-E25", "HandsOff", "State", "Concurrency", "Idempotence"} <= covered
    assert {name for case in SUITE for name in case.needs} == ALL


def test_a_story_may_be_told_otherwise() -> None:
    assert len(Story(prompts=("a",), answers=("b",)).prompts) == 1
