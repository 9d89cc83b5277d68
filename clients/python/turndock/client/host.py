"""Calls of a server that may be made again: each with the caller's credentials, a deadline, and bounded retries.

A mutating call carries a request id that is chosen once, so that a retry finds the answer of the try before it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import grpc
import grpc.aio

from turndock import wire
from turndock.agent.v1 import GetServerInfoRequest
from turndock.agent.v1.agent_host_pb2_grpc import AgentHostStub
from turndock.errors import Code, TurndockError, invalid
from turndock.types.v1 import Scope

DEFAULT_ENDPOINT: Final = "127.0.0.1:7420"
"""Where a server listens unless it is told otherwise."""

DEFAULT_TIMEOUT_S: Final = 10.0
"""How long a call that waits for no turn may take, all its tries together."""

Request = TypeVar("Request")
Response = TypeVar("Response")
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and after which pauses, a call is made again when the server could not be reached.

    The pauses double from `first_pause` to `longest_pause`, in seconds; each is shortened at random by up to half.
    """

    tries: int = 8
    """All tries of a call, the first included."""
    first_pause: float = 0.1
    longest_pause: float = 3.0

    def pause(self, failures: int, error: TurndockError) -> float:
        """Seconds to wait after so many failures in a row, or as long as the error asks for."""
        pause = min(self.longest_pause, self.first_pause * 2.0 ** (failures - 1))
        return max((error.retry_after_ms or 0) / 1000, pause * random.uniform(0.5, 1.0))


class HostCalls:
    """A server, and how to call it."""

    def __init__(
        self,
        endpoint: str,
        *,
        token: str,
        scope: str | None,
        credentials: grpc.ChannelCredentials | None,
        insecure: bool,
        retry: Retry,
        timeout: float,
    ) -> None:
        where = wire.parse_endpoint(endpoint)
        if token and credentials is None and not (where.is_local or where.tls or insecure):
            raise invalid("token", "would travel unencrypted; use grpcs://, pass tls, or insecure=True")
        self.retry = retry
        self.timeout = timeout
        self.metadata = _metadata(token, scope)
        self.channel = wire.connect(where, credentials=credentials)
        self.stub = AgentHostStub(self.channel)
        self._scope: Scope | None = None
        self._scope_is_known = False

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout: float | None,
    ) -> Response:
        """Make a call, again as long as the server cannot be reached. `timeout` bounds all tries; None = no bound.

        Raises `TurndockError`: what the server answered, or UNAVAILABLE or TIMEOUT.
        """
        now = asyncio.get_running_loop().time
        deadline = None if timeout is None else now() + timeout
        failures = 0
        while True:
            left = None if deadline is None else max(0.0, deadline - now())
            try:
                with wire.translated():
                    return await method(request, metadata=self.metadata, timeout=left)
            except TurndockError as error:
                failures += 1
                if not unreachable(error) or failures >= self.retry.tries:
                    raise
                pause = self.retry.pause(failures, error)
                if deadline is not None and now() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def quick(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Request, Response], request: Request
    ) -> Response:
        """Make a call that waits for no turn. Raises as `call`."""
        return await self.call(method, request, timeout=self.timeout)

    async def own_scope(self) -> Scope | None:
        """The scope that requests to the server's stores must name; asked for once. Raises as `call`."""
        if not self._scope_is_known:
            info = await self.quick(self.stub.GetServerInfo, GetServerInfoRequest())
            self._scope = info.scope if info.HasField("scope") else None
            self._scope_is_known = True
        return self._scope


def read_token(path: Path) -> str:
    """The token in a file, without the blanks around it. Raises `TurndockError` (VALIDATION_ERROR)."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise invalid("token_file", f"cannot read {path}: {why}") from None
    if not token:
        raise invalid("token_file", f"{path} is empty")
    return token


def unreachable(error: TurndockError) -> bool:
    """Whether a server was not reached, or could not take a call just now."""
    return error.code is Code.UNAVAILABLE


async def rows_of(read_page: Callable[[str], Awaitable[tuple[Sequence[Row], str]]]) -> AsyncIterator[Row]:
    """All rows of a list, page by page; `read_page` returns the rows at a cursor and the cursor of the next page."""
    cursor = ""
    while True:
        rows, cursor = await read_page(cursor)
        for row in rows:
            yield row
        if not cursor:
            return


def _metadata(token: str, scope: str | None) -> tuple[tuple[str, str], ...]:
    metadata: list[tuple[str, str]] = []
    if token:
        metadata.append((wire.AUTHORIZATION, wire.bearer(token)))
    if scope is not None:
        metadata.append((wire.SCOPE, wire.encode_tenant(scope)))
    return tuple(metadata)
