"""The maintenance of the host's own store, served: within the caller's scope, or in all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from turndock.errors import TurndockError, not_found
from turndock.ports import Maintenance
from turndock.serving.contracts import MAINTENANCE
from turndock.serving.handlers import add_port
from turndock_server.services.callers import caller, may_use


class MaintenanceService:
    """Maintenance as remote callers get it: every call checks the scope first."""

    def __init__(self, maintenance: Maintenance) -> None:
        self._maintenance = maintenance

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve every RPC."""
        add_port(server, MAINTENANCE, self)

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        """The call of that name, for requests within the caller's scope."""
        if name.startswith("_"):
            raise AttributeError(name)
        call: Callable[[Any], Awaitable[Any]] = getattr(self._maintenance, name)

        async def scoped(request: Any) -> Any:
            if not may_use(request.scope if request.HasField("scope") else None):
                raise not_found("scope", request.scope.tenant)
            if getattr(request, "every_scope", False) and not caller().may_choose_scope:
                raise TurndockError(
                    "PERMISSION_DENIED", "every_scope is for those who may act for every scope"
                )
            return await call(request)

        return scoped
