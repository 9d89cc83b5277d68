"""The SQL store on PostgreSQL: many processes write to one database, and the way to it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path
from signal import SIGQUIT
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event

from support import postgres
from support.sharing import Program, opened
from support.sql_programs import event
from turndock.errors import Code, TurndockError
from turndock.store.v1 import (
    AppendEventRequest,
    ExportSessionRequest,
    GetEventsRequest,
    ListRunsRequest,
    SaveSessionRequest,
    WatchEventsRequest,
)
from turndock.types.v1 import Page, Session, SessionStatus
from turndock_server.stores.sql import SqlQuery, SqlSessionStore
from turndock_server.stores.sql.engine_async import AsyncLane
from turndock_server.stores.sql.transaction import Transaction

SESSION = "ses_1"


@pytest.fixture
def url() -> str:
    return postgres.server().new_database()


@pytest.fixture
def own_server() -> Generator[postgres.Server]:
    """A server that a test may do anything to."""
    server = postgres.new_server()
    yield server
    postgres.remove(server)


async def append(store: SqlSessionStore, session_id: str = SESSION) -> None:
    await store.append_event(AppendEventRequest(event=event(session_id)))


async def numbers_of(store: SqlSessionStore, session_id: str = SESSION) -> list[int]:
    page = await store.get_events(GetEventsRequest(session_id=session_id, limit=10_000))
    return [each.sequence for each in page.events]


async def together(*programs: Program) -> list[Any]:
    """What programs say that pass the barrier at the same time."""
    for program in programs:
        program.go()
    return list(await asyncio.gather(*(program.outcome() for program in programs)))


def session(**fields: Any) -> Session:
    return Session(id=SESSION, agent_id="agent-1", status=SessionStatus.SESSION_STATUS_ACTIVE, **fields)


# --- Processes ----------------------------------------------------------------------------------------------------


async def test_PF_B09_two_processes_use_an_empty_database_for_the_first_time(url: str) -> None:
    outcomes = await together(*[await Program.start("first_use", url, SESSION, 10) for _ in range(2)])
    assert sorted(number for numbers in outcomes for number in numbers) == list(range(1, 21))
    async with opened(url) as store:
        assert await numbers_of(store) == list(range(1, 21))
    assert postgres.server().sql("SELECT id, last_sequence FROM sessions", url=url) == f"{SESSION}|20"


def _prune(floor: int) -> Callable[[Transaction], None]:
    def prune(tx: Transaction) -> None:
        tx.connection.exec_driver_sql(f"UPDATE sessions SET pruned_through = {floor}")
        tx.connection.exec_driver_sql(f"DELETE FROM events WHERE sequence <= {floor}")

    return prune


async def test_PF_B11_two_processes_and_a_pruner_write_and_a_reader_pages(url: str) -> None:
    async with opened(url) as store, opened(url) as pruner:
        programs = [await Program.start("busy_writers", url, SESSION, 8, 25) for _ in range(2)]
        outcomes = asyncio.ensure_future(together(*programs))
        pruned, last = 0, 0
        while not outcomes.done():
            page = await store.get_events(GetEventsRequest(session_id=SESSION, after_sequence=last, limit=7))
            read = [each.sequence for each in page.events]
            assert read == list(range(last + 1, last + 1 + len(read)))  # what is pruned was read before
            last = page.scanned_through
            pruned = max(pruned, last - 20)
            await pruner._writer.write(_prune(pruned))
        written = sorted(number for numbers in await outcomes for number in numbers)
        assert written == list(range(1, 401))
        page = await store.get_events(GetEventsRequest(session_id=SESSION))
        assert (page.head, page.oldest, page.pruned_through) == (400, pruned + 1, pruned)


async def test_PF_B23_processes_that_write_to_the_same_sessions_never_wait_in_a_ring(url: str) -> None:
    async with opened(url) as store:  # of two who make the same sessions at once, one may have to try again
        await asyncio.gather(*(append(store, f"ses_{number}") for number in range(10)))
    server = postgres.server()
    counter = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = server.sql(counter, url=url)
    programs = [await Program.start("crossing", url, first, 25) for first in (0, 3, 6)]
    outcomes = await together(*programs)
    async with opened(url) as store:
        for number in range(10):
            name = f"ses_{number}"
            written = sorted(each for outcome in outcomes for each in outcome[name])
            assert written == list(range(2, 3 * 25 * 5 + 2))
            assert [1, *written] == await numbers_of(store, name)
    assert server.sql(counter, url=url) == before


@pytest.mark.parametrize("most", [0, 5])
async def test_M_26_a_mailbox_takes_just_what_it_may_from_all_processes_together(url: str, most: int) -> None:
    async with opened(url) as store:
        await store.save_session(SaveSessionRequest(session=session()))
        programs = [await Program.start("enqueue", url, SESSION, 10 * n, 10, most) for n in range(3)]
        outcomes = [each for outcome in await together(*programs) for each in outcome]
        assert outcomes.count("OK") == most + 1  # the one that is next does not count
        assert set(outcomes) == {"OK", "MAX_RUNS_EXCEEDED"}
        page = await store.list_runs(ListRunsRequest(session_id=SESSION, page=Page(limit=100)))
        places = [each.queue_key for each in page.runs]
        assert len(places) == len(set(places)) == most + 1


async def test_an_epoch_is_granted_once_and_an_owner_writes_alone(url: str) -> None:
    async with opened(url) as store:
        await store.save_session(SaveSessionRequest(session=session()))
        programs = [await Program.start("claim", url, SESSION, f"host-{n}", 10) for n in range(3)]
        epochs = [epoch for granted in await together(*programs) for epoch in granted]
        assert sorted(epochs) == list(range(1, 31))
        assert await numbers_of(store) == list(range(1, 91))


async def test_PF_E31_an_id_that_two_processes_use_at_once_is_stored_once(url: str) -> None:
    await (await SqlSessionStore.open(url)).close()
    first, second = await together(*[await Program.start("same_ids", url, SESSION, 40) for _ in range(2)])
    assert first == second
    assert sorted(first) == list(range(1, 41))
    async with opened(url) as store:
        assert await numbers_of(store) == list(range(1, 41))


async def test_a_name_that_two_processes_use_at_once_has_one_agent(url: str) -> None:
    await (await SqlSessionStore.open(url)).close()
    outcomes = await together(*[await Program.start("names", url, prefix, 20) for prefix in ("a", "b")])
    for pair in zip(*outcomes, strict=True):
        assert sorted(pair) == ["ALREADY_EXISTS", "OK"]


async def test_S_21_an_append_of_another_process_ends_a_wait(url: str) -> None:
    async with opened(url) as store:
        program = await Program.start("append_once", url, SESSION)
        waiting = asyncio.create_task(store.get_events(GetEventsRequest(session_id=SESSION, wait_ms=60_000)))
        watched = store.watch_events(WatchEventsRequest(session_id=SESSION))
        first = asyncio.ensure_future(anext(watched))
        program.go()
        assert [each.sequence for each in (await waiting).events] == [1]
        assert [each.sequence for each in (await first).events] == [1]
        await watched.aclose()
        assert await program.outcome() == 1


async def test_a_process_that_is_killed_leaves_whole_commits_and_no_lock(url: str) -> None:
    async with opened(url) as store:
        program = await Program.start("write_for_ever", url, SESSION)
        program.go()
        assert await program.line() == b"begun\n"
        waiting = GetEventsRequest(session_id=SESSION, after_sequence=200, wait_ms=30_000)
        assert (await store.get_events(waiting)).events
        program.kill()
        await program.ended()
        await append(store)
        numbers = await numbers_of(store)
        assert numbers == list(range(1, len(numbers) + 1))


# --- What a commit is ---------------------------------------------------------------------------------------------


async def test_a_group_is_one_statement_for_a_table_and_notifies_nobody(url: str) -> None:
    async with opened(url) as store:
        names = [f"ses_{number}" for number in range(20)]
        await asyncio.gather(*(append(store, name) for name in names))
        statements: list[str] = []

        def note(*arguments: Any) -> None:
            statements.append(str(arguments[2]))

        engine = store._database._lane.writing
        sqlalchemy_event.listen(engine, "before_cursor_execute", note)
        await asyncio.gather(*(append(store, name) for name in names * 10))
        groups = sum(1 for each in statements if each.startswith("INSERT INTO events"))
        assert groups <= 2  # the first one, and all that came meanwhile
        assert sum(1 for each in statements if each.startswith("UPDATE sessions")) == groups
        assert not [each for each in statements if "notify" in each.lower()]


async def test_names_are_ordered_by_code_points_whatever_the_databases_locale_is(url: str) -> None:
    async with opened(url) as store:
        for name in ("b", "B", "ä", "a_", "a-", "Z", "a"):
            made = session(updated_at_us=1)
            made.id, made.agent_id = name, name
            await store.save_session(SaveSessionRequest(session=made))
    collations = (
        "SELECT DISTINCT collation_name FROM information_schema.columns WHERE table_schema = 'public'"
    )
    server = postgres.server()
    assert server.sql(f"{collations} AND data_type = 'text'", url=url) == "C"
    assert server.sql("SELECT string_agg(id, ' ' ORDER BY id) FROM sessions", url=url) == "B Z a a- a_ b ä"


async def test_an_export_leaves_no_transaction_open(url: str) -> None:
    """It reads by a cursor, which needs one; what is read over the same connection afterwards needs none."""
    async with opened(url, readers=1) as store:
        await store.save_session(SaveSessionRequest(session=session()))
        request = ExportSessionRequest(session_id=SESSION)
        for _ in range(2):
            assert len([part async for part in SqlQuery(store).export_session(request)]) == 2
            await append(store, "other")
            states = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
            assert postgres.server().sql(states) == "0"
        assert await numbers_of(store, "other") == [1, 2]


# --- What breaks --------------------------------------------------------------------------------------------------


async def test_connections_that_the_server_ends_are_made_again(url: str) -> None:
    async with opened(url) as store:
        await append(store)
        waiting = asyncio.create_task(store.get_events(GetEventsRequest(session_id="new", wait_ms=60_000)))
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        for _ in range(5):
            postgres.server().sql(f"{others} AND datname = current_database()", url=url)
            assert await numbers_of(store)
            await append(store)
        await append(store, "new")
        assert [each.sequence for each in (await waiting).events] == [1]
        assert await numbers_of(store) == [1, 2, 3, 4, 5, 6]


async def test_a_server_that_crashes_and_comes_back_is_waited_for(own_server: postgres.Server) -> None:
    async with opened(own_server.new_database(), busy_timeout_ms=20_000) as store:
        await append(store)
        own_server.stop(SIGQUIT)
        writing, reading = asyncio.create_task(append(store)), asyncio.create_task(numbers_of(store))
        await asyncio.sleep(0)
        await asyncio.to_thread(own_server.start)
        await asyncio.gather(writing, reading)
        assert await numbers_of(store) == [1, 2]


async def test_a_server_that_stays_away_is_a_retryable_error(own_server: postgres.Server) -> None:
    url = own_server.new_database()
    async with opened(url, busy_timeout_ms=100) as store:
        await append(store)
        own_server.stop(SIGQUIT)
        for call in (append(store), numbers_of(store)):
            with pytest.raises(TurndockError, match="the database cannot be reached") as failure:
                await call
            assert failure.value.reason == "STORAGE_CONNECTION_FAILED"
            assert (failure.value.code, failure.value.retryable) == (Code.UNAVAILABLE, True)
        with pytest.raises(TurndockError, match="the database cannot be reached"):
            await SqlSessionStore.open(url, busy_timeout_ms=0)
        own_server.start()
        await append(store)
        assert await numbers_of(store) == [1, 2]


async def test_a_connection_lost_during_a_commit_leaves_the_outcome_open_and_says_so(url: str) -> None:
    async with opened(url) as store:
        await append(store)
        postgres.server().sql(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'",
            "CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION die()",
            url=url,
        )
        with pytest.raises(TurndockError, match="may be stored or not") as failure:
            await append(store)
        assert (failure.value.reason, failure.value.retryable) == ("STORAGE_CONNECTION_FAILED", True)
        postgres.server().sql("DROP TRIGGER dies ON events", url=url)
        await append(store)
        assert await numbers_of(store) == [1, 2]


async def test_a_lock_held_beyond_the_busy_timeout_is_a_retryable_error_of_its_session_alone(
    url: str,
) -> None:
    async with opened(url, busy_timeout_ms=200) as store, opened(url) as other:
        await append(store)
        lane = other._database._lane
        assert isinstance(lane, AsyncLane)
        async with lane._writing.begin() as holder:
            await holder.exec_driver_sql(f"SELECT 1 FROM sessions WHERE id = '{SESSION}' FOR UPDATE")
            refused, written = await asyncio.gather(
                append(store), append(store, "ses_2"), return_exceptions=True
            )
            assert isinstance(refused, TurndockError)
            assert (refused.reason, refused.code, refused.retryable) == (
                "STORAGE_BUSY",
                Code.UNAVAILABLE,
                True,
            )
            assert written is None
            assert await numbers_of(store) == [1]  # readers are not held up
        await append(store)
        assert await numbers_of(store) == [1, 2]


async def test_the_time_is_the_servers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of several machines are by one clock."""
    here = 1_000_000
    monkeypatch.setattr("turndock.events.now_us", lambda: here)
    async with opened(url) as store:
        await append(store)
        (stored,) = (await store.get_events(GetEventsRequest(session_id=SESSION))).events
    theirs = int(postgres.server().sql("SELECT extract(epoch from now())::bigint"))
    assert abs(stored.stored_at_us / 1_000_000 - theirs) < 60


async def test_a_database_that_does_not_let_us_in_says_why(url: str, tmp_path: Path) -> None:
    server = postgres.server()
    for wrong, words in (
        (server.url("nowhere"), "there is no such database"),
        (server.url(user="nobody_here"), "does not let this user in"),
        (f"postgresql://turndock@/x?host={tmp_path}", "cannot be reached"),
    ):
        with pytest.raises(TurndockError, match=words) as failure:
            await SqlSessionStore.open(wrong, busy_timeout_ms=0)
        assert failure.value.reason == "STORAGE_CONNECTION_FAILED"
