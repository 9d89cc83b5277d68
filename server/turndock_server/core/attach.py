"""Getting an agent's backend ready: a new conversation, or the old one taken up again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from turndock import events
from turndock.backend.v1 import ResumeSessionRequest, StartSessionRequest, TerminateSessionRequest
from turndock.errors import Code, TurndockError, is_not_offered
from turndock.ports import Backend
from turndock.types.v1 import AgentDefinition, BackendSession, EventType, Failure, Scope, SessionChanged
from turndock_server.core import transcript
from turndock_server.core.session_writer import SessionWriter

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_CANCELLED_WITHIN_S = 1.0
"""How long a backend's call may take to end when it is cancelled; then it is left to itself."""
_RELEASE_WITHIN_S = 10.0
"""How long a backend may take to release a session."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A backend session that can be prompted."""

    session: BackendSession
    restored: bool
    """Whether the backend took its own conversation up again."""


async def start(
    backend: Backend, scope: Scope | None, session_id: str, definition: AgentDefinition
) -> BackendSession:
    """A new conversation. Raises whatever `TurndockError` the backend answers."""
    request = StartSessionRequest(
        scope=scope,
        request_id=events.new_id(),
        session_id=session_id,
        agent_name=definition.agent_name,
        config_json=definition.backend_config_json,
    )
    return (await backend.start_session(request)).session


async def resume_or_start(
    backend: Backend,
    scope: Scope | None,
    session_id: str,
    definition: AgentDefinition,
    remembered: BackendSession,
) -> Attached:
    """The old conversation if the backend can take it up and still has it; a new one otherwise."""
    if "resume_session" in backend.capabilities and (remembered.data or remembered.provider_session_id):
        request = ResumeSessionRequest(
            scope=scope,
            request_id=events.new_id(),
            session_id=session_id,
            agent_name=definition.agent_name,
            config_json=definition.backend_config_json,
            session=remembered,
        )
        try:
            return Attached((await backend.resume_session(request)).session, restored=True)
        except TurndockError as error:
            if error.code is not Code.NOT_FOUND and not is_not_offered(error):
                raise
    return Attached(await start(backend, scope, session_id, definition), restored=False)


def is_lost(failure: Failure | None) -> bool:
    """Whether a turn's failure means that the backend knows nothing of the conversation any more."""
    return failure is not None and failure.reason in ("backend_lost", "plugin_unavailable")


class BackendNotReady(Exception):
    """The backend could not be attached; `failure` is what the turn that needed it ends with."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


async def patiently(
    attempt: Callable[[], Coroutine[Any, Any, Attached]],
    patience_s: float,
    killed: asyncio.Event,
    given_up: Callable[[], bool],
) -> Attached:
    """Try until it works, as long as the errors say that trying again helps.

    Raises `BackendNotReady` when patience ends, as soon as `killed` is set, when `given_up` says so after a try, or
    when an error is not retryable.
    """
    deadline = time.monotonic() + patience_s
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return await within(attempt(), deadline - time.monotonic(), killed)
        except TurndockError as error:
            if not error.retryable or given_up() or time.monotonic() + pause > deadline:
                raise BackendNotReady(start_failure(error)) from error
            log.warning("the backend cannot be reached, trying again in %.1f s: %s", pause, error)
        except BackendNotReady:
            raise
        except Exception as error:
            raise BackendNotReady(start_failure(error)) from error
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(killed.wait(), pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)


async def within(
    call: Coroutine[Any, Any, Attached], limit_s: float, killed: asyncio.Event | None = None
) -> Attached:
    """What the backend answers; also when it hangs, this returns.

    Raises `BackendNotReady` when `limit_s` is over and when `killed` is set, and whatever the call raises.
    """
    began = time.monotonic()
    answering = asyncio.create_task(call)
    killing = asyncio.create_task((killed or asyncio.Event()).wait())
    try:
        await asyncio.wait((answering, killing), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
    finally:
        killing.cancel()
        await _cancelled(answering)
    message = f"the backend did not answer within {time.monotonic() - began:.1f} s"
    raise BackendNotReady(
        Failure(reason="backend_start_failed", message=message, retryable=True, causes=["timeout"])
    )


async def _cancelled(task: asyncio.Task[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_CANCELLED_WITHIN_S)
        if not task.done():
            log.error("a backend's call hangs and does not heed its cancellation")
            _left.add(task)
            task.add_done_callback(_left.discard)
        elif not task.cancelled():
            task.exception()  # nobody waits for it any more


_left: set[asyncio.Task[Any]] = set()
"""The loop keeps only weak references to tasks."""


async def again(
    backend: Callable[[], Backend],
    scope: Scope | None,
    writer: SessionWriter,
    patience: Callable[[Callable[[], Coroutine[Any, Any, Attached]]], Awaitable[Attached]],
) -> None:
    """Take an agent's conversation up again and say so in its log. Raises as `patiently`."""
    session = writer.session
    record = session.agent
    attached = await patience(
        lambda: resume_or_start(backend(), scope, session.id, record.definition, record.backend_session)
    )
    record.backend_session.CopyFrom(attached.session)
    changed = SessionChanged(reason="reattached", restored_backend=attached.restored)
    await writer.append([transcript.session_event(session.id, EventType.EVENT_TYPE_SESSION_RESUMED, changed)])


def start_failure(error: Exception) -> Failure:
    """What a backend that does not start leaves of its error."""
    if isinstance(error, BackendNotReady):
        return error.failure
    if isinstance(error, TurndockError):
        return Failure(
            reason="backend_start_failed",
            message=error.message,
            retryable=error.retryable,
            causes=[error.reason.lower()],
        )
    return Failure(reason="backend_start_failed", message=f"{type(error).__name__}: {error}"[:1024])


async def terminate(backend: Callable[[], Backend], scope: Scope | None, session: BackendSession) -> None:
    """Let the backend release a session. What it answers, if it is there at all, changes nothing: the agent is gone."""
    try:
        async with asyncio.timeout(_RELEASE_WITHIN_S):
            await backend().terminate_session(TerminateSessionRequest(scope=scope, session=session))
    except Exception:
        log.warning("the backend did not release its session", exc_info=True)
