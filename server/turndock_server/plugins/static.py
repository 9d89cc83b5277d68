"""A plug-in that runs by itself, at a known place."""

from __future__ import annotations

import grpc

from turndock.wire import Endpoint, parse_endpoint
from turndock_server.plugins.dock import Dock


class StaticPlugin(Dock):
    """Docks what listens at `endpoint`: `grpc://host:port` or `unix:/path`. Without credentials, unencrypted.

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
