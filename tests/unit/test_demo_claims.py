"""The demo's claims hold for what really happens, and fail for anything less."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from turndock.types.v1 import (
    Event,
    EventType,
    Failure,
    MessageStreamed,
    Run,
    RunFailed,
    RunStarted,
    RunStatus,
)
from turndock_server.demo.checks import Evidence, claims

SEEN, STORED, ANSWERED, KILLED, QUEUED, ENDED = range(6)
"""The claims, by place."""


def a_log() -> list[Event]:
    """Three runs: one is answered, one killed, one waits and is answered after the kill."""
    log: list[Event] = []
    for run_id, end in (
        ("answered", EventType.EVENT_TYPE_RUN_COMPLETED),
        ("killed", EventType.EVENT_TYPE_RUN_FAILED),
        ("queued", EventType.EVENT_TYPE_RUN_COMPLETED),
    ):
        for event in (
            Event(type=EventType.EVENT_TYPE_RUN_STARTED, run_started=RunStarted(attempt=1)),
            Event(type=EventType.EVENT_TYPE_MESSAGE_STREAMED, message_streamed=MessageStreamed(text="x")),
            Event(type=end),
        ):
            event.sequence, event.run_id, event.id = len(log) + 1, run_id, f"event-{len(log) + 1}"
            if end == event.type == EventType.EVENT_TYPE_RUN_FAILED:
                event.run_failed.CopyFrom(RunFailed(failure=Failure(reason="host_lost")))
            log.append(event)
    return log


def the_truth() -> Evidence:
    completed = RunStatus.RUN_STATUS_COMPLETED
    return Evidence(
        seen=a_log(),
        stored=a_log(),
        runs={
            "answered": Run(id="answered", status=completed),
            "killed": Run(
                id="killed", status=RunStatus.RUN_STATUS_FAILED, failure=Failure(reason="host_lost")
            ),
            "queued": Run(id="queued", status=completed),
        },
        answered="answered",
        killed="killed",
        queued="queued",
        seen_before=5,
        exit_codes=(-9, 0),
    )


def refuted(evidence: Evidence) -> set[int]:
    """Places of the claims that do not hold."""
    return {place for place, claim in enumerate(claims(evidence)) if claim.problem}


def test_the_truth_holds() -> None:
    assert refuted(the_truth()) == set()
    assert len(list(claims(the_truth()))) == ENDED + 1


def seen(change: Callable[[list[Event]], object]) -> Evidence:
    log = a_log()
    change(log)
    return replace(the_truth(), seen=log)


def stored(change: Callable[[list[Event]], object]) -> Evidence:
    """Another log, which the watcher saw, too."""
    log = a_log()
    change(log)
    for number, event in enumerate(log, start=1):
        event.sequence = number
    return replace(the_truth(), seen=log, stored=log)


def run(run_id: str, status: RunStatus.ValueType, reason: str = "") -> Evidence:
    failure = Failure(reason=reason) if reason else None
    runs = {**the_truth().runs, run_id: Run(id=run_id, status=status, failure=failure)}
    return replace(the_truth(), runs=runs)


def renamed(log: list[Event]) -> None:
    log[3].id = "another"


def relabelled(log: list[Event]) -> None:
    log[4].run_id = "queued"


@pytest.mark.parametrize(
    ("evidence", "problems"),
    [
        (seen(lambda log: log.pop()), {SEEN, STORED}),
        (seen(lambda log: log.pop(4)), {SEEN, STORED}),
        (seen(lambda log: log.append(log[0])), {SEEN, STORED}),
        (seen(lambda log: log.insert(5, log[3])), {SEEN, STORED}),
        (seen(lambda log: log.reverse()), {SEEN, STORED, QUEUED}),
        (seen(renamed), {STORED}),
        (seen(relabelled), {STORED, QUEUED}),
        (stored(lambda log: log.insert(1, a_log()[0])), {ANSWERED}),
        (stored(lambda log: log.insert(1, a_log()[2])), {ANSWERED}),
        (stored(lambda log: log.pop(5)), {KILLED, QUEUED} - {QUEUED}),
        (stored(lambda log: log.insert(6, a_log()[5])), {KILLED}),
        (stored(lambda log: log.pop(4)), {KILLED, QUEUED} - {QUEUED}),
        (stored(lambda log: log.extend(a_log()[6:])), {QUEUED}),
        (run("answered", RunStatus.RUN_STATUS_FAILED, "backend_lost"), {ANSWERED}),
        (run("killed", RunStatus.RUN_STATUS_COMPLETED), {KILLED}),
        (run("killed", RunStatus.RUN_STATUS_FAILED, "backend_lost"), {KILLED}),
        (run("queued", RunStatus.RUN_STATUS_PENDING), {QUEUED}),
        (replace(the_truth(), seen_before=8), {QUEUED}),
        (replace(the_truth(), exit_codes=(0, 0)), {ENDED}),
        (replace(the_truth(), exit_codes=(-9, 1)), {ENDED}),
    ],
)
def test_anything_less_does_not(evidence: Evidence, problems: set[int]) -> None:
    assert refuted(evidence) == problems
