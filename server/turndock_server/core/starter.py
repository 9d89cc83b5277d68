"""Starting an agent: its session, its behavior's first word, its backend."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from dataclasses import dataclass

from turndock import events, jsontext
from turndock.agent.v1 import StartAgentRequest
from turndock.behavior.v1 import InitAgentRequest, InitAgentResponse
from turndock.errors import TurndockError, invalid
from turndock.ports import Behavior
from turndock.store.v1 import GetSessionRequest, SaveSessionRequest
from turndock.types.v1 import (
    AgentDefinition,
    AgentRecord,
    BackendSession,
    EventType,
    Session,
    SessionChanged,
    SessionStatus,
)
from turndock_server.core import accounts, attach, transcript
from turndock_server.core.behavior_calls import Patience
from turndock_server.core.conduct import check_state
from turndock_server.core.feed import AgentKey
from turndock_server.core.finishing import to_its_end
from turndock_server.core.host import Host, Located
from turndock_server.core.persistence import restore

_MAX_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Started:
    """An agent that was started, now or by an earlier try of the same request."""

    located: Located
    restored: bool
    restored_backend: bool


class Starter:
    """StartAgent."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @to_its_end
    async def start(self, tenant: str | None, request: StartAgentRequest) -> Started:
        """Make an agent, durable before this returns."""
        self._host.refuse_when_stopping()
        _check(request)
        name = request.definition.agent_name
        async with self._host.names.hold((tenant, name)):
            before = await self._earlier_try(tenant, request)
            if before is not None:
                record = before.session.agent
                return Started(before, record.start_restored, record.start_restored_backend)
            async with self._host.quota.place(tenant, name):
                return await self._start(tenant, request, await self._session(tenant, request))

    async def _earlier_try(self, tenant: str | None, request: StartAgentRequest) -> Located | None:
        """What an earlier try of this request made. Raises when the id or the name is taken by something else."""
        if request.request_id:
            session_id = request.session_id or _session_id_for(tenant, request.request_id)
            same = await self._host.locate_or_none(tenant, "", session_id)
            if same is not None and same.session.agent.start_request_id == request.request_id:
                if same.session.agent.start_request_sha256 == _digest(request):
                    return same
                raise TurndockError(
                    "IDEMPOTENCY_CONFLICT", f"request_id {request.request_id!r} started another agent"
                )
        taken = await self._host.locate_or_none(tenant, request.definition.agent_name)
        if taken is not None:
            raise TurndockError(
                "ALREADY_EXISTS",
                f"an agent named {request.definition.agent_name!r} exists",
                metadata={"agent_name": request.definition.agent_name, "session_id": taken.key.session_id},
            )
        return None

    async def _session(self, tenant: str | None, request: StartAgentRequest) -> Session:
        """The session to continue, or a new one that is not stored yet."""
        if not request.session_id:
            return Session(
                id=_session_id_for(tenant, request.request_id) if request.request_id else events.new_id(),
                metadata_json=request.metadata_json,
                context_json=request.context_json,
                tags=request.tags,
            )
        located = await self._host.locate_or_none(tenant, "", request.session_id)
        if located is not None and not located.session.agent.stopped:
            raise TurndockError(
                "INVALID_STATUS", f"session {request.session_id!r} has an agent that has not stopped"
            )
        session = Session()
        session.CopyFrom(located.session if located is not None else await self._agentless(tenant, request))
        return session

    async def _agentless(self, tenant: str | None, request: StartAgentRequest) -> Session:
        """A session that was stored and that no agent has had yet. Raises SESSION_NOT_FOUND."""
        scope = AgentKey(tenant, "").scope
        stored = GetSessionRequest(scope=scope, session_id=request.session_id)
        return (await self._host.journal.get_session(stored)).session

    async def _start(self, tenant: str | None, request: StartAgentRequest, session: Session) -> Started:
        key = AgentKey(tenant, session.id)
        env = self._host.env
        snapshot = await env.persistence.load_state(key, request.definition.agent_name)
        restored = restore(session, snapshot)
        definition = AgentDefinition()
        definition.CopyFrom(request.definition)
        definition.backend_config_json = _laid_over(
            self._host.backend_defaults.get(definition.backend, ""), definition.backend_config_json
        )
        definition.behavior_config_json = _laid_over(
            self._host.behavior_defaults.get(definition.behavior, ""), definition.behavior_config_json
        )
        backend = env.backend(definition.backend)
        # The behavior's own calls about this start carry it, so it has to be there.
        start_id = request.request_id or events.new_id()
        state_json = await self._init_agent(key, start_id, definition, session, restored)
        try:
            attached = await attach.within(
                attach.resume_or_start(
                    backend, key.scope, session.id, definition, session.agent.backend_session
                ),
                env.backend_wait_s,
            )
        except Exception as error:
            raise _start_failed(definition, error) from error
        session.agent_id = definition.agent_name
        session.status = SessionStatus.SESSION_STATUS_ACTIVE
        session.updated_at_us = events.now_us()
        is_new = not session.incarnation
        session.agent.CopyFrom(_record(request, session, definition, state_json, attached.session))
        session.agent.start_restored = restored
        session.agent.start_restored_backend = attached.restored
        session.agent.start_request_id = start_id
        async with self._host.roster.doors.hold(key):
            try:
                await self._host.journal.save_session(SaveSessionRequest(scope=key.scope, session=session))
            except TurndockError:
                await attach.terminate(lambda: backend, key.scope, attached.session)
                raise
            agent = await self._host.roster.claim(key, backend_ready=True)
            changed = SessionChanged(
                reason="started", restored_backend=attached.restored if restored else None
            )
            opening = [transcript.session_event(session.id, EventType.EVENT_TYPE_SESSION_STARTED, changed)]
            if is_new:
                created = SessionChanged(reason="created")
                opening.insert(
                    0, transcript.session_event(session.id, EventType.EVENT_TYPE_SESSION_CREATED, created)
                )
            await agent.writer.append(opening)
        self._host.roster.wake(agent)
        return Started(Located(key, agent.session, agent), restored, attached.restored)

    async def _init_agent(
        self, key: AgentKey, start_id: str, definition: AgentDefinition, session: Session, restored: bool
    ) -> str:
        """The behavior's first word: the agent's state; completes the definition in place."""
        behavior = self._host.env.behavior(definition.behavior)
        answer = InitAgentResponse()
        known = session.agent.state_json if restored else None
        if behavior is not None:
            asked = InitAgentRequest(
                scope=key.scope,
                request_id=start_id,
                session_id=session.id,
                agent_name=definition.agent_name,
                config_json=definition.behavior_config_json,
                backend_config_json=definition.backend_config_json,
                context_json=session.context_json,
                restored_state_json=known,
                metadata_json=session.metadata_json,
            )
            answer = await self._asked_to_init(behavior, asked, definition.behavior)
        if answer.HasField("backend_config_json"):
            definition.backend_config_json = answer.backend_config_json
        own = accounts.with_defaults(definition.limits, answer.limits)
        definition.limits.CopyFrom(accounts.with_defaults(own, self._host.defaults))
        if answer.HasField("state_json"):
            return answer.state_json
        return known or ("{}" if behavior is not None else "")

    async def _asked_to_init(
        self, behavior: Behavior, asked: InitAgentRequest, name: str
    ) -> InitAgentResponse:
        """The behavior's answer. Raises AGENT_INIT_FAILED, and PLUGIN_UNAVAILABLE when nobody answers."""
        longest = (self._host.env.patience.get(name) or Patience()).timeout_s
        try:
            async with asyncio.timeout(longest):
                answer = await behavior.init_agent(asked)
            if answer.HasField("state_json"):
                check_state(answer.state_json, "init_agent.state_json")
            jsontext.check_object(answer.backend_config_json, "init_agent.backend_config_json")
        except TimeoutError as error:
            raise _init_failed(name, f"init_agent did not answer within {longest:g} s") from error
        except TurndockError as error:
            if error.reason == "PLUGIN_UNAVAILABLE":
                raise
            raise _init_failed(name, error.message) from error
        except Exception as error:
            raise _init_failed(name, f"{type(error).__name__}: {error}") from error
        return answer


