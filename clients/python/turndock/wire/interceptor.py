"""Every exception of a handler becomes a status, in the same way for every shape of call.

Whatever streams is made to write, so that also what goes wrong while an answer is sent passes through here. (Decision
011 says why this is not `grpc_interceptor`'s, which makes generators of everything.)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from turndock.errors import TurndockError, not_offered
from turndock.wire.status import status_of

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
Handler = Callable[[Any, "grpc.aio.ServicerContext[Any, Any]"], Awaitable[Any]]

_log = logging.getLogger("turndock.wire")


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends calls whose handler raised with the right status.

    `TurndockError` becomes its own status. Cancellation passes. Anything else becomes INTERNAL with a random
    reference, which the log has together with the traceback; the exception's text is never sent.
    """

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        """Wrap the handler; an unknown method has none, which gRPC answers with UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        return None if handler is None else wrap_handler(handler, lambda run: _guarded(run, method))


def wrap_handler(
    handler: grpc.RpcMethodHandler[_Request, _Response], around: Callable[[Handler], Handler]
) -> grpc.RpcMethodHandler[_Request, _Response]:
    """The handler with something around it, whatever its shape; what streams comes as one coroutine that writes."""
    shape = (handler.request_streaming, handler.response_streaming)
    behavior, factory = {
        (False, False): (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
        (False, True): (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
        (True, False): (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
        (True, True): (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
    }[shape]
    run = _streamed(behavior) if handler.response_streaming else cast(Handler, behavior)
    return factory(
        around(run),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _streamed(behavior: Any) -> Handler:
    """A streaming handler that writes, whether the given one writes or yields."""
    if not inspect.isasyncgenfunction(behavior):
        return cast(Handler, behavior)

    async def write(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        responses = cast(AsyncIterator[Any], behavior(request, context))
        async for response in responses:
            await context.write(response)

    return write


def _guarded(run: Handler, method: str) -> Handler:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await run(request, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except grpc.aio.InternalError as error:
            # The library could not send: the peer has left, or has been told that the message was too large.
            _log.info("%s ended while it was answered: %s", method, error)
            raise asyncio.CancelledError from None
        except TurndockError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - whatever a handler raises must not reach the peer as it is
            failure = _unexpected(error, context, method)
        code, text, trailing = status_of(failure)
        await context.abort(code, text, trailing)

    return call


def _unexpected(error: Exception, context: grpc.aio.ServicerContext[Any, Any], method: str) -> TurndockError:
    if isinstance(error, NotImplementedError) and context.code() == grpc.StatusCode.UNIMPLEMENTED:
        return not_offered(method)  # a generated servicer whose method was not overridden
    reference = secrets.token_hex(8)
    _log.error("%s failed, reference %s", method, reference, exc_info=error)
    return TurndockError(
        "INTERNAL_ERROR", f"internal error, reference {reference}", metadata={"reference": reference}
    )
