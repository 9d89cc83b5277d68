"""Which of a turn's events its response carries. The log has all of them in any case."""

from __future__ import annotations

from dataclasses import dataclass

from turndock import jsontext
from turndock.types.v1 import AgentLimits, CaptureMode, Coverage, Failure

DEFAULT_MAX_EVENTS = 1_000
DEFAULT_MAX_BYTES = 1 << 20


class CaptureOverflow(Exception):
    """A lossless capture met an event it has no room for."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass(slots=True)
class Capture:
    """Counts a turn's events and decides, in their order, which are kept for the response."""

    max_events: int
    max_bytes: int
    lossless: bool
    observed: int = 0
    retained: int = 0
    retained_bytes: int = 0
    first_omission: str = ""

    @classmethod
    def within(cls, limits: AgentLimits, earlier: Coverage | None = None) -> Capture:
        """A capture with an agent's limits, which counts on from what an earlier part of the turn has."""
        capture = cls(
            limits.max_events_per_turn if limits.HasField("max_events_per_turn") else DEFAULT_MAX_EVENTS,
            limits.max_event_bytes_per_turn
            if limits.HasField("max_event_bytes_per_turn")
            else DEFAULT_MAX_BYTES,
            limits.capture_mode == CaptureMode.CAPTURE_MODE_LOSSLESS,
        )
        if earlier is not None:
            capture.observed, capture.retained = earlier.observed, earlier.retained
            capture.retained_bytes, capture.first_omission = earlier.retained_bytes, earlier.first_omission
        return capture

    def take(self, kind: str, size: int) -> bool:
        """Count an event of `size` bytes; True if it is kept. Raises `CaptureOverflow` when it must be and cannot.

        `kind` is what `turndock.events.kind` calls it.
        """
        self.observed += 1
        # Once something is left out everything after it is: what is kept is a beginning, never a sieve.
        if self.first_omission:
            return False
        limit = self._exceeded(size)
        if limit is None:
            self.retained += 1
            self.retained_bytes += size
            return True
        if self.lossless:
            raise CaptureOverflow(self._overflow(limit, kind, size))
        self.first_omission = f"{limit}/{kind}"
        return False

    def coverage(self) -> Coverage:
        """What was kept, for the response."""
        return Coverage(
            mode=CaptureMode.CAPTURE_MODE_LOSSLESS if self.lossless else CaptureMode.CAPTURE_MODE_COMPACT,
            observed=self.observed,
            retained=self.retained,
            omitted=self.observed - self.retained,
            retained_bytes=self.retained_bytes,
            first_omission=self.first_omission,
        )

    def _exceeded(self, size: int) -> str | None:
        if self.retained >= self.max_events:
            return "events"
        if self.retained_bytes + size > self.max_bytes:
            return "bytes"
        return None

    def _overflow(self, limit: str, kind: str, size: int) -> Failure:
        return Failure(
            reason="event_capture_overflow",
            message=f"the turn has more {limit} than its response may carry",
            details_json=jsontext.canonical(
                {
                    "limit": limit,
                    "max_events": self.max_events,
                    "max_bytes": self.max_bytes,
                    "retained_events": self.retained,
                    "retained_bytes": self.retained_bytes,
                    "rejected_event_kind": kind,
                    "rejected_event_bytes": size,
                }
            ),
        )