def _init_failed(behavior: str, why: str) -> TurndockError:
    return TurndockError("AGENT_INIT_FAILED", f"behavior {behavior!r}: {why}")


def _laid_over(defaults_json: str, own_json: str) -> str:
    """The agent's own configuration over the server's, key by key."""
    defaults = jsontext.parse_object(defaults_json, "defaults")
    if not defaults:
        return own_json
    return jsontext.canonical(defaults | jsontext.parse_object(own_json, "definition"))


def _check(request: StartAgentRequest) -> None:
    definition = request.definition
    events.check_id(definition.agent_name, "definition.agent_name", max_bytes=_MAX_NAME_BYTES)
    if not definition.backend:
        raise invalid("definition.backend", "must name a backend")
    for field in ("backend_config_json", "behavior_config_json"):
        jsontext.check_object(getattr(definition, field), f"definition.{field}")
    for field in ("metadata_json", "context_json"):
        jsontext.check_object(getattr(request, field), field)
    for index, tag in enumerate(request.tags):
        events.check_id(tag, f"tags[{index}]")
    if request.session_id:
        events.check_id(request.session_id, "session_id")
    for limit, value in definition.limits.ListFields():
        if isinstance(value, int) and value < 0:
            raise invalid(f"definition.limits.{limit.name}", "must not be negative")


def _record(
    request: StartAgentRequest,
    session: Session,
    definition: AgentDefinition,
    state_json: str,
    backend_session: BackendSession,
) -> AgentRecord:
    record = AgentRecord()
    record.CopyFrom(session.agent)
    record.MergeFrom(
        AgentRecord(
            state_json=state_json,
            start_request_sha256=_digest(request),
        )
    )
    record.definition.CopyFrom(definition)
    record.backend_session.CopyFrom(backend_session)
    record.stopped = record.halted = record.ready = False
    record.stop_request_id = ""
    return record


def _session_id_for(tenant: str | None, request_id: str) -> str:
    """A retry finds the session its first try made, because the id follows from the request's."""
    digest = hashlib.sha256(f"{tenant or ''}\0{request_id}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))


def _digest(request: StartAgentRequest) -> bytes:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()


def _start_failed(definition: AgentDefinition, error: Exception) -> TurndockError:
    failure = attach.start_failure(error)
    cause = failure.causes[0] if failure.causes else failure.reason
    return TurndockError(
        "PLUGIN_UNAVAILABLE" if cause == "plugin_unavailable" else "BACKEND_START_FAILED",
        f"backend {definition.backend!r}: {failure.message}",
        metadata={"backend": definition.backend, "cause": cause},
    )
