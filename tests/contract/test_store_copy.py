"""A whole store moves: between databases row by row, and by calls as far as calls can carry it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table

from support import commands, full_store, postgres
from support.full_store import fill, fixed_events, scope
from support.sharing import opened
from support.sql_programs import event
from turndock import serving, wire
from turndock.errors import TurndockError
from turndock.ports import SessionStore
from turndock.store.v1 import (
    AppendEventsRequest,
    AppendEventsResponse,
    ClaimAgentRequest,
    DeleteSessionRequest,
    EventFilter,
    GetEventsRequest,
    GetLatestSequenceRequest,
    GetSessionRequest,
    ListOrphansRequest,
    ListRunsRequest,
    ListSessionsRequest,
    SaveSessionRequest,
    SearchEventsRequest,
    SearchRunsRequest,
    SearchSessionsRequest,
)
from turndock.types.v1 import Fence, Session, SessionStatus
from turndock_server.holding import hold
from turndock_server.stores.copying import Report, tables
from turndock_server.stores.copying.ends import End, copy_store
from turndock_server.stores.copying.rows import Name, Rows
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.sql import SqlQuery, SqlSessionStore, graves, schema
from turndock_server.stores.sql.opening import open_database

SESSIONS = 5 * len(full_store.TENANTS)
SAVED = 4 * len(full_store.TENANTS)


def place(kind: str, folder: Path, name: str) -> str:
    """Where a new store of a kind may be."""
    return postgres.server().new_database() if kind == "postgresql" else str(folder / f"{name}.db")


async def copy(source: str, target: str, *, tenant: str | None = None, accept_loss: bool = False) -> Report:
    return await copy_store(
        End(source), End(target), tenant=tenant, accept_loss=accept_loss, on_session=lambda name, is_new: None
    )


async def digests(at: str) -> dict[Name, str | None]:
    """What is in a database, row for row."""
    database = await open_database(at)
    try:
        rows = Rows(database)
        found = {
            name: await rows.digest(name)
            for tenant in await rows.tenants()
            async for name in rows.names(tenant)
        }
        for tenant in await rows.tenants():
            whole = [
                (part.table.name, list(map(tuple, page))) async for part, page in rows.read_scope(tenant)
            ]
            found[Name(tenant, "the scope itself")] = repr(whole)
        return found
    finally:
        await database.close()


@asynccontextmanager
async def plugin(store: SessionStore) -> AsyncGenerator[str]:
    """A plug-in that is a session store; its address."""
    server = wire.new_server()
    serving.add_session_store(server, store)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield str(endpoint)
    finally:
        await server.stop(None)


async def found_in(store: SqlSessionStore) -> list[object]:
    """What a store's searches find, by what it has made of its rows for them."""
    query, found = SqlQuery(store), list[object]()
    for tenant in full_store.TENANTS:
        where = scope(tenant)
        assert await store.upkeep().answer(tenant, "m1") == (b"fingerprint", b"answer")
        tagged = await query.search_sessions(SearchSessionsRequest(scope=where, tags=["a"]))
        assert {each.id for each in tagged.sessions} >= {"ses_0", "ses_parked"}
        (spent,) = (await query.search_runs(SearchRunsRequest(scope=where, provider="p"))).runs
        assert spent.usage.total_tokens == full_store.TOKENS
        events = await query.search_events(SearchEventsRequest(scope=where, filter=EventFilter(since_us=1)))
        found += [tagged, spent, events]
    orphans = await store.list_orphans(ListOrphansRequest(owner="h", sole_host=True))
    names = {each.id for each in orphans.sessions}
    assert "ses_parked" not in names
    return [*found, names]


async def graves_in(at: str) -> int:
    """How many deleted sessions have rows left."""
    database = await open_database(at)
    try:
        return len(await database.read(graves.graves))
    finally:
        await database.close()


ALL = [("sqlite", "postgresql"), ("postgresql", "sqlite"), ("sqlite", "sqlite"), ("postgresql", "postgresql")]


