"""An ArtifactStore that keeps bytes in local files.

    root/index.sqlite3                                   rows and retry tokens
    root/objects/<digest of tenant>/<digest of key>-<16 random digits>         the bytes of one Put
    root/objects/<digest of tenant>/<digest of key>-<16 random digits>.part    … while they arrive

A Put writes a new file, syncs it, renames it to its name, syncs the folder, and then commits the index; only after
that the file it replaces goes. So a crash at any moment leaves the old content or the new one, and at most a file
that no entry of the index names, which is removed when the store is opened again.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, Self

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
from turndock_server.stores.artifact_index import ArtifactIndex, Entry
from turndock_server.stores.artifacts import Answer, Content
from turndock_server.stores.cursors import PageCodec
from turndock_server.stores.disk import (
    PART,
    Download,
    Upload,
    in_thread,
    remove_later_if_not_now,
    reported,
    sync_folder,
)

_NAME: Final = re.compile(rf"[0-9a-f]{{64}}-[0-9a-f]{{16}}({re.escape(PART)})?")
"""Names this store gives files: it removes no others."""


class FileArtifactStore:
    """Keeps bytes in files below `root`, which belongs to one open store at a time. Offers `SessionArtifacts`.

    What a call acknowledged survives a crash of the process and a power cut. Opening it looks at every file once.
    """

    def __init__(self, root: Path, *, max_artifact_bytes: int = artifacts.MAX_ARTIFACT_BYTES) -> None:
        self._root = root
        self._objects = root / "objects"
        self._index = ArtifactIndex(root / "index.sqlite3")
        self._max_bytes = max_artifact_bytes

    async def open(self) -> None:
        """Open the folder, made if it is missing, and remove what a crash left behind.

        Raises `TurndockError`: STORAGE_BUSY when another store has it open, MIGRATION_REQUIRED when a newer release
        wrote it, else STORAGE_ERROR.
        """
        await in_thread(self._open)

    async def close(self) -> None:
        """Close the folder; repeatable. Calls made later fail (STORAGE_ERROR)."""
        await in_thread(self._index.close)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def put(self, requests: AsyncIterator[ArtifactStorePutRequest]) -> ArtifactStorePutResponse:
        header = await artifacts.read_header(requests)
        content = Content(header, self._max_bytes)
        upload = Upload(self._objects, _new_name(checks.partition(header), header.key), content)
        try:
            await in_thread(upload.begin)
            async for message in requests:
                await in_thread(upload.write, artifacts.chunk_of(message))
            content.check()
            return await in_thread(self._put, header, upload)
        finally:
            await in_thread(upload.discard)

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        artifacts.check_key(request.key)
        partition = checks.partition(request)
        download = Download()
        try:
            artifact = await in_thread(self._find_and_open, partition, request.key, download)
            start, stop = artifacts.range_of(request, artifact.size)
            yield ArtifactStoreGetResponse(artifact=artifact)
            for offset in range(start, stop, artifacts.CHUNK_BYTES):
                size = min(artifacts.CHUNK_BYTES, stop - offset)
                yield ArtifactStoreGetResponse(
                    chunk=await in_thread(download.read, request.key, offset, size)
                )
            if artifacts.is_whole(request) and download.sha256 != artifact.sha256:
                raise artifacts.damaged(request.key, "do not fit their digest")
        finally:
            download.close()

    async def delete(self, request: ArtifactStoreDeleteRequest) -> ArtifactStoreDeleteResponse:
        partition = artifacts.check_delete(request)
        await in_thread(self._delete, partition, request)
        return ArtifactStoreDeleteResponse()

    async def head(self, request: ArtifactStoreHeadRequest) -> ArtifactStoreHeadResponse:
        artifacts.check_key(request.key)
        entry = await in_thread(self._find, checks.partition(request), request.key)
        return ArtifactStoreHeadResponse(artifact=entry.artifact if entry and entry.listed else None)

    async def list(self, request: ArtifactStoreListRequest) -> ArtifactStoreListResponse:
        partition = artifacts.check_list(request)
        limit = checks.page_limit(request.page)
        codec = PageCodec("ArtifactStore.List", partition, request)
        place = codec.decode(request.page.cursor)
        return await in_thread(
            self._list, partition, request.session_id, int(place[0]) if place else 0, limit, codec
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
        return await in_thread(
            self._forget_session, partition, session_id, delete_bytes, stored_before_us, limit
        )

    async def sessions(self) -> Sequence[tuple[str, str]]:
        return await in_thread(self._sessions)

    # What follows blocks, and runs in threads.

    def _open(self) -> None:
        with reported("be opened"):
            self._objects.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._index.open()
            try:
                sync_folder(self._root)
                self._remove_litter()
            except BaseException:
                self._index.close()
                raise

    def _remove_litter(self) -> None:
        with self._index.transaction() as index, os.scandir(self._objects) as folders:
            for folder in folders:
                if not folder.is_dir(follow_symlinks=False):
                    continue
                with os.scandir(folder) as files:
                    for file in files:
                        if _NAME.fullmatch(file.name) and not index.names(f"{folder.name}/{file.name}"):
                            os.unlink(file)

    def _put(self, header: ArtifactHeader, upload: Upload) -> ArtifactStorePutResponse:
        partition = checks.partition(header)
        fingerprint = upload.content.fingerprint()
        with reported("store an artifact"):
            upload.sync()
            with self._index.transaction() as index:
                known = index.answer(partition, header.request_id)
                stored = artifacts.repeated(header.request_id, fingerprint, known)
                if stored is not None:
                    return ArtifactStorePutResponse.FromString(stored)
                entry = index.find(partition, header.key)
                response = artifacts.kept(header, upload.content, entry.artifact if entry else None)
                is_lost = entry is not None and not (self._objects / entry.file).exists()
                if response is None or is_lost:
                    response = ArtifactStorePutResponse(artifact=upload.content.artifact())
                    upload.publish()
                    index.put(partition, response.artifact, upload.file)
                answer = Answer(fingerprint, header.session_id, response.SerializeToString())
                index.remember(partition, header.request_id, answer)
            if not response.duplicate:
                upload.keep()
                if entry:
                    remove_later_if_not_now(self._objects / entry.file)
        return response

    def _find(self, partition: str, key: str) -> Entry | None:
        with reported("read its index"), self._index.transaction() as index:
            return index.find(partition, key)

    def _find_and_open(self, partition: str, key: str, download: Download) -> Artifact:
        missed = ""
        while True:
            entry = self._find(partition, key)
            if entry is None:
                raise not_found("artifact", key)
            with reported("read an artifact"):
                try:
                    size = download.open(self._objects / entry.file)
                except FileNotFoundError:
                    if entry.file == missed:
                        raise artifacts.damaged(key, "are gone") from None
                    missed = entry.file  # put anew between the two looks, or really gone
                    continue
            if size != entry.artifact.size:
                raise artifacts.damaged(key, f"are {size} instead of {entry.artifact.size}")
            return entry.artifact

    def _delete(self, partition: str, request: ArtifactStoreDeleteRequest) -> None:
        fingerprint = artifacts.delete_fingerprint(request)
        with reported("delete an artifact"):
            with self._index.transaction() as index:
                known = index.answer(partition, request.request_id)
                if artifacts.repeated(request.request_id, fingerprint, known) is not None:
                    return
                entry = index.find(partition, request.key)
                session_id = entry.artifact.session_id if entry else ""
                index.remember(partition, request.request_id, Answer(fingerprint, session_id, b""))
                if entry:
                    index.remove(entry)
            try:
                self._remove_files([entry] if entry else [])
            except OSError:
                with self._index.transaction() as index:
                    index.forget_answer(partition, request.request_id)
                raise

    def _list(
        self, partition: str, session_id: str, after: int, limit: int, codec: PageCodec
    ) -> ArtifactStoreListResponse:
        with reported("read its index"), self._index.transaction() as index:
            page, more = artifacts.cut(index.rows(partition, session_id, after, limit + 1), limit)
            count, size = index.totals(partition, session_id)
        return ArtifactStoreListResponse(
            artifacts=[artifact for _, artifact in page],
            next_cursor=codec.encode((page[-1][0],)) if more else "",
            total_count=count,
            total_bytes=size,
        )

    def _forget_session(
        self,
        partition: str,
        session_id: str,
        delete_bytes: bool,
        stored_before_us: int | None,
        limit: int | None,
    ) -> Sequence[str]:
        with reported("forget a session"):
            with self._index.transaction() as index:
                entries = index.of_session(partition, session_id, stored_before_us, limit)
                for entry in entries:
                    (index.remove if delete_bytes else index.hide)(entry)
            if delete_bytes:
                self._remove_files(entries)
            with self._index.transaction() as index:
                if not index.totals(partition, session_id)[0]:
                    index.forget_answers(partition, session_id)
        return [entry.artifact.key for entry in entries]

    def _sessions(self) -> Sequence[tuple[str, str]]:
        with reported("read its index"), self._index.transaction() as index:
            return index.sessions()

    def _remove_files(self, entries: Sequence[Entry]) -> None:
        """Remove the bytes of entries the index no longer has; those that cannot be removed get theirs back."""
        for position, entry in enumerate(entries):
            try:
                (self._objects / entry.file).unlink(missing_ok=True)
            except OSError:
                with self._index.transaction() as index:
                    for left in entries[position:]:
                        index.restore(left)
                raise


def _new_name(partition: str, key: str) -> str:
    """A path below the folder of objects that no other Put has; no part of it is what the caller wrote."""
    return f"{_digest(partition)}/{_digest(key)}-{secrets.token_hex(8)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
