"""The frame of the conformance kit: what it runs, what it leaves out, what it says."""

from __future__ import annotations

import asyncio

import pytest

from turndock.conformance import ContractBroken, Outcome, Report, Suite, cases
from turndock.conformance.claims import equal, holds, refused, unknown
from turndock.errors import TurndockError, invalid, not_found


class Shelf:
    """What the cases below get."""


async def fails_with(error: BaseException) -> None:
    raise error


def suite() -> Suite[Shelf]:
    made: Suite[Shelf] = Suite("Shelf", ("wide", "high"))

    @made.case("R-1")
    async def stands(shelf: Shelf) -> None:
        """A shelf stands."""

    @made.case("R-2", "R-3")
    async def holds_books(shelf: Shelf) -> None:
        """A shelf
        holds books."""
        equal(1, 2, "Books are counted.")

    @made.case("R-3", needs=("wide",))
    async def holds_folios(shelf: Shelf) -> None:
        """A wide shelf holds folios."""

    return made


async def run(made: Suite[Shelf], *abilities: str, **options: object) -> Report:
    return await made.run(Shelf, abilities=abilities, **options)  # type: ignore[arg-type] # what the test chose


def test_a_case_has_a_name_a_requirement_and_a_sentence() -> None:
    made = suite()
    assert [case.name for case in made] == ["stands", "holds_books", "holds_folios"]
    assert made["holds_books"].sentence == "A shelf holds books."
    assert [case.name for case in made.for_requirement("R-3")] == ["holds_books", "holds_folios"]
    with pytest.raises(ValueError, match="needs a requirement, a sentence, a name"):

        @made.case("R-9")
        async def nothing_said(shelf: Shelf) -> None:
            pass

    with pytest.raises(ValueError, match="known abilities"):

        @made.case("R-9", needs=("deep",))
        async def deep(shelf: Shelf) -> None:
            """A deep shelf is deep."""

    with pytest.raises(ValueError, match="a name of its own"):

        @made.case("R-9")
        async def stands(shelf: Shelf) -> None:
            """A shelf stands again."""


async def test_a_report_says_what_became_of_every_case() -> None:
    report = await run(suite())
    outcomes = [result.outcome for result in report.results]
    assert outcomes == [Outcome.PASSED, Outcome.FAILED, Outcome.NOT_OFFERED]
    assert not report.is_conformant
    text = str(report)
    assert "3 cases: 1 passed, 1 failed, 0 skipped, 1 not offered" in text
    assert "FAILED holds_books (R-2, R-3)\n  A shelf holds books.\n  Books are counted." in text
    assert "NOT OFFERED holds_folios (R-3)\n  A wide shelf holds folios.\n  wide" in text


async def test_a_case_is_skipped_only_by_name_and_with_a_reason() -> None:
    report = await run(suite(), "wide", skips={"holds_books": "the books are at the binder's"})
    assert report.is_conformant
    assert [result.outcome for result in report.results] == [Outcome.PASSED, Outcome.SKIPPED, Outcome.PASSED]
    for options in ({"skips": {"holds_books": " "}}, {"skips": {"nope": "why"}}, {"only": ["nope"]}):
        with pytest.raises(ValueError, match="unknown names"):
            await run(suite(), **options)
    with pytest.raises(ValueError, match="deep"):
        await run(suite(), "deep")


async def test_only_narrows_the_run_and_each_case_gets_its_own_fixture() -> None:
    made: list[Shelf] = []

    def new() -> Shelf:
        made.append(Shelf())
        return made[-1]

    report = await suite().run(new, abilities=("wide",), only=("stands", "holds_folios"))
    assert [result.name for result in report.results] == ["stands", "holds_folios"]
    assert len(made) == 2


async def test_whatever_an_implementation_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "CASE_TIMEOUT_S", 0.01)
    made: Suite[Shelf] = Suite("Shelf")

    @made.case("R-1")
    async def refuses(shelf: Shelf) -> None:
        """A shelf refuses nothing."""
        await fails_with(not_found("session", "ses_1"))

    @made.case("R-2")
    async def breaks(shelf: Shelf) -> None:
        """A shelf does not break."""
        await fails_with(ZeroDivisionError("too heavy"))

    @made.case("R-3")
    async def hangs(shelf: Shelf) -> None:
        """A shelf answers."""
        await asyncio.Event().wait()

    @made.case("R-4")
    async def several(shelf: Shelf) -> None:
        """A shelf has several boards."""
        async with asyncio.TaskGroup() as group:
            group.create_task(fails_with(ContractBroken("The first board is missing.")))
            group.create_task(fails_with(ContractBroken("The second board is missing.")))

    details = {failure.name: failure.detail for failure in (await run(made)).failures}
    assert "A call that must succeed was refused: SESSION_NOT_FOUND" in details["refuses"]
    assert "test_conformance_suite.py" in details["refuses"]
    assert "ZeroDivisionError: too heavy" in details["breaks"]
    assert "a call does not return" in details["hangs"]
    assert details["several"] == "The first board is missing.\nThe second board is missing."


async def test_a_cancelled_run_is_cancelled() -> None:
    made: Suite[Shelf] = Suite("Shelf")
    begun = asyncio.Event()

    @made.case("R-1")
    async def hangs(shelf: Shelf) -> None:
        """A shelf answers."""
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(run(made))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_claims_say_what_is_wrong() -> None:
    holds(1, "never said")
    equal(1, 1, "never said")
    with pytest.raises(ContractBroken, match="It is so"):
        holds(0, "It is so.")
    with pytest.raises(ContractBroken, match=r"Same\.\n  expected: 'b'\n  got:      'a'"):
        equal("a", "b", "Same.")

    async def answers() -> str:
        return "fine"

    with pytest.raises(ContractBroken, match="expected: VALIDATION_ERROR\n  got:      OK with 'fine'"):
        await refused(answers(), "VALIDATION_ERROR", "It is refused.")
    wrong = invalid("session.id", "must not be empty")
    assert await refused(fails_with(wrong), "VALIDATION_ERROR", "", field="session.id") is wrong
    with pytest.raises(ContractBroken, match=r"must name the field 'run\.id'"):
        await refused(fails_with(wrong), "VALIDATION_ERROR", "", field="run.id")
    with pytest.raises(ContractBroken, match="expected: 'FENCED'"):
        await refused(fails_with(wrong), "FENCED", "")
    with pytest.raises(ContractBroken, match="tells that it exists"):
        await unknown(fails_with(TurndockError("PERMISSION_DENIED", "no")), "SESSION_NOT_FOUND", "")
    missing = not_found("session", "x")
    assert await unknown(fails_with(missing), "SESSION_NOT_FOUND", "") is missing