@pytest.mark.parametrize(("kind", "to"), ALL)
async def test_a_copy_has_every_row_and_goes_on_where_the_original_stopped(
    kind: str, to: str, tmp_path: Path
) -> None:
    source, target = place(kind, tmp_path, "from"), place(to, tmp_path, "to")
    async with opened(source) as store:
        await fill(store)
        session = (await store.get_session(GetSessionRequest(session_id="ses_1"))).session
        page = await store.get_events(GetEventsRequest(session_id="ses_2"))
        runs = await store.list_runs(ListRunsRequest(session_id="ses_0"))
    report = await copy(source, target)
    assert (report.copied, report.same) == (SESSIONS, 0)
    assert await digests(target) == await digests(source)
    assert {
        name: digest for name, digest in (await digests(target)).items() if digest in report.digests.values()
    }

    assert (await graves_in(source), await graves_in(target)) == (len(full_store.TENANTS), 0)
    async with opened(source) as one, opened(target) as store:
        searched = [await found_in(each) for each in (one, store)]
        assert searched[0] == searched[1]
        assert (await store.get_session(GetSessionRequest(session_id="ses_1"))).session == session
        copied = await store.get_events(GetEventsRequest(session_id="ses_2"))
        assert copied == page  # numbers, incarnation, times and floor
        assert (copied.pruned_through, copied.oldest) == (2, 3)
        assert await store.list_runs(ListRunsRequest(session_id="ses_0")) == runs
        again = AppendEventsRequest(
            scope=scope("acme"), events=fixed_events("ses_0", 5), request_id=full_store.TOKEN
        )
        assert [each.duplicate for each in (await store.append_events(again)).results] == [
            False
        ] * 5  # as answered
        once_more = DeleteSessionRequest(session_id="gone", request_id="d1", fence=Fence(epoch=1))
        await store.delete_session(once_more)
        with pytest.raises(TurndockError, match="FENCED"):
            await store.append_events(AppendEventsRequest(events=[event("ses_1")]))
        claim = ClaimAgentRequest(
            session_id="ses_1", owner="other", ticket_id="u", lease_ms=1, sole_host=True
        )
        assert (await store.claim_agent(claim)).epoch == 4
        await store.append_events(AppendEventsRequest(events=[event("ses_0")]))
        assert (await store.get_latest_sequence(GetLatestSequenceRequest(session_id="ses_0"))).sequence == 10


async def test_a_copy_of_a_copy_is_the_original_and_a_second_one_changes_nothing(tmp_path: Path) -> None:
    first, second, third = (
        place(kind, tmp_path, name) for kind, name in (("sqlite", "a"), ("postgresql", "b"), ("sqlite", "c"))
    )
    async with opened(first) as store:
        await fill(store)
    await copy(first, second)
    report = await copy(second, third)
    assert report.digests == (await copy(first, second)).digests
    again = await copy(second, third)
    assert (again.copied, again.same) == (0, SESSIONS)
    assert await digests(third) == await digests(first)


async def test_one_scope_can_be_copied_alone(tmp_path: Path) -> None:
    source, target = place("sqlite", tmp_path, "from"), place("postgresql", tmp_path, "to")
    async with opened(source) as store:
        await fill(store)
    assert (await copy(source, target, tenant="acme")).copied == 5
    async with opened(target) as store:
        listed = await store.list_sessions(ListSessionsRequest(every_scope=True))
        assert {session.scope.tenant for session in listed.sessions} == {"acme"}


@pytest.mark.parametrize("to", ["sqlite", "postgresql"])
async def test_other_data_in_the_target_is_refused_before_anything_is_written(
    to: str, tmp_path: Path
) -> None:
    source, target = place("sqlite", tmp_path, "from"), place(to, tmp_path, "to")
    async with opened(source) as store:
        await fill(store)
    async with opened(target) as store:
        await store.append_events(AppendEventsRequest(scope=scope("acme"), events=[event("ses_2")]))
    before = await digests(target)
    with pytest.raises(TurndockError, match="other data for 1 of the sessions: 'ses_2' of 'acme'") as refusal:
        await copy(source, target)
    assert refusal.value.reason == "ALREADY_EXISTS"
    assert await digests(target) == before


