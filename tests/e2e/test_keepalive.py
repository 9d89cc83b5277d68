"""An idle stream stays alive however often its client asks whether the server does."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from turndock import wire

pytestmark = pytest.mark.slow

# A Go client with keepalive 10 s does this within minutes; the interval is shortened, not the rule.
ZEALOUS = (
    ("grpc.keepalive_time_ms", 100),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


async def idle(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    await context.send_initial_metadata(())
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def watching(make: Callable[[], grpc.aio.Server]) -> AsyncGenerator[asyncio.Task[Any]]:
    """A task that reads an idle stream of such a server, and ends when the stream does."""
    server = make()
    make_handler: Any = grpc.unary_stream_rpc_method_handler
    handler: grpc.RpcMethodHandler[bytes, bytes] = make_handler(idle)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Idle", {"Watch": handler})])
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    async with wire.connect(endpoint, options=ZEALOUS) as channel:
        method: Any = channel.unary_stream
        call = method("/test.Idle/Watch")(b"")
        task = asyncio.create_task(call.read())
        try:
            yield task
        finally:
            call.cancel()
            await asyncio.wait([task])
            await server.stop(0)


async def test_PF_E13_an_idle_watch_outlives_a_client_that_pings_too_often() -> None:
    async with watching(wire.new_server) as ours, watching(grpc.aio.server) as usual:
        with pytest.raises(grpc.aio.AioRpcError, match="Too many pings"):
            await asyncio.wait_for(asyncio.shield(usual), 60)
        assert not ours.done()
