"""Processes with an artifact store that come to harm: `python artifact_programs.py <name> <arguments>`.

What happened is told on standard output, a line of JSON each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

from turndock.conformance.artifact_store import Fixture
from turndock.conformance.artifact_store.keys import HOSTILE
from turndock.conformance.artifact_store.suite import chunks, message, noise
from turndock.errors import TurndockError
from turndock.remote.stores import RemoteArtifactStore
from turndock.serving import serve
from turndock.store.v1 import (
    ArtifactStoreGetRequest,
    ArtifactStoreGetResponse,
    ArtifactStorePutRequest,
    ArtifactStorePutResponse,
)
from turndock.types.v1 import Scope
from turndock.wire import connect
from turndock_server.stores import disk, files
from turndock_server.stores.artifact_index import Transaction
from turndock_server.stores.files import FileArtifactStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

MIB = 1 << 20
RED = Scope(tenant="red")


def tell(*facts: Any) -> None:
    print(json.dumps(facts), flush=True)


async def outcome(call: Awaitable[object]) -> str:
    """The reason a call fails with, or OK."""
    try:
        await call
    except TurndockError as error:
        return error.reason
    return "OK"


async def cut_upload(red: Fixture, key: str) -> AsyncIterator[ArtifactStorePutRequest]:
    """3 of 8 MiB, and then nothing more."""
    yield message(red.header(key))
    for chunk in chunks(noise(8 * MIB)[: 3 * MIB]):
        yield message(chunk)
    tell("sent", key)
    await asyncio.Event().wait()


async def cut_put(root: str) -> None:
    """Two uploads that hang after 3 MiB, one of them over an old content."""
    async with FileArtifactStore(Path(root)) as store:
        red = Fixture(store, RED)
        await red.put(b"old")
        await asyncio.gather(*(store.put(cut_upload(red, key)) for key in ("k", "new")))


async def cut_client(address: str, *keys: str) -> None:
    """Uploads over a channel that hang after 3 MiB."""
    async with connect(address) as channel:
        store = RemoteArtifactStore(channel)
        red = Fixture(store, RED)
        await asyncio.gather(*(store.put(cut_upload(red, key)) for key in keys))


def die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


def dies_after(call: Callable[..., object]) -> Callable[..., NoReturn]:
    def run(*args: Any) -> NoReturn:
        call(*args)
        die()

    return run


POINTS: dict[str, tuple[object, str]] = {
    "written": (disk.Upload, "write"),
    "synced": (disk.Upload, "sync"),
    "renamed": (disk.Upload, "publish"),
    "before the commit": (Transaction, "remember"),
    "after the commit": (disk.Upload, "keep"),
    "old file removed": (files, "remove_later_if_not_now"),
    "before the commit of a delete": (Transaction, "remove"),
    "after the commit of a delete": (FileArtifactStore, "_remove_files"),
}
"""What a call has reached → the function that is reached then. What comes `after` it does not run any more."""


async def crash_at(point: str, root: str) -> None:
    """A Put over an old content, or a Delete of it, that is killed at a point of its way to the disk."""
    async with FileArtifactStore(Path(root)) as store:
        red = Fixture(store, RED)
        await red.put(b"old")
        owner, name = POINTS[point]
        call = getattr(owner, name)
        setattr(owner, name, die if point.startswith("after") else dies_after(call))
        if "delete" in point:
            await red.delete()
        await red.put(b"new")


async def storm(root: str, first: str) -> None:
    """Puts and deletes without end, each told before it begins and after it was acknowledged."""
    async with FileArtifactStore(Path(root)) as store:
        red = Fixture(store, RED)
        number = int(first)
        while True:
            key = f"k{number % 3}"
            tell("begins", key, number)
            if number % 7 == 6:
                await red.delete(key)
            else:
                await red.put(noise(200_000 + number, seed=number), key, metadata_json=f'{{"n":{number}}}')
            tell("acknowledged", key, number)
            number += 1


async def full_disk(root: str) -> None:
    """A disk of 2 MiB: too large a Put, then small ones until nothing fits, then deletions."""
    async with FileArtifactStore(Path(root)) as store:
        red = Fixture(store, RED)
        await red.put(b"old")
        tell(await outcome(red.put(noise(8 * MIB))))
        tell((await red.get()).decode())
        stored = 0
        while (reason := await outcome(red.put(noise(5000, seed=stored), f"k{stored}"))) == "OK":
            stored += 1
        tell(reason)
        whole = [await red.get(f"k{number}") == noise(5000, seed=number) for number in range(stored)]
        tell(stored > 100 and all(whole))
        tell(sorted({await outcome(red.delete(f"k{number}")) for number in range(stored)}))
        tell(await outcome(red.put(noise(5000), "again")))


async def size_limit(root: str) -> None:
    """A system that lets no file grow beyond 1 MiB."""
    async with FileArtifactStore(Path(root)) as store:
        red = Fixture(store, RED)
        await red.put(b"old")
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, most))
        tell(await outcome(red.put(noise(8 * MIB))))
        tell((await red.get()).decode())
        tell(await outcome(red.put(noise(MIB))))


async def denied() -> None:
    """A folder whose rights are taken away."""
    if os.geteuid() == 0:  # for whom no right can be taken away
        await asyncio.to_thread(int)  # loads what may be out of reach afterwards
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    folder = Path(tempfile.mkdtemp())
    try:
        async with FileArtifactStore(folder / "root") as store:
            red = Fixture(store, RED)
            await red.put(b"old")
            (tenant,) = (folder / "root" / "objects").iterdir()
            tenant.chmod(0o000)
            for call in (red.put(b"new"), red.get(), red.delete(), red.put(b"new", "other")):
                tell(await outcome(call))
            tenant.chmod(0o500)
            for call in (red.put(b"new"), red.delete()):
                tell(await outcome(call))
            tell((await red.get()).decode(), await outcome(red.head()))
            tenant.chmod(0o700)
            tell(await outcome(red.delete()))
        (folder / "root").chmod(0o000)
        tell(await outcome(FileArtifactStore(folder / "root").open()))
        (folder / "root").chmod(0o700)
    finally:
        shutil.rmtree(folder)


class CrashingStore(MemoryArtifactStore):
    async def put(self, requests: AsyncIterator[ArtifactStorePutRequest]) -> ArtifactStorePutResponse:
        async for request in requests:
            if request.header.key != "crash":
                break
            os._exit(1)
        return ArtifactStorePutResponse()

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        yield ArtifactStoreGetResponse()
        os._exit(1)


async def crashing_plugin(endpoint: str) -> None:
    """A plug-in whose process ends in the middle of a call."""
    await serve(
        name="crashing",
        version="1",
        artifact_store=CrashingStore(),
        endpoint=endpoint,
        on_ready=lambda _: tell("ready"),
    )


async def hostile_keys(root: str) -> None:
    """Every hostile key put, read and deleted by two tenants. Tells every path the process touched."""
    touched: set[str] = set()
    watched = {
        "open",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.link",
        "os.symlink",
        "sqlite3.connect",
    }
    async with FileArtifactStore(Path(root)) as store:

        def look(event: str, args: tuple[Any, ...]) -> None:
            if event in watched:
                paths = args[:2] if event == "os.rename" else args[:1]
                touched.update(str(path) for path in paths if not isinstance(path, int))

        sys.addaudithook(look)
        for tenant in ("red", "blue"):
            fixture = Fixture(store, Scope(tenant=tenant))
            for key in HOSTILE:
                with contextlib.suppress(TurndockError):
                    await fixture.put(key.encode(), key)
                    await fixture.get(key)
                    await fixture.put(b"again", key)
                    await fixture.head(key)
        for tenant in ("red", "blue"):
            fixture = Fixture(store, Scope(tenant=tenant))
            for key in HOSTILE[::2]:
                with contextlib.suppress(TurndockError):
                    await fixture.delete(key)
    tell(sorted(touched))


PROGRAMS: dict[str, Callable[..., Awaitable[None]]] = {
    program.__name__: program
    for program in (
        cut_put,
        cut_client,
        crash_at,
        storm,
        full_disk,
        size_limit,
        denied,
        crashing_plugin,
        hostile_keys,
    )
}

if __name__ == "__main__":
    asyncio.run(PROGRAMS[sys.argv[1]](*sys.argv[2:]))  # type: ignore[arg-type] # every program is a coroutine function
