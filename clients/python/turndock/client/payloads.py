"""Payloads that were too large for the log: read back from the artifact store, so that readers need not know."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Any

from turndock import wire
from turndock.client.host import HostCalls, unreachable
from turndock.client.streams import ResumedStream
from turndock.errors import Code, TurndockError
from turndock.remote import RemoteArtifactStore
from turndock.store.v1 import ArtifactStoreGetRequest
from turndock.types.v1 import Event

_log = logging.getLogger("turndock.client")


class Payloads:
    """Puts offloaded payloads back into their events."""

    def __init__(self, host: HostCalls) -> None:
        self._host = host
        self._artifacts = RemoteArtifactStore(host.channel, metadata=host.metadata, unavailable="UNAVAILABLE")

    async def put_back(self, events: Iterable[Event], stream: ResumedStream[Any]) -> bool:
        """Make whole, in place, what was offloaded. False if the server was lost meanwhile: `stream` comes back.

        An event whose bytes are gone, or are not those it had, stays as the log has it: with the reference and without
        a payload. Raises `TurndockError` when the server refuses, and when the stream gives up.
        """
        try:
            for event in events:
                if event.HasField("offloaded"):
                    await self._put_back(event)
        except TurndockError as error:
            if not unreachable(error):
                raise
            stream.interrupt(error)
            return False
        return True

    async def _put_back(self, event: Event) -> None:
        reference = event.offloaded
        try:
            body = await self._read(reference.key)
        except TurndockError as error:
            # Bytes that are gone, or are broken in the store.
            if error.code is not Code.NOT_FOUND and error.reason != "STORAGE_ERROR":
                raise
            _log.warning("the payload of event %s cannot be read back: %s", event.id, error)
            return
        if len(body) != reference.size or hashlib.sha256(body).digest() != reference.sha256:
            _log.warning("artifact %r has not the bytes that event %s had", reference.key, event.id)
            return
        whole = Event.FromString(body)
        whole.sequence, whole.incarnation = event.sequence, event.incarnation
        whole.stored_at_us = event.stored_at_us
        event.CopyFrom(whole)

    async def _read(self, key: str) -> bytes:
        answer = self._artifacts.get(ArtifactStoreGetRequest(scope=await self._host.own_scope(), key=key))
        try:
            return b"".join([part.chunk async for part in answer])
        finally:
            await wire.close_stream(answer)
