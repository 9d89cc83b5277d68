"""Snapshots of agents at the points of their lives where that matters, and what they begin with when they come back.

What keeps them is never in an agent's way: whatever goes wrong there while an agent lives is logged and counted in
`persistence_failures`, takes no longer than its timeout, and changes nothing else. Only a start wants to know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from turndock import events, jsontext
from turndock.agent.v1 import AgentStatus
from turndock.errors import Code, TurndockError, is_not_offered
from turndock.ports import AgentPersistence, InterruptedFlag
from turndock.store.v1 import (
    Lifecycle,
    LoadStateRequest,
    PersistStateRequest,
    SetInterruptedRequest,
    Snapshot,
)
from turndock.types.v1 import RunStatus, Session
from turndock_server.core.feed import AgentKey
from turndock_server.core.journal import Appended
from turndock_server.core.session_writer import SessionWriter
from turndock_server.core.written import Written

log = logging.getLogger(__name__)

SNAPSHOT_VERSION: Final = 1
TIMEOUT_S: Final = 5.0
"""How long a call may take unless the configuration says otherwise."""
_HURRIED_S: Final = 0.5
"""How long one may take while the host stops."""

IS_INTERRUPTED: Final = {
    Lifecycle.LIFECYCLE_ON_INTERRUPT: True,
    Lifecycle.LIFECYCLE_ON_COMPLETION: False,
    Lifecycle.LIFECYCLE_ON_CANCEL: False,
    Lifecycle.LIFECYCLE_ON_ERROR: False,
}
"""What each point makes of the flag. The others leave it as it is."""

_OF_STATUS: Final = {
    RunStatus.RUN_STATUS_COMPLETED: Lifecycle.LIFECYCLE_ON_COMPLETION,
    RunStatus.RUN_STATUS_CANCELLED: Lifecycle.LIFECYCLE_ON_CANCEL,
    RunStatus.RUN_STATUS_FAILED: Lifecycle.LIFECYCLE_ON_ERROR,
    RunStatus.RUN_STATUS_TIMEOUT: Lifecycle.LIFECYCLE_ON_ERROR,
}


def lifecycle_of(status: RunStatus.ValueType) -> Lifecycle.ValueType:
    """The point at which a turn's end saves, by how the turn ended."""
    return _OF_STATUS[status]


