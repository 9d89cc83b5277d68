"""A server that stops takes no new call of an agent; calls that were taken before go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from turndock.errors import TurndockError
from turndock.wire.interceptor import Handler, wrap_handler
from turndock_server.services.agent_host import SERVICE

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

_PREFIX: Final = f"/{SERVICE.full_name}/"


class StoppingInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls of `AgentHost` with SERVER_STOPPING once the server stops.

    The stores still answer: turns under way may need them. Health answers to the last.
    """

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        """Refuse, or leave the handler as it is."""
        handler = await continuation(handler_call_details)
        refused = handler_call_details.method.startswith(_PREFIX) and self._stopping()
        return handler if handler is None or not refused else wrap_handler(handler, _refusal)


def _refusal(_: Handler) -> Handler:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        raise TurndockError("SERVER_STOPPING", "the server is stopping")

    return call
