"""How a run ended, as Python says it: a response is returned, a failure is raised."""

from __future__ import annotations

from turndock.types.v1 import Failure, Response, Run, RunStatus

_ENDED = frozenset(
    (
        RunStatus.RUN_STATUS_COMPLETED,
        RunStatus.RUN_STATUS_FAILED,
        RunStatus.RUN_STATUS_CANCELLED,
        RunStatus.RUN_STATUS_TIMEOUT,
    )
)


class TurnFailed(Exception):
    """The turn did not succeed. The call did: `failure` says why, and `run` has the rest."""

    def __init__(self, failure: Failure, run: Run) -> None:
        super().__init__(failure.reason, failure.message)
        self.failure = failure
        self.run = run

    def __str__(self) -> str:
        return (
            f"{self.failure.reason}: {self.failure.message}" if self.failure.message else self.failure.reason
        )


def has_ended(run: Run) -> bool:
    """Whether a run has reached its terminal status."""
    return run.status in _ENDED


def response_of(run: Run) -> Response:
    """What a run that has ended answered. Raises `TurnFailed`."""
    if run.status != RunStatus.RUN_STATUS_COMPLETED:
        raise TurnFailed(run.failure, run)
    return run.response
