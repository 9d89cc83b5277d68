"""Artifact stores that break one sentence of their contract each, and the case that must find out."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from turndock.errors import TurndockError
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
from turndock.types.v1 import Page
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

Requests = AsyncIterator[ArtifactStorePutRequest]
AnyMessage = TypeVar("AnyMessage", bound=Message)


def _changed(message: AnyMessage, change: Callable[[AnyMessage], object]) -> AnyMessage:
    copy = type(message)()
    copy.CopyFrom(message)
    change(copy)
    return copy


async def _with_header(requests: Requests, change: Callable[[ArtifactHeader], object]) -> Requests:
    async for request in requests:
        if request.HasField("header"):
            yield ArtifactStorePutRequest(header=_changed(request.header, change))
        else:
            yield request


class _OtherKeys(MemoryArtifactStore):
    """Takes keys for something else than names."""

    def _key(self, key: str) -> str:
        raise NotImplementedError

    async def put(self, requests: Requests) -> ArtifactStorePutResponse:
        def change(header: ArtifactHeader) -> None:
            header.key = self._key(header.key)

        return await super().put(_with_header(requests, change))

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        async for response in super().get(_changed(request, self._change)):
            yield response

    async def delete(self, request: ArtifactStoreDeleteRequest) -> ArtifactStoreDeleteResponse:
        return await super().delete(_changed(request, self._change))

    async def head(self, request: ArtifactStoreHeadRequest) -> ArtifactStoreHeadResponse:
        return await super().head(_changed(request, self._change))

    def _change(
        self, request: ArtifactStoreGetRequest | ArtifactStoreDeleteRequest | ArtifactStoreHeadRequest
    ) -> None:
        request.key = self._key(request.key)


class IgnoresCase(_OtherKeys):
    def _key(self, key: str) -> str:
        return key.lower()


class NormalizesUnicode(_OtherKeys):
    def _key(self, key: str) -> str:
        return unicodedata.normalize("NFC", key)


class ResolvesPaths(_OtherKeys):
    def _key(self, key: str) -> str:
        parts: list[str] = []
        for part in key.split("/"):
            if part == "..":
                del parts[-1:]
            elif part not in {"", "."}:
                parts.append(part)
        return "/".join(parts) or "/"


class SharesOnePartition(MemoryArtifactStore):
    """Looks for a key in every partition when it is not in the caller's."""

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        owners = [owner for owner, key in self._entries if key == request.key]
        if owners and (request.scope.tenant, request.key) not in self._entries:
            request = _changed(request, lambda copy: setattr(copy.scope, "tenant", owners[0]))
        async for response in super().get(request):
            yield response


class StoresHalfUploads(MemoryArtifactStore):
    """Takes the breaking of an upload for its end."""

    async def put(self, requests: Requests) -> ArtifactStorePutResponse:
        async def arrived() -> Requests:
            try:
                async for request in requests:
                    yield request
            except BaseException:  # noqa: BLE001 - that is the fault
                return

        return await super().put(arrived())


class BelievesWhatIsAnnounced(MemoryArtifactStore):
    """Checks neither size nor digest."""

    async def put(self, requests: Requests) -> ArtifactStorePutResponse:
        def change(header: ArtifactHeader) -> None:
            header.ClearField("expected_size")
            header.ClearField("expected_sha256")

        return await super().put(_with_header(requests, change))


class ReplacesImmutableKeys(MemoryArtifactStore):
    """Knows no `if_absent`."""

    async def put(self, requests: Requests) -> ArtifactStorePutResponse:
        return await super().put(_with_header(requests, lambda header: header.ClearField("if_absent")))


class LooksBeforeItWrites(MemoryArtifactStore):
    """Checks `if_absent` when an upload begins and not when it is stored."""

    async def put(self, requests: Requests) -> ArtifactStorePutResponse:
        async def unless_there() -> Requests:
            async for request in requests:
                header = request.header
                if header.if_absent and (header.scope.tenant, header.key) in self._entries:
                    raise TurndockError("ALREADY_EXISTS", "is there")
                yield request

        blind = _with_header(unless_there(), lambda header: header.ClearField("if_absent"))
        return await super().put(blind)


class ForgetsRetryTokens(MemoryArtifactStore):
    async def put(self, requests: Requests) -> ArtifactStorePutResponse:
        return await super().put(_with_header(requests, lambda header: header.ClearField("request_id")))


class ForgetsRetryTokensOfDelete(MemoryArtifactStore):
    async def delete(self, request: ArtifactStoreDeleteRequest) -> ArtifactStoreDeleteResponse:
        return await super().delete(_changed(request, lambda copy: copy.ClearField("request_id")))


