"""The suite of `Query` and what its cases get."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from turndock.conformance.cases import Suite
from turndock.conformance.claims import ContractBroken, equal, holds
from turndock.ports import ArtifactStore, Query, SessionStore
from turndock.store.v1 import (
    AppendEventsRequest,
    ArtifactHeader,
    ArtifactStorePutRequest,
    CountEventsRequest,
    DeleteSessionRequest,
    EventFilter,
    ExportSessionRequest,
    ExportSessionResponse,
    GetCostSummaryRequest,
    GetCostSummaryResponse,
    GetEventsRequest,
    GetSessionStatsRequest,
    GetSessionStatsResponse,
    GetUsageSummaryRequest,
    GetUsageSummaryResponse,
    SaveRunRequest,
    SaveSessionRequest,
    SearchEventsRequest,
    SearchEventsResponse,
    SearchRunsRequest,
    SearchRunsResponse,
    SearchSessionsRequest,
    SearchSessionsResponse,
)
from turndock.types.v1 import (
    Event,
    EventType,
    MessageReceived,
    Page,
    Run,
    RunStatus,
    Scope,
    Session,
    SessionStatus,
    Usage,
)

ARTIFACTS: Final = "artifacts"
"""Whether the fixture has the artifact store that the Query knows of."""

NOW_US: Final = 1_700_000_000_000_000
"""A writer's clock: what happens, happens from here on."""

SECOND_US: Final = 1_000_000
MAX_MESSAGE_BYTES: Final = 4 << 20
"""What gRPC lets through unless it is told otherwise."""


class Paged(Protocol):
    """A page of a search."""

    @property
    def next_cursor(self) -> str: ...


P = TypeVar("P", bound=Paged)


async def pages(read: Callable[[str], Awaitable[P]], *, most: int = 200) -> list[P]:
    """Every page of a search that has rows, and the one without that ends it; `read` reads the one at a cursor."""
    found = [await read("")]
    while cursor := found[-1].next_cursor:
        if len(found) == most:
            raise ContractBroken(f"A search does not end: {most} pages have rows.")
        found.append(await read(cursor))
    return found


