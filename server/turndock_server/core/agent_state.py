"""An agent in memory: what it has, where it stands, and what others may do to it while its loop runs."""

from __future__ import annotations

import asyncio
import time

from turndock import events
from turndock.agent.v1 import AgentStatus
from turndock.store.v1 import CancelRunResponse, ClaimAgentResponse, Lifecycle
from turndock.types.v1 import Event, Run, RunStatus, Session
from turndock_server.core import (
    history,
    parking,
)
from turndock_server.core.behavior_calls import BehaviorCalls, Patience
from turndock_server.core.conduct import Conduct
from turndock_server.core.decisions import Decisions
from turndock_server.core.desk import Desk
from turndock_server.core.environment import Environment
from turndock_server.core.feed import AgentKey
from turndock_server.core.lifecycle import Kill, Phase, move
from turndock_server.core.mailbox import Mailbox
from turndock_server.core.notices import Notices
from turndock_server.core.persistence import SnapshotWriter
from turndock_server.core.session_writer import SessionWriter
from turndock_server.core.status import status_of_live
from turndock_server.core.turn import Turn


class AgentState:
    """Everything of one claimed agent but its loop."""

    __slots__ = (
        "_begin_lock",
        "_conduct",
        "_decisions",
        "_env",
        "_hurried",
        "_kill",
        "_parked",
        "_turn",
        "_unheard",
        "_unsettled",
        "_winding_down",
        "backend_ready",
        "current_run_id",
        "desk",
        "interrupted_for",
        "key",
        "last_activity",
        "last_activity_us",
        "mailbox",
        "notices",
        "phase",
        "snapshots",
        "writer",
    )

    def __init__(
        self, env: Environment, key: AgentKey, claim: ClaimAgentResponse, *, backend_ready: bool = False
    ) -> None:
        self.key = key
        self.phase = Phase.IDLE
        self.mailbox = Mailbox()
        self.notices = Notices()
        self.current_run_id = ""
        """The run whose turn is under way, from the moment it begins to that of its terminal; empty = none."""
        self.interrupted_for = ""
        """The waiting run whose prompt interrupted the turn under way, and which is next; empty = none."""
        self.backend_ready = backend_ready
        self.last_activity = time.monotonic()
        self.last_activity_us = events.now_us()
        self._env = env
        self._turn: Turn | None = None
        self._kill: Kill | None = None
        self._unheard: asyncio.Event | None = None
        """Set while a turn has no backend to tell of a kill: the kill is kept, and rings this."""
        self._winding_down = False
        self._hurried = False
        self._begin_lock: asyncio.Lock | None = None
        behavior = claim.session.agent.definition.behavior
        calls = BehaviorCalls(
            env.patience.get(behavior) or Patience(),
            leaving=lambda: self._hurried or self._winding_down or self._kill is Kill.SHUTDOWN,
            ending=lambda: self._kill is Kill.STOP,
        )
        self._conduct = conduct = Conduct(
            env.behavior(behavior), calls, key.scope, claim.session, max_prompt_bytes=env.max_prompt_bytes
        )
        self.writer = SessionWriter(
            env.journal, env.offloader, key, claim, state_json=lambda: conduct.state_json
        )
        self.snapshots = SnapshotWriter(env.persistence, key, self.writer)
        self._decisions = Decisions(conduct, self.writer, self.mailbox, self.notices, self.snapshots)
        self.desk = Desk(
            env.journal, key, self.writer, waits=self._is_waiting, changed=self._approvals_changed
        )
        self._parked, self._unsettled = parking.told_apart(claim)
        for run in claim.runs:
            if run.status == RunStatus.RUN_STATUS_PENDING:
                self.mailbox.put(run)
        if self._parked is not None:
            self.current_run_id, self.phase = self._parked.id, move(self.phase, Phase.AWAITING_APPROVAL)
            self.desk.hold(self._parked)

    @property
    def session(self) -> Session:
        """The session as this agent knows it."""
        return self.writer.session

    @property
    def epoch(self) -> int:
        """The claim's."""
        return self.writer.epoch

    def next_run(self) -> Run | None:
        """The run that would be dispatched now; None while halted, while a turn is parked, or when none waits."""
        return None if self.session.agent.halted or self._parked is not None else self.mailbox.next()

    @property
    def has_work(self) -> bool:
        """Whether `work` would do something."""
        if self._parked is not None and not self._unsettled:
            return self._kill is not None or parking.has_work(self.session)
        if self._unsettled or self.mailbox.pending_notifications or not self.session.agent.ready:
            return True
        return self.next_run() is not None

    @property
    def at_rest(self) -> bool:
        """Whether its session says all there is to say about it: nothing waits, and nobody waits on it."""
        return not (
            self.has_work
            or len(self.mailbox)
            or self.current_run_id
            or self.stopping
            or self.notices.awaited
            or (self._begin_lock is not None and self._begin_lock.locked())
        )

    def packed(self) -> bytes:
        """Its session, encoded. Needs `at_rest`."""
        self.session.agent.state_json = self._conduct.state_json
        return self.session.SerializeToString()

    @property
    def idle_shutdown_ms(self) -> int:
        """Idle time after which it leaves memory; 0 = never."""
        return self.session.agent.definition.limits.idle_shutdown_ms

    @property
    def stopping(self) -> bool:
        """Whether no further turn may begin."""
        return self._winding_down or self._kill in (Kill.STOP, Kill.SHUTDOWN)

    @property
    def begin_lock(self) -> asyncio.Lock:
        """Held while a waiting run becomes a running one; whoever edits or cancels a waiting run holds it too."""
        if self._begin_lock is None:
            self._begin_lock = asyncio.Lock()
        return self._begin_lock

    # --- From outside --------------------------------------------------------------------------------------------

    def kill(self, kill: Kill, run_id: str = "") -> bool:
        """End the turn under way (of that run, if one is named); False if there is none."""
        if kill in (Kill.STOP, Kill.SHUTDOWN):
            self._kill = kill
        if run_id and run_id != self.current_run_id:
            return False
        if self._unheard is not None:
            self._kill = self._kill or kill
            self._unheard.set()  # A backend that is not ready is not waited for any longer.
            return True
        if self._parked is not None and kill in (Kill.INTERRUPT, Kill.STOP):
            self._kill = self._kill or kill  # Whoever runs the loop next ends it.
            return True
        return self._turn is not None and self._turn.kill(kill)

    def wind_down(self) -> None:
        """Let the turn under way come to its end, and begin no other."""
        self._winding_down = True

    def touch(self) -> None:
        """Something happened: put the idle shutdown off."""
        self.last_activity = time.monotonic()
        self.last_activity_us = events.now_us()

    async def notify(self, event: Event) -> tuple[Event, bool]:
        """Store a notification and queue it; as stored, and whether it was known already. One at a time."""
        result = await self.writer.append_once(event)
        if not result.duplicate:
            self.mailbox.notify(result.event)
        return result.event, result.duplicate

    async def applied(self, sequence: int) -> None:
        """Wait until the effect of the notification with this number is stored."""
        if self.session.agent.notified_sequence < sequence:
            await self.notices.wait_for(sequence)

    async def unhalt(self, sequence: int) -> None:
        """Thaw the mailbox, for the event with that number; 0 = for none."""
        record = self.session.agent
        if record.halted or sequence:
            record.halted = False
            record.unhalted_sequence = max(record.unhalted_sequence, sequence)
            await self.writer.save()
            self.publish_status()

    def run_cancelled(self, cancelled: CancelRunResponse) -> None:
        """A run that waited does so no more."""
        self.mailbox.remove(cancelled.run.id)
        self.writer.advance(cancelled.result.event.sequence)
        self.publish_status()

    def ended(self) -> None:
        """The agent is stopped for good."""
        self._enter(Phase.STOPPED)

    def status(self) -> AgentStatus:
        """The agent as seen from outside."""
        self.session.agent.state_json = self._conduct.state_json
        return status_of_live(self)

    def publish_status(self) -> None:
        """Show the status to whoever watches it."""
        self._env.publish_status(self)

    async def load_notifications(self) -> None:
        """Take in the notifications whose effect the last owner did not store."""
        async for event in history.notifications(
            self._env.journal, self.key, self.session.agent.notified_sequence
        ):
            self.mailbox.notify(event)

    async def _is_waiting(self) -> None:
        await self.snapshots.save(Lifecycle.LIFECYCLE_ON_INTERRUPT, self)

    def _approvals_changed(self) -> None:
        if self._turn is not None and not self._turn.over:
            self._enter(Phase.AWAITING_APPROVAL if self.desk.pending() else Phase.PROCESSING)
        else:
            self.publish_status()

    def _enter(self, phase: Phase) -> None:
        self.phase = move(self.phase, phase)
        self.touch()
        self.publish_status()
