"""What a retention policy says. Pure: no store, no clock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from turndock import jsontext
from turndock.errors import invalid
from turndock.store.v1 import RetentionBound, RetentionPolicy
from turndock.types.v1 import EventType, Session, SessionStatus

DAY_US: Final = 24 * 3600 * 1_000_000

DEFAULT_ENDED_AGE_DAYS: Final = 90
DEFAULT_HARD_DELETE_DAYS: Final = 30
DEFAULT_BATCH_SIZE: Final = 100
MAX_BATCH_SIZE: Final = 10_000

PROTECTED: Final = frozenset(
    {
        EventType.EVENT_TYPE_SESSION_CREATED,
        EventType.EVENT_TYPE_RUN_STARTED,
        EventType.EVENT_TYPE_RUN_COMPLETED,
        EventType.EVENT_TYPE_RUN_FAILED,
        EventType.EVENT_TYPE_RUN_CANCELLED,
        EventType.EVENT_TYPE_RUN_TIMEOUT,
        EventType.EVENT_TYPE_ERROR_OCCURRED,
    }
)
"""Types of events that are never pruned."""

_DEFAULT_EXEMPT_STATUSES: Final = (
    SessionStatus.SESSION_STATUS_ACTIVE,
    SessionStatus.SESSION_STATUS_PAUSED,
)
_DEFAULT_EXEMPT_TAGS: Final = ("pinned",)
_DEFAULT_FIRST_TYPES: Final = (
    EventType.EVENT_TYPE_MESSAGE_STREAMED,
    EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED,
)
_ENDED: Final = frozenset(
    {
        SessionStatus.SESSION_STATUS_COMPLETED,
        SessionStatus.SESSION_STATUS_FAILED,
        SessionStatus.SESSION_STATUS_CANCELLED,
    }
)


@dataclass(frozen=True, slots=True)
class Policy:
    """A checked RetentionPolicy with its defaults filled in. None = no limit."""

    age_us: int | None
    """After so long without a change a session of any status expires."""
    ended_age_us: int | None
    """After so long one that has ended does."""
    hard_delete_after_us: int | None
    max_events_per_session: int | None
    max_total_events: int | None
    archive_store: str
    """Where events go before they are pruned; empty = nowhere."""
    exempt_statuses: frozenset[int]
    exempt_tags: frozenset[str]
    first_types: frozenset[int]
    """Types of events that are pruned before all others."""
    batch_size: int

    @classmethod
    def of(cls, given: RetentionPolicy, archives: Collection[str]) -> Policy:
        """The policy of a request; `archives` are the names of the stores there are to archive in.

        Raises VALIDATION_ERROR naming the first field that is wrong.
        """
        return cls(
            age_us=_days(_bound(given.max_session_age_days, "max_session_age_days", None)),
            ended_age_us=_days(
                _bound(
                    given.max_completed_session_age_days,
                    "max_completed_session_age_days",
                    DEFAULT_ENDED_AGE_DAYS,
                )
            ),
            hard_delete_after_us=_days(
                _bound(given.hard_delete_after_days, "hard_delete_after_days", DEFAULT_HARD_DELETE_DAYS)
            ),
            max_events_per_session=_bound(given.max_events_per_session, "max_events_per_session", None),
            max_total_events=_bound(given.max_total_events, "max_total_events", None),
            archive_store=_archive_store(given, archives),
            exempt_statuses=_exempt_statuses(given),
            exempt_tags=_exempt_tags(given),
            first_types=_first_types(given),
            batch_size=batch_size_of(
                given.batch_size if given.HasField("batch_size") else None, "policy.batch_size"
            ),
        )

    @property
    def least_age_us(self) -> int | None:
        """No session that has changed within this time expires; None = none ever does."""
        ages = [age for age in (self.age_us, self.ended_age_us) if age is not None]
        return min(ages, default=None)

    def has_expired(self, session: Session, now_us: int) -> bool:
        """Whether a session is to be soft-deleted, as far as its record tells."""
        ages = [self.age_us, self.ended_age_us if session.status in _ENDED else None]
        oldest = min((age for age in ages if age is not None), default=None)
        return (
            oldest is not None
            and session.updated_at_us < now_us - oldest
            and session.status not in self.exempt_statuses
            and self.exempt_tags.isdisjoint(session.tags)
            and is_free(session)
            and not session.HasField("deleted_at_us")
        )


def is_free(session: Session) -> bool:
    """Whether no agent is left that might go on with a session."""
    return not session.HasField("agent") or session.agent.stopped


def batch_size_of(given: int | None, field: str) -> int:
    """Most rows in a transaction. Raises VALIDATION_ERROR."""
    if given is None:
        return DEFAULT_BATCH_SIZE
    if not 1 <= given <= MAX_BATCH_SIZE:
        raise invalid(field, f"must be from 1 to {MAX_BATCH_SIZE}, not {given}")
    return given


def _bound(given: RetentionBound, name: str, default: int | None) -> int | None:
    match given.WhichOneof("bound"):
        case "max":
            if given.max <= 0:
                raise invalid(f"policy.{name}.max", f"must be above 0, not {given.max}")
            return given.max
        case "unlimited":
            if not given.unlimited:
                raise invalid(f"policy.{name}.unlimited", "must be true, or left out")
            return None
        case _:
            return default


def _days(count: int | None) -> int | None:
    return None if count is None else count * DAY_US


def _archive_store(given: RetentionPolicy, archives: Collection[str]) -> str:
    if given.archive_before_prune and not given.archive_store:
        raise invalid("policy.archive_store", "must be set to archive before pruning")
    if given.archive_store and given.archive_store not in archives:
        known = f"there are: {', '.join(sorted(archives))}" if archives else "there is none here"
        raise invalid(
            "policy.archive_store", f"no artifact store has the name {given.archive_store!r}; {known}"
        )
    return given.archive_store if given.archive_before_prune else ""


def _exempt_statuses(given: RetentionPolicy) -> frozenset[int]:
    if not given.HasField("exempt_statuses"):
        return frozenset(_DEFAULT_EXEMPT_STATUSES)
    for index, status in enumerate(given.exempt_statuses.statuses):
        if not status:
            raise invalid(f"policy.exempt_statuses.statuses[{index}]", "must not be UNSPECIFIED")
    return frozenset(given.exempt_statuses.statuses)


def _exempt_tags(given: RetentionPolicy) -> frozenset[str]:
    if not given.HasField("exempt_tags"):
        return frozenset(_DEFAULT_EXEMPT_TAGS)
    for index, tag in enumerate(given.exempt_tags.tags):
        jsontext.check_text(tag, f"policy.exempt_tags.tags[{index}]")
    return frozenset(given.exempt_tags.tags)


def _first_types(given: RetentionPolicy) -> frozenset[int]:
    if not given.HasField("prune_event_types_first"):
        return frozenset(_DEFAULT_FIRST_TYPES)
    for index, event_type in enumerate(given.prune_event_types_first.types):
        field = f"policy.prune_event_types_first.types[{index}]"
        if not event_type:
            raise invalid(field, "must not be UNSPECIFIED")
        if event_type in PROTECTED:
            raise invalid(field, "is a type that is never pruned")
    return frozenset(given.prune_event_types_first.types)
