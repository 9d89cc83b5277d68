"""An agent at work: the loop that takes its turns, one at a time.

The position in this code *is* the state; `Phase` only says it to others. The loop runs while there is work and ends
when there is none. Everything it acknowledges is in the store first. When the store refuses a write (another owner has
the session, or it cannot be reached) the loop raises, its host drops the agent, and the rows tell the next owner what
to do: an agent is never mended in memory.
"""

from __future__ import annotations

import asyncio
from functools import partial

from turndock.backend.v1 import Paused, Resume
from turndock.errors import TurndockError
from turndock.ports import Backend
from turndock.store.v1 import Lifecycle
from turndock.types.v1 import Failure, Response, Run, RunStatus
from turndock_server.core import (
    accounts,
    attach,
    history,
    parking,
    pre_turn,
    recovery,
    redaction,
    terminals,
    transcript,
    turns,
)
from turndock_server.core.agent_state import AgentState
from turndock_server.core.capture import Capture
from turndock_server.core.conduct import Verdict
from turndock_server.core.environment import AgentEnds
from turndock_server.core.lifecycle import Kill, Outcome, Phase, is_terminal
from turndock_server.core.persistence import lifecycle_of
from turndock_server.core.turn import Earlier


class Agent(AgentState):
    """One claimed agent. Made by its host from a claim; lives until its host drops it."""

    __slots__ = ()

    # --- The loop ------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Do everything there is to do, in order; return when there is nothing more.

        Raises `TurndockError` when the store refuses a write, `AgentEnds` when the agent cannot go on.
        """
        await self.settle_lost_runs()
        if not self.session.agent.ready:
            await self._pre_run()
        while not self.stopping:
            if self._parked is not None:
                if not await self._go_on(self._parked):
                    return
                continue
            if await self._decisions.drain():
                await self.snapshots.save_title(self)
                self.publish_status()
            run = self.next_run()
            if run is None:
                return
            await self._take_turn(run)
            preferred, self.interrupted_for = self.interrupted_for, ""
            async with self.begin_lock:
                await self._decisions.put_first(preferred)

    async def _take_turn(self, run: Run) -> None:
        """One run, from the mailbox to its end."""
        async with self.begin_lock:
            if self.mailbox.next() is not run:
                return  # It was edited, moved or cancelled while this waited.
            verdict = await self._conduct.pre_turn(run)
            failure = verdict.failure or accounts.exhausted(self.session, run)
            if failure is not None:
                await self._refuse(run, verdict, failure)
                return
            try:
                run = await self._begin(run, verdict)
            except TurndockError as error:
                if error.reason != "INVALID_TRANSITION":
                    raise
                self.mailbox.remove(run.id)  # Its row says that it no longer waits.
                return
        if verdict.approval is None:
            outcome = await self._run_turn(run, verdict.prompt)
        else:
            outcome = pre_turn.waiting(verdict.approval, self.session.agent.backend_session)
        await self._end_turn(run, verdict.prompt, outcome)

    # --- A turn's beginning --------------------------------------------------------------------------------------

    async def _begin(self, run: Run, verdict: Verdict) -> Run:
        """PENDING → RUNNING, with the events that say so, in one transaction."""
        started = transcript.started_run(run, self.session.agent.definition.backend)
        opening = transcript.opening(started, verdict.prompt, is_sent=verdict.approval is None)
        await self.writer.flush(started, opening, expected=RunStatus.RUN_STATUS_PENDING)
        self.mailbox.remove(run.id)
        self.current_run_id, self._unheard = run.id, asyncio.Event()
        self._enter(Phase.PROCESSING)
        return started

    async def _run_turn(
        self, run: Run, prompt: str, resume: Resume | None = None, earlier: Earlier | None = None
    ) -> Outcome:
        """The backend's part. A backend that cannot be had fails the turn like any other fault."""
        record = self.session.agent
        try:
            await self._attach_backend()
        except attach.BackendNotReady as error:
            kill = self._kill or (Kill.SHUTDOWN if self._winding_down else None)
            failure = Failure(reason=kill.value) if kill else error.failure
            return Outcome(terminal=failure, session=record.backend_session, kill=kill)
        finally:
            self._unheard = None
        hooks = turns.hooks_of(run, self._conduct, self)
        place = turns.Place(self.session, self.key.scope, self._backend(), hooks)
        turn = self._turn = turns.turn_of(run, prompt, place, resume, earlier)
        if self._kill is not None:
            turn.kill(self._kill)
        outcome = await self.desk.attend(run, turn)
        if attach.is_lost(outcome.failure):
            self.backend_ready = False
        return outcome

    async def _attach_backend(self) -> None:
        """Take the conversation up again after a wake, or after the backend was lost; nothing to do otherwise."""
        if not self.backend_ready:
            patience = partial(
                attach.patiently,
                patience_s=self._env.backend_wait_s,
                killed=self._unheard or asyncio.Event(),
                given_up=lambda: self._kill is not None or self._winding_down,
            )
            await attach.again(self._backend, self.key.scope, self.writer, patience)
            self.backend_ready = True

    def _backend(self) -> Backend:
        return self._env.backend(self.session.agent.definition.backend)

    # --- A turn's end --------------------------------------------------------------------------------------------

    async def _end_turn(self, run: Run, prompt: str, outcome: Outcome) -> None:
        """Settle a turn, or park it until people have decided."""
        if isinstance(outcome.terminal, Paused) and await self._park(run, prompt, outcome):
            self._turn, self._parked = None, run
            if not parking.is_decided(self.session):
                await self.snapshots.save(Lifecycle.LIFECYCLE_ON_INTERRUPT, self)
                self._enter(Phase.AWAITING_APPROVAL)
        else:
            await self._settle(run, outcome)

    async def _park(self, run: Run, prompt: str, outcome: Outcome) -> bool:
        """Keep the turn for as long as people need; False if nobody can decide on what it asks."""
        self._unheard = asyncio.Event()
        turn = self._turn
        limits = self.session.agent.definition.limits
        capture = turn.record.capture if turn is not None else Capture.within(limits)
        judge = turns.judge_of(run, self._conduct) if turn is not None else None
        place = parking.Place(self.writer, self.desk, capture, judge)
        try:
            return await parking.park(run, prompt, outcome, place, not_begun=turn is None)
        finally:
            self._unheard = None

    async def _go_on(self, run: Run) -> bool:
        """Take a parked turn up, or end it if it was killed or refused; False if it still waits."""
        if self._kill is not None:
            await self.end_parked(self._kill)
            return True
        await self.desk.expire()
        if not parking.is_decided(self.session):
            return False
        verdict = pre_turn.verdict(self.session.agent.parked, run)
        if verdict.failure is not None:
            await self._refuse(run, verdict, verdict.failure)
            return True
        going = await parking.take_up(self._env.journal, self.key, self.writer, run, verdict.prompt)
        self._parked, self._unheard = None, asyncio.Event()
        self._enter(Phase.PROCESSING)
        outcome = await self._run_turn(run, going.prompt, going.resume, going.earlier)
        await self._end_turn(run, going.prompt, outcome)
        return True

    async def end_parked(self, kill: Kill) -> None:
        """End a parked turn, if there is one, without its backend."""
        run, self._parked = self._parked, None
        if run is not None:
            await self._settle(
                run, await parking.given_up(self._env.journal, self.key, self.writer, run, kill)
            )

    async def _settle(self, run: Run, outcome: Outcome) -> None:
        """The one terminal write, then all that follows from it, in the order callers may rely on."""
        await self._conclude(*await self._write_terminal(run, outcome))

    async def _conclude(self, ended: Run, response: Response | None) -> None:
        """What follows from a run that has ended: the decision, and then everybody hears of it."""
        await self._decisions.follow(ended, response)
        await self.snapshots.save(lifecycle_of(ended.status), self)
        self._enter(Phase.IDLE)
        self._env.settled(self.key, ended, response)

    async def _write_terminal(self, run: Run, outcome: Outcome) -> tuple[Run, Response | None]:
        """Store the turn's end; the run as it ended and, if it succeeded, its response."""
        turn, self._turn = self._turn, None
        self._kill = self._kill if self.stopping else None
        place = terminals.Place(self._env, self.key, self.writer, self._conduct)
        ended = await terminals.write(place, run, outcome, turn)
        self.current_run_id = ""
        return ended

    async def _refuse(self, run: Run, verdict: Verdict, failure: Failure) -> None:
        """End a run whose turn does not take place: no backend, no decision, no post_turn."""
        if verdict.halt:
            self._decisions.halt(failure.message, run.id)
        ended = redaction.told_of(transcript.refused_run(run, failure), None, self._env.journal.redacted)
        await self._decisions.post_run()
        if self._parked is not None:
            parking.taken_out(self.session)
        await self.writer.flush(ended, pre_turn.closing(ended, verdict), expected=run.status)
        self.mailbox.remove(run.id)
        if self._parked is not None:
            self._parked, self.current_run_id = None, ""
            self._kill = self._kill if self.stopping else None
            await self.snapshots.save(lifecycle_of(ended.status), self)
        self._enter(Phase.IDLE)
        self._env.settled(self.key, ended, None)

    # --- Coming back ---------------------------------------------------------------------------------------------

    async def _pre_run(self) -> None:
        """The hook before the first turn, once in an agent's life."""
        failure = await self._conduct.pre_run()
        if failure is not None:
            message = failure.message or failure.reason
            raise AgentEnds(Failure(reason="pre_run_failed", message=message, causes=[failure.reason]))
        self.session.agent.ready = True
        await self.writer.save()

    async def settle_lost_runs(self, *, hurried: bool = False) -> None:
        """Settle what the last owner left: a turn that was under way, a decision that was due.

        Raises `BehaviorAway`; hurried, instead of waiting for a behavior that cannot be reached.
        """
        if not self._unsettled:
            return
        async with self.begin_lock:  # Nothing else may begin before, whoever settles.
            self._hurried = hurried
            while self._unsettled:
                await self._settle_lost(self._unsettled[0])
                del self._unsettled[0]
            self._hurried = False

    async def _settle_lost(self, run: Run) -> None:
        """A run that was under way, or waited for its decision, when its host died."""
        journal = self._env.journal
        if is_terminal(run.status):
            await self._conclude(run, await history.response_of(journal, self.key, run))
            return
        left = await history.left_by(journal, self.key, run.id)
        if recovery.is_retried(self.session, run):
            self.mailbox.put(await recovery.tried_again(self.writer, run, left))
            return
        self._enter(Phase.PROCESSING)
        self.current_run_id = run.id
        if left.title:
            self.snapshots.titled(left.title)
        await self._settle(run, recovery.lost(self.session, left))

    # --- Leaving -------------------------------------------------------------------------------------------------

    async def say_goodbye(self, reason: str) -> None:
        """The agent leaves memory: store its state, an event that says so and a snapshot."""
        await self.writer.append([transcript.shutdown_event(self.status(), reason, self.last_activity_us)])
        await self.writer.save()
        await self.snapshots.save(Lifecycle.LIFECYCLE_ON_SHUTDOWN, self)
        self._enter(Phase.DORMANT)

    async def terminate(self, reason: str, failure: Failure | None = None) -> None:
        """Tell the behavior and the backend that the agent ends."""
        await self._conduct.terminate(reason, failure)
        await attach.terminate(self._backend, self.key.scope, self.session.agent.backend_session)
