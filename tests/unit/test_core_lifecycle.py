"""The table of legal moves, and what each end of a turn means."""

import itertools

import pytest

from turndock import events
from turndock.backend.v1 import Result
from turndock.types.v1 import BackendSession, Failure, RunStatus
from turndock_server.core.lifecycle import (
    LEGAL_MOVES,
    TERMINAL_EVENT,
    IllegalMove,
    Kill,
    Outcome,
    Phase,
    is_terminal,
    move,
)


@pytest.mark.parametrize(("now", "to"), list(itertools.product(Phase, Phase)))
def test_a_move_is_legal_if_the_table_has_it_or_nothing_moves(now: Phase, to: Phase) -> None:
    if now is to or to in LEGAL_MOVES[now]:
        assert move(now, to) is to
    else:
        with pytest.raises(IllegalMove, match=f"{now.name} → {to.name}"):
            move(now, to)


def test_the_table_has_every_phase_and_an_end() -> None:
    assert set(LEGAL_MOVES) == set(Phase)
    assert LEGAL_MOVES[Phase.STOPPED] == frozenset()
    for now in set(Phase) - {Phase.STOPPED}:
        assert Phase.STOPPED in LEGAL_MOVES[now]
    assert Phase.PROCESSING not in LEGAL_MOVES[Phase.DORMANT], "an agent wakes before it works"


def test_a_run_has_ended_in_exactly_the_statuses_that_have_an_event() -> None:
    ended = {status for status in RunStatus.values() if is_terminal(status)}
    assert ended == set(TERMINAL_EVENT)
    assert set(TERMINAL_EVENT.values()) == events.RUN_TERMINAL
    assert not any(
        is_terminal(status)
        for status in (
            RunStatus.RUN_STATUS_UNSPECIFIED,
            RunStatus.RUN_STATUS_PENDING,
            RunStatus.RUN_STATUS_RUNNING,
        )
    )


@pytest.mark.parametrize(
    ("kill", "status"),
    [
        (None, RunStatus.RUN_STATUS_FAILED),
        (Kill.INTERRUPT, RunStatus.RUN_STATUS_CANCELLED),
        (Kill.WATCHDOG, RunStatus.RUN_STATUS_TIMEOUT),
        (Kill.STOP, RunStatus.RUN_STATUS_CANCELLED),
        (Kill.SHUTDOWN, RunStatus.RUN_STATUS_CANCELLED),
        (Kill.STORAGE, RunStatus.RUN_STATUS_FAILED),
    ],
)
def test_the_status_of_a_run_follows_from_who_ended_its_turn(
    kill: Kill | None, status: RunStatus.ValueType
) -> None:
    failure = Failure(reason=kill.value if kill else "broken")
    failed = Outcome(terminal=failure, session=BackendSession(), kill=kill)
    assert (failed.status, failed.failure) == (status, failure)
    succeeded = Outcome(terminal=Result(text="ok"), session=BackendSession())
    assert (succeeded.status, succeeded.failure) == (RunStatus.RUN_STATUS_COMPLETED, None)
