"""An ArtifactStore that keeps bytes in memory, with the semantics of those that last."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from turndock.errors import not_found
from turndock.store.v1 import (
    ArtifactHeader,
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
from turndock_server.stores import artifacts, checks
from turndock_server.stores.artifacts import Answer, Content
from turndock_server.stores.cursors import PageCodec


@dataclass(frozen=True, slots=True)
class _Entry:
    place: int
    listed: bool
    artifact: Artifact
    data: bytes


class MemoryArtifactStore:
    """Keeps bytes as long as the process lives. Offers `SessionArtifacts`.

    Every change happens in one step of the event loop, so no call sees half of another.
    """

    def __init__(self, *, max_artifact_bytes: int = artifacts.MAX_ARTIFACT_BYTES) -> None:
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._answers: dict[tuple[str, str], Answer] = {}
        self._last_place = 0
        self._max_bytes = max_artifact_bytes

    async def put(self, requests: AsyncIterator[ArtifactStorePutRequest]) -> ArtifactStorePutResponse:
        header = await artifacts.read_header(requests)
        content = Content(header, self._max_bytes)
        data = bytearray()
        async for message in requests:
            chunk = artifacts.chunk_of(message)
            content.add(chunk)
            data += chunk
        content.check()
        return self._put(header, content, bytes(data))

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        artifacts.check_key(request.key)
        entry = self._entries.get((checks.partition(request), request.key))
        if entry is None:
            raise not_found("artifact", request.key)
        start, stop = artifacts.range_of(request, entry.artifact.size)
        yield ArtifactStoreGetResponse(artifact=entry.artifact)
        for offset in range(start, stop, artifacts.CHUNK_BYTES):
            yield ArtifactStoreGetResponse(
                chunk=entry.data[offset : min(offset + artifacts.CHUNK_BYTES, stop)]
            )

    async def delete(self, request: ArtifactStoreDeleteRequest) -> ArtifactStoreDeleteResponse:
        partition = artifacts.check_delete(request)
        token = (partition, request.request_id)
        fingerprint = artifacts.delete_fingerprint(request)
        if artifacts.repeated(request.request_id, fingerprint, self._answers.get(token)) is None:
            entry = self._entries.pop((partition, request.key), None)
            session_id = entry.artifact.session_id if entry else ""
            self._remember(token, Answer(fingerprint, session_id, b""))
        return ArtifactStoreDeleteResponse()

    async def head(self, request: ArtifactStoreHeadRequest) -> ArtifactStoreHeadResponse:
        artifacts.check_key(request.key)
        entry = self._entries.get((checks.partition(request), request.key))
        return ArtifactStoreHeadResponse(artifact=entry.artifact if entry and entry.listed else None)

    async def list(self, request: ArtifactStoreListRequest) -> ArtifactStoreListResponse:
        partition = artifacts.check_list(request)
        limit = checks.page_limit(request.page)
        codec = PageCodec("ArtifactStore.List", partition, request)
        place = codec.decode(request.page.cursor)
        after = int(place[0]) if place else 0
        rows = sorted(self._rows(partition, request.session_id), key=lambda entry: entry.place)
        later = ((entry.place, entry.artifact) for entry in rows if entry.place > after)
        page, more = artifacts.cut(later, limit)
        return ArtifactStoreListResponse(
            artifacts=[artifact for _, artifact in page],
            next_cursor=codec.encode((page[-1][0],)) if more else "",
            total_count=len(rows),
            total_bytes=sum(entry.artifact.size for entry in rows),
        )

    async def forget_session(
        self,
        partition: str,
        session_id: str,
        *,
        delete_bytes: bool = False,
        stored_before_us: int | None = None,
        limit: int | None = None,
    ) -> Sequence[str]:
        checks.check_session_id(session_id)
        entries = sorted(self._rows(partition, session_id), key=lambda entry: entry.place)
        if stored_before_us is not None:
            entries = [entry for entry in entries if entry.artifact.stored_at_us < stored_before_us]
        entries = entries[:limit]
        for entry in entries:
            key = (partition, entry.artifact.key)
            if delete_bytes:
                del self._entries[key]
            else:
                bare = artifacts.without_row(entry.artifact)
                self._entries[key] = _Entry(entry.place, False, bare, entry.data)
        if not any(self._rows(partition, session_id)):
            for token, answer in list(self._answers.items()):
                if token[0] == partition and answer.session_id == session_id:
                    del self._answers[token]
        return [entry.artifact.key for entry in entries]

    async def sessions(self) -> Sequence[tuple[str, str]]:
        return sorted(
            {
                (partition, entry.artifact.session_id)
                for (partition, _), entry in self._entries.items()
                if entry.listed and entry.artifact.session_id
            }
        )

    def _put(self, header: ArtifactHeader, content: Content, data: bytes) -> ArtifactStorePutResponse:
        partition = checks.partition(header)
        token = (partition, header.request_id)
        fingerprint = content.fingerprint()
        stored = artifacts.repeated(header.request_id, fingerprint, self._answers.get(token))
        if stored is not None:
            return ArtifactStorePutResponse.FromString(stored)
        key = (partition, header.key)
        entry = self._entries.get(key)
        response = artifacts.kept(header, content, entry.artifact if entry else None)
        if response is None:
            response = ArtifactStorePutResponse(artifact=content.artifact())
            self._entries[key] = _Entry(
                entry.place if entry else self._next_place(), True, response.artifact, data
            )
        self._remember(token, Answer(fingerprint, header.session_id, response.SerializeToString()))
        return response

    def _remember(self, token: tuple[str, str], answer: Answer) -> None:
        if token[1]:
            self._answers[token] = answer

    def _rows(self, partition: str, session_id: str) -> Iterable[_Entry]:
        return (
            entry
            for (owner, _), entry in self._entries.items()
            if owner == partition
            and entry.listed
            and (not session_id or entry.artifact.session_id == session_id)
        )

    def _next_place(self) -> int:
        self._last_place += 1
        return self._last_place
