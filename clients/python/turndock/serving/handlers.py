"""From a port's methods to gRPC handlers: one rule for every contract.

The RPC `SaveSession` of a service is the method `save_session` of its port. A method that is not there is an ability
that is not offered, and answers UNIMPLEMENTED.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from turndock.errors import TurndockError, not_offered
from turndock.wire import close_stream, method_name

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[Any, Context], Awaitable[Any]]
"""An RPC's own way to answer: takes the request (or their iterator) and the context; streams by `context.write`."""


def add_port(
    server: grpc.aio.Server,
    service: ServiceDescriptor,
    port: object,
    *,
    own: Mapping[str, Handler] | None = None,
    encoded: Collection[str] = (),
) -> None:
    """Serve a port as a service.

    `own` handles some RPCs, by name, otherwise than by calling the port's method. The RPCs named in `encoded` answer
    with bytes: messages that were encoded before, once for everybody who gets them.
    """
    handlers = {
        rpc.name: _rpc_handler(
            rpc, (own or {}).get(rpc.name) or _method_handler(rpc, port), encoded=rpc.name in encoded
        )
        for rpc in service.methods
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service.full_name, handlers)])
    server.add_registered_method_handlers(service.full_name, handlers)


def _rpc_handler(
    rpc: MethodDescriptor, behavior: Handler, *, encoded: bool
) -> grpc.RpcMethodHandler[Any, Any]:
    factory = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[rpc.client_streaming, rpc.server_streaming]
    return factory(
        behavior,
        request_deserializer=GetMessageClass(rpc.input_type).FromString,
        response_serializer=None if encoded else GetMessageClass(rpc.output_type).SerializeToString,
    )


def _method_handler(rpc: MethodDescriptor, port: object) -> Handler:
    method: Callable[[Any], Any] | None = getattr(port, method_name(rpc.name), None)
    if method is None:
        return _absent(f"{rpc.containing_service.name}.{rpc.name}")
    if rpc.server_streaming:
        return _streaming(method)
    return _taking_in(method) if rpc.client_streaming else _answering(method)


def _answering(method: Callable[[Any], Awaitable[Any]]) -> Handler:
    async def answer(request: Any, _: Context) -> Any:
        return await method(request)

    return answer


def _taking_in(method: Callable[[AsyncIterator[Any]], Awaitable[Any]]) -> Handler:
    async def answer(requests: AsyncIterator[Any], context: Context) -> Any:
        arriving = _Arriving(requests, context)
        try:
            return await method(arriving)
        finally:
            await arriving.over()

    return answer


class _Arriving:
    """The caller's requests, which come to an end only if the caller ended them.

    gRPC ends its iterator also when the call breaks, up to a millisecond before it cancels the handler, and half an
    upload would be taken for a whole one. So the first thing an answer consists of is sent then: it can be sent only
    while the call stands. A broken call raises `TurndockError` (CANCELLED), and the handler is cancelled as well.
    """

    def __init__(self, requests: AsyncIterator[Any], context: Context) -> None:
        self._requests = aiter(requests)
        self._context = context
        self._proof: asyncio.Task[bool] | None = None
        self._is_over = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._requests)
        except StopAsyncIteration:
            if self._proof is None and not self._is_over:
                self._proof = asyncio.create_task(self._call_stands())
            if self._proof is not None and not await asyncio.shield(self._proof):
                raise TurndockError("CANCELLED", "the call broke before its last request") from None
            raise

    async def over(self) -> None:
        """The handler is done. What is being sent must be sent before its answer is: gRPC takes one at a time."""
        self._is_over = True
        if self._proof is not None:
            await asyncio.wait((self._proof,))

    async def _call_stands(self) -> bool:
        try:
            await self._context.send_initial_metadata(())
        except grpc.aio.InternalError:
            return False
        return True


def _streaming(method: Callable[[Any], AsyncIterator[Any]]) -> Handler:
    async def stream(request: Any, context: Context) -> None:
        # At once: a caller must see that its call stands although nothing has happened yet.
        await context.send_initial_metadata(())
        responses = method(request)
        try:
            async for response in responses:
                await context.write(response)
        finally:
            await close_stream(responses)

    return stream


def _absent(call: str) -> Handler:
    async def refuse(_: Any, __: Context) -> Any:
        raise not_offered(call)

    return refuse
