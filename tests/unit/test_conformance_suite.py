"""The frame of the conformance kit: what it runs, what it leaves out, what it says."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from turndock.conformance import ContractBroken, Outcome, Report, Suite, limits
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


async def test_whatever_an_implementation_raises_is_a_finding() -> None:
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
    async def waits(shelf: Shelf) -> None:
        """A shelf does not lose patience before the case does."""
        await fails_with(TimeoutError("no board came"))

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
    assert "TimeoutError: no board came" in details["waits"]
    assert details["several"] == "The first board is missing.\nThe second board is missing."


class Librarian:
    async def answer(self) -> None:
        await asyncio.Event().wait()


async def test_a_case_that_hangs_fails_with_its_name_and_what_it_waited_for() -> None:
    made: Suite[Shelf] = Suite("Shelf")

    @made.case("R-1", limit_s=0.05)
    async def is_answered(shelf: Shelf) -> None:
        """A shelf answers."""
        await Librarian().answer()  # for ever

    @made.case("R-2", limit_s=0.05)
    async def answers_two(shelf: Shelf) -> None:
        """A shelf answers two at once."""

        async def ask() -> None:
            await asyncio.Event().wait()  # one of two

        await asyncio.gather(ask(), ask())

    @made.case("R-3")
    async def stands(shelf: Shelf) -> None:
        """A shelf stands after what was before."""

    report = await run(made)
    assert [result.outcome for result in report.results] == [Outcome.FAILED, Outcome.FAILED, Outcome.PASSED]
    lone, two = (failure.detail.splitlines() for failure in report.failures)
    assert lone[0] == "is_answered was not over after 0.05 seconds. It waited for:"
    assert "test_conformance_suite.py:" in lone[1]
    assert "await Librarian().answer()  # for ever (in Librarian.answer > Event.wait)" in lone[1]
    assert len(lone) == 2
    assert two[0].startswith("answers_two ")
    assert "await asyncio.gather(ask(), ask())" in two[1]
    assert "await asyncio.Event().wait()  # one of two (in Event.wait)" in two[2]
    assert len(two) == 3
    assert made["stands"].limit_s == limits.CASE_LIMIT_S


async def test_a_case_that_does_not_end_when_cancelled_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "END_LIMIT_S", 0.05)
    made: Suite[Shelf] = Suite("Shelf")
    enough = asyncio.Event()

    @made.case("R-1", limit_s=0.05)
    async def listens(shelf: Shelf) -> None:
        """A shelf listens."""
        while not enough.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await enough.wait()

    @made.case("R-2")
    async def stands(shelf: Shelf) -> None:
        """A shelf stands."""
        enough.set()

    report = await run(made)
    assert [result.outcome for result in report.results] == [Outcome.FAILED, Outcome.PASSED]
    assert report.failures[0].detail.endswith("It went on 0.05 seconds after it was cancelled, too.")


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
