"""Maintenance of a server's own store, with what is docked to it: archives, stores, watchers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from support.servers import a_server, beside, calls
from turndock.agent.v1 import End
from turndock.client import Client, SyncClient
from turndock.conformance.maintenance.archiving import events_in
from turndock.conformance.maintenance.suite import DAY_US, keeping
from turndock.conformance.session_store import SUITE as STORE
from turndock.conformance.session_store import Fixture as Stored
from turndock.errors import TurndockError
from turndock.store.v1 import (
    ArtifactStoreGetRequest,
    ExecuteRequest,
    HardDeleteExpiredSessionsRequest,
    HealthCheckRequest,
    PruneSessionEventsRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import Cursor, EventType, Scope
from turndock_server.stores.memory import MemoryMaintenance, MemorySessionStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

STREAMED = EventType.EVENT_TYPE_MESSAGE_STREAMED


async def test_events_are_archived_in_a_plug_in(tmp_path: Path) -> None:
    cold, endpoint = MemoryArtifactStore(), f"unix:{tmp_path}/cold.sock"
    config = f'[plugins.cold]\nendpoint = "{endpoint}"\nrequired = true\n'
    async with (
        beside(endpoint, artifact_store=cold),
        a_server(tmp_path, config) as server,
        Client(str(server.endpoint)) as client,
    ):
        store = Stored(client.session_store(), STORE.abilities, Scope(tenant="blue"))
        await store.append(*store.events(10, type=STREAMED))
        policy = keeping(4, archive_before_prune=True, archive_store="cold")
        request = PruneSessionEventsRequest(scope=store.scope, session_id="ses_1", policy=policy)
        answer = await client.maintenance().prune_session_events(request)
        assert (answer.events_pruned, answer.events_archived) == (6, 6)
        (key,) = answer.archive_keys
        parts = cold.get(ArtifactStoreGetRequest(scope=store.scope, key=key))
        content = b"".join([part.chunk async for part in parts])
        assert [event.sequence for event in events_in(content)] == [1, 2, 3, 4, 5, 6]


async def test_a_watch_ends_when_maintenance_deletes_its_session(tmp_path: Path) -> None:
    async with a_server(tmp_path) as server, calls(server) as made, Client(str(server.endpoint)) as client:
        store = Stored(client.session_store(), STORE.abilities, Scope(tenant="unused"))
        request = HardDeleteExpiredSessionsRequest()
        session = store.session(deleted_at_us=time.time_ns() // 1_000 - 60 * DAY_US)
        await client.session_store().save_session(SaveSessionRequest(session=session))
        watcher = made.watch(Cursor(session_id="ses_1"))
        await watcher.until(lambda seen: seen.cursors["ses_1"].incarnation)
        answer = await client.maintenance().hard_delete_expired_sessions(request)
        assert list(answer.session_ids) == ["ses_1"]
        assert (await watcher.ended()).reason == End.REASON_SESSION_DELETED


async def test_a_store_that_is_a_plug_in_brings_its_own_maintenance(tmp_path: Path) -> None:
    store, endpoint = MemorySessionStore(), f"unix:{tmp_path}/store.sock"
    config = f'[store]\nkind = "plugin:mine"\n[plugins.mine]\nendpoint = "{endpoint}"\n'
    async with (
        beside(endpoint, session_store=store, maintenance=MemoryMaintenance(store)),
        a_server(tmp_path, config) as server,
    ):
        where = str(server.endpoint)
        async with Client(where) as client:
            stored = Stored(client.session_store(), STORE.abilities, Scope(tenant="blue"))
            await stored.append(*stored.events(10, type=STREAMED))

        def blocking() -> tuple[int, int]:
            with SyncClient(where) as client:
                maintenance = client.maintenance()
                request = ExecuteRequest(scope=stored.scope, policy=keeping(4))
                found = maintenance.health_check(HealthCheckRequest(scope=stored.scope))
                return maintenance.execute(request).report.events_pruned, len(found.issues)

        assert await asyncio.to_thread(blocking) == (6, 1)


async def test_a_store_without_maintenance_says_so(tmp_path: Path) -> None:
    endpoint = f"unix:{tmp_path}/store.sock"
    config = f'[store]\nkind = "plugin:mine"\n[plugins.mine]\nendpoint = "{endpoint}"\n'
    async with (
        beside(endpoint, session_store=MemorySessionStore()),
        a_server(tmp_path, config) as server,
        Client(str(server.endpoint)) as client,
    ):
        with pytest.raises(TurndockError) as refusal:
            await client.maintenance().execute(ExecuteRequest())
        assert refusal.value.code.value == grpc.StatusCode.UNIMPLEMENTED.value[0]