async def test_what_two_databases_cannot_both_have_is_refused_and_undone(tmp_path: Path) -> None:
    source, target = place("sqlite", tmp_path, "from"), place("postgresql", tmp_path, "to")
    async with opened(source) as store:
        await fill(store)
    async with opened(target) as store:  # an agent of the same name, alive in another session
        other = Session(id="mine", agent_id="agent_1", status=SessionStatus.SESSION_STATUS_ACTIVE)
        other.agent.SetInParent()
        await store.save_session(SaveSessionRequest(session=other))
    with pytest.raises(TurndockError, match="in another session") as refusal:
        await copy(source, target)
    assert refusal.value.reason == "ALREADY_EXISTS"
    async with opened(target) as store:
        await store.delete_session(DeleteSessionRequest(session_id="mine"))
    assert (await copy(source, target)).same == 2  # what was copied before it stayed


async def test_a_copy_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    source, target = place("sqlite", tmp_path, "from"), place("postgresql", tmp_path, "to")
    async with opened(source, synchronous="normal") as store:
        for number in range(30):
            batch = [event(f"ses_{number:02}", size=500) for _ in range(100)]
            await store.append_events(AppendEventsRequest(events=batch))
    process = await commands.start("store", "copy", source, target, cwd=tmp_path)
    assert process.stderr is not None
    for _ in range(5):
        assert b"copied" in await process.stderr.readline()
    process.kill()
    await process.communicate()
    async with opened(target) as store:
        for number in range(30):
            page = await store.get_events(GetEventsRequest(session_id=f"ses_{number:02}"))
            assert page.head in {0, 100}  # a session is there as a whole or not at all
    ended = await commands.run("store", "copy", source, target, "--json", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert '"copied": ' in ended.out
    assert await digests(target) == await digests(source)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_store_that_a_server_has_is_left_alone(kind: str, tmp_path: Path) -> None:
    source, target = place(kind, tmp_path, "from"), place("sqlite", tmp_path, "to")
    await (await SqlSessionStore.open(target)).close()
    async with opened(source) as store:
        await fill(store)
        lock = hold(tmp_path / "from.db.lock")
        assert kind == "sqlite" or await store.be_only_server(lambda: None)
        for ends in ((source, target), (target, source)):
            with pytest.raises(TurndockError, match="server") as refusal:
                await copy(*ends)
            assert refusal.value.reason == "INVALID_OPERATION"
        lock.release()
    assert (await copy(source, target)).copied == SESSIONS


async def test_ends_that_are_none_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with pytest.raises(TurndockError, match="there is no file"):
        await copy(str(file), str(tmp_path / "b.db"))
    assert not file.exists()
    await (await SqlSessionStore.open(file)).close()
    with pytest.raises(TurndockError, match="both ends are the same store"):
        await copy(str(file), f"sqlite:///{file}")
    rows = sqlite3.connect(file)
    rows.execute("DELETE FROM alembic_version")
    rows.commit()
    rows.close()
    with pytest.raises(TurndockError, match="MIGRATION_REQUIRED"):
        await copy(str(file), str(tmp_path / "b.db"))


# --- By calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_remote_store_is_copied_into_a_database_with_its_numbers_and_times(
    kind: str, tmp_path: Path
) -> None:
    source, target = place(kind, tmp_path, "from"), place(kind, tmp_path, "to")
    async with opened(source) as store, plugin(store) as address:
        await fill(store)
        with pytest.raises(TurndockError, match=r"cannot carry retry tokens; .*--accept-loss"):
            await copy(address, target)
        report = await copy(address, target, accept_loss=True)
        assert (report.copied, report.same) == (SAVED, 0)
        again = await copy(address, target, accept_loss=True)
        assert (again.copied, again.same) == (0, SAVED)
        async with opened(target) as copied:
            for tenant in full_store.TENANTS:
                for number in range(3):
                    request = GetEventsRequest(scope=scope(tenant), session_id=f"ses_{number}")
                    assert await copied.get_events(request) == await store.get_events(request)
                    look = GetSessionRequest(scope=scope(tenant), session_id=f"ses_{number}")
                    assert await copied.get_session(look) == await store.get_session(look)
            await copied.append_events(AppendEventsRequest(events=[event("ses_0")]))
        with pytest.raises(TurndockError, match="other data for 1 of the sessions: 'ses_0'"):
            await copy(address, target, accept_loss=True)


