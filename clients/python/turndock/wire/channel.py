"""The options every channel and every server of this system is made with."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import grpc
import grpc.aio

from turndock.endpoint import Endpoint, parse_endpoint
from turndock.errors import invalid
from turndock.wire.interceptor import ErrorInterceptor

MAX_MESSAGE_BYTES: Final = 4 << 20
"""Largest message either side sends or takes; gRPC's own default, so that every peer agrees."""

KEEPALIVE_MS: Final = 30_000
"""How long a client's connection is silent before the client asks whether the server still lives."""

PLUGIN_KEEPALIVE_MS: Final = 310_000
"""The same towards plug-ins, which may run on any gRPC library: most refuse to be asked more often than each 300 s."""

# The window of a stream that nobody reads; with bdp_probe it would grow to megabytes, and "written" would say nothing.
_WINDOW_BYTES: Final = 256 << 10

_COMMON_OPTIONS: Final[Mapping[str, int | str]] = {
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
    "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
    "grpc.http2.bdp_probe": 0,
    "grpc.http2.lookahead_bytes": _WINDOW_BYTES,
    "grpc.http2.max_pings_without_data": 0,  # an idle stream sends no data and has to be kept alive
    "grpc.keepalive_timeout_ms": 20_000,
}

_CHANNEL_OPTIONS: Final[Mapping[str, int | str]] = {
    **_COMMON_OPTIONS,
    "grpc.keepalive_permit_without_calls": 0,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 5_000,
}

_SERVER_OPTIONS: Final[Mapping[str, int | str]] = {
    **_COMMON_OPTIONS,
    "grpc.so_reuseport": 0,  # a second server on the port must fail, not share it
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_permit_without_calls": 1,
    # Clients in other languages ping as they please. To answer costs next to nothing; a closed connection costs
    # a resume of all its streams.
    "grpc.http2.min_ping_interval_without_data_ms": 1_000,
    "grpc.http2.max_ping_strikes": 0,
}


def connect(
    endpoint: Endpoint | str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    keepalive_ms: int = KEEPALIVE_MS,
    options: Sequence[tuple[str, int | str]] = (),
) -> grpc.aio.Channel:
    """A channel to an endpoint; it connects when it is first used and again whenever it has to.

    Without `credentials` it is encrypted only at a `grpcs://` endpoint, which then has to prove itself to the
    authorities gRPC brings along. `options` are further channel arguments and win over ours. Raises `TurndockError`
    (VALIDATION_ERROR) for an endpoint that is none.
    """
    where = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
    if credentials is None and where.tls:
        credentials = grpc.ssl_channel_credentials()
    arguments: dict[str, int | str] = {**_CHANNEL_OPTIONS, "grpc.keepalive_time_ms": keepalive_ms}
    if where.is_local:
        arguments["grpc.enable_http_proxy"] = 0
    chosen = [*{**arguments, **dict(options)}.items()]  # each once, since of two gRPC takes the first
    if credentials is None:
        return grpc.aio.insecure_channel(where.target, options=chosen)
    return grpc.aio.secure_channel(where.target, credentials, options=chosen)


def new_server(
    *,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    options: Sequence[tuple[str, int | str]] = (),
) -> grpc.aio.Server:
    """A server that answers every exception with the right status. `interceptors` run within that."""
    chosen = [*{**_SERVER_OPTIONS, **dict(options)}.items()]
    return grpc.aio.server(interceptors=(ErrorInterceptor(), *interceptors), options=chosen)


def bind(
    server: grpc.aio.Server, endpoint: Endpoint | str, *, credentials: grpc.ServerCredentials | None = None
) -> Endpoint:
    """Have the server listen at an endpoint, and return it with the port that was taken for port 0.

    Raises `OSError` when that is not possible, and `TurndockError` for an endpoint that is none, or is `grpcs://`
    without credentials.
    """
    where = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
    if where.tls and credentials is None:
        raise invalid("endpoint", f"{where} needs a certificate to show")
    try:
        if where.port:
            _try_to_bind(where)
        if credentials is None:
            port = server.add_insecure_port(where.address)
        else:
            port = server.add_secure_port(where.address, credentials)
    except OSError as error:
        raise OSError(f"cannot listen at {where}: {error.strerror}") from None
    except RuntimeError as error:
        raise OSError(f"cannot listen at {where}: {error}") from None
    return where if where.path else replace(where, port=port, tls=credentials is not None)


def _try_to_bind(where: Endpoint) -> None:
    """Raise `OSError` with the system's reason if the port cannot be had; gRPC knows it and does not tell."""
    found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        # As gRPC does: the connections that a closed server leaves behind must not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
