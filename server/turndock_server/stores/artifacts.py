"""Rules every ArtifactStore of this package decides by, apart from where it keeps bytes."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from turndock import events as event_rules
from turndock import jsontext
from turndock.errors import TurndockError, invalid
from turndock.ports import ArtifactStore
from turndock.store.v1 import (
    ArtifactHeader,
    ArtifactStoreDeleteRequest,
    ArtifactStoreGetRequest,
    ArtifactStoreListRequest,
    ArtifactStorePutRequest,
    ArtifactStorePutResponse,
    DeleteSessionRequest,
)
from turndock.types.v1 import Artifact, Page, Scope
from turndock_server.stores import checks, rules

MAX_KEY_BYTES: Final = 1024
MAX_METADATA_BYTES: Final = 64 << 10
MAX_CHUNK_BYTES: Final = 1 << 20
"""Largest chunk taken in."""
CHUNK_BYTES: Final = 256 << 10
"""Size of the chunks given out."""
MAX_ARTIFACT_BYTES: Final = 1 << 30
"""Largest artifact unless a store is told otherwise."""

Row = tuple[int, Artifact]
"""An artifact and its place in the order in which keys were first put."""


@runtime_checkable
class SessionArtifacts(Protocol):
    """Ability of an ArtifactStore in the host's own process: rows by session, apart from their bytes.

    What SessionStore.DeleteSession and Maintenance need. `partition` is a name as `checks.partition` makes it.
    """

    async def forget_session(
        self,
        partition: str,
        session_id: str,
        *,
        delete_bytes: bool = False,
        stored_before_us: int | None = None,
        limit: int | None = None,
    ) -> Sequence[str]:
        """Take a session's rows away, with their bytes if asked to, and its retry tokens. Returns the rows' keys.

        Only rows stored before `stored_before_us` if that is set, and the first `limit` of them if that is; the
        retry tokens go with the last row. Repeatable. Raises `TurndockError` (STORAGE_ERROR); a session whose bytes
        could not all be deleted keeps the rows of those that are left.
        """
        ...

    async def sessions(self) -> Sequence[tuple[str, str]]:
        """Partition and id of every session that has rows, in that order."""
        ...


def forgetting(store: ArtifactStore) -> Callable[[DeleteSessionRequest], Awaitable[None]]:
    """Takes a deleted session's rows out of an artifact store that keeps them apart from the bytes."""

    async def forget(request: DeleteSessionRequest) -> None:
        if isinstance(store, SessionArtifacts):
            await store.forget_session(
                checks.partition(request), request.session_id, delete_bytes=request.delete_artifacts
            )
        elif request.delete_artifacts:
            scope = request.scope if request.HasField("scope") else None
            await delete_all_of(store, scope, request.session_id)

    return forget


async def delete_all_of(store: ArtifactStore, scope: Scope | None, session_id: str) -> None:
    """Delete a session's artifacts by the contract's own calls: what can be done with a store of any kind."""
    cursor = ""
    while True:
        request = ArtifactStoreListRequest(
            scope=scope, session_id=session_id, page=Page(limit=checks.MAX_ROWS, cursor=cursor)
        )
        page = await store.list(request)
        for artifact in page.artifacts:
            await store.delete(ArtifactStoreDeleteRequest(scope=scope, key=artifact.key))
        cursor = page.next_cursor
        if not cursor:
            return


@dataclass(frozen=True, slots=True)
class Answer:
    """What a retry token was used for, and what the call answered."""

    fingerprint: bytes
    session_id: str
    """The session the token lives as long as; empty = as long as the store."""
    response: bytes


class Content:
    """What has arrived of an upload, held against what its header announced."""

    def __init__(self, header: ArtifactHeader, max_bytes: int) -> None:
        """Raises `TurndockError` (LIMIT_EXCEEDED) when the header announces more than `max_bytes`."""
        self.size = 0
        self._header = header
        self._max_bytes = max_bytes
        self._hash = hashlib.sha256()
        self._check_limit(header.expected_size)

    @property
    def sha256(self) -> bytes:
        """Digest of what has arrived."""
        return self._hash.digest()

    def add(self, chunk: bytes) -> None:
        """Take the next bytes in. Raises `TurndockError` (LIMIT_EXCEEDED, DIGEST_MISMATCH) when they are too many."""
        self.size += len(chunk)
        self._check_limit(self.size)
        if self._header.HasField("expected_size") and self.size > self._header.expected_size:
            raise _mismatch("expected_size", f"{self._header.expected_size} bytes were announced, more came")
        self._hash.update(chunk)

    def check(self) -> None:
        """Refuse an upload that is at its end and not what was announced (DIGEST_MISMATCH)."""
        header = self._header
        if header.HasField("expected_size") and self.size != header.expected_size:
            raise _mismatch("expected_size", f"{header.expected_size} bytes were announced, {self.size} came")
        if header.expected_sha256 and self.sha256 != header.expected_sha256:
            raise _mismatch(
                "expected_sha256", f"{header.expected_sha256.hex()} was announced, {self.sha256.hex()} came"
            )

    def artifact(self) -> Artifact:
        """The row of what has arrived, as stored now."""
        return Artifact(
            key=self._header.key,
            session_id=self._header.session_id,
            size=self.size,
            sha256=self.sha256,
            media_type=self._header.media_type,
            metadata_json=self._header.metadata_json,
            stored_at_us=event_rules.now_us(),
        )

    def fingerprint(self) -> bytes:
        """Tells this upload from another one with the same retry token."""
        return rules.fingerprint(self._header) + self.sha256

    def _check_limit(self, size: int) -> None:
        if size > self._max_bytes:
            raise TurndockError(
                "LIMIT_EXCEEDED",
                f"an artifact is at most {self._max_bytes} bytes here",
                metadata={"limit": "max_artifact_bytes", "max_artifact_bytes": str(self._max_bytes)},
            )


