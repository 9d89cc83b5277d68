"""What a FileArtifactStore does with its folder, and says when it cannot."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from support.artifacts import as_red, endless, files_below, paths_below
from turndock.conformance.artifact_store import Fixture
from turndock.errors import TurndockError
from turndock.store.v1 import ArtifactStoreGetRequest
from turndock_server.stores.files import FileArtifactStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[FileArtifactStore]:
    async with FileArtifactStore(root) as opened:
        yield opened


@pytest.fixture
def red(store: FileArtifactStore) -> Fixture:
    return as_red(store)


def the_file(root: Path) -> Path:
    (name,) = files_below(root)
    return root / name


async def test_everything_is_there_when_the_folder_is_opened_again(root: Path) -> None:
    async with FileArtifactStore(root) as store:
        red = as_red(store)
        first = await red.put(b"bytes", session_id="ses_1", metadata_json='{"v":1}', request_id="q1")
        await red.put(b"2", "other")
        cursor = (await red.list(limit=1)).next_cursor
    async with FileArtifactStore(root) as store:
        red = as_red(store)
        assert await red.read() == (first.artifact, b"bytes")
        assert [artifact.key for artifact in (await red.list(cursor=cursor)).artifacts] == ["other"]
        assert await red.put(b"bytes", session_id="ses_1", metadata_json='{"v":1}', request_id="q1") == first
        with pytest.raises(TurndockError, match="IDEMPOTENCY_CONFLICT"):
            await red.put(b"other", request_id="q1")


async def test_a_folder_belongs_to_one_store_at_a_time(root: Path, store: FileArtifactStore) -> None:
    second = FileArtifactStore(root)
    with pytest.raises(TurndockError, match="STORAGE_BUSY"):
        await second.open()
    await store.close()
    async with second:
        await as_red(second).put(b"bytes")


async def test_a_closed_store_says_so(store: FileArtifactStore, red: Fixture) -> None:
    await red.put(b"bytes")
    await store.close()
    await store.close()
    for call in (red.get, red.put, red.head, red.delete, red.list):
        with pytest.raises(TurndockError, match="STORAGE_ERROR"):
            await call()


async def test_a_newer_index_is_left_alone(root: Path) -> None:
    async with FileArtifactStore(root) as store:
        await as_red(store).put(b"bytes")
    with sqlite3.connect(root / "index.sqlite3") as index:
        index.execute("PRAGMA user_version = 99")
    index.close()
    with pytest.raises(TurndockError, match="MIGRATION_REQUIRED") as error:
        await FileArtifactStore(root).open()
    assert error.value.metadata["found"] == "99"
    assert len(files_below(root)) == 1


def a_file(root: Path) -> None:
    root.write_text("a file")


def a_folder_for_an_index(root: Path) -> None:
    (root / "index.sqlite3").mkdir(parents=True)


def no_database(root: Path) -> None:
    root.mkdir()
    (root / "index.sqlite3").write_bytes(b"no database" * 100)


@pytest.mark.parametrize("spoil", [a_file, a_folder_for_an_index, no_database])
async def test_a_folder_that_is_none_is_a_storage_error(root: Path, spoil: Callable[[Path], None]) -> None:
    spoil(root)
    with pytest.raises(TurndockError, match="STORAGE_ERROR"):
        await FileArtifactStore(root).open()


async def test_only_the_user_can_read_what_is_stored(root: Path, red: Fixture) -> None:
    await red.put(b"bytes")
    for path in paths_below(root):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


async def test_no_name_on_the_disk_is_what_a_caller_wrote(root: Path, red: Fixture) -> None:
    await red.put(b"bytes", "../../secret-key")
    names = " ".join(str(path) for path in paths_below(root))
    assert "red" not in names
    assert "secret" not in names


async def test_an_overwritten_and_a_deleted_content_leave_no_file(root: Path, red: Fixture) -> None:
    await red.put(b"old")
    await red.put(b"new")
    assert len(files_below(root)) == 1
    await red.delete()
    assert files_below(root) == []


async def test_PF_E15_no_failed_put_leaves_a_file(root: Path, red: Fixture) -> None:
    await red.put(b"old")
    before = files_below(root)
    failures = (
        red.put(b"new", expected_sha256=b"0" * 32),
        red.put(b"new", expected_size=1),
        red.put(b"new", if_absent=True),
        red.upload(red.header(), b"x" * (1 << 20), b"x" * ((1 << 20) + 1)),
    )
    for failure in failures:
        with pytest.raises(TurndockError):
            await failure
        assert files_below(root) == before
    assert await red.get() == b"old"


async def test_a_repeated_put_leaves_no_file(root: Path, red: Fixture) -> None:
    await red.put(b"bytes", request_id="q1", if_absent=True)
    before = files_below(root)
    await red.put(b"bytes", request_id="q1", if_absent=True)
    await red.put(b"bytes", if_absent=True)
    assert files_below(root) == before


async def test_PF_E15_a_cancelled_put_leaves_no_file(
    root: Path, store: FileArtifactStore, red: Fixture
) -> None:
    await red.put(b"old")
    before = files_below(root)
    sent = asyncio.Event()
    call = asyncio.ensure_future(store.put(endless(red.header(), [b"x" * (256 << 10)] * 12, sent)))
    await sent.wait()
    assert any(name.endswith(".part") for name in files_below(root))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert files_below(root) == before
    assert await red.get() == b"old"


async def test_an_artifact_above_the_limit_is_refused_before_it_has_come(root: Path) -> None:
    async with FileArtifactStore(root, max_artifact_bytes=1000) as store:
        red = as_red(store)
        await red.put(b"x" * 1000)
        for refused in (red.put(b"x" * 1001), red.upload(red.header(expected_size=1001))):
            with pytest.raises(TurndockError) as error:
                await refused
            assert error.value.reason == "LIMIT_EXCEEDED"
            assert error.value.metadata["max_artifact_bytes"] == "1000"
        assert await red.get() == b"x" * 1000
        assert len(files_below(root)) == 1


async def test_A_04_lost_bytes_are_a_storage_error_and_can_be_put_again(root: Path, red: Fixture) -> None:
    await red.put(b"bytes")
    the_file(root).unlink()
    with pytest.raises(TurndockError, match="STORAGE_ERROR"):
        await red.get()
    assert (await red.put(b"bytes", if_absent=True)).duplicate is False
    assert await red.get() == b"bytes"
    the_file(root).unlink()
    await red.delete()
    with pytest.raises(TurndockError, match="NOT_FOUND"):
        await red.get()


async def test_A_04_changed_bytes_end_a_download_with_a_storage_error(root: Path, red: Fixture) -> None:
    data = os.urandom(600_000)
    await red.put(data)
    path = the_file(root)
    with path.open("r+b") as file:
        file.seek(300_000)
        file.write(bytes([data[300_000] ^ 1]))
    with pytest.raises(TurndockError, match="STORAGE_ERROR") as error:
        await red.get()
    assert "digest" in error.value.message
    assert await red.get(offset=10, length=50) == data[10:60]  # a range is not held against the digest
    with path.open("r+b") as file:
        file.truncate(1000)
    for damaged in (red.get(), red.get(length=10)):
        with pytest.raises(TurndockError, match="STORAGE_ERROR"):
            await damaged


async def test_A_04_bytes_that_cannot_be_deleted_stay_with_their_row(root: Path, red: Fixture) -> None:
    before = (await red.put(b"bytes", session_id="ses_1")).artifact
    path = the_file(root)
    path.unlink()
    path.mkdir()  # what `unlink` refuses, also for root
    for _ in range(2):
        with pytest.raises(TurndockError, match="STORAGE_ERROR"):
            await red.delete(request_id="q1")
        assert await red.head() == before
    path.rmdir()
    path.write_bytes(b"bytes")
    assert await red.get() == b"bytes"
    await red.delete(request_id="q1")
    assert await red.head() is None


async def test_a_session_keeps_the_rows_whose_bytes_could_not_be_deleted(
    root: Path, store: FileArtifactStore, red: Fixture
) -> None:
    for key in ("a", "b", "c"):
        await red.put(key.encode(), key, session_id="ses_1", request_id=f"q-{key}")
    (stuck,) = [root / name for name in files_below(root) if (root / name).read_bytes() == b"b"]
    stuck.unlink()
    stuck.mkdir()
    with pytest.raises(TurndockError, match="STORAGE_ERROR"):
        await store.forget_session("red", "ses_1", delete_bytes=True)
    assert await red.keys("ses_1") == ("b", "c")
    with pytest.raises(TurndockError, match="IDEMPOTENCY_CONFLICT"):
        await red.put(b"other", "a", request_id="q-a")
    stuck.rmdir()
    assert await store.forget_session("red", "ses_1", delete_bytes=True) == ["b", "c"]
    assert files_below(root) == []


async def test_opening_removes_litter_and_nothing_else(root: Path) -> None:
    async with FileArtifactStore(root) as store:
        await as_red(store).put(b"bytes")
    kept = the_file(root)
    digest, _, number = kept.name.partition("-")
    litter = [kept.with_name(f"{digest}-{'0' * 16}"), kept.with_name(f"{digest}-{number}.part")]
    foreign = [kept.with_name("README"), root / "objects" / "notes.txt", root / "objects" / "empty" / "x"]
    foreign[-1].parent.mkdir()
    for path in (*litter, *foreign):
        path.write_bytes(b"?")
    async with FileArtifactStore(root) as store:
        assert await as_red(store).get() == b"bytes"
    assert not any(path.exists() for path in litter)
    assert all(path.exists() for path in (*foreign, kept))


async def test_a_download_outlives_its_artifact(root: Path, store: FileArtifactStore, red: Fixture) -> None:
    data = os.urandom(1 << 20)
    await red.put(data)
    download = store.get(ArtifactStoreGetRequest(scope=red.scope, key="k"))
    await anext(download)
    await red.delete()
    assert b"".join([message.chunk async for message in download]) == data
    assert files_below(root) == []


async def test_a_disk_that_hangs_does_not_hang_the_event_loop(store: FileArtifactStore, red: Fixture) -> None:
    with store._index.transaction():
        call = asyncio.ensure_future(red.head())
        await asyncio.to_thread(int)  # the loop turns, and other threads work, although the call cannot end
        assert not call.done()
    assert await call is None


async def test_a_cancelled_call_is_over_when_its_thread_is(store: FileArtifactStore, red: Fixture) -> None:
    with store._index.transaction():
        call = asyncio.ensure_future(red.delete())
        await asyncio.sleep(0)
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0)
            assert not call.done()
    with pytest.raises(asyncio.CancelledError):
        await call