class ReadsWhatIsThereNow(MemoryArtifactStore):
    """Looks the key up again for every chunk."""

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        position = 0
        async for response in super().get(request):
            entry = self._entries[request.scope.tenant, request.key]
            size = len(response.chunk)
            if size and not request.HasField("length"):
                yield ArtifactStoreGetResponse(chunk=entry.data[position : position + size])
                position += size
            else:
                yield response


class TakesNoLengthForAll(MemoryArtifactStore):
    """Reads everything when no bytes are asked for."""

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        if not request.length:
            request = _changed(request, lambda copy: copy.ClearField("length"))
        async for response in super().get(request):
            yield response


class MissesMissingKeys(MemoryArtifactStore):
    """Finds a second deletion an error."""

    async def delete(self, request: ArtifactStoreDeleteRequest) -> ArtifactStoreDeleteResponse:
        if (request.scope.tenant, request.key) not in self._entries:
            raise TurndockError("NOT_FOUND", "nothing to delete")
        return await super().delete(request)


class MovesWhatIsWrittenAgain(MemoryArtifactStore):
    async def put(self, requests: Requests) -> ArtifactStorePutResponse:
        response = await super().put(requests)
        for key, entry in self._entries.items():
            if entry.artifact is response.artifact or entry.artifact == response.artifact:
                self._entries[key] = type(entry)(self._next_place(), True, entry.artifact, entry.data)
        return response


class CountsThePage(MemoryArtifactStore):
    """Totals of what the page holds."""

    async def list(self, request: ArtifactStoreListRequest) -> ArtifactStoreListResponse:
        response = await super().list(request)
        response.total_count = len(response.artifacts)
        response.total_bytes = sum(artifact.size for artifact in response.artifacts)
        return response


class PagesByOffset(MemoryArtifactStore):
    """A cursor is how many rows to leave out."""

    async def list(self, request: ArtifactStoreListRequest) -> ArtifactStoreListResponse:
        skipped = int(request.page.cursor) if request.page.cursor.isdigit() else 0
        limit = request.page.limit if request.page.HasField("limit") else 50
        everything = Page(limit=1000)
        response = await super().list(_changed(request, lambda copy: copy.page.CopyFrom(everything)))
        more = len(response.artifacts) > skipped + limit
        response.next_cursor = str(skipped + limit) if more else ""
        del response.artifacts[skipped + limit :]
        del response.artifacts[:skipped]
        return response


class TidiesMetadata(MemoryArtifactStore):
    """Changes the header it was given."""

    async def put(self, requests: Requests) -> ArtifactStorePutResponse:
        async def tidied() -> Requests:
            async for request in requests:
                if request.HasField("header"):
                    request.header.metadata_json = request.header.metadata_json.replace(" ", "")
                yield request

        return await super().put(tidied())


@dataclass(frozen=True)
class Mutant:
    store: type[MemoryArtifactStore]
    fails: str
    """Name of the case that must find out."""


MUTANTS = (
    Mutant(IgnoresCase, "every_key_is_an_object_of_its_own"),
    Mutant(NormalizesUnicode, "deleting_one_key_leaves_all_others"),
    Mutant(ResolvesPaths, "every_key_is_an_object_of_its_own"),
    Mutant(SharesOnePartition, "another_partition_is_as_good_as_none"),
    Mutant(StoresHalfUploads, "an_upload_that_breaks_stores_nothing"),
    Mutant(StoresHalfUploads, "an_upload_that_is_cancelled_stores_nothing"),
    Mutant(BelievesWhatIsAnnounced, "other_bytes_than_announced_are_refused"),
    Mutant(ReplacesImmutableKeys, "if_absent_never_replaces"),
    Mutant(LooksBeforeItWrites, "of_concurrent_puts_of_an_immutable_key_one_wins"),
    Mutant(ForgetsRetryTokens, "a_repeated_put_returns_the_stored_answer"),
    Mutant(ForgetsRetryTokensOfDelete, "a_repeated_delete_does_not_undo_a_later_put"),
    Mutant(ReadsWhatIsThereNow, "a_download_is_of_one_content"),
    Mutant(TakesNoLengthForAll, "a_range_of_no_bytes_is_the_row_alone"),
    Mutant(MissesMissingKeys, "deleting_is_repeatable"),
    Mutant(MovesWhatIsWrittenAgain, "writing_again_does_not_move_a_row"),
    Mutant(CountsThePage, "pages_hold_every_row_once"),
    Mutant(PagesByOffset, "pages_stand_still_while_rows_come_and_go"),
    Mutant(PagesByOffset, "a_cursor_fits_only_its_list"),
    Mutant(TidiesMetadata, "a_store_changes_no_message_it_is_given"),
)
