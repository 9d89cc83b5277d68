"""What the demo claims, each claim looked up in what was seen and what is stored. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from turndock import events
from turndock.types.v1 import Event, EventType, Run, RunStatus


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence, and what speaks against it."""

    text: str
    problem: str = ""
    """Empty = it holds."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What there is to look at in the end."""

    seen: Sequence[Event]
    """What the one watcher got, over both servers, in the order in which it came."""
    stored: Sequence[Event]
    """The log as the store has it."""
    runs: Mapping[str, Run]
    """The rows of the three runs."""
    answered: str
    """The run before the kill."""
    killed: str
    """The run in the middle of which the server was killed."""
    queued: str
    """The run that waited meanwhile."""
    seen_before: int
    """How many events the watcher had got when the server was killed."""
    exit_codes: tuple[int, int]
    """How the two servers ended."""


def claims(evidence: Evidence) -> Iterator[Claim]:
    """Every claim, held against the evidence."""
    seen = [event.sequence for event in evidence.seen]
    last = len(evidence.stored)
    before = evidence.seen_before
    yield Claim(
        f"The watcher saw the events 1 to {last}, each once: {before} before the kill, {last - before} after it",
        _unequal("saw", seen, [*range(1, last + 1)]),
    )
    stored = [event.sequence for event in evidence.stored]
    same = all(one == other for one, other in zip(evidence.seen, evidence.stored, strict=False))
    yield Claim(
        "What was seen is what is stored, event by event",
        _unequal("the store has", stored, seen) or ("" if same else "an event differs from the stored one"),
    )
    yield Claim("The first question was answered", _not_completed_once(evidence, evidence.answered))
    kept = _texts(evidence.stored, evidence.killed)
    yield Claim(
        f"The killed turn ended once: run_failed, host_lost; its {kept} pieces of text are kept",
        _not_lost_once(evidence) or ("" if kept else "no text of it is stored"),
    )
    yield Claim(
        "The queued prompt ran exactly once, after the crash",
        _not_completed_once(evidence, evidence.queued) or _ran_early(evidence),
    )
    killed, stopped = evidence.exit_codes
    yield Claim(
        "The first server was killed; the second ended when it was asked to, with exit code 0",
        "" if (killed, stopped) == (-9, 0) else f"they ended with {killed} and {stopped}",
    )


def _not_completed_once(evidence: Evidence, run_id: str) -> str:
    run = evidence.runs[run_id]
    if run.status != RunStatus.RUN_STATUS_COMPLETED:
        return f"it is {RunStatus.Name(run.status)}: {run.failure.reason or 'no reason given'}"
    return _not_once(evidence, run_id, EventType.EVENT_TYPE_RUN_COMPLETED)


def _not_lost_once(evidence: Evidence) -> str:
    run = evidence.runs[evidence.killed]
    if (run.status, run.failure.reason) != (RunStatus.RUN_STATUS_FAILED, "host_lost"):
        return f"it is {RunStatus.Name(run.status)}: {run.failure.reason or 'no reason given'}"
    return _not_once(evidence, evidence.killed, EventType.EVENT_TYPE_RUN_FAILED)


def _not_once(evidence: Evidence, run_id: str, end: EventType.ValueType) -> str:
    """Empty if the run began once and ended once, with an event of that type."""
    of_run = [event for event in evidence.stored if event.run_id == run_id]
    begun = [event for event in of_run if event.type == EventType.EVENT_TYPE_RUN_STARTED]
    ends = [event.type for event in of_run if event.type in events.RUN_TERMINAL]
    if len(begun) != 1:
        return f"it began {len(begun)} times"
    return "" if ends == [end] else f"its terminal events are {[EventType.Name(each) for each in ends]}"


def _ran_early(evidence: Evidence) -> str:
    early = [event for event in evidence.seen[: evidence.seen_before] if event.run_id == evidence.queued]
    return f"{len(early)} of its events came before the kill" if early else ""


def _texts(log: Sequence[Event], run_id: str) -> int:
    return sum(event.run_id == run_id and event.HasField("message_streamed") for event in log)


def _unequal(who: str, found: Sequence[int], expected: Sequence[int]) -> str:
    if found == expected:
        return ""
    lost = sorted(set(expected) - set(found))
    more = sorted({number for number in found if found.count(number) > expected.count(number)})
    return f"{who} {len(found)} of {len(expected)}; lost {lost[:10]}, too many {more[:10]}, or out of order"