class Breaks(MemorySessionStore):
    """Fails after so many appends."""

    left = 4

    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse:
        self.left -= 1
        if self.left < 0:
            raise TurndockError("STORAGE_BUSY", "no more for now")
        return await super().append_events(request)


async def test_a_database_is_copied_into_a_remote_store_as_far_as_calls_carry_and_restarted(
    tmp_path: Path,
) -> None:
    source = place("sqlite", tmp_path, "from")
    async with opened(source) as store:
        await fill(store, is_pruned=False, is_claimed=False)
    breaks = Breaks()
    async with plugin(breaks) as address:
        with pytest.raises(TurndockError, match="incarnations"):
            await copy(source, address)
        with pytest.raises(TurndockError, match="no more for now"):
            await copy(source, address, accept_loss=True)
        breaks.left = 1_000
        report = await copy(source, address, accept_loss=True)
        assert report.copied + report.same == SAVED
        assert report.same > 0
        back = place("postgresql", tmp_path, "back")
        assert (await copy(address, back, accept_loss=True)).copied == SAVED
        async with opened(source) as original, opened(back) as copied:
            for tenant in full_store.TENANTS:
                listed = ListRunsRequest(scope=scope(tenant), session_id="ses_1")
                assert await copied.list_runs(listed) == await original.list_runs(listed)
        await breaks.append_events(AppendEventsRequest(events=[event("ses_0")]))
        with pytest.raises(TurndockError, match="other data for 1 of the sessions: 'ses_0'"):
            await copy(source, address, accept_loss=True)


async def test_a_log_that_would_be_numbered_anew_is_refused(tmp_path: Path) -> None:
    source = place("sqlite", tmp_path, "from")
    async with opened(source) as store:
        await fill(store)
    async with plugin(MemorySessionStore()) as address:
        with pytest.raises(TurndockError, match=r"begins at 3, as it was pruned") as refusal:
            await copy(source, address, accept_loss=True)
        assert refusal.value.reason == "INVALID_OPERATION"


async def test_a_server_is_copied_scope_by_scope(tmp_path: Path) -> None:
    target = place("sqlite", tmp_path, "to")
    async with commands.serving(tmp_path, "--listen", "127.0.0.1:0") as server:
        started = await commands.run(
            *("agents", "start", "a1", "--backend", "echo", "--server", server.address), cwd=tmp_path
        )
        assert started.code == 0, started.err
        with pytest.raises(TurndockError, match="one scope at a time"):
            await copy(server.address, target, accept_loss=True)
        ended = await commands.run(
            *("store", "copy", server.address, target, "--accept-loss", "--scope", ""), cwd=tmp_path
        )
        assert ended.code == 0, ended.err
        assert "1 sessions copied" in ended.out
        await server.stop()


def test_every_table_has_its_place_in_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    tables.check_all_are_known()
    assert {part.table.name for part in tables.of_session()} >= {"events", "runs", "retry_tokens"}
    assert {part.table.name for part in tables.of_scope()} >= {"tombstones", "snapshots", "snapshot_tokens"}
    metadata = MetaData()
    for table in schema.metadata.sorted_tables:
        table.to_metadata(metadata)
    Table("unheard_of", metadata, Column("x", BigInteger))
    monkeypatch.setattr(tables, "metadata", metadata)
    with pytest.raises(TurndockError, match="nothing is known about copying unheard_of"):
        tables.check_all_are_known()
