"""A plug-in that runs by itself, at a known place."""

from __future__ import annotations

import grpc

from turndock.wire import Endpoint, Tls, parse_endpoint
from turndock_server.config import PluginSettings
from turndock_server.plugins.dock import Dock


class StaticPlugin(Dock):
    """Docks what listens at `endpoint`: `grpcs://host:port`, `grpc://host:port` or `unix:/path`.

    Raises `TurndockError` (VALIDATION_ERROR) for an endpoint that is none.
    """

    def __init__(
        self,
        name: str,
        endpoint: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        probe_interval_s: float = 10.0,
    ) -> None:
        super().__init__(name, credentials=credentials, probe_interval_s=probe_interval_s)
        self._endpoint = parse_endpoint(endpoint)

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint


def plugin_credentials(name: str, settings: PluginSettings) -> grpc.ChannelCredentials | None:
    """TLS towards a plug-in at `grpcs://`; None for any other. Raises `TurndockError` (VALIDATION_ERROR)."""
    if not parse_endpoint(settings.endpoint).tls:
        return None
    tls = settings.tls
    return Tls(tls.ca, tls.cert, tls.key).credentials(f"plugins.{name}.tls")
