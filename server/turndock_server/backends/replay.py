"""A backend that says again what a recorded session's backend said, and asks nobody.

Each prompt plays the next run of the recording: its events as they are in the log, piece by piece, and its end. What
the host itself writes about a turn (its beginning, the prompt, the whole message, the end) it writes again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field

from turndock import events
from turndock.backend.v1 import (
    PromptRequest,
    Result,
    ResumeSessionRequest,
    ResumeSessionResponse,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
)
from turndock.errors import TurndockError
from turndock.ports import ArtifactStore, Backend, Rejected, SessionStore, TurnContext, TurnOutput
from turndock.store.v1 import (
    ArtifactStoreGetRequest,
    GetEventsRequest,
    GetRunRequest,
    GetSessionRequest,
)
from turndock.types.v1 import Event, EventType, Failure, Response, Scope
from turndock_server.backends.sessions import Config, State, parse_config

_HOSTS: Final = frozenset(
    (
        EventType.EVENT_TYPE_RUN_STARTED,
        EventType.EVENT_TYPE_MESSAGE_SENT,
        EventType.EVENT_TYPE_MESSAGE_RECEIVED,
        EventType.EVENT_TYPE_TOOL_APPROVAL_REQUESTED,
        EventType.EVENT_TYPE_TOOL_APPROVAL_GRANTED,
        EventType.EVENT_TYPE_TOOL_APPROVAL_DENIED,
        *events.RUN_TERMINAL,
    )
)
"""Types that the host writes about a turn, or that need a person's answer, and that are not said again."""

_HOSTS_NAMES: Final = "turndock."
_NO_TERMINAL: Final = "no_terminal_event"
_CLOSED: Final = Failure(reason="cancelled", message="the turn ended before the tool did")
"""What the host writes of a tool call that a turn leaves open."""


class ReplayConfig(Config):
    """What an agent plays."""

    session_id: str = Field(min_length=1)
    """The recorded session, in the agent's own scope."""
    prompts: Literal["same", "any"] = "same"
    """`same`: a prompt that is not the recorded one fails its turn. `any`: it gets the recorded answer all the same."""


class ReplayState(State):
    """Where an agent stands."""

    config: ReplayConfig
    after: int = 0
    """Number of the last event that was played."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A run as it is in the recording: what follows its last beginning, up to its end."""

    run_id: str
    begun: Event
    end: Event


class ReplayBackend(Backend):
    """Plays sessions of a store; payloads that are artifacts come from `artifacts`. Reads both, writes neither."""

    def __init__(self, store: SessionStore, artifacts: ArtifactStore | None = None) -> None:
        self._store = store
        self._artifacts = artifacts

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        config = parse_config(ReplayConfig, request.config_json)
        await self._store.get_session(GetSessionRequest(scope=_scope(request), session_id=config.session_id))
        return StartSessionResponse(session=ReplayState(config=config).session())

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        ReplayState.of(request.session)
        return ResumeSessionResponse(session=request.session)

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        state = ReplayState.of(request.session)
        log = _Log(self._store, _scope(request), state.config.session_id)
        run = await self._next_run(log, state, request.prompt)
        played = ReplayState(config=state.config, after=run.end.sequence)
        turn.accept(played.session(request.session.provider_session_id))
        text: str | None = None
        async for page in log.pages(run.begun.sequence, run.end.sequence, run.run_id):
            said: list[TurnOutput] = []
            for event in page:
                if event.type == EventType.EVENT_TYPE_MESSAGE_RECEIVED:
                    text = (await self._whole(log.scope, event)).message_received.text
                elif _is_the_backends(event):
                    said.append(_again(await self._whole(log.scope, event)))
            if said:
                yield said
        terminal = await _terminal(log, run, text)
        if terminal is not None:
            yield terminal

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()

    async def _next_run(self, log: _Log, state: ReplayState, prompt: str) -> _Recorded:
        """The run that is due. Raises `Rejected` if there is none, or none that may be played."""
        begun = await log.first(state.after, "", EventType.EVENT_TYPE_RUN_STARTED)
        if begun is None:
            raise _rejected("replay_exhausted", "the recording has no further run")
        end = await log.first(begun.sequence, begun.run_id, *events.RUN_TERMINAL)
        if end is None:
            raise _rejected("replay_incomplete", f"run {begun.run_id!r} has not ended in the recording")
        while again := await log.first(begun.sequence, begun.run_id, EventType.EVENT_TYPE_RUN_STARTED):
            begun = again  # a further attempt: what the one before it left does not count
        if state.config.prompts == "same" and prompt != begun.run_started.prompt:
            raise _rejected(
                "replay_diverged",
                f"the prompt is not that of run {begun.run_id!r}; "
                'the configuration {"prompts": "any"} plays it all the same',
            )
        return _Recorded(begun.run_id, begun, end)

    async def _whole(self, scope: Scope | None, event: Event) -> Event:
        """The event with its payload, which may be an artifact."""
        if not event.HasField("offloaded"):
            return event
        if self._artifacts is None:
            raise TurndockError("STORAGE_ERROR", "there is no artifact store to read a payload from")
        request = ArtifactStoreGetRequest(scope=scope, key=event.offloaded.key)
        parts = [part.chunk async for part in self._artifacts.get(request)]
        return Event.FromString(b"".join(parts))


