"""The life of a plug-in's process: listen, say what is there, serve, and stop when told or when the parent is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from turndock.errors import invalid
from turndock.plugin.v1 import DescribeResponse
from turndock.ports import (
    AgentPersistence,
    ArtifactStore,
    Backend,
    Behavior,
    Maintenance,
    Query,
    SessionStore,
)
from turndock.serving.contracts import PLUGIN, Ports, Probe, add_plugin
from turndock.types.v1 import Limits
from turndock.wire import (
    MAX_MESSAGE_BYTES,
    Endpoint,
    bind,
    new_server,
    parse_endpoint,
    server_credentials,
)

ENDPOINT_VARIABLE: Final = "TURNDOCK_PLUGIN_ENDPOINT"
"""Environment variable by which a host that starts a plug-in tells it where to listen."""

PARENT_VARIABLE: Final = "TURNDOCK_PLUGIN_PARENT"
"""Environment variable by which a host tells a plug-in it starts its own process id. The plug-in ends with it."""

TLS_VARIABLES: Final = (
    "TURNDOCK_PLUGIN_TLS_CERT",
    "TURNDOCK_PLUGIN_TLS_KEY",
    "TURNDOCK_PLUGIN_TLS_CLIENT_CA",
)
"""Environment variables with the PEM files that a plug-in at `grpcs://host:port` uses: its certificate, the key, and
the authority of the hosts that may call; without the last, every host may."""

_PARENT_POLL_S: Final = 1.0

_log = logging.getLogger("turndock.serving")


async def serve(
    *,
    name: str,
    version: str,
    backend: Backend | None = None,
    behavior: Behavior | None = None,
    session_store: SessionStore | None = None,
    artifact_store: ArtifactStore | None = None,
    query: Query | None = None,
    maintenance: Maintenance | None = None,
    agent_persistence: AgentPersistence | None = None,
    endpoint: str | None = None,
    probe: Probe | None = None,
    limits: Limits | None = None,
    credentials: grpc.ServerCredentials | None = None,
    insecure: bool = False,
    grace: float = 5.0,
    stop: asyncio.Event | None = None,
    on_ready: Callable[[Endpoint], None] | None = None,
) -> None:
    """Serve ports until SIGTERM or SIGINT, until `stop` is set, or until the host that started the process is gone.

    Args:
        name: Name of the plug-in, for people and logs.
        version: Its own version.
        backend: A backend to serve; likewise every further port.
        behavior: See `backend`.
        session_store: See `backend`.
        artifact_store: See `backend`.
        query: See `backend`.
        maintenance: See `backend`.
        agent_persistence: See `backend`.
        endpoint: Where to listen: `unix:/path` or `host:port`. Unset: what `TURNDOCK_PLUGIN_ENDPOINT` says.
        probe: Says whether the process can work now; unset = it always can.
        limits: The sizes the plug-in accepts; unset fields are the defaults.
        credentials: TLS, as `turndock.wire.server_credentials` makes it; unset at a `grpcs://` endpoint: from the files
            that `TLS_VARIABLES` name. Needed beyond this machine, unless `insecure` is set.
        insecure: Allow other machines to reach the plug-in without encryption.
        grace: Seconds that calls under way may take to end when the process stops.
        stop: Stops the process when it is set.
        on_ready: Called once with the endpoint when the process listens.

    Raises:
        TurndockError: An argument is wrong (VALIDATION_ERROR).
        OSError: It is not possible to listen there.
    """
    ports = Ports(
        backend=backend,
        behavior=behavior,
        session_store=session_store,
        artifact_store=artifact_store,
        query=query,
        maintenance=maintenance,
        agent_persistence=agent_persistence,
    )
    where = _where(endpoint, secure=credentials is not None or insecure)
    if where.tls and credentials is None:
        credentials = _credentials()
    server = new_server()
    services = [PLUGIN, *ports.add_to(server)]
    description = DescribeResponse(
        name=name, version=version, contracts=ports.contracts(), limits=limits or Limits()
    )
    if not description.limits.HasField("max_message_bytes"):
        description.limits.max_message_bytes = MAX_MESSAGE_BYTES
    add_plugin(server, description, probe)
    state = health.aio.HealthServicer()
    for service in services:
        await state.set(service.full_name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    names = [service.full_name for service in services]
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)

    where = bind(server, where, credentials=credentials)
    async with _stop_signal(stop or asyncio.Event(), _host_process()) as stopped:
        await server.start()
        _log.info("%s %s listens at %s", name, version, where)
        if on_ready is not None:
            on_ready(where)
        await stopped.wait()
        await state.enter_graceful_shutdown()
        await server.stop(grace)


def _where(endpoint: str | None, *, secure: bool) -> Endpoint:
    field = "endpoint" if endpoint is not None else ENDPOINT_VARIABLE
    text = endpoint if endpoint is not None else os.environ.get(ENDPOINT_VARIABLE, "")
    if not text:
        raise invalid(field, "must say where to listen: unix:/path or host:port")
    where = parse_endpoint(text, field)
    if not (where.is_local or where.tls or secure):
        raise invalid(
            field,
            f"{where} can be reached from other machines; use grpcs://, pass credentials, or insecure=True",
        )
    return where


def _credentials() -> grpc.ServerCredentials:
    """What `TLS_VARIABLES` say."""
    cert, key, client_ca = (os.environ.get(name, "") for name in TLS_VARIABLES)
    for name, value in zip(TLS_VARIABLES[:2], (cert, key), strict=True):
        if not value:
            raise invalid(name, "must name a PEM file, or credentials be passed: the endpoint is grpcs://")
    return server_credentials(cert, key, client_ca or None, field="TURNDOCK_PLUGIN_TLS")


def _host_process() -> int | None:
    """The process to end with; None = none. Not simply this one's parent, which may be gone by now."""
    text = os.environ.get(PARENT_VARIABLE, "")
    if text and not text.isdecimal():
        raise invalid(PARENT_VARIABLE, f"{text!r} is no process id")
    return int(text) if text else None


@contextlib.asynccontextmanager
async def _stop_signal(stop: asyncio.Event, host: int | None) -> AsyncGenerator[asyncio.Event]:
    """The event, which SIGTERM, SIGINT and the end of the host's process set, too, as long as the block runs."""
    loop = asyncio.get_running_loop()
    handled: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            # Not on Windows and not in threads; there the caller stops us.
            loop.add_signal_handler(number, stop.set)
            handled.append(number)
    watcher = asyncio.create_task(_end_with(host, stop)) if host is not None else None
    try:
        yield stop
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])
        for number in handled:
            loop.remove_signal_handler(number)


async def _end_with(process_id: int, stop: asyncio.Event) -> None:
    """Set `stop` when a process has ended."""
    try:
        descriptor = os.pidfd_open(process_id) if sys.platform == "linux" else None
    except ProcessLookupError:
        stop.set()  # it ended before we began
        return
    except OSError:
        descriptor = None  # an old kernel, or a guarded one
    if descriptor is None:
        while _lives(process_id):  # noqa: ASYNC110 - this system has no event for it
            await asyncio.sleep(_PARENT_POLL_S)
    else:
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(descriptor, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    _log.warning("the process that started this one is gone")
    stop.set()


def _lives(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, but there
    return True
