"""Who calls, and what they may: one interceptor finds out, every handler asks `caller()`."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from turndock import wire
from turndock.errors import TurndockError
from turndock.types.v1 import Scope
from turndock.wire.interceptor import Handler, wrap_handler
from turndock_server.access import Authenticator, Principal, Role
from turndock_server.core.finishing import finished
from turndock_server.services.limits import ScopeLimits
from turndock_server.services.permissions import is_open, needed_role

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 10.0
"""How often it is seen to that the credentials of a stream are still valid."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and for which partition."""

    tenant: str | None
    """None = the unscoped partition."""
    may_choose_scope: bool
    """Whether the caller may name any scope in a request; true on a server without authentication."""
    role: Role = Role.ADMIN
    """What the caller may do; everything on a server without authentication."""
    name: str = ""
    """Who it is, for logs; empty on a server without authentication."""


_caller: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """Who makes the call that is being handled."""
    return _caller.get()


def may_use(scope: Scope | None) -> bool:
    """Whether the caller may use a scope that a request names."""
    who = caller()
    return who.may_choose_scope or who.tenant == (scope.tenant if scope is not None else None)


def check_fence(request: Any) -> None:
    """A fence makes its writer the owner. Raises PERMISSION_DENIED for one who could not claim either."""
    if caller().role < Role.ADMIN and request.HasField("fence"):
        raise TurndockError(
            "PERMISSION_DENIED",
            f"fence: to write as a session's owner needs the role {Role.ADMIN}",
            metadata={"needed_role": str(Role.ADMIN)},
        )


class CallerInterceptor(grpc.aio.ServerInterceptor):
    """Sets `caller()` for the handler of each call, and only for that.

    With an authenticator it refuses who has no credentials (UNAUTHENTICATED), or not those the call needs
    (PERMISSION_DENIED), before the handler sees the request: neither answer depends on what is stored. With limits it
    refuses what would be too much at a time for the caller's scope.
    """

    def __init__(self, authenticator: Authenticator | None = None, limits: ScopeLimits | None = None) -> None:
        self._authenticator = authenticator
        self._limits = limits if limits is not None and limits.is_set else None

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        """Wrap the handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        metadata = handler_call_details.invocation_metadata
        method = handler_call_details.method
        if self._authenticator is None and self._limits is None:
            return wrap_handler(handler, lambda run: _identified(run, metadata))
        if is_open(method):
            return handler
        streams = handler.request_streaming or handler.response_streaming
        return wrap_handler(handler, lambda run: self._admitted(run, method, metadata, streams=streams))

    def _admitted(self, run: Handler, method: str, metadata: Any, *, streams: bool) -> Handler:
        async def call(request: Any, context: Context) -> Any:
            admitted = run
            if self._authenticator is None:
                who = _anybody(metadata)
            else:
                principal, who = _authorized(self._authenticator, method, metadata, context)
                if streams:
                    admitted = _while_valid(run, self._authenticator, principal, metadata)
            _caller.set(who)
            if self._limits is None:
                return await admitted(request, context)
            places = ExitStack()
            places.enter_context(self._limits.call(who.tenant, request, streams=streams))
            # Who hangs up does not get a place back for what goes on without them.
            with finished(places.close):
                return await admitted(request, context)

        return call


def _identified(run: Handler, metadata: Any) -> Handler:
    async def call(request: Any, context: Context) -> Any:
        # Set here and not in the interceptor: the handler's task has a context of its own.
        _caller.set(_anybody(metadata))
        return await run(request, context)

    return call


def _while_valid(run: Handler, authenticator: Authenticator, principal: Principal, metadata: Any) -> Handler:
    """A stream lasts no longer than the credentials it was opened with: neither beyond their end nor once revoked."""

    async def call(request: Any, context: Context) -> Any:
        lookout = _Lookout(
            principal.expires_at, lambda: _is_still(principal, authenticator, metadata, context)
        )
        try:
            async with lookout.validity:
                return await run(request, context)
        except TimeoutError:
            if not lookout.validity.expired():
                raise
            raise TurndockError("UNAUTHENTICATED", "the credentials are not valid any more") from None
        finally:
            lookout.close()

    return call


class _Lookout:
    """Looks from time to time whether credentials are still valid, and lets `validity` expire when they are not."""

    def __init__(self, expires_at: float | None, is_valid: Callable[[], bool]) -> None:
        self.validity = asyncio.timeout(None)
        self._expires_at = math.inf if expires_at is None else expires_at
        self._is_valid = is_valid
        self._loop = asyncio.get_running_loop()
        self._timer = self._look_later()

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look_later(self) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0.0, min(LOOK_AGAIN_S, self._expires_at - time.time())), self._look)

    def _look(self) -> None:
        if self._is_valid():
            self._timer = self._look_later()
        else:
            self.validity.reschedule(self._loop.time())


def _is_still(principal: Principal, authenticator: Authenticator, metadata: Any, context: Context) -> bool:
    try:
        return _principal(authenticator, metadata, context) == principal
    except TurndockError:
        return False


def _principal(authenticator: Authenticator, metadata: Any, context: Context) -> Principal:
    return authenticator.principal(wire.find(metadata, wire.AUTHORIZATION), lambda: _certified_names(context))


def _anybody(metadata: Any) -> Caller:
    """The caller of a server without authentication."""
    return Caller(_named_scope(metadata), may_choose_scope=True)


def _authorized(
    authenticator: Authenticator, method: str, metadata: Any, context: Context
) -> tuple[Principal, Caller]:
    """Who calls, and for which partition. Raises UNAUTHENTICATED or PERMISSION_DENIED, and has the log say so."""
    principal = None
    try:
        principal = _principal(authenticator, metadata, context)
        return principal, _checked(principal, method, metadata)
    except TurndockError as error:
        facts = {"method": method, "peer": context.peer(), "principal": principal.name if principal else None}
        log.info("refused: %s", error.message, extra=facts)
        raise


def _checked(principal: Principal, method: str, metadata: Any) -> Caller:
    """The caller, if the credentials are good for the call and for the scope it asks for."""
    needed = needed_role(method)
    if needed is None:
        raise _denied(f"{method} is not open to anybody", method)
    if principal.role < needed:
        raise _denied(f"{method} needs the role {needed}", method, needed_role=str(needed))
    may_choose = principal.scope is None and principal.role is Role.ADMIN
    named = _named_scope(metadata)
    if principal.scope is None and not may_choose:
        raise _denied("credentials without a scope need the role admin", method, needed_role=str(Role.ADMIN))
    if named is not None and not may_choose and named != principal.scope:
        raise _denied(
            f"{wire.SCOPE}: to act for another scope needs the role admin, and credentials without a scope",
            method,
            needed_role=str(Role.ADMIN),
        )
    return Caller(named if may_choose else principal.scope, may_choose, principal.role, principal.name)


def _denied(why: str, method: str, **facts: str) -> TurndockError:
    return TurndockError("PERMISSION_DENIED", why, metadata={"method": method, **facts})


def _named_scope(metadata: Any) -> str | None:
    named = wire.find(metadata, wire.SCOPE)
    return wire.decode_tenant(named) if named else None


def _certified_names(context: Context) -> Iterable[str]:
    """The names in the certificate of the call's connection, subject alternative names first."""
    facts = context.auth_context()
    for key in ("x509_subject_alternative_name", "x509_common_name"):
        for name in facts.get(key, ()):
            yield name.decode("utf-8", "replace")
