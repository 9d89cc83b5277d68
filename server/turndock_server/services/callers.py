"""Who calls: one interceptor finds out, every handler asks `caller()`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

from turndock import wire
from turndock.types.v1 import Scope
from turndock.wire.interceptor import Handler, wrap_handler

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and for which partition."""

    tenant: str | None
    """None = the unscoped partition."""
    may_choose_scope: bool
    """Whether the caller may name any scope in a request; true on a server without authentication."""


_caller: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """Who makes the call that is being handled."""
    return _caller.get()


def may_use(scope: Scope | None) -> bool:
    """Whether the caller may use a scope that a request names."""
    who = caller()
    return who.may_choose_scope or who.tenant == (scope.tenant if scope is not None else None)


class CallerInterceptor(grpc.aio.ServerInterceptor):
    """Sets `caller()` for the handler of each call, and only for that."""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        """Wrap the handler."""
        handler = await continuation(handler_call_details)
        metadata = handler_call_details.invocation_metadata
        return None if handler is None else wrap_handler(handler, lambda run: _identified(run, metadata))


def _identified(run: Handler, metadata: Any) -> Handler:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        # Set here and not in the interceptor: the handler's task has a context of its own.
        _caller.set(_who(metadata))
        return await run(request, context)

    return call


def _who(metadata: Any) -> Caller:
    named = wire.find(metadata, wire.SCOPE)
    return Caller(wire.decode_tenant(named) if named else None, may_choose_scope=True)
