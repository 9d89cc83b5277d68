"""What can go wrong with a call: one exception, one table.

A *call* that fails raises `TurndockError` (over the wire: a gRPC status with `google.rpc.ErrorInfo`). A *turn* that
fails is no error of a call: it is a `turndock.types.v1.Failure` inside an event or a response.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

DOMAIN = "turndock"
"""`ErrorInfo.domain` of every error this system raises."""

MAX_MESSAGE_BYTES = 1024
"""Status texts are cut to this many bytes of UTF-8."""


class Code(enum.Enum):
    """gRPC status codes by name, so that code without gRPC can speak of them."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class ReasonInfo:
    """One row of the error table."""

    reason: str
    code: Code
    retryable: bool
    """Whether the same call may succeed when it is sent again unchanged."""
    advice: str
    """What the caller does next."""


def _table(*rows: tuple[str, Code, bool, str]) -> Mapping[str, ReasonInfo]:
    return {row[0]: ReasonInfo(*row) for row in rows}


REASONS: Mapping[str, ReasonInfo] = _table(
    # The request is wrong.
    ("VALIDATION_ERROR", Code.INVALID_ARGUMENT, False, "Mend the named field and send the request again."),
    (
        "INVALID_EVENT_TYPE",
        Code.INVALID_ARGUMENT,
        False,
        "Use one of the registered event types, or CUSTOM with a name.",
    ),
    (
        "INVALID_CURSOR",
        Code.INVALID_ARGUMENT,
        False,
        "Start again without a cursor; a cursor fits only the list it came from.",
    ),
    (
        "DIGEST_MISMATCH",
        Code.INVALID_ARGUMENT,
        False,
        "The bytes that arrived are not those announced; send them again.",
    ),
    (
        "SEQUENCE_COMPACTED",
        Code.OUT_OF_RANGE,
        False,
        "Read on from `oldest` in the metadata; what lay before was pruned.",
    ),
    (
        "SEQUENCE_IN_FUTURE",
        Code.OUT_OF_RANGE,
        False,
        "The cursor is beyond the log's head; use one this server gave.",
    ),
    # Something is not there, or is there already.
    ("NOT_FOUND", Code.NOT_FOUND, False, "Check the key and the scope of your credentials."),
    ("SESSION_NOT_FOUND", Code.NOT_FOUND, False, "Check the session id and the scope of your credentials."),
    ("RUN_NOT_FOUND", Code.NOT_FOUND, False, "Check the run id and its session."),
    ("AGENT_NOT_FOUND", Code.NOT_FOUND, False, "Check the agent's name, or start it."),
    (
        "APPROVAL_NOT_FOUND",
        Code.NOT_FOUND,
        False,
        "Check the approval id, or list what is pending with GetAgent.",
    ),
    ("TURN_NOT_FOUND", Code.NOT_FOUND, False, "The turn has ended; nothing needs to be done."),
    ("ALREADY_EXISTS", Code.ALREADY_EXISTS, False, "Choose another name, or use what exists."),
    (
        "IDEMPOTENCY_CONFLICT",
        Code.ALREADY_EXISTS,
        False,
        "The id was used for another request; choose a new id.",
    ),
    # The state does not allow it.
    ("INVALID_STATUS", Code.FAILED_PRECONDITION, False, "Read the current status; the call does not fit it."),
    ("INVALID_TRANSITION", Code.FAILED_PRECONDITION, False, "Read the stored status and decide again."),
    ("INVALID_OPERATION", Code.FAILED_PRECONDITION, False, "The object cannot do this; see the message."),
    ("AGENT_BUSY", Code.FAILED_PRECONDITION, True, "Wait for the turn's end, or use another busy policy."),
    ("AGENT_STOPPED", Code.FAILED_PRECONDITION, False, "Start the agent again with its session id."),
    (
        "SESSION_RECREATED",
        Code.FAILED_PRECONDITION,
        False,
        "The session was deleted and made again; watch it from its beginning.",
    ),
    (
        "FENCED",
        Code.FAILED_PRECONDITION,
        False,
        "Another owner has the session; drop what you hold and stop writing.",
    ),
    (
        "BACKEND_START_FAILED",
        Code.FAILED_PRECONDITION,
        True,
        "Mend what the message says about the backend, then start the agent again.",
    ),
    (
        "AGENT_INIT_FAILED",
        Code.FAILED_PRECONDITION,
        False,
        "Mend what the message says about the behavior, then start the agent again.",
    ),
    (
        "APPROVAL_RESOLVED",
        Code.FAILED_PRECONDITION,
        False,
        "The request has its answer already, which the metadata shows; nothing was run.",
    ),
    ("SEQUENCE_CONFLICT", Code.ABORTED, True, "Read the log's head and decide again."),
    (
        "CLAIM_CONFLICT",
        Code.ABORTED,
        True,
        "Another host owns the agent; try again when its lease has run out.",
    ),
    (
        "MIGRATION_REQUIRED",
        Code.FAILED_PRECONDITION,
        False,
        "Bring the store's schema up to date, as the message says.",
    ),
    # There is too much of something.
    ("MAX_RUNS_EXCEEDED", Code.RESOURCE_EXHAUSTED, True, "The mailbox is full; wait for runs to finish."),
    (
        "MAX_SESSIONS_EXCEEDED",
        Code.RESOURCE_EXHAUSTED,
        True,
        "Stop agents you no longer need, or raise the limit.",
    ),
    (
        "SCOPE_LIMIT_EXCEEDED",
        Code.RESOURCE_EXHAUSTED,
        True,
        "End calls that are under way, or wait; the metadata names the limit.",
    ),
    ("LIMIT_EXCEEDED", Code.RESOURCE_EXHAUSTED, False, "Make it smaller; the metadata names the limit."),
    # Who calls.
    ("UNAUTHENTICATED", Code.UNAUTHENTICATED, False, "Send valid credentials."),
    ("PERMISSION_DENIED", Code.PERMISSION_DENIED, False, "Use credentials with the role the method needs."),
    # Something else is broken.
    ("STORAGE_ERROR", Code.INTERNAL, False, "Look at the store; the message says what it reported."),
    ("STORAGE_CONNECTION_FAILED", Code.UNAVAILABLE, True, "The store cannot be reached; try again later."),
    ("STORAGE_BUSY", Code.UNAVAILABLE, True, "The store is locked by another process; try again."),
    (
        "PLUGIN_UNAVAILABLE",
        Code.UNAVAILABLE,
        True,
        "The plug-in is not ready; see GetServerInfo for its state.",
    ),
    ("SERVER_STOPPING", Code.UNAVAILABLE, True, "Call another server, or this one after its restart."),
    ("UNAVAILABLE", Code.UNAVAILABLE, True, "The peer cannot be reached; try again."),
    ("TIMEOUT", Code.DEADLINE_EXCEEDED, True, "Ask again with more time; nothing was undone."),
    ("CANCELLED", Code.CANCELLED, False, "The caller took the call back."),
    ("CAPABILITY_NOT_SUPPORTED", Code.UNIMPLEMENTED, False, "This implementation does not offer the call."),
    ("TASK_CRASHED", Code.ABORTED, False, "The backend's code raised; its own log has the trace."),
    ("INTERNAL_ERROR", Code.INTERNAL, False, "Give the reference in the message to whoever runs the server."),
    ("UNKNOWN_ERROR", Code.UNKNOWN, False, "The peer did not say what went wrong."),
)
"""Reason → code → whether to retry → what to do next. The protocol page prints it, and a test walks it."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A field of a request and what is wrong with it."""

    field: str
    """Path of the field in the request, such as `events[2].time_us`."""
    description: str


