"""A session that is exported, imported and exported again is the same, but for what the store sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.session_stores import STORES
from turndock import jsontext
from turndock.conformance.artifact_store.suite import stream
from turndock.errors import TurndockError
from turndock.exports import json_lines, to_line
from turndock.exports.importing import check, import_session, read_lines
from turndock.exports.reading import read_session
from turndock.ports import Mailbox, SessionStore
from turndock.store.v1 import (
    AppendEventsRequest,
    ArtifactHeader,
    ListOrphansRequest,
    SaveRunRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import (
    AgentDefinition,
    AgentRecord,
    ArtifactReference,
    Custom,
    Event,
    EventType,
    Failure,
    MessageStreamed,
    Response,
    Run,
    RunStatus,
    Scope,
    Session,
    SessionStatus,
    TokenUsageUpdated,
    Usage,
)
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

SESSION = "ses_1"


# --- Any session -----------------------------------------------------------------------------------------------------

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(0, (1 << 63) - 1)
objects = st.dictionaries(text, st.one_of(text, st.booleans(), st.integers(-(1 << 70), 1 << 70), st.none()))
json_texts = st.one_of(st.just(""), objects.map(jsontext.canonical))
usages = st.builds(Usage, input_tokens=numbers, output_tokens=numbers)
newer = st.sampled_from(
    [b"", b"\xc0\x3e\x07", b"\xca\x3e\x03new"]
)  # fields of a newer release: number and text

Payload = dict[str, Any]


def streamed(value: str) -> Payload:
    return {"type": EventType.EVENT_TYPE_MESSAGE_STREAMED, "message_streamed": MessageStreamed(text=value)}


def used(value: Usage) -> Payload:
    kind = EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED
    return {"type": kind, "token_usage_updated": TokenUsageUpdated(usage=value)}


def custom(name: str, data: str) -> Payload:
    return {"type": EventType.EVENT_TYPE_CUSTOM, "custom": Custom(name=name, data_json=data)}


def newer_type() -> Payload:
    """Of a release to come."""
    return {"type": 4_321}


payloads = st.one_of(
    st.builds(streamed, text),
    st.builds(used, usages),
    st.builds(custom, text, json_texts),
    st.builds(newer_type),
)


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    found: list[Event] = []
    for number in range(draw(st.integers(0, 6))):
        event = Event(
            id=f"evt_{number}",
            session_id=SESSION,
            run_id=draw(st.sampled_from(["", "run_0", "run_1"])),
            time_us=draw(st.integers(1, (1 << 62))),
            schema_version=draw(st.integers(0, (1 << 32) - 1)),
            provider=draw(text),
            metadata_json=draw(json_texts),
            **draw(payloads),
        )
        event.MergeFromString(draw(newer))
        found.append(event)
    return found


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    return [
        Run(
            id=f"run_{number}",
            session_id=SESSION,
            status=draw(st.sampled_from(RunStatus.values()[1:])),
            prompt=draw(text),
            attempt=draw(st.integers(0, 9)),
            queue_key=draw(st.integers(-9, 9)),
            created_at_us=draw(st.integers(1, 1 << 62)),
            response=draw(st.one_of(st.none(), text.map(lambda value: Response(text=value)))),
            failure=draw(st.one_of(st.none(), text.map(lambda value: Failure(reason=value)))),
            metadata_json=draw(json_texts),
        )
        for number in range(draw(st.integers(0, 3)))
    ]


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    definition = AgentDefinition(agent_name="ann", backend="echo", backend_config_json=draw(json_texts))
    session = Session(
        id=SESSION,
        agent_id="ann",
        status=draw(st.sampled_from(SessionStatus.values()[1:])),
        tags=draw(st.lists(text, max_size=2)),
        metadata_json=draw(json_texts),
        created_at_us=draw(st.integers(1, 1 << 62)),
        updated_at_us=draw(st.integers(1, 1 << 62)),
        deleted_at_us=draw(st.one_of(st.none(), st.integers(1, 1 << 62))),
        agent=draw(
            st.one_of(
                st.none(),
                st.builds(
                    AgentRecord,
                    definition=st.just(definition),
                    stopped=st.booleans(),
                    notified_sequence=st.integers(0, 0),
                    turn_count=numbers,
                    state_json=json_texts,
                ),
            )
        ),
    )
    session.MergeFromString(draw(newer))
    return session


async def fill(store: SessionStore, session: Session, its_runs: Iterable[Run], log: Iterable[Event]) -> None:
    await store.save_session(SaveSessionRequest(session=session))
    for run in its_runs:
        await store.save_run(SaveRunRequest(run=run))
    await store.append_events(AppendEventsRequest(events=list(log)))


async def exported(store: SessionStore, session_id: str = SESSION, **options: Any) -> list[str]:
    return [line async for line in json_lines(read_session(store, None, session_id, **options))]


def without_the_stores_own(lines: Iterable[str]) -> list[str]:
    """The lines without what a store sets by itself."""
    left: list[str] = []
    for record in read_lines(lines):
        for name in ("incarnation", "stored_at_us"):
            if name in record.DESCRIPTOR.fields_by_name:
                record.ClearField(name)  # type: ignore[arg-type]  # whichever of the two it has
        left.append(to_line(record))
    return left


async def round_trip(first: SessionStore, second: SessionStore) -> tuple[list[str], list[str]]:
    lines = await exported(first)
    assert check(read_lines(lines)).id == SESSION
    imported = await import_session(read_lines(lines), second, None)
    assert not imported.renumbered
    return lines, await exported(second)


@given(session=sessions(), its_runs=runs(), log=events())
@settings(max_examples=150, deadline=None)
def test_PF_B33_any_session_comes_back_as_it_was(
    session: Session, its_runs: list[Run], log: list[Event]
) -> None:
    async def run() -> None:
        first, second = MemorySessionStore(), MemorySessionStore()
        await fill(first, session, its_runs, log)
        before, after = await round_trip(first, second)
        assert without_the_stores_own(before) == without_the_stores_own(after)

    asyncio.run(run())


@given(session=sessions(), its_runs=runs(), log=events())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", ["sql", "memory-grpc"])
def test_any_session_moves_between_kinds_of_stores(
    name: str,
    session: Session,
    its_runs: list[Run],
    log: list[Event],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async def run() -> None:
        async with STORES[name](tmp_path_factory.mktemp("store")) as other:
            first = MemorySessionStore()
            await fill(first, session, its_runs, log)
            before, there = await round_trip(first, other)
            back = MemorySessionStore()
            await import_session(read_lines(there), back, None)
            assert without_the_stores_own(before) == without_the_stores_own(there)
            assert without_the_stores_own(before) == without_the_stores_own(await exported(back))

    asyncio.run(run())


# --- Particular ones -------------------------------------------------------------------------------------------------


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SessionStore]:
    async with STORES["sql"](tmp_path) as opened:
        yield opened


def event(number: int, **fields: Any) -> Event:
    return Event(
        id=f"evt_{number}",
        session_id=SESSION,
        type=EventType.EVENT_TYPE_MESSAGE_STREAMED,
        time_us=1,
        **fields,
    )


def session(**agent: Any) -> Session:
    definition = AgentDefinition(agent_name="ann", backend="echo")
    record = AgentRecord(definition=definition, **agent) if agent else None
    return Session(id=SESSION, agent_id="ann", status=SessionStatus.SESSION_STATUS_ACTIVE, agent=record)


async def test_a_large_session_is_imported_in_batches(store: SessionStore) -> None:
    first = MemorySessionStore()
    log = [event(number, metadata_json=jsontext.canonical({"x": "y" * 900})) for number in range(3_000)]
    await fill(first, session(), [], log)
    before, after = await round_trip(first, store)
    assert without_the_stores_own(before) == without_the_stores_own(after)


async def test_numbers_close_up_where_events_were_pruned(store: SessionStore) -> None:
    first = MemorySessionStore()
    await fill(first, session(notified_sequence=5), [], [event(number) for number in range(1, 9)])
    record = first._database.record(("", SESSION))
    for number in (1, 2, 4, 8):
        first._database.prune(record, number)
    imported = await import_session(read_lines(await exported(first)), store, None)
    assert (imported.renumbered, imported.event_count) == (True, 4)
    assert imported.session.agent.notified_sequence == 2, "Event 5 is the second one now."
    ids = [record.id for record in read_lines(await exported(store)) if isinstance(record, Event)]
    assert ids == ["evt_3", "evt_5", "evt_6", "evt_7"]


async def test_a_copy_has_ids_of_its_own_and_a_stopped_agent(store: SessionStore) -> None:
    running = Run(id="run_1", session_id=SESSION, status=RunStatus.RUN_STATUS_RUNNING)
    await fill(store, session(turn_count=1), [running], [event(1), event(2)])
    lines = await exported(store)
    with pytest.raises(TurndockError, match="ALREADY_EXISTS"):
        await import_session(read_lines(lines), store, None)
    copy = await import_session(read_lines(lines), store, None, session_id="copy")
    assert copy.session.agent.stopped
    again = [record for record in read_lines(await exported(store, "copy")) if isinstance(record, Event)]
    assert [each.sequence for each in again] == [1, 2]
    assert not {each.id for each in again} & {"evt_1", "evt_2"}
    assert all(each.session_id == "copy" for each in again)
    assert isinstance(store, Mailbox)
    with pytest.raises(TurndockError, match="ALREADY_EXISTS"):
        await import_session(read_lines(lines), store, None, session_id="copy")


class BreaksOff:
    """A store that fails at the first session it is to save."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def save_session(self, _: SaveSessionRequest) -> Any:
        raise TurndockError("STORAGE_BUSY", "not now")


