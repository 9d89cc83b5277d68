"""What waits for an agent: runs in strict order, and notifications for the end of the turn. Pure; a copy of the rows.

The store's rows are the truth; this is what their one owner knows of them. A run's place is its `queue_key`, which
the store assigned, so the order in which rows are told here does not matter.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from turndock.types.v1 import Event, Run


class Mailbox:
    """Waiting runs and notifications of one agent."""

    __slots__ = ("_notifications", "_runs")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._notifications: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def pending_notifications(self) -> int:
        """Notifications not handled yet."""
        return len(self._notifications)

    def put(self, run: Run) -> None:
        """Add a waiting run, or replace what is known of it."""
        self.remove(run.id)
        insort(self._runs, run, key=_place)

    def remove(self, run_id: str) -> Run | None:
        """Take a run out, wherever it stands; None if it does not wait."""
        for index, run in enumerate(self._runs):
            if run.id == run_id:
                return self._runs.pop(index)
        return None

    def next(self) -> Run | None:
        """The run whose turn is next, still waiting; None if none waits."""
        return self._runs[0] if self._runs else None

    def runs(self) -> list[Run]:
        """The waiting runs, first one first."""
        return list(self._runs)

    def notify(self, event: Event) -> None:
        """Add a notification; they are handled in the order of their numbers."""
        self._notifications.append(event)

    def take_notification(self) -> Event | None:
        """The oldest notification, taken out; None if there is none."""
        return self._notifications.popleft() if self._notifications else None


def _place(run: Run) -> tuple[int, int]:
    return (run.queue_key, run.created_at_us)
