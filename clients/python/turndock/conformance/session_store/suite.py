"""The suite of `SessionStore` and what its cases get."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar, cast

from turndock.conformance.cases import Suite
from turndock.conformance.claims import ContractBroken
from turndock.errors import TurndockError
from turndock.ports import EventWatcher, Mailbox, SessionStore
from turndock.store.v1 import (
    AppendEventsRequest,
    AppendEventWithSequenceRequest,
    AppendResult,
    CancelRunRequest,
    CancelRunResponse,
    ClaimAgentRequest,
    ClaimAgentResponse,
    DeleteSessionRequest,
    EditRunRequest,
    EnqueueRunRequest,
    EnqueueRunResponse,
    FlushRequest,
    FlushResponse,
    GetActiveRunRequest,
    GetEventsRequest,
    GetEventsResponse,
    GetLatestSequenceRequest,
    GetRunRequest,
    GetSessionRequest,
    ListOrphansRequest,
    ListOrphansResponse,
    ListRunsRequest,
    ListRunsResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    ReleaseIfEmptyRequest,
    SaveRunRequest,
    SaveSessionRequest,
    WatchEventsRequest,
    WatchEventsResponse,
)
from turndock.types.v1 import (
    AgentDefinition,
    AgentRecord,
    Event,
    EventBatch,
    EventType,
    Failure,
    Fence,
    MessageReceived,
    Page,
    Run,
    RunStatus,
    Scope,
    Session,
    SessionStatus,
)

MAILBOX: Final = "mailbox"
WATCH_EVENTS: Final = "watch_events"
LONG_POLL: Final = "long_poll"

LEASE_MS: Final = 60_000
"""A lease that does not run out while a case runs."""

NOW_US: Final = 1_700_000_000_000_000
"""A writer's clock: events get times from here on."""

T = TypeVar("T")


class Paged(Protocol):
    """A page of a list."""

    @property
    def next_cursor(self) -> str: ...


P = TypeVar("P", bound=Paged)


async def pages(read: Callable[[str], Awaitable[P]]) -> list[P]:
    """Every page of a list; `read` reads the one at a cursor."""
    found = [await read("")]
    while cursor := found[-1].next_cursor:
        found.append(await read(cursor))
    return found


