"""The gRPC server itself: who may call it, how much at a time, and where it listens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc.aio

from turndock import wire
from turndock_server.access import authenticator_of
from turndock_server.config import ConfigError, Fault, Settings
from turndock_server.holding import hold
from turndock_server.services.callers import CallerInterceptor
from turndock_server.services.limits import ScopeLimits
from turndock_server.services.stopping import StoppingInterceptor


def new_server(settings: Settings, stopping: Callable[[], bool]) -> grpc.aio.Server:
    """A server that serves nothing yet. Raises `ConfigError` for credentials that cannot be read."""
    most = settings.limits
    limits = ScopeLimits(most.max_calls_per_scope, most.max_streams_per_scope, most.max_watchers_per_scope)
    callers = CallerInterceptor(authenticator_of(settings), limits)
    return wire.new_server(
        interceptors=(StoppingInterceptor(stopping), callers),
        options=(("grpc.max_receive_message_length", settings.server.max_message_bytes),),
    )


def listen(server: grpc.aio.Server, settings: Settings, held: ExitStack) -> wire.Endpoint:
    """Take the address before anything else: a second server must fail at once, and leave the first alone.

    What keeps others away is put on `held`. Raises `ConfigError`, `TurndockError`, `Held` and `OSError`.
    """
    where, tls = settings.server.endpoint, settings.tls
    if not where.is_local and tls.cert is None and not settings.server.insecure:
        remedy = (
            "Listen on 127.0.0.1 or a unix socket, give tls.cert and tls.key, or set server.insecure = true"
        )
        problem = f"{where} can be reached from other machines, without encryption"
        raise ConfigError([Fault("server.listen", problem, remedy)])
    if where.path:
        # gRPC replaces a socket file without asking whether somebody listens at it.
        held.callback(hold(Path(f"{where.path}.lock")).release)
    credentials = None
    if tls.cert is not None and tls.key is not None:
        credentials = wire.server_credentials(tls.cert, tls.key, tls.client_ca)
    try:
        return wire.bind(server, where, credentials=credentials)
    except OSError as error:
        raise OSError(f"{error}. server.listen or --listen names another address") from error
