"""Ties in time and pages that things move under: the same order each time, and nobody untouched is missed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from turndock.ports import SessionStore
from turndock.store.v1 import (
    AppendEventsRequest,
    DeleteSessionRequest,
    GetEventsRequest,
    ListSessionsRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import (
    EVENT_TYPE_MESSAGE_STREAMED,
    Event,
    MessageStreamed,
    Page,
    Session,
    SessionStatus,
)
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.sql import SqlSessionStore

STAMP_US = 1_700_000_000_000_000


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionStore]:
    opened = (
        MemorySessionStore()
        if request.param == "memory"
        else await SqlSessionStore.open(tmp_path / "store.db")
    )
    yield opened
    await opened.close()


def event(name: str, time_us: int) -> Event:
    return Event(
        id=name,
        type=EVENT_TYPE_MESSAGE_STREAMED,
        session_id="s",
        time_us=time_us,
        message_streamed=MessageStreamed(text=name),
    )


async def paged(store: SessionStore, *, descending: bool = False) -> list[str]:
    """All ids, read in pages of 7."""
    ids: list[str] = []
    bound: int | None = None
    while True:
        request = GetEventsRequest(session_id="s", limit=7, descending=descending)
        if bound is not None and descending:
            request.before_sequence = bound
        elif bound is not None:
            request.after_sequence = bound
        page = await store.get_events(request)
        if not page.events:
            return ids
        ids += [each.id for each in page.events]
        bound = page.events[-1].sequence


async def append_tied(store: SessionStore) -> list[str]:
    """1,000 events of one instant, ids in reverse alphabetical order, then three that were stamped earlier."""
    tied = [event(f"e{9_999 - index}", STAMP_US) for index in range(1_000)]
    late = [event(f"late-{index}", STAMP_US - 1 - index) for index in range(3)]
    await store.append_events(AppendEventsRequest(events=tied))
    await store.append_events(AppendEventsRequest(events=late))
    return [each.id for each in [*tied, *late]]


async def test_PF_B17_ties_in_time_read_in_sequence_order_in_every_page_and_direction(
    store: SessionStore,
) -> None:
    expected = await append_tied(store)
    assert await paged(store) == expected
    assert await paged(store) == expected
    assert await paged(store, descending=True) == expected[::-1]


async def test_PF_B17_the_order_is_the_same_after_a_restart(tmp_path: Path) -> None:
    store = await SqlSessionStore.open(tmp_path / "store.db")
    expected = await append_tied(store)
    await store.close()
    again = await SqlSessionStore.open(tmp_path / "store.db")
    try:
        assert await paged(again) == expected
        assert await paged(again, descending=True) == expected[::-1]
    finally:
        await again.close()


def session(name: str, updated_at_us: int) -> SaveSessionRequest:
    return SaveSessionRequest(
        session=Session(
            id=name,
            agent_id="agent",
            status=SessionStatus.SESSION_STATUS_ACTIVE,
            updated_at_us=updated_at_us,
        )
    )


async def test_PF_E33_paging_goes_on_while_sessions_move_and_go(store: SessionStore) -> None:
    for number in range(30):
        await store.save_session(session(f"s{number:02}", STAMP_US + number))
    listing = ListSessionsRequest(page=Page(limit=10))
    first = await store.list_sessions(listing)
    newest_first = [f"s{number:02}" for number in range(29, -1, -1)]
    assert [each.id for each in first.sessions] == newest_first[:10]

    touched_before, touched_after, deleted = "s25", "s05", "s15"
    await store.save_session(session(touched_before, STAMP_US + 1_000))
    await store.save_session(session(touched_after, STAMP_US + 1_001))
    await store.delete_session(DeleteSessionRequest(session_id=deleted))

    rest: list[str] = []
    cursor = first.next_cursor
    while cursor:
        page = await store.list_sessions(ListSessionsRequest(page=Page(limit=10, cursor=cursor)))
        rest += [each.id for each in page.sessions]
        cursor = page.next_cursor

    untouched = [name for name in newest_first[10:] if name not in (touched_after, deleted)]
    assert [name for name in rest if name in untouched] == untouched
    assert deleted not in rest
    # It moved before the cursor: whoever pages by change sees it at the top of the next listing.
    assert touched_after not in rest
    top = await store.list_sessions(ListSessionsRequest(page=Page(limit=2)))
    assert [each.id for each in top.sessions] == [touched_after, touched_before]
