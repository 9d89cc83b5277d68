"""Artifact stores whose process is killed, whose disk is full or closed to them, or whose plug-in crashes."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support import artifact_programs
from support.artifacts import RED, as_red, files_below, paths_below
from turndock.conformance.artifact_store import Fixture
from turndock.conformance.artifact_store.suite import noise
from turndock.errors import TurndockError
from turndock.ports import ArtifactStore
from turndock.remote.stores import RemoteArtifactStore, RemoteSessionStore
from turndock.serving import add_artifact_store, add_port, add_session_store
from turndock.serving.contracts import ARTIFACT_STORE
from turndock.store.v1 import (
    ArtifactStorePutRequest,
    ArtifactStorePutResponse,
    GetSessionRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import Session, SessionStatus
from turndock.wire import bind, connect, new_server
from turndock_server.stores.files import FileArtifactStore
from turndock_server.stores.isolated import IsolatedArtifactStore
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

PROGRAM = (sys.executable, artifact_programs.__file__)


class Program:
    """A process of `support.artifact_programs`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def told(self) -> list[Any]:
        """The next line it told."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, f"the program ended with {await self.process.wait()}"
        facts: list[Any] = json.loads(line)
        return facts

    async def everything(self) -> list[Any]:
        """Every line until it ended well."""
        assert self.process.stdout is not None
        output = await self.process.stdout.read()
        assert await self.process.wait() == 0
        return [json.loads(line) for line in output.splitlines()]

    async def kill(self) -> None:
        """Have it killed."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def running(*arguments: str, before: tuple[str, ...] = ()) -> AsyncGenerator[Program]:
    process = await asyncio.create_subprocess_exec(
        *before, *PROGRAM, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def make_folder(path: Path) -> None:
    path.mkdir()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


async def test_PF_E15_a_process_killed_in_mid_put_leaves_the_old_content(root: Path) -> None:
    async with running("cut_put", str(root)) as program:
        assert sorted([await program.told(), await program.told()]) == [["sent", "k"], ["sent", "new"]]
        assert sum(name.endswith(".part") for name in files_below(root)) == 2
        await program.kill()
    async with FileArtifactStore(root) as store:
        red = as_red(store)
        assert await red.get() == b"old"
        with pytest.raises(TurndockError, match="NOT_FOUND"):
            await red.get("new")
        assert await red.keys() == ("k",)
        assert len(files_below(root)) == 1


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("written", b"old"),
        ("synced", b"old"),
        ("renamed", b"old"),
        ("before the commit", b"old"),
        ("after the commit", b"new"),
        ("old file removed", b"new"),
        ("before the commit of a delete", b"old"),
        ("after the commit of a delete", None),
    ],
)
async def test_PF_E15_a_crash_at_any_point_leaves_one_content_whole(
    root: Path, point: str, left: bytes | None
) -> None:
    async with running("crash_at", point, str(root)) as program:
        assert await program.process.wait() == -9
    async with FileArtifactStore(root) as store:
        red = as_red(store)
        if left is None:
            with pytest.raises(TurndockError, match="NOT_FOUND"):
                await red.get()
        else:
            assert await red.get() == left
        assert await red.keys() == (() if left is None else ("k",))
        assert len(files_below(root)) == (0 if left is None else 1)


async def test_PF_E15_nothing_acknowledged_is_lost_in_a_storm_of_kills(root: Path) -> None:
    chance = random.Random(15)
    acknowledged: dict[str, int] = {}
    begun: dict[str, int] = {}
    number = 0
    for _ in range(12):
        async with running("storm", str(root), str(number)) as program:
            for _ in range(chance.randrange(1, 40)):
                what, key, number = await program.told()
                (begun if what == "begins" else acknowledged)[key] = number
            program.process.kill()
            assert program.process.stdout is not None
            for line in (await program.process.stdout.read()).splitlines():
                what, key, number = json.loads(line)
                (begun if what == "begins" else acknowledged)[key] = number
        number += 1
        async with FileArtifactStore(root) as store:
            red = as_red(store)
            rows = {artifact.key: artifact for artifact in (await red.list()).artifacts}
            for key, last in acknowledged.items():
                possible = {last, begun[key]}
                if key in rows:
                    found = json.loads(rows[key].metadata_json)["n"]
                    assert found in possible
                    assert await red.get(key) == noise(200_000 + found, seed=found)
                else:
                    assert any(write % 7 == 6 for write in possible)
            assert len(files_below(root)) == len(rows)


