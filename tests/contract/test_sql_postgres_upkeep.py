"""Maintenance, searches and snapshots on PostgreSQL beside another host: each waits for a row, then looks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from support import postgres
from support.sharing import opened
from support.sql_programs import event
from turndock.errors import TurndockError
from turndock.store.v1 import (
    AppendEventsRequest,
    ClaimAgentRequest,
    CountEventsRequest,
    DeleteSessionRequest,
    EnqueueRunRequest,
    EventFilter,
    GetEventsRequest,
    GetSessionRequest,
    Lifecycle,
    LoadStateRequest,
    MailboxLimits,
    PersistStateRequest,
    RetentionBound,
    RetentionPolicy,
    SaveSessionRequest,
)
from turndock.types.v1 import Run, Session, SessionStatus
from turndock_server.stores.maintenance.policy import Policy
from turndock_server.stores.maintenance.upkeep import Spare
from turndock_server.stores.sql import SqlQuery, SqlSessionStore, mailbox, pruning, sessions
from turndock_server.stores.sql.engine_async import AsyncLane
from turndock_server.stores.sql.rows import Partition
from turndock_server.stores.sql.transaction import Transaction, Write

T = TypeVar("T")

SESSION = "ses_1"
UNSCOPED = Partition(0, "")
LATER = 1 << 60
POLICY = Policy.of(RetentionPolicy(max_session_age_days=RetentionBound(max=1)), ())


@pytest.fixture
def url() -> Generator[str]:
    """A database in which nobody is ended for waiting in a ring."""
    server = postgres.server()
    made = server.new_database()
    counter = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = server.sql(counter, url=made)
    yield made
    assert server.sql(counter, url=made) == before


@asynccontextmanager
async def holding(store: SqlSessionStore, work: Write[Any]) -> AsyncGenerator[None]:
    """In the block another host is in the middle of a write; it commits when the block's end is reached."""
    lane = store._database._lane
    assert isinstance(lane, AsyncLane)
    async with lane._writing.begin() as connection:
        await connection.run_sync(lambda found: work(Transaction(found, store._clock(), is_careful=True)))
        yield


async def beside(url: str, work: Write[Any], call: Callable[[SqlSessionStore], Awaitable[T]]) -> T:
    """What a call answers that comes while another host makes a write, which then is committed."""
    async with opened(url) as store, opened(url) as other:
        async with holding(other, work):
            answer = asyncio.ensure_future(call(store))
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while postgres.server().sql(f"{waiting} AND datname = current_database()", url=url) == "0":
                assert not answer.done(), "It did not wait."
                await asyncio.sleep(0)
        return await answer


def session(**fields: Any) -> Session:
    return Session(id=SESSION, agent_id="a", status=SessionStatus.SESSION_STATUS_COMPLETED, **fields)


async def prepared(url: str, saved: Session | None, count: int = 0) -> str:
    """A session with a log. Returns its incarnation."""
    async with opened(url) as store:
        if saved is not None:
            await store.save_session(SaveSessionRequest(session=saved))
        if count:
            await store.append_events(AppendEventsRequest(events=[event(SESSION) for _ in range(count)]))
        return (await store.get_events(GetEventsRequest(session_id=SESSION))).incarnation


def enqueue(tx: Transaction) -> object:
    run = Run(id="r1", session_id=SESSION, prompt="x", request_sha256=b"x" * 32)
    return mailbox.enqueue(tx, UNSCOPED, EnqueueRunRequest(run=run))


def claim(tx: Transaction) -> object:
    request = ClaimAgentRequest(session_id=SESSION, owner="h", ticket_id="t", lease_ms=60_000)
    return mailbox.claim(tx, UNSCOPED, request)


def change(tx: Transaction) -> object:
    """Save the session anew: with something new, and not deleted."""
    changed = session(metadata_json='{"n":1}', updated_at_us=2)
    return sessions.save(tx, UNSCOPED, SaveSessionRequest(session=changed))


OTHERS = [enqueue, claim, change]


@pytest.mark.parametrize("other", OTHERS)
async def test_R_02_what_another_host_begins_to_use_does_not_expire(url: str, other: Write[object]) -> None:
    await prepared(url, session(created_at_us=1, updated_at_us=1))

    async def expire(store: SqlSessionStore) -> Sequence[str]:
        upkeep = store.upkeep()
        return await upkeep.soft_delete("", [SESSION], POLICY, upkeep.now_us())

    expired = await beside(url, other, expire)
    async with opened(url) as store:
        found = (await store.get_session(GetSessionRequest(session_id=SESSION))).session
    if other is change:  # which is no use of it: it expires, and nothing of the change is lost
        assert list(expired) == [SESSION]
        assert found.metadata_json == '{"n":1}'
    assert found.HasField("deleted_at_us") is (other is change)


@pytest.mark.parametrize("other", [claim, change])
async def test_R_02_what_another_host_takes_back_is_not_deleted(url: str, other: Write[object]) -> None:
    await prepared(url, session(deleted_at_us=1), 3)
    assert not await beside(url, other, lambda store: store.upkeep().hard_delete("", SESSION, LATER))
    async with opened(url) as store:
        assert (await store.get_session(GetSessionRequest(session_id=SESSION))).session.last_sequence == 3


async def test_a_counter_of_a_log_that_another_host_deletes_is_removed_once(url: str) -> None:
    incarnation = await prepared(url, None, 1)

    def prune(tx: Transaction) -> object:
        return pruning.prune(tx, UNSCOPED, [Spare(SESSION, incarnation, 1, 1)])

    async def remove(store: SqlSessionStore) -> bool:
        return await store.upkeep().remove_counter("", SESSION)

    assert await beside(url, prune, remove)
    async with opened(url) as store:
        assert not await remove(store)


