"""The suite of `ArtifactStore` and what its cases get."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from turndock.conformance.cases import Suite
from turndock.conformance.claims import ContractBroken, holds
from turndock.ports import ArtifactStore
from turndock.store.v1 import (
    ArtifactHeader,
    ArtifactStoreDeleteRequest,
    ArtifactStoreGetRequest,
    ArtifactStoreGetResponse,
    ArtifactStoreHeadRequest,
    ArtifactStoreListRequest,
    ArtifactStoreListResponse,
    ArtifactStorePutRequest,
    ArtifactStorePutResponse,
)
from turndock.types.v1 import Artifact, Page, Scope

KIB: Final = 1 << 10
MIB: Final = 1 << 20
CHUNK_BYTES: Final = 256 * KIB
"""Size of the chunks in which cases send what they do not cut themselves."""
MIN_CHUNK_BYTES: Final = 64 * KIB
MAX_CHUNK_BYTES: Final = MIB
MAX_MESSAGE_BYTES: Final = 4 * MIB
"""What gRPC lets through unless it is told otherwise."""


@dataclass(frozen=True)
class Fixture:
    """One store, one fresh partition of it, and short ways to say what a case does."""

    store: ArtifactStore
    scope: Scope | None = field(default_factory=lambda: Scope(tenant=f"conformance-{uuid.uuid4().hex}"))

    def other(self) -> Fixture:
        """The same store in another fresh partition."""
        return Fixture(self.store)

    def within(self, scope: Scope | None) -> Fixture:
        """The same store in this partition; None is the unscoped one."""
        return replace(self, scope=scope)

    def header(self, key: str = "k", **fields: Any) -> ArtifactHeader:
        """What an upload begins with."""
        return ArtifactHeader(scope=self.scope, key=key, **fields)

    async def put(self, data: bytes = b"", key: str = "k", **fields: Any) -> ArtifactStorePutResponse:
        """Put, in chunks."""
        return await self.upload(self.header(key, **fields), *chunks(data))

    async def upload(self, *parts: ArtifactHeader | bytes) -> ArtifactStorePutResponse:
        """Put, with these parts."""
        return await self.store.put(stream(*parts))

    async def get(self, key: str = "k", **fields: Any) -> bytes:
        """Get; the bytes, after a look at how they came."""
        return (await self.read(key, **fields))[1]

    async def read(self, key: str = "k", **fields: Any) -> tuple[Artifact, bytes]:
        """Get; the row and the bytes, after a look at how they came."""
        request = ArtifactStoreGetRequest(scope=self.scope, key=key, **fields)
        return joined([message async for message in self.store.get(request)])

    async def delete(self, key: str = "k", **fields: Any) -> None:
        """Delete."""
        await self.store.delete(ArtifactStoreDeleteRequest(scope=self.scope, key=key, **fields))

    async def head(self, key: str = "k") -> Artifact | None:
        """Head; the row, if there is one."""
        response = await self.store.head(ArtifactStoreHeadRequest(scope=self.scope, key=key))
        return response.artifact if response.HasField("artifact") else None

    async def list(self, session_id: str = "", **page: Any) -> ArtifactStoreListResponse:
        """List; a page."""
        request = ArtifactStoreListRequest(scope=self.scope, session_id=session_id, page=Page(**page))
        return await self.store.list(request)

    async def pages(self, session_id: str = "", limit: int = 2) -> tuple[ArtifactStoreListResponse, ...]:
        """List, every page."""
        page = await self.list(session_id, limit=limit)
        pages = [page]
        while page.next_cursor:
            page = await self.list(session_id, limit=limit, cursor=page.next_cursor)
            pages.append(page)
        return tuple(pages)

    async def keys(self, session_id: str = "", limit: int = 2) -> tuple[str, ...]:
        """List, every page; the keys."""
        pages = await self.pages(session_id, limit)
        return tuple(artifact.key for page in pages for artifact in page.artifacts)


SUITE: Final = Suite[Fixture]("ArtifactStore")
"""Every case of the contract."""


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes without a pattern, the same for the same seed."""
    return random.Random(seed).randbytes(size)


def chunks(data: bytes) -> Iterable[bytes]:
    """The pieces in which data is sent."""
    return (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))


def message(part: ArtifactHeader | bytes) -> ArtifactStorePutRequest:
    """A message of an upload."""
    if isinstance(part, bytes):
        return ArtifactStorePutRequest(chunk=part)
    return ArtifactStorePutRequest(header=part)


async def stream(*parts: ArtifactHeader | bytes) -> AsyncIterator[ArtifactStorePutRequest]:
    """An upload."""
    for part in parts:
        yield message(part)


def joined(received: Iterable[ArtifactStoreGetResponse]) -> tuple[Artifact, bytes]:
    """The row and the bytes a download carried, which must have come as the contract says."""
    messages = list(received)
    kinds = [message.WhichOneof("part") for message in messages]
    if not kinds or kinds[0] != "artifact" or set(kinds[1:]) - {"chunk"}:
        raise ContractBroken(f"A download is an artifact, then chunks; it was {kinds}.")
    pieces = [message.chunk for message in messages[1:]]
    for piece in pieces[:-1]:
        holds(
            MIN_CHUNK_BYTES <= len(piece) <= MAX_CHUNK_BYTES,
            f"A chunk has 64 KiB to 1 MiB; one before the last has {len(piece)} bytes.",
        )
    if pieces:
        holds(1 <= len(pieces[-1]) <= MAX_CHUNK_BYTES, f"The last chunk has {len(pieces[-1])} bytes.")
    return messages[0].artifact, b"".join(pieces)


def same_bytes(actual: bytes, expected: bytes, sentence: str) -> None:
    """Fail with the sentence unless the bytes are equal; says where they differ instead of printing them."""
    if actual == expected:
        return
    differs = next(
        (at for at, (got, put) in enumerate(zip(actual, expected, strict=False)) if got != put), None
    )
    where = "one is the beginning of the other" if differs is None else f"they differ from byte {differs} on"
    raise ContractBroken(f"{sentence}\n  {len(actual)} bytes were read, {len(expected)} were put; {where}.")
