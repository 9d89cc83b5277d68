"""Whatever an artifact store does, those who call it get an answer the contract knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from support.artifacts import as_red, behind_grpc
from turndock.conformance.artifact_store import Fixture
from turndock.conformance.artifact_store.suite import message
from turndock.errors import TurndockError
from turndock.store.v1 import (
    ArtifactStoreDeleteRequest,
    ArtifactStoreDeleteResponse,
    ArtifactStoreGetRequest,
    ArtifactStoreGetResponse,
    ArtifactStoreHeadRequest,
    ArtifactStoreHeadResponse,
    ArtifactStoreListRequest,
    ArtifactStoreListResponse,
    ArtifactStorePutRequest,
    ArtifactStorePutResponse,
)
from turndock.types.v1 import Artifact
from turndock_server.stores.isolated import IsolatedArtifactStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

SHORT_S = 0.2


class TroubledStore:
    """Does the same thing in every call."""

    def __init__(self, do: Callable[[], Awaitable[object]]) -> None:
        self._do = do

    async def put(self, requests: AsyncIterator[ArtifactStorePutRequest]) -> ArtifactStorePutResponse:
        async for _ in requests:
            pass
        await self._do()
        return ArtifactStorePutResponse()

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        yield ArtifactStoreGetResponse(artifact=Artifact(key=request.key))
        await self._do()

    async def delete(self, request: ArtifactStoreDeleteRequest) -> ArtifactStoreDeleteResponse:
        await self._do()
        return ArtifactStoreDeleteResponse()

    async def head(self, request: ArtifactStoreHeadRequest) -> ArtifactStoreHeadResponse:
        await self._do()
        return ArtifactStoreHeadResponse()

    async def list(self, request: ArtifactStoreListRequest) -> ArtifactStoreListResponse:
        await self._do()
        return ArtifactStoreListResponse()


def raising(error: Exception) -> Callable[[], Awaitable[object]]:
    async def do() -> None:
        raise error

    return do


async def never() -> None:
    await asyncio.Event().wait()


def calls_of(red: Fixture) -> dict[str, Callable[[], Awaitable[object]]]:
    return {"Put": red.put, "Get": red.get, "Delete": red.delete, "Head": red.head, "List": red.list}


async def answers(do: Callable[[], Awaitable[object]]) -> dict[str, str]:
    """What each call of a troubled store behind gRPC is answered with."""
    found: dict[str, str] = {}
    async with behind_grpc(TroubledStore(do)) as remote:
        red = as_red(IsolatedArtifactStore(remote, timeout=SHORT_S))
        for name, call in calls_of(red).items():
            with pytest.raises(TurndockError) as error:
                await call()
            found[name] = error.value.reason
            if error.value.reason == "STORAGE_ERROR":
                assert error.value.metadata["cause"]
    return found


def every(reason: str) -> dict[str, str]:
    return dict.fromkeys(("Put", "Get", "Delete", "Head", "List"), reason)


async def test_A_04_a_store_that_does_not_answer_in_time_is_a_storage_error() -> None:
    assert await answers(never) == every("STORAGE_ERROR")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("secret of the store"),
        PermissionError("access denied"),
        TurndockError("PERMISSION_DENIED", "access denied"),
        TurndockError("UNAUTHENTICATED", "who are you"),
        TurndockError("SESSION_NOT_FOUND", "no"),
        TurndockError("CANCELLED", "no"),
        TurndockError("PLUGIN_UNAVAILABLE", "starting"),
        TurndockError("AGENT_BUSY", "no"),
        TurndockError("CAPABILITY_NOT_SUPPORTED", "no"),
        TurndockError("SOMETHING_NEW", "no"),
    ],
    ids=lambda error: getattr(error, "reason", type(error).__name__),
)
async def test_A_04_whatever_the_contract_does_not_know_is_a_storage_error(error: Exception) -> None:
    expected = every("STORAGE_ERROR")
    if isinstance(error, TurndockError) and error.reason == "SESSION_NOT_FOUND":
        expected["Get"] = error.reason  # Get may answer NOT_FOUND; the other calls never do
    assert await answers(raising(error)) == expected


@pytest.mark.parametrize(
    "reason", ["STORAGE_ERROR", "STORAGE_CONNECTION_FAILED", "STORAGE_BUSY", "VALIDATION_ERROR"]
)
async def test_what_the_contract_knows_passes(reason: str) -> None:
    async with behind_grpc(TroubledStore(raising(TurndockError(reason, "no")))) as remote:
        for call in calls_of(as_red(IsolatedArtifactStore(remote))).values():
            with pytest.raises(TurndockError) as error:
                await call()
            assert error.value.reason == reason


async def test_the_text_of_an_exception_goes_to_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    red = as_red(IsolatedArtifactStore(TroubledStore(raising(RuntimeError("a secret")))))
    with pytest.raises(TurndockError) as error:
        await red.head()
    assert error.value.metadata == {"cause": "RuntimeError"}
    assert "a secret" not in str(error.value)
    assert "a secret" in caplog.text


class MyOwn(Exception):
    pass


@pytest.mark.parametrize("error", [MyOwn(), TimeoutError(), TurndockError("NOT_FOUND", "not yours")])
@pytest.mark.parametrize("remote", [False, True])
async def test_what_the_callers_own_stream_raises_is_no_fault_of_the_store(
    error: Exception, remote: bool
) -> None:
    async def broken() -> AsyncIterator[ArtifactStorePutRequest]:
        yield message(as_red(MemoryArtifactStore()).header())
        raise error

    store = MemoryArtifactStore()
    async with behind_grpc(store) as channelled:
        isolated = IsolatedArtifactStore(channelled if remote else store)
        with pytest.raises(type(error)) as raised:
            await isolated.put(broken())
        assert raised.value is error


@pytest.mark.parametrize("remote", [False, True])
async def test_a_slow_caller_costs_the_store_no_time(remote: bool) -> None:
    store = MemoryArtifactStore()
    async with behind_grpc(store) as channelled:
        isolated = IsolatedArtifactStore(channelled if remote else store, timeout=SHORT_S)
        red = as_red(isolated)

        async def slow() -> AsyncIterator[ArtifactStorePutRequest]:
            yield message(red.header())
            for piece in (b"x" * 300_000, b"slow"):
                await asyncio.sleep(1.5 * SHORT_S)  # what is tested is time itself
                yield message(piece)

        await isolated.put(slow())
        parts = isolated.get(ArtifactStoreGetRequest(scope=red.scope, key="k"))
        received = b""
        async for part in parts:
            received += part.chunk
            await asyncio.sleep(1.5 * SHORT_S)  # what is tested is time itself
        assert received == b"x" * 300_000 + b"slow"


async def test_cancelling_a_call_is_no_trouble_of_the_store() -> None:
    red = as_red(IsolatedArtifactStore(TroubledStore(never)))
    for call in calls_of(red).values():
        task = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_channel_that_is_closed_is_a_storage_error() -> None:
    async with behind_grpc(MemoryArtifactStore()) as remote:
        red = as_red(IsolatedArtifactStore(remote))
        await red.put(b"bytes")
    for call in calls_of(red).values():
        with pytest.raises(TurndockError, match="STORAGE_ERROR"):
            await call()
