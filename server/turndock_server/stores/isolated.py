"""An ArtifactStore whose failures stay its own: what else it is made of, a plug-in's process say, callers never see."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

from turndock.errors import Code, TurndockError
from turndock.ports import ArtifactStore
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

TIMEOUT_S: Final = 30.0
"""How long a store may be silent before a call is given up."""

ANSWERS: Final[Mapping[str, frozenset[Code]]] = {
    "Put": frozenset({Code.INVALID_ARGUMENT, Code.ALREADY_EXISTS, Code.RESOURCE_EXHAUSTED}),
    "Get": frozenset({Code.INVALID_ARGUMENT, Code.NOT_FOUND}),
    "Delete": frozenset({Code.INVALID_ARGUMENT, Code.ALREADY_EXISTS}),
    "Head": frozenset({Code.INVALID_ARGUMENT}),
    "List": frozenset({Code.INVALID_ARGUMENT}),
}
"""What a call may be refused with, because of what was asked. Everything else is trouble of the store."""

TROUBLE: Final = frozenset({"STORAGE_ERROR", "STORAGE_CONNECTION_FAILED", "STORAGE_BUSY"})
"""What a store itself says about its trouble."""

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class IsolatedArtifactStore:
    """Passes calls on to a store and answers STORAGE_ERROR for whatever goes wrong there.

    A crashed process, a broken connection, missing rights, silence for `timeout` seconds, an exception nobody foresaw:
    one call fails, with `cause` in its metadata, and nothing else is touched. A caller who is slow to send or to read
    is not the store's fault and costs it no time.
    """

    def __init__(self, store: ArtifactStore, *, timeout: float = TIMEOUT_S) -> None:
        self._store = store
        self._timeout = timeout

    async def put(self, requests: AsyncIterator[ArtifactStorePutRequest]) -> ArtifactStorePutResponse:
        source = _Source(requests, self._timeout)
        with _isolated("Put", source):
            async with asyncio.timeout(self._timeout) as patience:
                source.patience = patience
                try:
                    return await self._store.put(source)
                finally:
                    source.patience = None

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        responses = self._store.get(request)
        try:
            while True:
                with _isolated("Get"):
                    async with asyncio.timeout(self._timeout):
                        response = await anext(responses, None)
                if response is None:
                    return
                yield response
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(responses, "aclose", None)
            if close is not None:
                await close()

    async def delete(self, request: ArtifactStoreDeleteRequest) -> ArtifactStoreDeleteResponse:
        return await self._call("Delete", self._store.delete(request))

    async def head(self, request: ArtifactStoreHeadRequest) -> ArtifactStoreHeadResponse:
        return await self._call("Head", self._store.head(request))

    async def list(self, request: ArtifactStoreListRequest) -> ArtifactStoreListResponse:
        return await self._call("List", self._store.list(request))

    async def _call(self, name: str, call: Awaitable[_Result]) -> _Result:
        with _isolated(name):
            async with asyncio.timeout(self._timeout):
                return await call


class _Source:
    """The caller's upload. While it waits for the caller, the store's time stands still."""

    def __init__(self, requests: AsyncIterator[ArtifactStorePutRequest], timeout: float) -> None:
        self._requests = requests
        self._timeout = timeout
        self.patience: asyncio.Timeout | None = None
        self.error: Exception | None = None
        """What the caller's own stream raised."""

    def __aiter__(self) -> AsyncIterator[ArtifactStorePutRequest]:
        return self

    async def __anext__(self) -> ArtifactStorePutRequest:
        self._give_up_at(None)
        try:
            return await anext(self._requests)
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.error = error
            raise
        finally:
            self._give_up_at(asyncio.get_running_loop().time() + self._timeout)

    def _give_up_at(self, when: float | None) -> None:
        if self.patience is not None and not self.patience.expired():
            self.patience.reschedule(when)


@contextmanager
def _isolated(call: str, source: _Source | None = None) -> Generator[None]:
    try:
        yield
    except Exception as error:
        if _is_answer(call, error) or (source is not None and error is source.error):
            raise
        cause, what = _said_by(error)
        _log.warning("ArtifactStore.%s failed", call, exc_info=error)
        raise TurndockError(
            "STORAGE_ERROR", f"the artifact store failed: {what}", metadata={"cause": cause}
        ) from error


def _is_answer(call: str, error: Exception) -> bool:
    return isinstance(error, TurndockError) and (error.reason in TROUBLE or error.code in ANSWERS[call])


def _said_by(error: Exception) -> tuple[str, str]:
    if isinstance(error, TurndockError):
        return error.reason, error.message
    if isinstance(error, TimeoutError):
        return "TIMEOUT", "it did not answer in time"
    return type(error).__name__, "it raised an exception, which the log has"
