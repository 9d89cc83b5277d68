"""The table `maintenance`: what `turndock maintenance run` does unless it is told otherwise."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from turndock import events
from turndock.errors import TurndockError
from turndock.store.v1 import EventTypeList, RetentionBound, RetentionPolicy, SessionStatusList, TagList
from turndock.types.v1 import SessionStatus
from turndock_server.config.values import Name, Section

UNLIMITED = "unlimited"


def _event_type(name: str) -> str:
    """Accepts the name of an event type."""
    try:
        events.parse_type(name, "type")
    except TurndockError:
        raise ValueError(f"{name!r} is no event type") from None
    return name


Bound = Annotated[int, Field(ge=1, le=(1 << 63) - 1)] | Literal["unlimited"]
Status = Literal["pending", "active", "paused", "completed", "failed", "cancelled"]


class MaintenanceSettings(Section):
    """What `turndock maintenance run` does; the server never does it by itself. Bounds are numbers or `"unlimited"`."""

    max_session_age_days: Bound = "unlimited"
    """Days without a change after which a session of any status is marked as deleted."""
    max_completed_session_age_days: Bound = 90
    """The same for sessions that are completed, failed or cancelled. The lower of the two counts."""
    hard_delete_after_days: Bound = 30
    """Days after its marking at which a session is deleted for good."""
    max_events_per_session: Bound = "unlimited"
    """Events kept in each session."""
    max_total_events: Bound = "unlimited"
    """Events kept in the whole scope."""
    archive: Name | None = None
    """Where events are stored before they are pruned: `artifacts` for the server's own artifact store, or the name of
    a plug-in that is one. Unset: nowhere."""
    exempt_statuses: tuple[Status, ...] = ("active", "paused")
    """Statuses whose sessions are never marked."""
    exempt_tags: tuple[str, ...] = ("pinned",)
    """Tags whose sessions are never marked; one of them is enough."""
    prune_event_types_first: tuple[Annotated[str, AfterValidator(_event_type)], ...] = (
        "message_streamed",
        "token_usage_updated",
    )
    """Types of events that are pruned before all others."""
    batch_size: int = Field(default=100, ge=1, le=10_000)
    """Most rows in one transaction."""

    def policy(self) -> RetentionPolicy:
        """The policy for a request."""
        return RetentionPolicy(
            max_session_age_days=_bound(self.max_session_age_days),
            max_completed_session_age_days=_bound(self.max_completed_session_age_days),
            hard_delete_after_days=_bound(self.hard_delete_after_days),
            max_events_per_session=_bound(self.max_events_per_session),
            max_total_events=_bound(self.max_total_events),
            archive_before_prune=self.archive is not None,
            archive_store=self.archive or "",
            exempt_statuses=SessionStatusList(
                statuses=[
                    SessionStatus.Value(f"SESSION_STATUS_{name.upper()}") for name in self.exempt_statuses
                ]
            ),
            exempt_tags=TagList(tags=self.exempt_tags),
            prune_event_types_first=EventTypeList(
                types=[events.TYPES[name] for name in self.prune_event_types_first]
            ),
            batch_size=self.batch_size,
        )


def _bound(value: int | str) -> RetentionBound:
    return RetentionBound(unlimited=True) if isinstance(value, str) else RetentionBound(max=value)