async def test_an_import_that_broke_off_goes_on_when_it_is_made_again(store: SessionStore) -> None:
    first = MemorySessionStore()
    running = Run(id="run_1", session_id=SESSION, status=RunStatus.RUN_STATUS_RUNNING)
    await fill(first, session(turn_count=1), [running], [event(1), event(2)])
    lines = await exported(first)
    broken: Any = BreaksOff(store)
    with pytest.raises(TurndockError, match="STORAGE_BUSY"):
        await import_session(read_lines(lines), broken, None)
    assert isinstance(store, Mailbox)
    orphans = await store.list_orphans(ListOrphansRequest(owner="host", sole_host=True))
    assert not orphans.sessions, "Nobody works for half a session."
    await import_session(read_lines(lines), store, None)
    assert without_the_stores_own(lines) == without_the_stores_own(await exported(store))


async def test_ids_that_something_else_has_are_refused(store: SessionStore) -> None:
    first = MemorySessionStore()
    await fill(first, session(), [], [event(1)])
    other = event(1)
    other.session_id = "other"
    await store.append_events(AppendEventsRequest(events=[other]))
    with pytest.raises(TurndockError, match="IDEMPOTENCY_CONFLICT"):
        await import_session(read_lines(await exported(first)), store, None)


async def test_a_session_is_imported_into_another_scope(store: SessionStore) -> None:
    await fill(store, session(), [], [event(1)])
    scope = Scope(tenant="blue")
    imported = await import_session(read_lines(await exported(store)), store, scope)
    assert imported.session.scope == scope
    assert imported.session.id == SESSION


