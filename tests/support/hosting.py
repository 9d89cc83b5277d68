"""A host in this process, over any store, with a real channel in between: what most tests of the turn machine need."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio

from turndock import events, wire
from turndock.agent.v1 import GetServerInfoResponse
from turndock.agent.v1.agent_host_pb2_grpc import AgentHostStub
from turndock.ports import AgentPersistence, ArtifactStore, Backend, Behavior, Mailbox, SessionStore
from turndock.remote import RemoteAgentPersistence
from turndock.types.v1 import AgentLimits
from turndock_server.core.accounts import DEFAULT_LIMITS, with_defaults
from turndock_server.core.behavior_calls import Patience
from turndock_server.core.dispatcher import LocalDispatcher
from turndock_server.core.feed import Feed
from turndock_server.core.host import Host
from turndock_server.core.journal import Journal
from turndock_server.core.persistence import Persistence
from turndock_server.core.prompts import Prompts
from turndock_server.core.redaction import EventRedactor
from turndock_server.core.starter import Starter
from turndock_server.core.watch import read_log_of
from turndock_server.observability import Redactor
from turndock_server.services.agent_host import AgentHostService
from turndock_server.services.callers import CallerInterceptor
from turndock_server.services.stores import AgentPersistenceService, SessionStoreService


@dataclass
class Served:
    """A host that is served, and a stub to call it."""

    host: Host
    stub: AgentHostStub
    channel: grpc.aio.Channel
    address: str
    snapshots: RemoteAgentPersistence
    """What keeps its snapshots, as remote callers get it."""


def make_host(
    store: SessionStore,
    backends: Mapping[str, Backend],
    behaviors: Mapping[str, Behavior] | None = None,
    limits: AgentLimits | None = None,
    *,
    redactor: Redactor | None = None,
    artifacts: ArtifactStore | None = None,
    snapshots: AgentPersistence | None = None,
    snapshot_timeout_s: float = 5.0,
    patience: Mapping[str, Patience] | None = None,
) -> Host:
    """A host over a store that has a mailbox."""
    assert isinstance(store, Mailbox)
    return Host(
        Journal(store, store, Feed(), redact=EventRedactor(redactor) if redactor else None),
        LocalDispatcher(),
        backends,
        behaviors or {},
        host_id=events.new_id(),
        sole_host=True,
        defaults=with_defaults(limits or AgentLimits(), DEFAULT_LIMITS),
        read_log=read_log_of(store),
        artifacts=artifacts,
        redact_text=(lambda text: redactor.count(text)[0]) if redactor else str,
        backend_wait_s=0.5,
        persistence=Persistence(snapshots, timeout_s=snapshot_timeout_s),
        behavior_patience=patience,
    )


@asynccontextmanager
async def served(
    host: Host, *, grace_s: float = 2.0, snapshots: AgentPersistence | None = None
) -> AsyncGenerator[Served]:
    """The host behind gRPC on a free port of the loopback interface."""
    server = wire.new_server(interceptors=(CallerInterceptor(),))
    prompts = Prompts(host, max_prompt_bytes=1 << 20)

    async def info() -> GetServerInfoResponse:
        return GetServerInfoResponse(version="test")

    AgentHostService(host, Starter(host), prompts, info).add_to(server)
    SessionStoreService(host, None, prompts).add_to(server)
    if snapshots is not None:
        AgentPersistenceService(snapshots).add_to(server)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await host.start()
    await server.start()
    channel = wire.connect(endpoint)
    try:
        yield Served(host, AgentHostStub(channel), channel, str(endpoint), RemoteAgentPersistence(channel))
    finally:
        await channel.close()
        await host.stop(grace_s)
        await server.stop(0)
