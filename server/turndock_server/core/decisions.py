"""What a behavior decides on a turn's end and on notifications, and how that takes effect."""

from __future__ import annotations

from turndock.behavior.v1 import Decision
from turndock.types.v1 import Event, Response, Run, RunOrigin, RunStatus
from turndock_server.core import transcript
from turndock_server.core.conduct import Conduct
from turndock_server.core.mailbox import Mailbox
from turndock_server.core.notices import Notices
from turndock_server.core.persistence import SnapshotWriter
from turndock_server.core.session_writer import SessionWriter


class Decisions:
    """One agent's. Everything is stored before anybody is told of it."""

    __slots__ = ("_conduct", "_fresh_halt", "_mailbox", "_notices", "_snapshots", "_writer")

    def __init__(
        self,
        conduct: Conduct,
        writer: SessionWriter,
        mailbox: Mailbox,
        notices: Notices,
        snapshots: SnapshotWriter,
    ) -> None:
        self._conduct = conduct
        self._writer = writer
        self._mailbox = mailbox
        self._notices = notices
        self._snapshots = snapshots
        self._fresh_halt: tuple[str, str, str] | None = None
        """Why the mailbox was frozen, by which run, and by what in any case, until the behavior has been told."""

    async def follow(self, run: Run, response: Response | None) -> None:
        """What follows from a run's end; one without a response has failed."""
        if not self._conduct.present:
            await self.drain()
            return
        failure = run.failure if response is None else None
        if response is not None:
            decision = await self._conduct.respond(run, response)
        else:
            decision = await self._conduct.fail(run, run.failure)
        chained = self._apply(run, decision)
        await self._conduct.post_turn(run, response, failure, decision)
        await self._hear_notifications()
        await self.post_run()
        await self._save(run, chained)

    async def drain(self) -> bool:
        """Apply every waiting notification and store their effect; False if there was none."""
        if not await self._hear_notifications():
            return False
        await self.post_run()
        titles = self._titles("")
        await self._writer.save()
        if titles:
            await self._writer.append(titles)
        self._tell_applied()
        return True

    async def put_first(self, run_id: str) -> None:
        """Let this run be next if it waits, also before one that a decision asks for. The caller keeps it waiting."""
        first = self._mailbox.next()
        if first is None or first.id == run_id or all(run.id != run_id for run in self._mailbox.runs()):
            return
        for moved in await self._writer.move(run_id, first.id):
            self._mailbox.put(moved)

    def halt(self, reason: str, run_id: str = "", *, notification_id: str = "") -> None:
        """Freeze the mailbox, after a run or after a notification."""
        record = self._writer.session.agent
        if not record.halted:
            record.halted = True
            self._fresh_halt = (reason, run_id, run_id or notification_id)

    async def post_run(self) -> None:
        """Tell the behavior that the agent has halted: once for each time it does."""
        if self._fresh_halt is not None:
            (reason, run_id, cause), self._fresh_halt = self._fresh_halt, None
            await self._conduct.post_run(reason, run_id, cause)

    def _apply(self, run: Run, decision: Decision) -> Run | None:
        """Let a decision take effect in memory; the chained run if it asks for one."""
        record = self._writer.session.agent
        if decision.HasField("prompt"):
            goes_on = run.origin == RunOrigin.RUN_ORIGIN_CHAIN
            record.chain_length = record.chain_length + 1 if goes_on else 1
            return transcript.chained_run(run, decision.prompt)
        record.chain_length = 0
        if decision.HasField("halt"):
            self.halt(decision.halt.reason, run.id)
        return None

    async def _save(self, run: Run, chained: Run | None) -> None:
        """One transaction: the state, the decision done, and the chained run at the mailbox's front."""
        done = Run()
        done.CopyFrom(run)
        done.decision_pending = False
        titles = self._titles(run.id)
        stored = await self._writer.flush(done, titles, expected=run.status, chained=chained)
        if stored.HasField("chained_run"):
            self._mailbox.put(stored.chained_run)
        self._tell_applied()

    def _titles(self, run_id: str) -> list[Event]:
        """The event to store if the behavior has given the conversation another title."""
        title = self._conduct.take_title()
        if title is None or not self._snapshots.titled(title):
            return []
        return [transcript.title_event(self._writer.session.id, run_id, title)]

    async def _hear_notifications(self) -> bool:
        """Hand every waiting notification to the behavior, in order; a halt among them does not stop the others."""
        record = self._writer.session.agent
        heard = False
        while (notification := self._mailbox.take_notification()) is not None:
            if notification.sequence <= record.notified_sequence:
                continue
            decision = await self._conduct.handle(notification, halted=record.halted)
            if decision.HasField("halt"):
                self.halt(decision.halt.reason, notification_id=notification.id)
            if decision.HasField("prompt"):
                # Stored before the notification counts as applied; its id makes a second try harmless.
                run = transcript.event_run(self._writer.session.id, notification, decision.prompt)
                stored = await self._writer.enqueue(run)
                if stored.status == RunStatus.RUN_STATUS_PENDING:
                    self._mailbox.put(stored)
            record.notified_sequence = notification.sequence
            heard = True
        return heard

    def _tell_applied(self) -> None:
        self._notices.applied_through(self._writer.session.agent.notified_sequence)
