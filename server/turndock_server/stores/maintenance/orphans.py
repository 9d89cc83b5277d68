"""Artifact rows of sessions that do not exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence

from turndock.errors import TurndockError
from turndock.ports import ArtifactStore
from turndock.store.v1 import ArtifactStoreDeleteRequest, ArtifactStoreListRequest
from turndock.types.v1 import Artifact, Page
from turndock_server.stores import checks
from turndock_server.stores.artifacts import SessionArtifacts
from turndock_server.stores.maintenance.upkeep import Upkeep
from turndock_server.stores.pace import paced

_SESSIONS_AT_ONCE = 500


class OrphanedArtifacts:
    """Finds and removes them, partition by partition."""

    def __init__(self, upkeep: Upkeep, artifacts: ArtifactStore | None) -> None:
        self._upkeep = upkeep
        self._artifacts = artifacts
        self._index = _index_of(artifacts)
        self._sessions: Mapping[str, Sequence[str]] | None = None

    async def partitions(self) -> frozenset[str]:
        """Partitions that have artifacts of sessions, as far as the store can tell."""
        return frozenset(await self._indexed())

    async def count(self, partition: str) -> int:
        """How many there are."""
        return len([key async for key in self.keys(partition, stored_before_us=None)])

    async def keys(self, partition: str, *, stored_before_us: int | None) -> AsyncGenerator[str]:
        """The keys of those stored before a time, if it is set."""
        for session_id in await self._missing(partition):
            async for artifact in self._of(partition, session_id):
                if stored_before_us is None or artifact.stored_at_us < stored_before_us:
                    yield artifact.key

    async def remove(
        self, partition: str, *, delete_bytes: bool, stored_before_us: int | None, batch_size: int
    ) -> AsyncGenerator[str]:
        """Take their rows away. Yields the key of each. Raises `TurndockError`."""
        if self._index is not None:
            for session_id in await self._missing(partition):
                while True:
                    async with paced():
                        gone = await self._index.forget_session(
                            partition,
                            session_id,
                            delete_bytes=delete_bytes,
                            stored_before_us=stored_before_us,
                            limit=batch_size,
                        )
                    for key in gone:
                        yield key
                    if len(gone) < batch_size:
                        break
        elif self._artifacts is not None:
            scope = checks.scope_of(partition)
            async for key in self.keys(partition, stored_before_us=stored_before_us):
                if not delete_bytes:
                    raise TurndockError(
                        "CAPABILITY_NOT_SUPPORTED",
                        "this artifact store cannot take a row away and leave its bytes; set delete_bytes",
                    )
                await self._artifacts.delete(ArtifactStoreDeleteRequest(scope=scope, key=key))
                yield key

    async def _missing(self, partition: str) -> list[str]:
        """Sessions that have artifacts and were never saved, or are deleted."""
        named = await self._named(partition)
        missing: list[str] = []
        for first in range(0, len(named), _SESSIONS_AT_ONCE):
            some = named[first : first + _SESSIONS_AT_ONCE]
            saved = await self._upkeep.saved(partition, some)
            missing += [session_id for session_id in some if session_id not in saved]
        return missing

    async def _named(self, partition: str) -> Sequence[str]:
        """Sessions that have artifacts."""
        if self._index is not None:
            return (await self._indexed()).get(partition, ())
        found = {artifact.session_id async for artifact in self._of(partition, "")}
        return sorted(found - {""})

    async def _indexed(self) -> Mapping[str, Sequence[str]]:
        if self._sessions is None and self._index is not None:
            sessions: defaultdict[str, list[str]] = defaultdict(list)
            for partition, session_id in await self._index.sessions():
                sessions[partition].append(session_id)
            self._sessions = sessions
        return self._sessions or {}

    async def _of(self, partition: str, session_id: str) -> AsyncGenerator[Artifact]:
        """The artifacts of a session, or all."""
        if self._artifacts is None:
            return
        cursor = ""
        while True:
            request = ArtifactStoreListRequest(
                scope=checks.scope_of(partition),
                session_id=session_id,
                page=Page(limit=checks.MAX_ROWS, cursor=cursor),
            )
            page = await self._artifacts.list(request)
            for artifact in page.artifacts:
                yield artifact
            cursor = page.next_cursor
            if not cursor:
                return


def _index_of(artifacts: object) -> SessionArtifacts | None:
    """The ability of a store to take rows away and leave their bytes, if it has it."""
    return artifacts if isinstance(artifacts, SessionArtifacts) else None
