"""One turn: the backend's stream, read to its one end.

A turn reads the stream, stores its events while they come, answers checkpoints, and ends in exactly one way: by the
backend's terminal, by the stream's end, by a fault, or by a kill from outside. Whatever happens first counts.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from turndock.backend.v1 import (
    CheckpointSessionRequest,
    InterruptRequest,
    PromptRequest,
    Result,
    UpdateSessionRequest,
)
from turndock.errors import TurndockError, is_not_offered
from turndock.ports import (
    Backend,
    BackendCrashed,
    BackendLost,
    CheckpointRejected,
    Rejected,
    TurnOutput,
)
from turndock.types.v1 import (
    BackendSession,
    Coverage,
    Event,
    Failure,
    ToolApprovalDecided,
    ToolApprovalRequested,
)
from turndock_server.core import approvals
from turndock_server.core.capture import Capture, CaptureOverflow
from turndock_server.core.desk import Question
from turndock_server.core.finishing import carried_out
from turndock_server.core.history import Remains
from turndock_server.core.intake import Intake
from turndock_server.core.journal import Appended
from turndock_server.core.lifecycle import Kill, Outcome
from turndock_server.core.observer import Observer
from turndock_server.core.record import Terminal, TurnRecord
from turndock_server.core.tool_policy import Judgement
from turndock_server.core.watchdog import Watchdog
from turndock_server.core.written import Written, read

log = logging.getLogger(__name__)

MAX_CHECKPOINT_BYTES = 1_024
PATIENCE_S = 0.05
"""How long a turn's last events wait for the behavior to have seen them, to be stored together with the terminal."""
LEAVE_DEADLINE_S = 3.0
"""How long a backend may take to confirm an interrupt, and then to let go of its call."""
SHUTDOWN_DEADLINE_S = 0.3
"""The same for a host that stops: its grace has passed."""


@dataclass(frozen=True, slots=True)
class TurnHooks:
    """What a turn asks of its agent."""

    store: Callable[[Sequence[Written]], Awaitable[Appended]]
    """Stores events."""
    keep_session: Callable[[BackendSession], Awaitable[None]]
    """Stores a checkpointed session."""
    ask: Callable[[ToolApprovalRequested], Awaitable[Question]]
    """Stores an approval request, so that people can decide on it."""
    show: Callable[[Question], Awaitable[None]]
    """Tells them."""
    observe: Callable[[Sequence[Event]], Awaitable[None]] | None
    """Shows events to the behavior."""
    titled: Callable[[str], object]
    """Hears of the conversation's title before the event that says so is stored."""
    judge: Callable[[ToolApprovalRequested], Awaitable[Judgement]] | None
    """Asks the behavior about a tool call; None = it does not want to be asked."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a turn did before its backend left it and was called again."""

    left: Remains
    """What is in the log."""
    active_us: int
    coverage: Coverage


