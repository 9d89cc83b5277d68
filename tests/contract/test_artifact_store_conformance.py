"""Every artifact store passes every case of its contract, and stores that are broken on purpose do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.artifact_mutants import MUTANTS, Mutant
from support.artifacts import as_red, behind_grpc
from turndock.conformance.artifact_store import SUITE, Fixture
from turndock.errors import TurndockError
from turndock.ports import ArtifactStore
from turndock_server.stores.files import FileArtifactStore
from turndock_server.stores.isolated import IsolatedArtifactStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

SKIPS: Mapping[str, str] = {}
"""Cases that are left out, and why. None is."""


@pytest.fixture(params=["memory", "files"])
async def local_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ArtifactStore]:
    if request.param == "memory":
        yield MemoryArtifactStore()
    else:
        async with FileArtifactStore(tmp_path / "root") as store:
            yield store


@pytest.fixture(params=["direct", "grpc", "isolated"])
async def store(request: pytest.FixtureRequest, local_store: ArtifactStore) -> AsyncIterator[ArtifactStore]:
    async with AsyncExitStack() as stack:
        if request.param == "direct":
            yield local_store
        elif request.param == "grpc":
            yield await stack.enter_async_context(behind_grpc(local_store))
        else:
            remote = await stack.enter_async_context(behind_grpc(local_store))
            yield IsolatedArtifactStore(remote)


@pytest.mark.parametrize("case", [case.name for case in SUITE])
async def test_an_artifact_store_keeps_its_contract(case: str, store: ArtifactStore) -> None:
    report = await SUITE.run(lambda: Fixture(store), abilities=(), skips=SKIPS, only=[case])
    assert report.is_conformant, str(report)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.store.__name__}-{mutant.fails}")
async def test_a_broken_store_fails_by_the_case_that_says_so(mutant: Mutant) -> None:
    store = mutant.store()
    report = await SUITE.run(lambda: Fixture(store), abilities=(), only=[mutant.fails])
    assert [failure.name for failure in report.failures] == [mutant.fails], str(report)
    assert "Traceback" not in report.failures[0].detail, "The case must say in a sentence what is wrong."


def test_the_cases_cover_the_requirements() -> None:
    covered = {requirement for case in SUITE for requirement in case.requirements}
    assert {"A-01", "A-02", "A-06", "PF-B35", "PF-E15", "PF-B07", "P-13"} <= covered
    assert len(SUITE) >= 25


async def test_A_01_the_later_put_is_read_and_bytes_are_bytes(store: ArtifactStore) -> None:
    red = as_red(store)
    await red.put(b"original")
    await red.put(b"updated")
    assert await red.get() == b"updated"
    await red.put(bytes(range(256)) * 4, "1024")
    assert await red.get("1024") == bytes(range(256)) * 4
    await red.upload(red.header("chunks"), b"hello", b" ", b"world")
    assert await red.get("chunks") == b"hello world"
    await red.put(b"", "empty")
    assert await red.get("empty") == b""


async def test_A_02_missing_is_not_found_and_deleting_is_repeatable(store: ArtifactStore) -> None:
    red = as_red(store)
    with pytest.raises(TurndockError) as missing:
        await red.get("missing")
    assert missing.value.reason == "NOT_FOUND"
    await red.delete("missing")
    await red.put(b"bytes")
    await red.delete()
    await red.delete()
    with pytest.raises(TurndockError) as deleted:
        await red.get()
    assert deleted.value.reason == "NOT_FOUND"


async def test_A_06_rows_are_listed_counted_and_hidden_by_delete(store: ArtifactStore) -> None:
    red = as_red(store)
    await red.put(b"a" * 100, "a.txt", session_id="ses_1")
    await red.put(b"b" * 200, "b.txt", session_id="ses_1")
    listed = await red.list("ses_1")
    assert [artifact.key for artifact in listed.artifacts] == ["a.txt", "b.txt"]
    assert (listed.total_count, listed.total_bytes) == (2, 300)
    unknown = await red.list("unknown")
    assert (list(unknown.artifacts), unknown.total_count, unknown.total_bytes) == ([], 0, 0)
    assert await red.head("missing") is None
    for _ in range(2):
        await red.delete("a.txt")
        assert await red.head("a.txt") is None
        listed = await red.list("ses_1")
        assert ([artifact.key for artifact in listed.artifacts], listed.total_count) == (["b.txt"], 1)