class _Log:
    """A recorded session's log."""

    def __init__(self, store: SessionStore, scope: Scope | None, session_id: str) -> None:
        self.store = store
        self.scope = scope
        self.session_id = session_id

    async def first(self, after: int, run_id: str, *types: EventType.ValueType) -> Event | None:
        """The first event of these types, and of that run if one is named, after a number."""
        while True:
            request = self._request(after, run_id)
            request.types.extend(types)
            request.limit = 1
            page = await self.store.get_events(request)
            if page.events:
                return page.events[0]
            if page.scanned_through <= after or page.scanned_through >= page.head:
                return None
            after = page.scanned_through

    async def pages(self, after: int, before: int, run_id: str) -> AsyncIterator[list[Event]]:
        """A run's events between two numbers."""
        while after < before - 1:
            request = self._request(after, run_id)
            request.before_sequence = before
            page = await self.store.get_events(request)
            yield list(page.events)
            if page.scanned_through <= after:
                return
            after = page.scanned_through

    def _request(self, after: int, run_id: str) -> GetEventsRequest:
        return GetEventsRequest(
            scope=self.scope, session_id=self.session_id, run_id=run_id, after_sequence=after
        )


def _is_the_backends(event: Event) -> bool:
    """Whether the recorded session's backend said this, and not the host."""
    if event.type in _HOSTS or event.custom.name.startswith(_HOSTS_NAMES):
        return False
    return not (event.HasField("tool_call_failed") and event.tool_call_failed.failure == _CLOSED)


def _again(recorded: Event) -> Event:
    """The event without what the log of the agent that says it again gives it."""
    event = Event()
    event.CopyFrom(recorded)
    for name in ("id", "session_id", "run_id", "sequence", "incarnation", "stored_at_us"):
        event.ClearField(name)
    return event


async def _terminal(log: _Log, run: _Recorded, text: str | None) -> Result | Failure | None:
    """How the run ended; None for one whose backend said nothing about that."""
    if run.end.type != EventType.EVENT_TYPE_RUN_COMPLETED:
        failure = Failure()
        failure.CopyFrom(run.end.run_failed.failure)
        return None if failure.reason == _NO_TERMINAL else failure
    answer = await _response(log, run.run_id)
    return Result(
        text=text,
        provider_session_id=answer.provider_session_id,
        stop_reason=run.end.run_completed.stop_reason,
        data_json=answer.data_json,
    )


async def _response(log: _Log, run_id: str) -> Response:
    request = GetRunRequest(scope=log.scope, session_id=log.session_id, run_id=run_id)
    try:
        return (await log.store.get_run(request)).run.response
    except TurndockError as error:
        if error.reason == "RUN_NOT_FOUND":
            return Response()  # a log without its runs still says what was said
        raise


def _rejected(reason: str, message: str) -> Rejected:
    return Rejected(Failure(reason=reason, message=message))


def _scope(request: StartSessionRequest | PromptRequest) -> Scope | None:
    return request.scope if request.HasField("scope") else None