class Persistence:
    """What keeps a host's snapshots; without a port nothing does, and every agent lives from its session's record."""

    def __init__(self, port: AgentPersistence | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._port = port
        self._timeout_s = timeout_s
        self.redact_text: Callable[[str], str] = str
        """Takes secrets out of a title, as the journal does out of events."""

    @property
    def offered(self) -> bool:
        """Whether there is anything that keeps snapshots."""
        return self._port is not None

    def hurry(self) -> None:
        """The host stops: let no call take longer than that can wait."""
        self._timeout_s = min(self._timeout_s, _HURRIED_S)

    async def persist_state(self, request: PersistStateRequest) -> bool:
        """Save a snapshot; False if that failed."""
        if self._port is None:
            return True
        return await self._done("PersistState", request.agent_id, self._port.persist_state(request))

    async def set_interrupted(self, request: SetInterruptedRequest) -> bool:
        """Have the flag kept, by whoever keeps one; False if that failed."""
        port: object = self._port
        if not isinstance(port, InterruptedFlag):
            return True
        return await self._done("SetInterrupted", request.agent_id, port.set_interrupted(request))

    async def load_state(self, key: AgentKey, agent_name: str) -> Snapshot | None:
        """An agent's last snapshot; None if there is none that can be used.

        Raises `TurndockError` when nobody knows whether there is one.
        """
        if self._port is None:
            return None
        request = LoadStateRequest(scope=key.scope, agent_id=agent_name, conversation_id=key.session_id)
        try:
            async with asyncio.timeout(self._timeout_s):
                snapshot = (await self._port.load_state(request)).snapshot
        except TurndockError as error:
            if error.code is Code.NOT_FOUND:
                return None
            raise
        except TimeoutError as error:
            raise TurndockError(
                "TIMEOUT", f"the agent persistence did not answer within {self._timeout_s:g} s"
            ) from error
        except Exception as error:
            log.exception("LoadState of agent %s raised", agent_name)
            raise TurndockError(
                "STORAGE_ERROR", "the agent persistence raised an exception, which the log has"
            ) from error
        return snapshot if _is_usable(snapshot, agent_name) else None

    async def _done(self, call: str, agent_name: str, calling: Awaitable[object]) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                await calling
        except TimeoutError:
            log.warning("%s of agent %s did not answer within %g s", call, agent_name, self._timeout_s)
        except TurndockError as error:
            if is_not_offered(error) and call == "SetInterrupted":
                return True
            log.warning("%s of agent %s failed: %s", call, agent_name, error)
        except Exception:
            log.exception("%s of agent %s raised", call, agent_name)
        else:
            return True
        return False


class Shown(Protocol):
    """The agent whose snapshot is taken."""

    def status(self) -> AgentStatus: ...
    def publish_status(self) -> None: ...


class SnapshotWriter:
    """One agent's: takes its snapshots and has them kept, one after the other.

    It is told its agent with every call and does not hold it: an agent that is dropped must be gone at once.
    """

    __slots__ = ("_key", "_one_at_a_time", "_persistence", "_saving", "_title_is_new", "_writer")

    def __init__(self, persistence: Persistence, key: AgentKey, writer: SessionWriter) -> None:
        self._persistence = persistence
        self._key = key
        self._writer = writer
        self._one_at_a_time = asyncio.Lock()
        self._title_is_new = False
        self._saving: asyncio.Task[None] | None = None

    async def save(self, lifecycle: Lifecycle.ValueType, agent: Shown) -> None:
        """Save a snapshot, then the interrupted flag if it changes. Raises only what the agent's own store raises.

        To be called when the change is stored and before the agent's new status is published.
        """
        record = self._writer.session.agent
        async with self._one_at_a_time:
            failures = record.persistence_failures
            await self._save_title(agent)
            await self._persist(lifecycle, agent)
            await self._move_flag(lifecycle)
            if lifecycle == Lifecycle.LIFECYCLE_ON_SHUTDOWN and record.persistence_failures != failures:
                await self._writer.save()  # Nothing else will be stored that could carry the count.

    # --- The title -----------------------------------------------------------------------------------------------

    def titled(self, title: str) -> bool:
        """The conversation has a title, which goes with whatever is stored next; False if it had it before."""
        title = self._persistence.redact_text(title)
        record = self._writer.session.agent
        if record.title == title:
            return False
        record.title = title
        self._title_is_new = True
        return True

    async def save_title(self, agent: Shown) -> None:
        """Save a snapshot if the title is new; it is stored already."""
        if self._title_is_new:
            async with self._one_at_a_time:
                await self._save_title(agent)

    async def append(self, run_id: str, batch: Sequence[Written], agent: Shown) -> Appended:
        """Store events in the middle of a turn; a title among them is saved without the turn's waiting for it.

        The log has it from now on, the session's record from the turn's end.
        """
        appended = await self._writer.append_written(run_id, batch)
        if self._title_is_new and self._saving is None:
            self._saving = asyncio.create_task(self._save_and_show_title(agent))
        return appended

    async def _save_and_show_title(self, agent: Shown) -> None:
        await self.save_title(agent)
        self._saving = None
        agent.publish_status()

    async def _save_title(self, agent: Shown) -> None:
        if self._title_is_new:
            self._title_is_new = False
            await self._persist(Lifecycle.LIFECYCLE_ON_TITLE_GENERATED, agent)

    # --- Both ----------------------------------------------------------------------------------------------------

    async def _persist(self, lifecycle: Lifecycle.ValueType, agent: Shown) -> None:
        if not self._persistence.offered:
            return
        session = self._writer.session
        request = PersistStateRequest(
            scope=self._key.scope,
            agent_id=session.agent_id,
            conversation_id=session.id,
            lifecycle=lifecycle,
            snapshot=self._snapshot(lifecycle, agent.status()),
            fence=self._writer.fence,
        )
        if not await self._persistence.persist_state(request):
            session.agent.persistence_failures += 1

    async def _move_flag(self, lifecycle: Lifecycle.ValueType) -> None:
        """Only when it changes. The session's own flag says what was heard last, so a failure is tried again."""
        session = self._writer.session
        wanted = IS_INTERRUPTED.get(lifecycle, session.interrupted)
        if wanted == session.interrupted:
            return
        request = SetInterruptedRequest(
            scope=self._key.scope,
            agent_id=session.agent_id,
            conversation_id=session.id,
            interrupted=wanted,
            fence=self._writer.fence,
        )
        if await self._persistence.set_interrupted(request):
            session.interrupted = wanted
            await self._writer.save()
        else:
            session.agent.persistence_failures += 1

    def _snapshot(self, lifecycle: Lifecycle.ValueType, status: AgentStatus) -> Snapshot:
        session = self._writer.session
        record = session.agent
        pending = status.pending_approvals
        is_interrupted = IS_INTERRUPTED.get(lifecycle, bool(pending))
        return Snapshot(
            version=SNAPSHOT_VERSION,
            state_json=status.state_json or "{}",
            serialized_at_us=events.now_us(),
            last_sequence=session.last_sequence,
            incarnation=session.incarnation,
            run_id=record.last_run_id,
            interrupted=is_interrupted,
            pending_approvals=pending if is_interrupted else (),
            halted=record.halted,
            title=record.title,
            provider_session_id=record.backend_session.provider_session_id,
        )


def restore(session: Session, snapshot: Snapshot | None) -> bool:
    """Put what an agent begins with into its session, in place; whether anything was saved of an earlier life.

    The snapshot counts unless the session's own record is newer: its last turn, or a notification whose effect it has,
    came after.
    """
    has_record = session.HasField("agent")
    record = session.agent
    if snapshot is None or (
        has_record and session.incarnation == snapshot.incarnation and _is_newer(session, snapshot)
    ):
        return has_record
    record.state_json = snapshot.state_json
    record.title = snapshot.title
    session.interrupted = snapshot.interrupted
    if snapshot.provider_session_id not in ("", record.backend_session.provider_session_id):
        # What the backend remembers beside it belongs to another conversation.
        record.backend_session.Clear()
        record.backend_session.provider_session_id = snapshot.provider_session_id
    return True


def _is_newer(session: Session, snapshot: Snapshot) -> bool:
    record = session.agent
    return session.incarnation == snapshot.incarnation and (
        record.last_run_id != snapshot.run_id or record.notified_sequence > snapshot.last_sequence
    )


def _is_usable(snapshot: Snapshot, agent_name: str) -> bool:
    trouble = ""
    if snapshot.version > SNAPSHOT_VERSION:
        trouble = f"its version {snapshot.version} is newer than {SNAPSHOT_VERSION}"
    elif not snapshot.state_json:
        trouble = "it has no state"
    else:
        try:
            jsontext.check(snapshot.state_json, "state_json")
        except TurndockError as error:
            trouble = error.message
    if trouble:
        log.warning("the snapshot of agent %s cannot be used, and it begins without: %s", agent_name, trouble)
    return not trouble
