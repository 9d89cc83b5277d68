"""Every contract a process may serve: its port, its service, its abilities."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from turndock.behavior.v1 import behavior_pb2
from turndock.errors import TurndockError
from turndock.plugin.v1 import (
    Contract,
    ContractKind,
    DescribeRequest,
    DescribeResponse,
    ProbeRequest,
    ProbeResponse,
    plugin_pb2,
)
from turndock.ports import (
    AgentPersistence,
    ArtifactStore,
    Backend,
    Behavior,
    EventWatcher,
    InterruptedFlag,
    Mailbox,
    Maintenance,
    Query,
    SessionStore,
)
from turndock.serving.backend import SERVED_OPTIONS, add_backend
from turndock.serving.backend import SERVICE as BACKEND
from turndock.serving.handlers import add_port
from turndock.store.v1 import (
    agent_persistence_pb2,
    artifact_store_pb2,
    maintenance_pb2,
    query_pb2,
    session_store_pb2,
)

VERSION: Final = 1
"""The version of every contract that this release speaks."""

BEHAVIOR: Final = behavior_pb2.DESCRIPTOR.services_by_name["Behavior"]
SESSION_STORE: Final = session_store_pb2.DESCRIPTOR.services_by_name["SessionStore"]
ARTIFACT_STORE: Final = artifact_store_pb2.DESCRIPTOR.services_by_name["ArtifactStore"]
QUERY: Final = query_pb2.DESCRIPTOR.services_by_name["Query"]
MAINTENANCE: Final = maintenance_pb2.DESCRIPTOR.services_by_name["Maintenance"]
AGENT_PERSISTENCE: Final = agent_persistence_pb2.DESCRIPTOR.services_by_name["AgentPersistence"]
PLUGIN: Final = plugin_pb2.DESCRIPTOR.services_by_name["Plugin"]

Probe = Callable[[], Awaitable[ProbeResponse]]
"""Says whether the process can work now. Raising says that it cannot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ports:
    """What one process serves."""

    backend: Backend | None = None
    behavior: Behavior | None = None
    session_store: SessionStore | None = None
    artifact_store: ArtifactStore | None = None
    query: Query | None = None
    maintenance: Maintenance | None = None
    agent_persistence: AgentPersistence | None = None

    def add_to(self, server: grpc.aio.Server) -> list[ServiceDescriptor]:
        """Serve all of them; the services that were added."""
        if self.backend is not None:
            add_backend(server, self.backend)
        for service, port in self._plain():
            add_port(server, service, port)
        own = [BACKEND] if self.backend is not None else []
        return own + [service for service, _ in self._plain()]

    def contracts(self) -> list[Contract]:
        """What Plugin.Describe says of them."""
        return [
            Contract(
                kind=ContractKind.Value(f"CONTRACT_KIND_{field.name.upper()}"),
                min_version=VERSION,
                max_version=VERSION,
                capabilities=sorted(capabilities_of(port)),
            )
            for field in fields(self)
            if (port := getattr(self, field.name)) is not None
        ]

    def _plain(self) -> list[tuple[ServiceDescriptor, object]]:
        pairs: Sequence[tuple[ServiceDescriptor, object | None]] = (
            (BEHAVIOR, self.behavior),
            (SESSION_STORE, self.session_store),
            (ARTIFACT_STORE, self.artifact_store),
            (QUERY, self.query),
            (MAINTENANCE, self.maintenance),
            (AGENT_PERSISTENCE, self.agent_persistence),
        )
        return [(service, port) for service, port in pairs if port is not None]


def add_behavior(server: grpc.aio.Server, behavior: Behavior) -> None:
    """Serve a behavior."""
    add_port(server, BEHAVIOR, behavior)


def add_session_store(server: grpc.aio.Server, store: SessionStore) -> None:
    """Serve a session store, with the abilities it has."""
    add_port(server, SESSION_STORE, store)


def add_artifact_store(server: grpc.aio.Server, store: ArtifactStore) -> None:
    """Serve an artifact store."""
    add_port(server, ARTIFACT_STORE, store)


def add_query(server: grpc.aio.Server, query: Query) -> None:
    """Serve a query port."""
    add_port(server, QUERY, query)


def add_maintenance(server: grpc.aio.Server, maintenance: Maintenance) -> None:
    """Serve a maintenance port."""
    add_port(server, MAINTENANCE, maintenance)


def add_agent_persistence(server: grpc.aio.Server, persistence: AgentPersistence) -> None:
    """Serve an agent persistence."""
    add_port(server, AGENT_PERSISTENCE, persistence)


def add_plugin(server: grpc.aio.Server, description: DescribeResponse, probe: Probe | None = None) -> None:
    """Serve what the process says about itself. Without `probe` it is always ready."""
    add_port(server, PLUGIN, _Plugin(description, probe))


def capabilities_of(port: object) -> frozenset[str]:
    """Names of the optional abilities a port has once it is served here."""
    if isinstance(port, Backend):
        return port.capabilities | SERVED_OPTIONS
    if isinstance(port, Behavior):
        return port.capabilities
    names: set[str] = set()
    if isinstance(port, Mailbox):
        names.add("mailbox")
    if isinstance(port, EventWatcher):
        names.add("watch_events")
    if isinstance(port, InterruptedFlag):
        names.add("set_interrupted")
    if hasattr(port, "get_events"):
        names.add("long_poll")
    return frozenset(names)


class _Plugin:
    def __init__(self, description: DescribeResponse, probe: Probe | None) -> None:
        self._description = description
        self._probe = probe

    async def describe(self, _: DescribeRequest) -> DescribeResponse:
        return self._description

    async def probe(self, _: ProbeRequest) -> ProbeResponse:
        if self._probe is None:
            return ProbeResponse(state=ProbeResponse.STATE_READY)
        try:
            return await self._probe()
        except TurndockError as error:
            return ProbeResponse(state=ProbeResponse.STATE_ERROR, message=str(error))