class Puts:
    """The Put of a store; tells how each one ended."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self.ends: asyncio.Queue[object] = asyncio.Queue()

    async def put(self, requests: AsyncIterator[ArtifactStorePutRequest]) -> ArtifactStorePutResponse:
        try:
            response = await self._store.put(requests)
        except BaseException as error:
            self.ends.put_nowait(error)
            raise
        self.ends.put_nowait(response)
        return response


@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_PF_E15_a_client_killed_in_mid_put_stores_nothing(
    root: Path, tmp_path: Path, kind: str
) -> None:
    keys = tuple(f"k{number}" for number in range(10))
    async with AsyncExitStack() as stack:
        store: ArtifactStore = MemoryArtifactStore()
        if kind == "files":
            store = await stack.enter_async_context(FileArtifactStore(root))
        red = as_red(store)
        for key in keys[::2]:
            await red.put(b"old", key)
        puts = Puts(store)
        server = new_server()
        add_port(server, ARTIFACT_STORE, puts)
        endpoint = bind(server, f"unix:{tmp_path}/socket")
        await server.start()
        stack.push_async_callback(server.stop, None)
        async with running("cut_client", str(endpoint), *keys) as client:
            for _ in keys:
                assert (await client.told())[0] == "sent"
            await client.kill()
        for _ in keys:
            assert isinstance(await puts.ends.get(), asyncio.CancelledError | TurndockError)
        assert await red.keys() == keys[::2]
        for key in keys[::2]:
            assert await red.get(key) == b"old"


def outside(root: Path, folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a folder but the root, which is somewhere in it."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in paths_below(folder)
        if not path.is_relative_to(root) and path != root.parent
    }


def names_in(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


async def test_PF_B35_no_key_reaches_anything_outside_the_root(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b" / "root"
    root.parent.mkdir(parents=True)
    (tmp_path / "x").write_text("outside")
    (tmp_path / "a" / "x").write_text("outside")

    before = outside(root, tmp_path), names_in("/etc")
    async with running("hostile_keys", str(root)) as program:
        ((touched,),) = await program.everything()
    assert (outside(root, tmp_path), names_in("/etc")) == before
    objects = root / "objects"
    names = {path.relative_to(objects).as_posix() for path in paths_below(objects)}
    assert len({name.split("/")[0] for name in names}) == 2
    # Not the folders around the root alone but the whole disk: every path the process has opened, made or removed.
    strangers = [path for path in touched if not Path(path).is_relative_to(objects)]
    assert strangers == []
    assert len(touched) > 100


async def test_A_04_a_full_disk_is_a_storage_error(root: Path, require_tool: Callable[[str], Path]) -> None:
    unshare = str(require_tool("unshare"))
    probe = await asyncio.create_subprocess_exec(unshare, "-rm", "true", stderr=asyncio.subprocess.DEVNULL)
    if await probe.wait() != 0:
        pytest.skip("this machine lets nobody mount a file system; a limit on file sizes is tried below")
    make_folder(root)
    mount = f'mount -t tmpfs -o size=2m none "{root}" && exec "$@"'
    async with running(
        "full_disk", f"{root}/root", before=(unshare, "-rm", "sh", "-c", mount, "sh")
    ) as program:
        assert await program.everything() == [
            ["STORAGE_ERROR"],  # 8 MiB do not fit
            ["old"],  # and change nothing
            ["STORAGE_ERROR"],  # nothing fits any more
            [True],  # but all that was acknowledged is there
            [["OK"]],  # and can be deleted
            ["OK"],  # which makes room
        ]


async def test_A_04_a_file_that_may_not_grow_is_a_storage_error(root: Path) -> None:
    async with running("size_limit", str(root)) as program:
        assert await program.everything() == [["STORAGE_ERROR"], ["old"], ["OK"]]
    async with FileArtifactStore(root) as store:
        assert await as_red(store).get() == noise(1 << 20)
        assert len(files_below(root)) == 1


async def test_A_04_denied_access_is_a_storage_error_and_never_not_found() -> None:
    async with running("denied") as program:
        assert await program.everything() == [
            *[["STORAGE_ERROR"]] * 4,  # no rights at all: Put, Get, Delete, Put of another key
            *[["STORAGE_ERROR"]] * 2,  # may be read only: Put, Delete
            ["old", "OK"],
            ["OK"],  # with its rights back it can be deleted
            ["STORAGE_ERROR"],  # no rights: open
        ]


async def test_A_05_a_crashing_artifact_plug_in_leaves_the_sessions_alone(tmp_path: Path) -> None:
    plugin = f"unix:{tmp_path}/plugin"
    async with AsyncExitStack() as stack:
        plugin_channel = connect(plugin)
        stack.push_async_callback(plugin_channel.close)
        server = new_server()
        add_session_store(server, MemorySessionStore())
        add_artifact_store(server, IsolatedArtifactStore(RemoteArtifactStore(plugin_channel)))
        endpoint = bind(server, f"unix:{tmp_path}/host")
        await server.start()
        stack.push_async_callback(server.stop, None)
        channel = connect(endpoint)
        stack.push_async_callback(channel.close)
        sessions = RemoteSessionStore(channel)
        red = Fixture(RemoteArtifactStore(channel), RED)

        async def sessions_work(session_id: str) -> None:
            session = Session(id=session_id, agent_id="agent-1", status=SessionStatus.SESSION_STATUS_ACTIVE)
            await sessions.save_session(SaveSessionRequest(scope=RED, session=session))
            read = await sessions.get_session(GetSessionRequest(scope=RED, session_id=session_id))
            assert read.session.id == session_id

        crashes: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: red.put(b"bytes", "crash"),
            lambda: red.get("crash"),
        )
        for number, call in enumerate(crashes):
            async with running("crashing_plugin", plugin) as program:
                assert await program.told() == ["ready"]
                await plugin_channel.channel_ready()
                assert await red.head("there") is None
                with pytest.raises(TurndockError) as error:
                    await call()
                assert error.value.reason == "STORAGE_ERROR"
                await sessions_work(f"while-crashed-{number}")
                assert await program.process.wait() == 1
            with pytest.raises(TurndockError, match="STORAGE_ERROR"):
                await red.head("there")  # nobody there is no missing artifact either
            await sessions_work(f"after-crash-{number}")