class Turn:
    """A turn under way, and the `TurnContext` its backend sees."""

    def __init__(
        self,
        backend: Backend,
        request: PromptRequest,
        intake: Intake,
        capture: Capture,
        hooks: TurnHooks,
        *,
        watchdog_s: float | None,
        inactivity_s: float | None,
        earlier: Earlier | None = None,
    ) -> None:
        self.token = secrets.token_hex(16)
        self.is_continued = earlier is not None
        """Whether an earlier part of it was parked."""
        self.record = TurnRecord(intake, capture, self._taken, hooks.titled)
        if earlier is not None:
            self.record.go_on(earlier.left)
        self._backend = backend
        self._request = request
        self._request.turn_token = self.token
        self._hooks = hooks
        self._observer = Observer(hooks.observe) if hooks.observe is not None else None
        self._end: asyncio.Future[Terminal | Kill] = asyncio.get_running_loop().create_future()
        """What ended the turn: whatever came first."""
        self._said_terminal = False
        self._began = time.monotonic()
        self._watchdog = Watchdog(
            lambda: self.kill(Kill.WATCHDOG),
            limit_s=watchdog_s,
            silence_s=inactivity_s,
            before_s=earlier.active_us / 1e6 if earlier is not None else 0.0,
        )

        self._before = request.session
        self._accepted: BackendSession | None = None
        self._checkpoint_id: str | None = None
        self._checkpointing = asyncio.Lock()
        self._rejection: str | None = None
        self._invalid: Failure | None = None
        self._fault: TurndockError | None = None

        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._storing = asyncio.Lock()
        """Held while events are stored, so that they are in the order in which they happened."""

    @property
    def over(self) -> bool:
        """Whether it has ended, though perhaps nobody has been told yet."""
        return self._end.done()

    # --- From outside --------------------------------------------------------------------------------------------

    def kill(self, kill: Kill) -> bool:
        """End the turn from outside; False if it has ended already."""
        return self._end_with(kill)

    async def run(self) -> Outcome:
        """Read the stream to its end. Raises `TurndockError` only when the events cannot be stored."""
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        self._watchdog.start()
        try:
            await asyncio.wait((self._end, writer), return_when=asyncio.FIRST_COMPLETED)
            self._end_with(
                Kill.STORAGE
            )  # Only the writer's failure is left, if nothing else has ended the turn.
            await self._leave(reader)
        finally:
            self._watchdog.stop()
            self._end_with(Kill.STORAGE)
            reader.cancel()
            self._filled.set()
        await writer
        async with self._storing:
            pass  # A request that was just being stored has its place before what follows.
        if self._fault is not None:
            raise self._fault
        if self._observer is not None and not await self._observer.finished_within(PATIENCE_S):
            await self._store_buffer()  # A slow behavior does not hold up the log.
            await self._observer.finish()
        return await self._outcome(self._end.result())

    # --- What the backend sees -------------------------------------------------------------------------------------

    def accept(self, session: BackendSession) -> None:
        """The session that holds after this turn, if the stream ends by itself."""
        self._accepted = session

    async def checkpoint(self, provider_session_id: str) -> None:
        """Store the provider's name for the conversation. Raises `CheckpointRejected`; the checks are in this order."""
        async with self._checkpointing:
            await self._checkpoint(provider_session_id)

    async def _checkpoint(self, provider_session_id: str) -> None:
        if self._end.done():
            raise CheckpointRejected("not_current")
        if "checkpoint_session" not in self._backend.capabilities:
            raise self._reject("unsupported_checkpoint")
        if not _is_provider_session_id(provider_session_id):
            raise self._reject("invalid_session_id")
        if self._checkpoint_id == provider_session_id:
            return
        if self._checkpoint_id is not None:
            raise self._reject("conflicting_session_id")
        try:
            session = await self._with_checkpoint(self._before, provider_session_id)
        except TurndockError as error:
            if is_not_offered(error):
                raise self._reject("unsupported_checkpoint") from None
            raise
        try:
            await self._hooks.keep_session(session)
        except TurndockError as error:
            self._fail_to_store(error)
            raise
        self._checkpoint_id, self._before = provider_session_id, session

    async def approval(self, request: ToolApprovalRequested) -> ToolApprovalDecided:
        """What the behavior or, if it leaves it to them, people decide; the watchdog rests while they think.

        Raises `Rejected` for what nobody can decide on.
        """
        if self._end.done():
            raise Rejected(Failure(reason="not_current", message="the turn has ended"))
        try:
            request = approvals.checked(request)
            if self._hooks.judge is not None:
                judged = await self._hooks.judge(request)
                if judged.violation is not None:
                    self.record.take((judged.violation,))
                if judged.decided is not None:
                    return judged.decided
                request = judged.call
            question = await asyncio.shield(carried_out(self._ask(approvals.checked(request))))
            self._watchdog.rest()
            try:
                return await question.answer()
            finally:
                self._watchdog.go_on()
        except Rejected as rejected:
            # The turn fails for that reason, whatever the backend makes of it.
            self._invalid = rejected.failure
            raise
        except TurndockError as error:
            self._fail_to_store(error)
            raise

    async def _ask(self, request: ToolApprovalRequested) -> Question:
        """Put a request into the log after everything that was said before it."""
        async with self._storing:
            batch = self.record.drain()
            place = self.record.ask(request)
            try:
                await self._store(batch)
                question = await self._hooks.ask(request)
            except TurndockError as error:
                self._fail_to_store(error)
                raise
            self.record.asked(question.event, place)
        if self._observer is not None:
            self._observer.see([question.event])
        await self._hooks.show(question)
        return question

    def _fail_to_store(self, error: TurndockError) -> None:
        """Not the backend's fault, so it must not look like its crash: the turn's owner has to hear of it."""
        self._fault = error
        self.kill(Kill.STORAGE)

    # --- Reading ---------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read the stream until the turn has ended, and leave it."""
        stream: AsyncIterator[TurnOutput | list[TurnOutput]] | None = None
        try:
            stream = self._backend.prompt(self._request, self)
            self._end_with(await self._read_to_terminal(stream))
        except Exception as error:  # noqa: BLE001 - a backend may raise anything; the turn ends and the agent lives
            self._break_off(error)
        except asyncio.CancelledError as error:
            self._break_off(
                error
            )  # Of no effect but if the backend cancelled itself: we cancel ended turns only.
            raise
        finally:
            await self._close(stream)

    def _break_off(self, error: BaseException) -> None:
        """The stream did not end by itself, which leaves the session as it was before the turn."""
        if not self._end.done():
            self._accepted = None
            self._end_with(self._failure_of(error))

    def _end_with(self, end: Terminal | Kill) -> bool:
        """End the turn; False if something else has ended it already."""
        if self._end.done():
            return False
        self._end.set_result(end)
        return True

    async def _close(self, stream: object) -> None:
        close: Callable[[], Awaitable[Any]] | None = getattr(stream, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except Exception:
            log.warning("the backend raised while turn %s was left", self.token, exc_info=True)

    def _failure_of(self, error: BaseException) -> Failure:
        match error:
            case Rejected() | CaptureOverflow():
                return error.failure
            case CheckpointRejected():
                return Failure(reason=error.reason)
            case BackendLost():
                return Failure(reason="backend_lost", message=str(error)[:1024], retryable=True)
            case BackendCrashed():
                return Failure(reason="task_crashed", message=str(error)[:1024])
            case _:
                log.warning("the backend raised in turn %s", self.token, exc_info=error)
                return Failure(reason="task_crashed", message=f"{type(error).__name__}: {error}"[:1024])

    async def _read_to_terminal(self, stream: AsyncIterator[TurnOutput | list[TurnOutput]]) -> Terminal:
        async for output in stream:
            self._watchdog.last_sign = time.monotonic()
            terminal = self.record.take(output if isinstance(output, list) else (output,))
            if terminal is not None:
                self._said_terminal = True
                return terminal
            if self.record.is_full:
                self._room.clear()
                await self._room.wait()
            if self._observer is not None and self._observer.is_far_behind:
                await self._observer.finish()
        self.record.take(())
        return Failure(reason="no_terminal_event", message="the backend's stream ended without a terminal")

    def _taken(self, taken: Sequence[Written]) -> None:
        """Have events stored, and shown to the behavior."""
        self._filled.set()
        if self._observer is not None:
            self._observer.see(read(taken))

    # --- Storing ---------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Store what is buffered, again and again. What is left at the turn's end goes with its terminal."""
        while True:
            await self._filled.wait()
            if self._end.done():
                return
            self._filled.clear()
            await self._store_buffer()
            self._room.set()

    async def _store_buffer(self) -> None:
        async with self._storing:
            await self._store(self.record.drain())

    async def _store(self, batch: Sequence[Written]) -> None:
        if batch:
            stored = await self._hooks.store(batch)
            self.record.stored(stored.first, stored.incarnation, stored.stored_at_us, len(batch))

    # --- Ending ----------------------------------------------------------------------------------------------------

    async def _leave(self, reader: asyncio.Task[None]) -> None:
        """Have the reader leave the stream; if the turn did not end by itself, ask the backend to stop first."""
        end = self._end.result()
        if isinstance(end, Kill):
            await self._interrupt(end)
            reader.cancel()
        _, late = await asyncio.wait((reader,), timeout=_deadline_s(end))
        if late:
            reader.cancel()
            log.error("the backend holds on to turn %s although it has ended", self.token)

    async def _interrupt(self, kill: Kill) -> None:
        if "interrupt" not in self._backend.capabilities:
            return
        request = InterruptRequest(turn_token=self.token, reason=kill.value)
        if self._request.HasField("scope"):
            request.scope.CopyFrom(self._request.scope)
        try:
            await asyncio.wait_for(self._backend.interrupt(request), _deadline_s(kill))
        except TimeoutError:
            log.warning("the backend did not confirm the interrupt of turn %s in time", self.token)
        except TurndockError as error:
            if not is_not_offered(error):
                log.info("the backend answered the interrupt of turn %s with %s", self.token, error)
        except Exception:
            log.warning("the backend raised when turn %s was interrupted", self.token, exc_info=True)

    async def _outcome(self, end: Terminal | Kill) -> Outcome:
        kill = end if isinstance(end, Kill) else None
        outcome = Outcome(
            terminal=Failure(reason=end.value) if isinstance(end, Kill) else end,
            session=self._before,
            kill=kill,
            said_terminal=self._said_terminal and kill is None,
            text=self.record.text,
            usage=self.record.usage,
            open_tools=self.record.open_tools,
            pending=list(read(self.record.drain())),
            turn_count=self.record.turn_count,
        )
        if kill is None and self._accepted is not None:
            await self._take_accepted(outcome, self._accepted)
        refusal = Failure(reason=self._rejection) if self._rejection is not None else self._invalid
        if refusal is not None:
            outcome.terminal = refusal
            outcome.kill, outcome.said_terminal = None, False
        elif isinstance(outcome.terminal, Result):
            await self._fold_result(outcome, outcome.terminal)
        outcome.duration_us = round((time.monotonic() - self._began) * 1e6)
        outcome.active_us = round(self._watchdog.active_s * 1e6)
        return outcome

    async def _take_accepted(self, outcome: Outcome, accepted: BackendSession) -> None:
        """The stream ended by itself: what it accepted holds, together with the checkpoint."""
        if self._checkpoint_id is None:
            outcome.session = accepted
            return
        try:
            outcome.session = await self._with_checkpoint(accepted, self._checkpoint_id)
        except Exception as error:
            log.warning("checkpoint_session raised after turn %s", self.token, exc_info=True)
            if isinstance(outcome.terminal, Result):
                outcome.terminal = Failure(
                    reason="task_crashed", message=f"checkpoint_session: {error}"[:1024]
                )

    async def _fold_result(self, outcome: Outcome, result: Result) -> None:
        if "update_session" not in self._backend.capabilities:
            return
        request = UpdateSessionRequest(session=outcome.session, result=result)
        if self._request.HasField("scope"):
            request.scope.CopyFrom(self._request.scope)
        try:
            outcome.session = (await self._backend.update_session(request)).session
        except Exception as error:
            if not is_not_offered(error):
                log.warning("update_session raised after turn %s", self.token, exc_info=True)
                outcome.terminal = Failure(reason="task_crashed", message=f"update_session: {error}"[:1024])

    async def _with_checkpoint(self, session: BackendSession, provider_session_id: str) -> BackendSession:
        request = CheckpointSessionRequest(session=session, provider_session_id=provider_session_id)
        if self._request.HasField("scope"):
            request.scope.CopyFrom(self._request.scope)
        return (await self._backend.checkpoint_session(request)).session

    def _reject(self, reason: str) -> CheckpointRejected:
        self._rejection = self._rejection or reason
        return CheckpointRejected(reason)


def _is_provider_session_id(text: str) -> bool:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return False
    return 1 <= len(encoded) <= MAX_CHECKPOINT_BYTES and all(
        byte >= 0x20 and byte != 0x7F for byte in encoded
    )


def _deadline_s(end: Terminal | Kill) -> float:
    """How long each step of leaving a turn may take that ended so."""
    return SHUTDOWN_DEADLINE_S if end is Kill.SHUTDOWN else LEAVE_DEADLINE_S
