"""Events too large for the log: their bytes become an artifact, and a reference stands in their place."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from turndock import jsontext
from turndock.errors import TurndockError
from turndock.ports import ArtifactStore
from turndock.store.v1 import ArtifactHeader, ArtifactStoreGetRequest, ArtifactStorePutRequest
from turndock.types.v1 import ArtifactReference, Event, Scope

log = logging.getLogger(__name__)

MAX_EVENT_BYTES = 1 << 20
"""Largest event that a log takes."""
LOST = "turndock.lost_payload"
MEDIA_TYPE = "application/x-protobuf; messageType=turndock.types.v1.Event"

INLINE_BYTES = MAX_EVENT_BYTES - 1024
"""Largest event that is appended as it is: the store adds number, incarnation and time."""
_CHUNK_BYTES = 256 << 10


class Offloader:
    """Replaces events that are too large. The artifact's content is the encoded event as it was."""

    def __init__(
        self, artifacts: ArtifactStore | None, redacted: Callable[[Event], Event] = lambda event: event
    ) -> None:
        """`redacted` takes secrets out, as the journal does out of what it sees of an event."""
        self._artifacts = artifacts
        self._redacted = redacted

    async def fit(self, scope: Scope | None, batch: Sequence[Event]) -> Sequence[Event]:
        """The batch with nothing in it that is too large. What is `INLINE_BYTES` altogether fits as it is."""
        return [
            event if event.ByteSize() <= INLINE_BYTES else await self._offload(scope, event)
            for event in batch
        ]

    async def _offload(self, scope: Scope | None, event: Event) -> Event:
        event = self._redacted(event)
        body = event.SerializeToString()
        reference = _reference(event, body)
        stub = _stub(event)
        try:
            await self._put(scope, event, reference, body)
        except TurndockError as error:
            # The turn goes on: losing one payload, and saying so, is better than losing all that follows.
            log.error("the payload of event %s, %d bytes, could not be kept: %s", event.id, len(body), error)
            stub.metadata_json = jsontext.canonical({LOST: {"bytes": len(body), "reason": error.reason}})
        else:
            stub.offloaded.CopyFrom(reference)
        return stub

    async def copy(self, scope: Scope | None, event: Event) -> None:
        """Give an event that has a new id and session bytes of its own, if its payload is an artifact; in place.

        Raises what the artifact store raises, NOT_FOUND among it.
        """
        if not event.HasField("offloaded"):
            return
        request = ArtifactStoreGetRequest(scope=scope, key=event.offloaded.key)
        whole = Event.FromString(b"".join([part.chunk async for part in self._store().get(request)]))
        whole.id, whole.session_id = event.id, event.session_id
        body = whole.SerializeToString()
        reference = _reference(event, body)
        await self._put(scope, event, reference, body)
        event.offloaded.CopyFrom(reference)

    async def _put(
        self, scope: Scope | None, event: Event, reference: ArtifactReference, body: bytes
    ) -> None:
        header = ArtifactHeader(
            scope=scope,
            key=reference.key,
            session_id=event.session_id,
            media_type=MEDIA_TYPE,
            expected_size=reference.size,
            expected_sha256=reference.sha256,
            if_absent=True,
        )

        async def parts() -> AsyncIterator[ArtifactStorePutRequest]:
            yield ArtifactStorePutRequest(header=header)
            for first in range(0, len(body), _CHUNK_BYTES):
                yield ArtifactStorePutRequest(chunk=body[first : first + _CHUNK_BYTES])

        await self._store().put(parts())

    def _store(self) -> ArtifactStore:
        if self._artifacts is None:
            raise TurndockError("STORAGE_ERROR", "the host has no artifact store")
        return self._artifacts


def _reference(event: Event, body: bytes) -> ArtifactReference:
    return ArtifactReference(
        key=f"turndock/event/{event.id}", size=len(body), sha256=hashlib.sha256(body).digest()
    )


def _stub(event: Event) -> Event:
    """The event without its payload."""
    return Event(
        id=event.id,
        type=event.type,
        session_id=event.session_id,
        run_id=event.run_id,
        time_us=event.time_us,
        schema_version=event.schema_version,
        provider=event.provider,
        correlation_id=event.correlation_id,
    )