async def read_header(requests: AsyncIterator[ArtifactStorePutRequest]) -> ArtifactHeader:
    """The header an upload begins with. Raises `TurndockError` (VALIDATION_ERROR)."""
    async for first in requests:
        if first.WhichOneof("part") != "header":
            break
        check_header(first.header)
        return first.header
    raise invalid("header", "must be the first message")


def chunk_of(message: ArtifactStorePutRequest) -> bytes:
    """The bytes in a message that follows an upload's header. Raises `TurndockError` (VALIDATION_ERROR)."""
    if message.WhichOneof("part") != "chunk":
        raise invalid("chunk", "must be what every message after the first carries")
    if len(message.chunk) > MAX_CHUNK_BYTES:
        raise invalid("chunk", f"is {len(message.chunk)} bytes; the limit is {MAX_CHUNK_BYTES}")
    return message.chunk


def check_header(header: ArtifactHeader) -> None:
    """Refuse an upload that must not be stored, whatever its bytes."""
    checks.partition(header, "header.scope")
    checks.check_request_id(header.request_id)
    check_key(header.key, "header.key")
    if header.session_id:
        checks.check_session_id(header.session_id, "header.session_id")
    if len(header.metadata_json.encode()) > MAX_METADATA_BYTES:
        raise invalid("header.metadata_json", f"is longer than {MAX_METADATA_BYTES} bytes")
    jsontext.check_object(header.metadata_json, "header.metadata_json")
    if len(header.expected_sha256) not in {0, hashlib.sha256().digest_size}:
        raise invalid("header.expected_sha256", "must be the 32 bytes of a SHA-256, or empty")


def check_delete(request: ArtifactStoreDeleteRequest) -> str:
    """Refuse a deletion of what cannot be. Returns its partition."""
    checks.check_request_id(request.request_id)
    check_key(request.key)
    return checks.partition(request)


def check_list(request: ArtifactStoreListRequest) -> str:
    """Refuse a filter that fits no row. Returns its partition."""
    if request.session_id:
        checks.check_session_id(request.session_id)
    return checks.partition(request)


def check_key(key: str, field: str = "key") -> None:
    """Refuse what is no key: any other text is one, whatever it would mean elsewhere."""
    if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
        raise invalid(field, f"must be 1 to {MAX_KEY_BYTES} bytes of UTF-8")


def range_of(request: ArtifactStoreGetRequest, size: int) -> tuple[int, int]:
    """First byte to read of a content of that size, and the byte to stop before."""
    if request.offset > size:
        raise invalid("offset", f"is beyond the content, which is {size} bytes")
    stop = min(size, request.offset + request.length) if request.HasField("length") else size
    return request.offset, stop


def is_whole(request: ArtifactStoreGetRequest) -> bool:
    """Whether all bytes are asked for, so that they can be held against their digest."""
    return not request.offset and not request.HasField("length")


def delete_fingerprint(request: ArtifactStoreDeleteRequest) -> bytes:
    """Tells this deletion from another call with the same retry token."""
    return rules.fingerprint(request)


def repeated(request_id: str, fingerprint: bytes, known: Answer | None) -> bytes | None:
    """The stored answer to a repeated call; None for a new one. Raises IDEMPOTENCY_CONFLICT for a token used up."""
    if known is None:
        return None
    if known.fingerprint != fingerprint:
        raise rules.token_conflict(request_id)
    return known.response


def kept(
    header: ArtifactHeader, content: Content, current: Artifact | None
) -> ArtifactStorePutResponse | None:
    """The answer to an `if_absent` upload of what is there already; None if it is to be stored.

    Raises `TurndockError` (ALREADY_EXISTS) when other bytes are there.
    """
    if not header.if_absent or current is None:
        return None
    if current.sha256 != content.sha256:
        raise TurndockError(
            "ALREADY_EXISTS", f"artifact {header.key!r} has other bytes", metadata={"key": header.key}
        )
    return ArtifactStorePutResponse(artifact=current, duplicate=True)


def without_row(artifact: Artifact) -> Artifact:
    """What is known of bytes whose row is gone."""
    return Artifact(
        key=artifact.key, size=artifact.size, sha256=artifact.sha256, stored_at_us=artifact.stored_at_us
    )


def cut(rows: Iterable[Row], limit: int) -> tuple[list[Row], bool]:
    """The rows of a page, and whether more follow. A page ends by count or by bytes; its first row is always there."""
    page: list[Row] = []
    room = checks.MAX_PAGE_BYTES
    for row in rows:
        room -= row[1].ByteSize()
        if len(page) == limit or (page and room < 0):
            return page, True
        page.append(row)
    return page, False


def damaged(key: str, what: str) -> TurndockError:
    """The error for bytes that are not what was stored."""
    return TurndockError(
        "STORAGE_ERROR", f"the bytes of artifact {key!r} {what}; put them again", metadata={"key": key}
    )


def _mismatch(field: str, description: str) -> TurndockError:
    return invalid(f"header.{field}", description, reason="DIGEST_MISMATCH")