@dataclass(frozen=True)
class Fixture:
    """One store, one fresh partition of it, and short ways to say what a case does."""

    store: SessionStore
    abilities: frozenset[str]
    scope: Scope = field(default_factory=lambda: Scope(tenant=f"conformance-{uuid.uuid4().hex}"))

    def other(self, **fields: Any) -> Fixture:
        """The same store in another partition: a fresh one, or that of `Scope(**fields)`."""
        return replace(self, scope=Scope(**fields)) if fields else Fixture(self.store, self.abilities)

    @property
    def mailbox(self) -> Mailbox:
        """The store's mailbox ability."""
        return cast("Mailbox", self.store)

    # --- Nouns -------------------------------------------------------------------------------------------------------

    def session(self, session_id: str = "ses_1", **fields: Any) -> Session:
        """A session that can be saved."""
        defaults: dict[str, Any] = {"agent_id": "agent-1", "status": SessionStatus.SESSION_STATUS_ACTIVE}
        return Session(id=session_id, **(defaults | fields))

    def agent_session(self, session_id: str = "ses_1", name: str = "agent-1", **agent: Any) -> Session:
        """A session with an agent."""
        definition = AgentDefinition(agent_name=name, backend="scripted")
        return self.session(session_id, agent_id=name, agent=AgentRecord(definition=definition, **agent))

    def run(self, run_id: str = "run_1", session_id: str = "ses_1", **fields: Any) -> Run:
        """A run that can be saved."""
        defaults: dict[str, Any] = {"status": RunStatus.RUN_STATUS_PENDING, "prompt": "hi", "attempt": 1}
        return Run(id=run_id, session_id=session_id, **(defaults | fields))

    def event(self, event_id: str | None = None, session_id: str = "ses_1", **fields: Any) -> Event:
        """An event that can be appended."""
        defaults: dict[str, Any] = {"type": EventType.EVENT_TYPE_MESSAGE_RECEIVED, "time_us": NOW_US}
        if "type" not in fields:
            defaults["message_received"] = MessageReceived(text="hello", role="assistant")
        return Event(id=event_id or uuid.uuid4().hex, session_id=session_id, **(defaults | fields))

    def events(self, count: int, session_id: str = "ses_1", **fields: Any) -> list[Event]:
        """Events with ids of their own."""
        return [self.event(session_id=session_id, **fields) for _ in range(count)]

    # --- Sessions ----------------------------------------------------------------------------------------------------

    async def save(self, session: Session, **fields: Any) -> Session:
        """SaveSession; the session as stored."""
        request = SaveSessionRequest(scope=self.scope, session=session, **fields)
        return (await self.store.save_session(request)).session

    async def read_session(self, session_id: str = "ses_1") -> Session:
        """GetSession; the session."""
        request = GetSessionRequest(scope=self.scope, session_id=session_id)
        return (await self.store.get_session(request)).session

    async def list_sessions(self, **fields: Any) -> ListSessionsResponse:
        """ListSessions."""
        return await self.store.list_sessions(ListSessionsRequest(scope=self.scope, **fields))

    async def delete(self, session_id: str = "ses_1", **fields: Any) -> None:
        """DeleteSession."""
        await self.store.delete_session(
            DeleteSessionRequest(scope=self.scope, session_id=session_id, **fields)
        )

    # --- Runs --------------------------------------------------------------------------------------------------------

    async def save_run(self, run: Run, **fields: Any) -> Run:
        """SaveRun; the run as stored."""
        return (await self.store.save_run(SaveRunRequest(scope=self.scope, run=run, **fields))).run

    async def read_run(self, run_id: str = "run_1", session_id: str = "ses_1") -> Run:
        """GetRun; the run."""
        request = GetRunRequest(scope=self.scope, session_id=session_id, run_id=run_id)
        return (await self.store.get_run(request)).run

    async def list_runs(self, session_id: str = "ses_1", **fields: Any) -> ListRunsResponse:
        """ListRuns."""
        return await self.store.list_runs(ListRunsRequest(scope=self.scope, session_id=session_id, **fields))

    async def run_ids(self, session_id: str = "ses_1", **fields: Any) -> list[str]:
        """ListRuns; the ids."""
        return [run.id for run in (await self.list_runs(session_id, **fields)).runs]

    async def active_run(self, session_id: str = "ses_1") -> str:
        """GetActiveRun; the run's id, empty if there is none."""
        request = GetActiveRunRequest(scope=self.scope, session_id=session_id)
        response = await self.store.get_active_run(request)
        return response.run.id if response.HasField("run") else ""

    # --- Events ------------------------------------------------------------------------------------------------------

    async def append(self, *events: Event, **fields: Any) -> list[AppendResult]:
        """AppendEvents; what became of each."""
        request = AppendEventsRequest(scope=self.scope, events=events, **fields)
        return list((await self.store.append_events(request)).results)

    async def append_one(self, event: Event, **fields: Any) -> AppendResult:
        """AppendEventWithSequence; what became of it."""
        request = AppendEventWithSequenceRequest(scope=self.scope, event=event, **fields)
        return (await self.store.append_event_with_sequence(request)).result

    async def log(self, session_id: str = "ses_1", **fields: Any) -> GetEventsResponse:
        """GetEvents."""
        return await self.store.get_events(
            GetEventsRequest(scope=self.scope, session_id=session_id, **fields)
        )

    async def numbers(self, session_id: str = "ses_1", **fields: Any) -> list[int]:
        """GetEvents; the numbers."""
        return [event.sequence for event in (await self.log(session_id, **fields)).events]

    async def whole_log(self, session_id: str = "ses_1") -> list[Event]:
        """Every event of a log, page by page."""
        events: list[Event] = []
        while page := (
            await self.log(session_id, after_sequence=events[-1].sequence if events else 0)
        ).events:
            events.extend(page)
        return events

    async def head(self, session_id: str = "ses_1") -> int:
        """GetLatestSequence; the number."""
        request = GetLatestSequenceRequest(scope=self.scope, session_id=session_id)
        return (await self.store.get_latest_sequence(request)).sequence

    async def flush(
        self, session: Session, run: Run, events: Iterable[Event], **fields: Any
    ) -> FlushResponse:
        """Flush."""
        request = FlushRequest(
            scope=self.scope, session=session, run=run, events=EventBatch(events=events), **fields
        )
        return await self.store.flush(request)

    def watch(self, session_id: str = "ses_1", after_sequence: int = 0) -> AsyncIterator[WatchEventsResponse]:
        """WatchEvents."""
        request = WatchEventsRequest(scope=self.scope, session_id=session_id, after_sequence=after_sequence)
        return cast("EventWatcher", self.store).watch_events(request)

    # --- Mailbox -----------------------------------------------------------------------------------------------------

    async def enqueue(self, run: Run, **fields: Any) -> EnqueueRunResponse:
        """EnqueueRun."""
        return await self.mailbox.enqueue_run(EnqueueRunRequest(scope=self.scope, run=run, **fields))

    async def claim(
        self, session_id: str = "ses_1", owner: str = "host-a", lease_ms: int = LEASE_MS, **fields: Any
    ) -> ClaimAgentResponse:
        """ClaimAgent."""
        request = ClaimAgentRequest(
            scope=self.scope, session_id=session_id, owner=owner, lease_ms=lease_ms, **fields
        )
        return await self.mailbox.claim_agent(request)

    async def release(self, epoch: int, session_id: str = "ses_1", **fields: Any) -> bool:
        """ReleaseIfEmpty; whether the claim was given up."""
        request = ReleaseIfEmptyRequest(
            scope=self.scope, session_id=session_id, fence=Fence(epoch=epoch), **fields
        )
        return (await self.mailbox.release_if_empty(request)).released

    async def edit(self, run_id: str, session_id: str = "ses_1", **fields: Any) -> Run:
        """EditRun; the run as stored."""
        request = EditRunRequest(scope=self.scope, session_id=session_id, run_id=run_id, **fields)
        return (await self.mailbox.edit_run(request)).run

    async def cancel(
        self,
        run_id: str,
        session_id: str = "ses_1",
        event: Event | None = None,
        failure: Failure | None = None,
        **fields: Any,
    ) -> CancelRunResponse:
        """CancelRun, with a terminal event."""
        ended = EventType.EVENT_TYPE_RUN_CANCELLED
        request = CancelRunRequest(
            scope=self.scope,
            session_id=session_id,
            run_id=run_id,
            failure=failure or Failure(reason="cancelled"),
            event=event or self.event(session_id=session_id, run_id=run_id, type=ended),
            **fields,
        )
        return await self.mailbox.cancel_run(request)

    async def orphans(self, owner: str = "host-z", limit: int = 1_000, **fields: Any) -> list[str]:
        """ListOrphans, every page; the ids of this partition's sessions."""

        async def read(cursor: str) -> ListOrphansResponse:
            request = ListOrphansRequest(owner=owner, page=Page(limit=limit, cursor=cursor), **fields)
            return await self.mailbox.list_orphans(request)

        rows = (row for page in await pages(read) for row in page.sessions)
        return sorted(row.id for row in rows if row.scope.tenant == self.scope.tenant)


SUITE: Final = Suite[Fixture]("SessionStore", (MAILBOX, WATCH_EVENTS, LONG_POLL))
"""Every case of the contract."""


async def together(calls: Iterable[Awaitable[T]]) -> list[T | TurndockError]:
    """Make calls at the same time. What each answered, or the `TurndockError` it raised."""

    async def outcome(call: Awaitable[T]) -> T | TurndockError:
        try:
            return await call
        except TurndockError as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(outcome(call)) for call in calls]
    return [task.result() for task in tasks]


async def under_way(fixture: Fixture) -> None:
    """Let calls that were just started as tasks get as far as the store."""
    for _ in range(3):
        await asyncio.sleep(0)
        await fixture.head("nobody")


async def eventually(call: Callable[[], Awaitable[T]], *, not_yet: str, within_s: float = 10.0) -> T:
    """Make a call again and again until it is no longer refused with the reason `not_yet`."""
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        try:
            return await call()
        except TurndockError as error:
            if error.reason != not_yet:
                raise
            if asyncio.get_running_loop().time() > deadline:
                raise ContractBroken(
                    f"After {within_s} seconds the call is still refused: {error}"
                ) from error
        await asyncio.sleep(0.02)  # what is waited for is time itself: a lease that runs out
