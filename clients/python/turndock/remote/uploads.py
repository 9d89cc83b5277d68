"""Client streams whose status is the one the other side gave.

gRPC's own `write`, and the iterator it takes, report INTERNAL when a message meets the end of the call, and the status
that ended it is lost. It is just then that the status matters: a store refuses an upload before it is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio

from turndock.wire import close_stream


async def upload(
    start: Callable[[], grpc.aio.StreamUnaryCall[Any, Any]], requests: AsyncIterator[Any]
) -> Any:
    """Start a call, send all requests and return the response.

    Raises what gRPC raises, or what the requests' iterator raises.
    """
    call = start()
    feeder = asyncio.create_task(_feed(call, requests))
    answer = asyncio.create_task(_answer(call))
    try:
        # The response may come while requests are still being sent; an iterator that raises ends the call.
        await asyncio.wait((feeder, answer), return_when=asyncio.FIRST_COMPLETED)
        if feeder.done():
            feeder.result()
        return await answer
    finally:
        call.cancel()
        feeder.cancel()
        await asyncio.wait((feeder, answer))


async def _answer(call: grpc.aio.StreamUnaryCall[Any, Any]) -> Any:
    return await call


async def _feed(call: Any, requests: AsyncIterator[Any]) -> None:
    # Both are private to gRPC, which has no public way to write without losing the status.
    serialize: Callable[[Any], bytes] = call._request_serializer
    send: Callable[[bytes], Awaitable[None]] = call._cython_call.send_serialized_message
    try:
        await call.wait_for_connection()
        async for request in requests:
            await send(serialize(request))
        await call.done_writing()
    except grpc.aio.InternalError:
        return  # the other side has ended the call, and its status is on the way
    finally:
        await close_stream(requests)