async def test_artifacts_that_are_not_there_are_named(store: SessionStore) -> None:
    first, there, here = MemorySessionStore(), MemoryArtifactStore(), MemoryArtifactStore()
    offloaded = [event(number, offloaded=ArtifactReference(key=f"big/{number}")) for number in (1, 2)]
    await fill(first, session(), [], offloaded)
    await there.put(stream(ArtifactHeader(key="own", session_id=SESSION), b"bytes"))
    await here.put(stream(ArtifactHeader(key="big/1"), b"bytes"))
    lines = await exported(first, artifacts=there)
    imported = await import_session(read_lines(lines), store, None, artifacts=here)
    assert imported.missing_artifacts == ["big/2", "own"]


Edit = Callable[[list[str]], list[str]]
EDITS: dict[str, Edit] = {
    "breaks off before its end": lambda lines: lines[:-1],
    "comes before the header": lambda lines: lines[1:],
    "does not begin with its session": lambda lines: [lines[0], *lines[2:]],
    "its end says": lambda lines: [*lines[:-2], lines[-1]],
    "goes on after its end": lambda lines: [*lines, lines[-2]],
    "holds event 2 after event 2": lambda lines: [*lines[:-1], lines[-2], lines[-1]],
    "more than one session": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "not 'ses_1'": lambda lines: [line.replace('"session_id":"ses_1"', '"session_id":"x"') for line in lines],
    "is incomplete": lambda lines: [],
}
"""What is wrong, and how an export gets so."""


@pytest.mark.parametrize("complaint", EDITS)
async def test_what_is_no_whole_export_is_refused_before_anything_is_stored(complaint: str) -> None:
    first = MemorySessionStore()
    await fill(first, session(), [], [event(1), event(2)])
    with pytest.raises(TurndockError, match=complaint) as refusal:
        check(read_lines(EDITS[complaint](await exported(first))))
    assert refusal.value.reason == "VALIDATION_ERROR"
