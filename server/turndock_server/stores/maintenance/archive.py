"""Events on their way out: stored as artifacts before they are pruned."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from turndock.errors import TurndockError
from turndock.ports import ArtifactStore
from turndock.store.v1 import ArtifactHeader, ArtifactStorePutRequest
from turndock.types.v1 import Event
from turndock_server.core.wireformat import varint
from turndock_server.stores.artifacts import CHUNK_BYTES
from turndock_server.stores.checks import scope_of
from turndock_server.stores.maintenance.upkeep import Spare, Upkeep

logger = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/vnd.turndock.events"


class ArchiveFailed(TurndockError):
    """Events could not be stored elsewhere, so they were not pruned."""


def key_of(events: Sequence[Spare]) -> str:
    """The key under which events of one session are archived."""
    first = events[0]
    return f"archive/{first.session_id}/{first.incarnation}/{first.sequence}-{events[-1].sequence}"


def encoded(bodies: Iterable[bytes]) -> bytes:
    """Messages, each preceded by its length."""
    return b"".join(varint(len(body)) + body for body in bodies)


def decoded(content: bytes) -> list[Event]:
    """The events of an archive. Raises `ValueError` for bytes that are none."""
    found: list[Event] = []
    at = 0
    while at < len(content):
        size, shift = 0, 0
        while True:
            if at >= len(content) or shift > 28:
                raise ValueError("the archive ends in the middle of a length")
            byte = content[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if at + size > len(content):
            raise ValueError("the archive ends in the middle of an event")
        found.append(Event.FromString(content[at : at + size]))
        at += size
    return found


class Archive:
    """An artifact store that takes a partition's events."""

    def __init__(self, store: ArtifactStore, upkeep: Upkeep, partition: str) -> None:
        self._store = store
        self._upkeep = upkeep
        self._partition = partition

    async def take(self, events: Sequence[Spare]) -> list[str]:
        """Store those events of one session that are still there. Returns the keys they are stored under.

        What is there under a key is never replaced: should it be something else, left by a call with another policy
        that did not come to its end, the events are stored in two parts. Raises `ArchiveFailed`.
        """
        bodies = await self._upkeep.bodies(self._partition, events)
        if not bodies:
            return []
        key = key_of(events)
        try:
            await self._store.put(self._upload(key, encoded(bodies)))
        except TurndockError as error:
            if error.reason == "ALREADY_EXISTS" and len(events) > 1:
                middle = len(events) // 2
                return await self.take(events[:middle]) + await self.take(events[middle:])
            raise _failed(events, error.message) from error
        except Exception as error:
            logger.exception("the archive store failed")
            raise _failed(events, f"it raised {type(error).__name__}, which the log has") from error
        return [key]

    async def _upload(self, key: str, content: bytes) -> AsyncIterator[ArtifactStorePutRequest]:
        yield ArtifactStorePutRequest(
            header=ArtifactHeader(
                scope=scope_of(self._partition),
                key=key,
                media_type=MEDIA_TYPE,
                expected_size=len(content),
                if_absent=True,
            )
        )
        for start in range(0, len(content), CHUNK_BYTES):
            yield ArtifactStorePutRequest(chunk=content[start : start + CHUNK_BYTES])


def _failed(events: Sequence[Spare], why: str) -> ArchiveFailed:
    session_id = events[0].session_id
    return ArchiveFailed(
        "STORAGE_ERROR",
        f"events {events[0].sequence} to {events[-1].sequence} of session {session_id!r} could not be archived and are"
        f" not pruned: {why}",
        metadata={"session_id": session_id},
    )
