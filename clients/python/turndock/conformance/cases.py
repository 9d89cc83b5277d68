"""Cases, suites, reports: the frame every contract's cases stand in.

A case is `async def case(fixture)`, its docstring one sentence of the contract. It fails by raising, and by taking too
long. It gets a fixture
of its own with a fresh random scope, so that cases need no cleaning and can share one implementation.

What an implementation is put through is decided by people: abilities it is said to have are checked in full, those it
is said not to have are checked to be absent, and a case is skipped only where a list names it with a reason.
"""

from __future__ import annotations

import enum
import inspect
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast

from turndock.conformance.claims import ContractBroken
from turndock.conformance.limits import CASE_LIMIT_S, TookTooLong, within
from turndock.errors import TurndockError

F = TypeVar("F")
"""What a contract's cases get."""


class Outcome(enum.Enum):
    """What became of a case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """A list names it, with a reason."""
    NOT_OFFERED = "not offered"
    """It needs an ability the implementation is said not to have."""


@dataclass(frozen=True, slots=True)
class Case(Generic[F]):
    """One sentence of a contract and its check."""

    name: str
    requirements: tuple[str, ...]
    """Ids of what it checks."""
    sentence: str
    check: Callable[[F], Awaitable[None]]
    needs: frozenset[str]
    """Abilities without which it says nothing."""
    limit_s: float = CASE_LIMIT_S
    """Seconds after which it has failed."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one case, and why."""

    name: str
    requirements: tuple[str, ...]
    sentence: str
    outcome: Outcome
    detail: str = ""
    """What is wrong, why it was skipped, or which ability is absent."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of all cases of a suite."""

    contract: str
    results: tuple[Result, ...]

    @property
    def is_conformant(self) -> bool:
        """Whether no case failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Result, ...]:
        """The cases that failed."""
        return tuple(result for result in self.results if result.outcome is Outcome.FAILED)

    def count(self, outcome: Outcome) -> int:
        """How many cases ended so."""
        return sum(result.outcome is outcome for result in self.results)

    def __str__(self) -> str:
        counts = ", ".join(f"{self.count(outcome)} {outcome.value}" for outcome in Outcome)
        lines = [f"{self.contract}: {len(self.results)} cases: {counts}"]
        for result in self.results:
            if result.outcome is not Outcome.PASSED:
                lines.append(
                    f"{result.outcome.value.upper()} {result.name} ({', '.join(result.requirements)})"
                )
                lines.append(f"  {result.sentence}")
                lines.extend(f"  {line}" for line in result.detail.splitlines())
        return "\n".join(lines)


class Suite(Generic[F]):
    """The cases of one contract, in the order in which they were written."""

    def __init__(self, contract: str, abilities: Iterable[str] = ()) -> None:
        """A suite for `contract`, whose optional abilities are these."""
        self.contract = contract
        self.abilities = frozenset(abilities)
        self._cases: dict[str, Case[F]] = {}

    def case(
        self, *requirements: str, needs: Iterable[str] = (), limit_s: float = CASE_LIMIT_S
    ) -> Callable[[Callable[[F], Awaitable[None]]], Callable[[F], Awaitable[None]]]:
        """Decorates the check of a case; its name is the case's name, its docstring the sentence.

        A case that is not over after `limit_s` seconds has failed.
        """

        def add(check: Callable[[F], Awaitable[None]]) -> Callable[[F], Awaitable[None]]:
            name = getattr(check, "__name__", "")
            sentence = " ".join((check.__doc__ or "").split())
            needed = frozenset(needs)
            if not requirements or not sentence or name in self._cases or not needed <= self.abilities:
                raise ValueError(
                    f"case {name!r} needs a requirement, a sentence, a name of its own and known abilities"
                )
            self._cases[name] = Case(name, requirements, sentence, check, needed, limit_s)
            return check

        return add

    def __iter__(self) -> Iterator[Case[F]]:
        return iter(self._cases.values())

    def __len__(self) -> int:
        return len(self._cases)

    def __getitem__(self, name: str) -> Case[F]:
        return self._cases[name]

    def for_requirement(self, requirement: str) -> list[Case[F]]:
        """The cases that check this requirement."""
        return [case for case in self if requirement in case.requirements]

    async def run(
        self,
        new_fixture: Callable[[], F],
        *,
        abilities: Iterable[str],
        skips: Mapping[str, str] | None = None,
        only: Iterable[str] | None = None,
    ) -> Report:
        """Put an implementation through the cases, one after the other.

        `abilities` are those it is said to have, `skips` says why a case of that name is left out, `only` narrows the
        run to cases of these names. Raises `ValueError` for names of no ability or case, and for an empty reason.
        """
        offered, skipped = frozenset(abilities), dict(skips or {})
        chosen = frozenset(only) if only is not None else frozenset(self._cases)
        strangers = sorted((offered - self.abilities) | ((skipped.keys() | chosen) - self._cases.keys()))
        if strangers or not all(reason.strip() for reason in skipped.values()):
            raise ValueError(f"unknown names {strangers}, or a skip without a reason")
        results: list[Result] = []
        for case in self:
            if case.name not in chosen:
                continue
            outcome, detail = Outcome.PASSED, ""
            if case.name in skipped:
                outcome, detail = Outcome.SKIPPED, skipped[case.name]
            elif not case.needs <= offered:
                outcome, detail = Outcome.NOT_OFFERED, ", ".join(sorted(case.needs - offered))
            elif (found := await _fault(case, new_fixture())) is not None:
                outcome, detail = Outcome.FAILED, found
            results.append(Result(case.name, case.requirements, case.sentence, outcome, detail))
        return Report(self.contract, tuple(results))


async def _fault(case: Case[F], fixture: F) -> str | None:
    """What a case finds wrong; None if nothing is."""
    try:
        await within(case.limit_s, case.name, lambda: case.check(fixture), inspect.getfile(case.check))
    except TookTooLong as late:
        return str(late)
    except Exception as error:  # noqa: BLE001 - whatever an implementation raises is a finding
        return "\n".join(dict.fromkeys(_told(case, error)))
    return None


def _told(case: Case[F], error: Exception) -> Iterator[str]:
    """A finding in sentences, for whoever wrote the implementation; a trace only for what nobody foresaw."""
    if isinstance(error, ExceptionGroup):
        for inner in cast("ExceptionGroup[Exception]", error).exceptions:
            yield from _told(case, inner)
    elif isinstance(error, ContractBroken):
        yield str(error)
    elif isinstance(error, TurndockError):
        file = inspect.getfile(case.check)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        place = f" ({Path(file).name}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""
        yield f"A call that must succeed was refused: {error}{place}"
    else:
        yield "".join(traceback.format_exception(error)).rstrip()