async def test_PF_B11_two_that_prune_one_log_leave_the_higher_floor_and_count_each_event_once(
    url: str,
) -> None:
    incarnation = await prepared(url, session(), 10)

    def spares(*numbers: int) -> list[Spare]:
        return [Spare(SESSION, incarnation, number, 1) for number in numbers]

    pruned = await beside(
        url,
        lambda tx: pruning.prune(tx, UNSCOPED, spares(1, 2, 3, 7)),
        lambda store: store.upkeep().prune("", spares(2, 3, 4)),
    )
    assert pruned == 1
    async with opened(url) as store:
        page = await store.get_events(GetEventsRequest(session_id=SESSION))
        assert [each.sequence for each in page.events] == [5, 6, 8, 9, 10]
        assert page.pruned_through == 7


async def test_E_06_two_hosts_search_while_both_append_and_one_prunes(url: str) -> None:
    names = [f"ses_{number}" for number in range(6)]
    wanted = CountEventsRequest(filter=EventFilter(since_us=1))
    async with opened(url) as one, opened(url) as other:

        async def write(store: SqlSessionStore, order: list[str]) -> None:
            for _ in range(8):
                batch = [event(name) for name in order for _ in range(10)]
                await store.append_events(AppendEventsRequest(events=batch))

        async def search(store: SqlSessionStore) -> None:
            before = 0
            for _ in range(20):
                counted = (await SqlQuery(store).count_events(wanted)).event_count
                assert counted >= before - 12, "What is appended is found, and only what is pruned is lost."
                before = counted

        async def prune(store: SqlSessionStore) -> None:
            await write(store, names[:1])
            incarnation = (await store.get_events(GetEventsRequest(session_id=names[0]))).incarnation
            for number in range(1, 13):
                assert await store.upkeep().prune("", [Spare(names[0], incarnation, number, 1)]) == 1

        # Of two that make the same logs at once, one may have to try again.
        await one.append_events(AppendEventsRequest(events=[event(name) for name in names]))
        await asyncio.gather(
            write(one, names), write(other, names[::-1]), search(one), search(other), prune(other)
        )
        total = 6 + 2 * 8 * 60 + 80 - 12
        assert (await SqlQuery(one).count_events(wanted)).event_count == total
    server = postgres.server()
    assert server.sql("SELECT count(*) FROM event_index", url=url) == str(total)
    behind = "SELECT count(*) FROM sessions WHERE indexed_through <> last_sequence"
    assert server.sql(behind, url=url) == "0"


async def test_snapshots_that_are_saved_while_their_session_is_deleted_never_wait_in_a_ring(url: str) -> None:
    async with opened(url) as one, opened(url) as other:
        for number in range(15):
            await one.save_session(SaveSessionRequest(session=session()))
            saved = PersistStateRequest(agent_id="a", conversation_id=SESSION, request_id=f"p{number}")
            saved.lifecycle, saved.snapshot.state_json = Lifecycle.LIFECYCLE_ON_COMPLETION, "{}"
            again = PersistStateRequest()
            again.CopyFrom(saved)
            again.request_id = f"q{number}"
            await one.agent_persistence.persist_state(saved)
            await asyncio.gather(
                one.agent_persistence.persist_state(again),
                other.delete_session(DeleteSessionRequest(session_id=SESSION)),
            )
        await one.delete_session(DeleteSessionRequest(session_id=SESSION))
        with pytest.raises(TurndockError, match="NOT_FOUND"):
            await one.agent_persistence.load_state(LoadStateRequest(agent_id="a", conversation_id=SESSION))


async def test_a_scope_takes_just_what_it_may_from_all_hosts_together(url: str) -> None:
    def request(number: int) -> EnqueueRunRequest:
        run = Run(id="waits", session_id=f"ses_{number}", prompt="x", request_sha256=b"x" * 32)
        limits = MailboxLimits(max_count=9, max_bytes=1 << 20, max_scope_count=3)
        return EnqueueRunRequest(run=run, limits=limits)

    async with opened(url) as store:
        for number in range(2):
            saved = session()
            saved.id = f"ses_{number}"
            await store.save_session(SaveSessionRequest(session=saved))
            first = request(number)
            first.run.id = "starts at once"
            await store.enqueue_run(first)
    with pytest.raises(TurndockError, match="MAX_RUNS_EXCEEDED"):
        await beside(
            url,
            lambda tx: mailbox.enqueue(tx, UNSCOPED, request(0)),
            lambda store: store.enqueue_run(request(1)),
        )


async def test_two_hosts_that_clear_one_grave_away_leave_nothing_of_it(url: str) -> None:
    await prepared(url, session(), 1_000)
    await prepared(url, None, 1_000)
    await prepared(url, None, 1_000)
    async with opened(url) as one:
        deletion = asyncio.ensure_future(one.delete_session(DeleteSessionRequest(session_id=SESSION)))
        server = postgres.server()
        while server.sql("SELECT count(*) FROM sessions WHERE scope = -1", url=url) == "0":
            assert not deletion.done()
            await asyncio.sleep(0)
        async with opened(url) as other:
            await asyncio.gather(deletion, *other._undertaker._tasks.values())
    assert server.sql("SELECT count(*) FROM events", url=url) == "0"
    assert server.sql("SELECT count(*) FROM sessions", url=url) == "0"