@dataclass(frozen=True)
class Fixture:
    """One Query, the stores it looks into, one fresh partition of them, and short ways to say what a case does."""

    query: Query
    store: SessionStore
    artifacts: ArtifactStore | None = None
    scope: Scope = field(default_factory=lambda: Scope(tenant=f"conformance-{uuid.uuid4().hex}"))

    def other(self) -> Fixture:
        """The same Query in another fresh partition."""
        return replace(self, scope=Scope(tenant=f"conformance-{uuid.uuid4().hex}"))

    # --- Writes ------------------------------------------------------------------------------------------------------

    async def save(self, session_id: str = "ses_1", **fields: Any) -> Session:
        """A session, saved."""
        defaults: dict[str, Any] = {"agent_id": "agent-1", "status": SessionStatus.SESSION_STATUS_ACTIVE}
        request = SaveSessionRequest(scope=self.scope, session=Session(id=session_id, **(defaults | fields)))
        return (await self.store.save_session(request)).session

    async def delete(self, session_id: str) -> None:
        """DeleteSession."""
        await self.store.delete_session(DeleteSessionRequest(scope=self.scope, session_id=session_id))

    async def run(self, run_id: str = "run_1", session_id: str = "ses_1", **fields: Any) -> Run:
        """A run, saved. `after` seconds is when it started."""
        after = fields.pop("after", None)
        defaults: dict[str, Any] = {"status": RunStatus.RUN_STATUS_COMPLETED, "prompt": "hi", "attempt": 1}
        if after is not None:
            defaults["started_at_us"] = NOW_US + after * SECOND_US
        request = SaveRunRequest(
            scope=self.scope, run=Run(id=run_id, session_id=session_id, **(defaults | fields))
        )
        return (await self.store.save_run(request)).run

    def event(self, session_id: str = "ses_1", **fields: Any) -> Event:
        """An event that can be appended. `after` seconds is when it happened."""
        defaults: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "type": EventType.EVENT_TYPE_MESSAGE_RECEIVED,
            "time_us": NOW_US + fields.pop("after", 0) * SECOND_US,
        }
        if "type" not in fields:
            defaults["message_received"] = MessageReceived(text="hello", role="assistant")
        return Event(session_id=session_id, **(defaults | fields))

    async def append(self, *events: Event) -> list[Event]:
        """AppendEvents; the events as stored."""
        answer = await self.store.append_events(AppendEventsRequest(scope=self.scope, events=events))
        return [result.event for result in answer.results]

    async def log(self, session_id: str = "ses_1") -> list[Event]:
        """A log as GetEvents has it."""
        return list(
            (await self.store.get_events(GetEventsRequest(scope=self.scope, session_id=session_id))).events
        )

    async def put(self, key: str, data: bytes, session_id: str = "ses_1") -> None:
        """An artifact of a session."""
        store = self.artifacts
        if store is None:
            raise ContractBroken("The fixture has no artifact store.")

        async def upload() -> AsyncIterator[ArtifactStorePutRequest]:
            yield ArtifactStorePutRequest(
                header=ArtifactHeader(scope=self.scope, key=key, session_id=session_id)
            )
            yield ArtifactStorePutRequest(chunk=data)

        await store.put(upload())

    # --- Questions ---------------------------------------------------------------------------------------------------

    async def sessions(
        self, limit: int | None = None, cursor: str = "", **filters: Any
    ) -> SearchSessionsResponse:
        """SearchSessions."""
        page = Page(limit=limit, cursor=cursor)
        return await self.query.search_sessions(SearchSessionsRequest(scope=self.scope, page=page, **filters))

    async def runs(self, limit: int | None = None, cursor: str = "", **filters: Any) -> SearchRunsResponse:
        """SearchRuns."""
        page = Page(limit=limit, cursor=cursor)
        return await self.query.search_runs(SearchRunsRequest(scope=self.scope, page=page, **filters))

    async def events(
        self, limit: int | None = None, cursor: str = "", order: Any = 0, **filters: Any
    ) -> SearchEventsResponse:
        """SearchEvents."""
        page = Page(limit=limit, cursor=cursor)
        return await self.query.search_events(
            SearchEventsRequest(scope=self.scope, page=page, order=order, filter=EventFilter(**filters))
        )

    async def count(self, **filters: Any) -> int:
        """CountEvents."""
        request = CountEventsRequest(scope=self.scope, filter=EventFilter(**filters))
        return (await self.query.count_events(request)).event_count

    async def stats(self, session_id: str = "ses_1") -> GetSessionStatsResponse:
        """GetSessionStats."""
        return await self.query.get_session_stats(
            GetSessionStatsRequest(scope=self.scope, session_id=session_id)
        )

    async def usage(self, **filters: Any) -> GetUsageSummaryResponse:
        """GetUsageSummary."""
        return await self.query.get_usage_summary(GetUsageSummaryRequest(scope=self.scope, **filters))

    async def costs(self, **filters: Any) -> GetCostSummaryResponse:
        """GetCostSummary."""
        return await self.query.get_cost_summary(GetCostSummaryRequest(scope=self.scope, **filters))

    async def export(self, session_id: str = "ses_1", **fields: Any) -> list[ExportSessionResponse]:
        """ExportSession; every part, in an order that must be right."""
        request = ExportSessionRequest(scope=self.scope, session_id=session_id, **fields)
        parts = [part async for part in self.query.export_session(request)]
        check_order(parts)
        return parts

    async def found(self, **filters: Any) -> list[str]:
        """SearchSessions; the ids of all sessions."""
        return await self.all_sessions(1000, **filters)

    async def all_sessions(self, limit: int, **filters: Any) -> list[str]:
        """SearchSessions, every page; the ids."""
        answers = await pages(lambda cursor: self.sessions(limit, cursor, **filters))
        return [session.id for answer in answers for session in answer.sessions]

    async def all_runs(self, limit: int = 1000, **filters: Any) -> list[tuple[str, str]]:
        """SearchRuns, every page; session and id."""
        answers = await pages(lambda cursor: self.runs(limit, cursor, **filters))
        return [(run.session_id, run.id) for answer in answers for run in answer.runs]

    async def all_events(self, limit: int = 1000, **filters: Any) -> list[tuple[str, int]]:
        """SearchEvents, every page; session and number."""
        answers = await pages(lambda cursor: self.events(limit, cursor, **filters))
        return [(event.session_id, event.sequence) for answer in answers for event in answer.events]


SUITE: Final = Suite[Fixture]("Query", (ARTIFACTS,))
"""Every case of the contract."""


def tokens(input_tokens: int, output_tokens: int, total_tokens: int | None = None, **fields: Any) -> Usage:
    """A usage report."""
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=total_tokens, **fields)


def check_order(parts: Sequence[ExportSessionResponse]) -> None:
    """Fail unless an export's parts come in the order of the contract and say at the end what was sent."""
    kinds = [part.WhichOneof("part") for part in parts]
    places = [("session", "runs", "events", "artifacts", "end").index(kind or "") for kind in kinds]
    holds(
        places == sorted(places)
        and kinds.count("session") == 1
        and kinds.count("end") == 1
        and kinds[-1] == "end",
        f"An export is a session, runs, events, artifacts, an end; it was {kinds}.",
    )
    runs, events, artifacts = (sum(sizes) for sizes in zip(*map(_sizes, parts), strict=True))
    end = parts[-1].end
    equal(
        (end.run_count, end.event_count, end.artifact_count),
        (runs, events, artifacts),
        "The end says how much was sent.",
    )
    for part in parts:
        holds(any(_sizes(part)) or part.WhichOneof("part") in {"session", "end"}, "A batch is never empty.")


def _sizes(part: ExportSessionResponse) -> tuple[int, int, int]:
    return len(part.runs.runs), len(part.events.events), len(part.artifacts.artifacts)


def exported_events(parts: Iterable[ExportSessionResponse]) -> list[Event]:
    """The events of an export."""
    return [event for part in parts for event in part.events.events]


def exported_runs(parts: Iterable[ExportSessionResponse]) -> list[Run]:
    """The runs of an export."""
    return [run for part in parts for run in part.runs.runs]
