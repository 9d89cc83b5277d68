"""Rows of artifacts go with their session; the bytes stay unless they are to go too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.artifacts import BLUE, RED, as_red
from turndock.errors import TurndockError
from turndock_server.stores.artifacts import SessionArtifacts, delete_all_of
from turndock_server.stores.files import FileArtifactStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

LocalStore = FileArtifactStore | MemoryArtifactStore


@pytest.fixture(params=["memory", "files"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalStore]:
    if request.param == "memory":
        yield MemoryArtifactStore()
    else:
        async with FileArtifactStore(tmp_path / "root") as files:
            yield files


def test_both_stores_offer_it(store: LocalStore) -> None:
    assert isinstance(store, SessionArtifacts)


async def test_S_05_rows_of_a_forgotten_session_are_gone_and_its_bytes_stay(store: LocalStore) -> None:
    red = as_red(store)
    await red.put(b"one", "a", session_id="ses_1", media_type="text/plain", metadata_json='{"v":1}')
    await red.put(b"two", "b", session_id="ses_1")
    await red.put(b"other", "c", session_id="ses_2")
    await red.put(b"none", "d")
    assert await store.forget_session("red", "ses_1") == ["a", "b"]
    assert await red.head("a") is None
    assert await red.keys("ses_1") == ()
    assert await red.keys() == ("c", "d")
    assert (await red.list()).total_bytes == len(b"other" + b"none")
    artifact, data = await red.read("a")
    assert data == b"one"
    assert (artifact.key, artifact.size) == ("a", 3)
    assert (artifact.session_id, artifact.media_type, artifact.metadata_json) == ("", "", "")
    assert await store.forget_session("red", "ses_1") == []


async def test_bytes_go_with_the_rows_if_they_are_to(store: LocalStore) -> None:
    red = as_red(store)
    await red.put(b"one", "a", session_id="ses_1")
    await red.put(b"other", "b", session_id="ses_2")
    assert await store.forget_session("red", "ses_1", delete_bytes=True) == ["a"]
    with pytest.raises(TurndockError, match="NOT_FOUND"):
        await red.get("a")
    assert await red.get("b") == b"other"


async def test_a_session_of_another_partition_is_not_touched(store: LocalStore) -> None:
    red = as_red(store)
    blue = red.within(BLUE)
    await red.put(b"red", session_id="ses_1")
    await blue.put(b"blue", session_id="ses_1")
    assert await store.sessions() == [("blue", "ses_1"), ("red", "ses_1")]
    await store.forget_session("blue", "ses_1", delete_bytes=True)
    assert await red.get() == b"red"
    assert await red.keys("ses_1") == ("k",)
    assert await store.sessions() == [("red", "ses_1")]


async def test_bytes_without_a_row_can_be_deleted_replaced_and_found_by_if_absent(store: LocalStore) -> None:
    red = as_red(store)
    for key in ("a", "b", "c"):
        await red.put(b"bytes", key, session_id="ses_1")
    await store.forget_session("red", "ses_1")
    await red.delete("a")
    with pytest.raises(TurndockError, match="NOT_FOUND"):
        await red.get("a")
    again = await red.put(b"bytes", "b", if_absent=True, session_id="ses_2")
    assert (again.duplicate, again.artifact.session_id) == (True, "")
    with pytest.raises(TurndockError, match="ALREADY_EXISTS"):
        await red.put(b"other", "b", if_absent=True)
    await red.put(b"new", "c", session_id="ses_2")
    assert await red.keys("ses_2") == ("c",)
    assert await red.keys() == ("c",)


async def test_a_session_made_again_has_no_artifacts(store: LocalStore) -> None:
    red = as_red(store)
    await red.put(b"bytes", "a", session_id="ses_1")
    await store.forget_session("red", "ses_1")
    await red.put(b"bytes", "b", session_id="ses_1")
    assert await red.keys("ses_1") == ("b",)


async def test_retry_tokens_live_as_long_as_their_session(store: LocalStore) -> None:
    red = as_red(store)
    await red.put(b"one", "a", session_id="ses_1", request_id="q1")
    await red.put(b"two", "b", session_id="ses_1")
    await red.delete("b", request_id="q2")
    await red.put(b"three", "c", request_id="q3")
    await store.forget_session("red", "ses_1")
    await red.put(b"other", "a", session_id="ses_1", request_id="q1")
    await red.delete("c", request_id="q2")
    with pytest.raises(TurndockError, match="IDEMPOTENCY_CONFLICT"):
        await red.put(b"other", "c", request_id="q3")


async def test_rows_can_be_forgotten_in_batches_and_by_age(store: LocalStore) -> None:
    red = as_red(store)
    first = await red.put(b"1", "a", session_id="ses_1", request_id="q1")
    for key in ("b", "c"):
        await red.put(b"1", key, session_id="ses_1")
    last = await red.put(b"1", "d", session_id="ses_1")
    early = first.artifact.stored_at_us
    assert await store.forget_session("red", "ses_1", stored_before_us=early) == []
    assert await store.forget_session("red", "ses_1", limit=2) == ["a", "b"]
    with pytest.raises(TurndockError, match="IDEMPOTENCY_CONFLICT"):
        await red.put(b"2", "a", session_id="ses_1", request_id="q1")  # the session still has rows
    late = last.artifact.stored_at_us + 1
    assert await store.forget_session("red", "ses_1", stored_before_us=late, limit=9) == ["c", "d"]
    assert await store.sessions() == []


async def test_no_session_is_not_every_session(store: LocalStore) -> None:
    red = as_red(store)
    await red.put(b"bytes")
    with pytest.raises(TurndockError, match="VALIDATION_ERROR"):
        await store.forget_session("red", "")
    assert await red.keys() == ("k",)


async def test_a_store_without_the_ability_can_at_least_delete_all_of_a_session(store: LocalStore) -> None:
    red = as_red(store)
    for number in range(5):
        await red.put(b"bytes", f"k{number}", session_id="ses_1")
    await red.put(b"other", "other", session_id="ses_2")
    await delete_all_of(store, RED, "ses_1")
    await delete_all_of(store, RED, "ses_1")
    assert await red.keys() == ("other",)
