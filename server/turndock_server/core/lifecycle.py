"""Where an agent's state machine stands, which moves are legal, and what each end of a turn means. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from turndock.backend.v1 import Paused, Result
from turndock.types.v1 import (
    AgentPhase,
    BackendSession,
    Event,
    EventType,
    Failure,
    RunStatus,
    ToolApprovalRequested,
    Usage,
)


class Phase(enum.Enum):
    """The states. `halted` is a flag beside them, not a state."""

    IDLE = AgentPhase.AGENT_PHASE_IDLE
    PROCESSING = AgentPhase.AGENT_PHASE_PROCESSING
    AWAITING_APPROVAL = AgentPhase.AGENT_PHASE_AWAITING_APPROVAL
    DORMANT = AgentPhase.AGENT_PHASE_DORMANT
    STOPPED = AgentPhase.AGENT_PHASE_STOPPED


LEGAL_MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.IDLE: frozenset({Phase.PROCESSING, Phase.AWAITING_APPROVAL, Phase.DORMANT, Phase.STOPPED}),
    Phase.PROCESSING: frozenset({Phase.IDLE, Phase.AWAITING_APPROVAL, Phase.DORMANT, Phase.STOPPED}),
    Phase.AWAITING_APPROVAL: frozenset({Phase.PROCESSING, Phase.IDLE, Phase.DORMANT, Phase.STOPPED}),
    Phase.DORMANT: frozenset({Phase.IDLE, Phase.STOPPED}),
    Phase.STOPPED: frozenset(),
}
"""From → to. PROCESSING → DORMANT is a host that loses or gives up an agent in the middle of a turn,
AWAITING_APPROVAL → DORMANT also an agent that leaves memory while its turn is parked. IDLE → AWAITING_APPROVAL is its
coming back."""


class IllegalMove(RuntimeError):
    """The loop tried a move that is not in the table: a fault of the host."""


def move(now: Phase, to: Phase) -> Phase:
    """The new phase. Raises `IllegalMove` when the table does not have it; staying is always legal."""
    if to is not now and to not in LEGAL_MOVES[now]:
        raise IllegalMove(f"{now.name} → {to.name}")
    return to


class Kill(enum.Enum):
    """Who ends a turn from outside. The value is the failure's reason."""

    INTERRUPT = "interrupted"
    WATCHDOG = "timeout"
    STOP = "agent_terminated"
    SHUTDOWN = "host_stopping"
    STORAGE = "storage_error"


_STATUS_OF_KILL: dict[Kill, RunStatus.ValueType] = {
    Kill.INTERRUPT: RunStatus.RUN_STATUS_CANCELLED,
    Kill.WATCHDOG: RunStatus.RUN_STATUS_TIMEOUT,
    Kill.STOP: RunStatus.RUN_STATUS_CANCELLED,
    Kill.SHUTDOWN: RunStatus.RUN_STATUS_CANCELLED,
    Kill.STORAGE: RunStatus.RUN_STATUS_FAILED,
}

TERMINAL_EVENT: dict[RunStatus.ValueType, EventType.ValueType] = {
    RunStatus.RUN_STATUS_COMPLETED: EventType.EVENT_TYPE_RUN_COMPLETED,
    RunStatus.RUN_STATUS_FAILED: EventType.EVENT_TYPE_RUN_FAILED,
    RunStatus.RUN_STATUS_CANCELLED: EventType.EVENT_TYPE_RUN_CANCELLED,
    RunStatus.RUN_STATUS_TIMEOUT: EventType.EVENT_TYPE_RUN_TIMEOUT,
}
"""Terminal status of a run → the event that says so. A status not in here is not terminal."""


def is_terminal(status: RunStatus.ValueType) -> bool:
    """Whether a run with this status has ended."""
    return status in TERMINAL_EVENT


@dataclass(slots=True)
class Outcome:
    """How a turn ended: exactly one per run."""

    terminal: Result | Failure | Paused
    session: BackendSession
    """The backend's session from now on."""
    kill: Kill | None = None
    said_terminal: bool = False
    """Whether the backend itself said how the turn ended."""
    text: str = ""
    """All streamed text, joined with nothing between."""
    usage: Usage | None = None
    open_tools: dict[str, str] = field(default_factory=dict[str, str])
    """Tool calls without an end: id → name."""
    pending: list[Event] = field(default_factory=list[Event])
    """Events that are not stored yet."""
    turn_count: int = 0
    duration_us: int = 0
    active_us: int = 0
    """As `duration_us`, without the time the turn waited for people."""
    open_approvals: list[ToolApprovalRequested] = field(default_factory=list[ToolApprovalRequested])
    """Requests that nobody has decided on."""

    @property
    def status(self) -> RunStatus.ValueType:
        """The run's terminal status."""
        if isinstance(self.terminal, Result):
            return RunStatus.RUN_STATUS_COMPLETED
        if self.kill is not None:
            return _STATUS_OF_KILL[self.kill]
        return RunStatus.RUN_STATUS_FAILED

    @property
    def failure(self) -> Failure | None:
        """Why it failed; None when it succeeded."""
        return self.terminal if isinstance(self.terminal, Failure) else None