@dataclass(eq=False)
class TurndockError(Exception):
    """A call failed.

    `reason` is a key of `REASONS`, or a reason a newer peer sent; then `code` says how it travelled.
    """

    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """Facts for programs: ids, figures, limits."""
    violations: tuple[FieldViolation, ...] = ()
    retry_after_ms: int | None = None
    wire_code: Code | None = None
    """The code the error arrived with; unset for one raised here."""

    def __post_init__(self) -> None:
        super().__init__(self.reason, self.message)

    @property
    def code(self) -> Code:
        """gRPC status code of the reason."""
        if self.wire_code is not None:
            return self.wire_code
        info = REASONS.get(self.reason)
        return info.code if info else Code.UNKNOWN

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed when it is sent again unchanged."""
        info = REASONS.get(self.reason)
        return info.retryable if info else self.code is Code.UNAVAILABLE

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


def invalid(field_path: str, description: str, *, reason: str = "VALIDATION_ERROR") -> TurndockError:
    """An error that names the field and says what is wrong with it."""
    return TurndockError(
        reason, f"{field_path}: {description}", violations=(FieldViolation(field_path, description),)
    )


def not_found(what: str, key: str) -> TurndockError:
    """An error for a `session`, `run`, `agent` or other thing that is unknown, or belongs to another scope."""
    reason = f"{what.upper()}_NOT_FOUND"
    return TurndockError(
        reason if reason in REASONS else "NOT_FOUND", f"{what} {key!r} not found", metadata={"key": key}
    )


def not_offered(call: str) -> TurndockError:
    """An error for an optional call that an implementation does not offer; never a fault."""
    return TurndockError("CAPABILITY_NOT_SUPPORTED", f"{call} is not offered")


def is_not_offered(error: BaseException) -> bool:
    """Whether an error says that an optional call is absent."""
    return isinstance(error, TurndockError) and error.code is Code.UNIMPLEMENTED
