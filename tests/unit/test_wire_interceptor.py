"""What a handler raises is what a client gets, in every shape of call."""

import asyncio
import importlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from grpc_interceptor.testing import DummyRequest
from grpc_interceptor.testing.dummy_client import AsyncDummyService, AsyncReadWriteDummyService

from turndock import wire
from turndock.errors import Code, TurndockError, invalid, not_found

Context = grpc.aio.ServicerContext[bytes, bytes]

SHAPES = ("Unary", "Yields", "Writes", "Uploads", "Chats")


class Raising:
    """One handler per shape; each raises `error` after having said `before` messages."""

    def __init__(self, error: BaseException | None = None, before: int = 0) -> None:
        self.error = error
        self.before = before

    def fail(self) -> None:
        if self.error is not None:
            raise self.error

    async def unary(self, request: bytes, context: Context) -> bytes:
        self.fail()
        return request

    async def yields(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        for _ in range(self.before):
            yield request
        self.fail()

    async def writes(self, request: bytes, context: Context) -> None:
        for _ in range(self.before):
            await context.write(request)
        self.fail()

    async def uploads(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        received = [request async for request in requests]
        self.fail()
        return b"".join(received)

    async def chats(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request
        self.fail()


@asynccontextmanager
async def serving(handlers: Raising) -> AsyncGenerator[grpc.aio.Channel]:
    server = wire.new_server()
    table: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(handlers.unary),
        "Yields": grpc.unary_stream_rpc_method_handler(handlers.yields),
        "Writes": grpc.unary_stream_rpc_method_handler(handlers.writes),
        "Uploads": grpc.stream_unary_rpc_method_handler(handlers.uploads),
        "Chats": grpc.stream_stream_rpc_method_handler(handlers.chats),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Shapes", table)])
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with wire.connect(endpoint) as channel:
            yield channel
    finally:
        await server.stop(0)


async def call(channel: grpc.aio.Channel, shape: str) -> list[bytes]:
    """Call the shape's method and return what it answered; raises `TurndockError`."""
    method = f"/test.Shapes/{shape}"
    got: list[bytes] = []
    unary = cast("grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]", channel.unary_unary(method))
    stream = cast("grpc.aio.UnaryStreamMultiCallable[bytes, bytes]", channel.unary_stream(method))
    upload = cast("grpc.aio.StreamUnaryMultiCallable[bytes, bytes]", channel.stream_unary(method))
    chat = cast("grpc.aio.StreamStreamMultiCallable[bytes, bytes]", channel.stream_stream(method))
    with wire.translated():
        if shape == "Unary":
            got.append(await unary(b"x"))
        elif shape == "Uploads":
            got.append(await upload(iter((b"x", b"y"))))
        elif shape == "Chats":
            got += [message async for message in chat(iter((b"x", b"y")))]
        else:
            try:
                async for message in stream(b"x"):
                    got.append(message)
            except grpc.aio.AioRpcError as error:
                translated = wire.error_of(error)
                translated.metadata = {**translated.metadata, "received": str(len(got))}
                raise translated from None
    return got


@pytest.mark.parametrize("shape", SHAPES)
async def test_without_an_error_every_shape_answers(shape: str) -> None:
    async with serving(Raising(before=2)) as channel:
        assert b"".join(await call(channel, shape)) in (b"x", b"xx", b"xy")


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("shape", SHAPES)
async def test_PF_E19_the_same_code_and_detail_in_every_shape(shape: str, before: int) -> None:
    errors = [
        invalid("prompt", "is empty"),
        not_found("session", "ses_1"),
        TurndockError("MAX_RUNS_EXCEEDED", "full", {"limit": "count"}, retry_after_ms=50),
        TurndockError("NEWER_THAN_US", "?", wire_code=Code.DATA_LOSS),
    ]
    for error in errors:
        async with serving(Raising(error, before)) as channel:
            with pytest.raises(TurndockError) as caught:
                await call(channel, shape)
        got = caught.value
        metadata = {key: value for key, value in got.metadata.items() if key != "received"}
        assert (got.reason, got.code, got.message) == (error.reason, error.code, error.message)
        assert (metadata, got.violations) == (error.metadata, error.violations)
        assert got.retry_after_ms == error.retry_after_ms
        if shape in {"Yields", "Writes"}:
            assert got.metadata["received"] == str(before)


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_text_of_an_unexpected_exception_stays_in_the_log(
    shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Raising(ValueError("password=secret123"), before=1)) as channel:
        with pytest.raises(TurndockError) as caught:
            await call(channel, shape)
    error = caught.value
    assert (error.reason, error.code) == ("INTERNAL_ERROR", Code.INTERNAL)
    assert "secret" not in error.message
    [record] = [record for record in caplog.records if record.name == "turndock.wire"]
    assert error.metadata["reference"] in record.getMessage()
    assert f"/test.Shapes/{shape}" in record.getMessage()
    assert "secret123" in str(record.exc_info)


async def test_two_failures_have_two_references() -> None:
    async with serving(Raising(ValueError("x"))) as channel:
        references: set[str] = set()
        for _ in range(2):
            with pytest.raises(TurndockError) as caught:
                await call(channel, "Unary")
            references.add(caught.value.metadata["reference"])
    assert len(references) == 2


async def test_the_longest_text_and_details_arrive_every_time() -> None:
    error = TurndockError(
        "VALIDATION_ERROR",
        "\N{SNOWMAN}" * 1000,
        {f"key{n}": "\N{SNOWMAN}" * 200 for n in range(20)},
    )
    async with serving(Raising(error)) as channel:
        for _ in range(50):
            with pytest.raises(TurndockError) as caught:
                await call(channel, "Unary")
            assert caught.value.reason == "VALIDATION_ERROR"
            assert caught.value.message.endswith("…")


@pytest.mark.parametrize("text", ["two\nlines", "nul \0 and % and ü", "half \ud83d pair", ""])
async def test_any_text_travels(text: str) -> None:
    async with serving(Raising(TurndockError("FENCED", text))) as channel:
        with pytest.raises(TurndockError) as caught:
            await call(channel, "Unary")
    assert caught.value.message == text.encode("utf-8", "replace").decode()


class Aborting(Raising):
    async def unary(self, request: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "by hand")

    async def writes(self, request: bytes, context: Context) -> None:
        await context.write(request)
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "by hand")


@pytest.mark.parametrize("shape", ["Unary", "Writes"])
async def test_an_abort_by_hand_passes(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Aborting()) as channel:
        with pytest.raises(TurndockError) as caught:
            await call(channel, shape)
    assert (caught.value.code, caught.value.message) == (Code.OUT_OF_RANGE, "by hand")
    assert caplog.records == []


class Waiting(Raising):
    """Handlers that wait until they are cancelled, and say so."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def wait(self) -> None:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def unary(self, request: bytes, context: Context) -> bytes:
        await self.wait()
        return request

    async def writes(self, request: bytes, context: Context) -> None:
        await self.wait()

    async def yields(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        await self.wait()
        yield request


@pytest.mark.parametrize("shape", ["Unary", "Writes", "Yields"])
async def test_a_client_that_leaves_cancels_the_handler(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    handlers = Waiting()
    async with serving(handlers) as channel:
        task = asyncio.create_task(call(channel, shape))
        await asyncio.wait_for(handlers.entered.wait(), 5)
        task.cancel()
        await asyncio.wait_for(handlers.cancelled.wait(), 5)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert caplog.records == []


class WritingOn(Waiting):
    """Goes on writing to a client that has left, and raises on its way out."""

    async def writes(self, request: bytes, context: Context) -> None:
        try:
            await self.wait()
        except asyncio.CancelledError:
            raise ValueError("raised while being cancelled") from None


async def test_an_exception_after_the_client_left_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    handlers = WritingOn()
    async with serving(handlers) as channel:
        task = asyncio.create_task(call(channel, "Writes"))
        await asyncio.wait_for(handlers.entered.wait(), 5)
        task.cancel()
        await asyncio.wait_for(handlers.cancelled.wait(), 5)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [record.name for record in caplog.records] == ["turndock.wire"]


class Oversized(Raising):
    async def writes(self, request: bytes, context: Context) -> None:
        await context.write(request)
        await context.write(b"x" * (wire.MAX_MESSAGE_BYTES + 1))

    async def yields(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        yield request
        yield b"x" * (wire.MAX_MESSAGE_BYTES + 1)


@pytest.mark.parametrize("shape", ["Writes", "Yields"])
async def test_PF_B29_an_answer_larger_than_a_message_is_a_limit_and_no_fault(
    shape: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Oversized()) as channel:
        with pytest.raises(TurndockError) as caught:
            await call(channel, shape)
    assert (caught.value.reason, caught.value.code) == ("LIMIT_EXCEEDED", Code.RESOURCE_EXHAUSTED)
    assert caught.value.metadata["received"] == "1"
    assert caplog.records == []


async def test_PF_E20_an_unknown_method_is_unimplemented() -> None:
    async with serving(Raising()) as channel:
        with pytest.raises(TurndockError) as caught:
            await call(channel, "Unknown")
    assert (caught.value.reason, caught.value.code) == ("CAPABILITY_NOT_SUPPORTED", Code.UNIMPLEMENTED)


async def test_closing_the_channel_during_a_call_is_an_error_and_no_cancellation() -> None:
    handlers = Waiting()
    async with serving(handlers) as channel:
        task = asyncio.create_task(call(channel, "Unary"))
        await asyncio.wait_for(handlers.entered.wait(), 5)
        await channel.close()
        with pytest.raises(TurndockError) as caught:
            await task
        assert caught.value.reason == "UNAVAILABLE"
        with pytest.raises(TurndockError, match="channel is closed"):
            await call(channel, "Unary")


# --- A service that somebody else wrote to test interceptors with -----------------------------------------------------

dummy: Any = importlib.import_module(
    "grpc_interceptor.testing.protos.dummy_pb2_grpc"
)  # generated without types

ANSWERS = {
    "Execute": ["c"],
    "ExecuteClientStream": ["abc"],
    "ExecuteServerStream": ["c"],
    "ExecuteClientServerStream": ["a", "b", "c"],
}


def failing(error: Exception) -> Callable[[str, Any], str]:
    """What the service does with an input that it fails upon."""

    def fail(given: str, context: Any) -> str:
        raise error

    return fail


@pytest.fixture(params=[AsyncDummyService, AsyncReadWriteDummyService], ids=["yields", "writes"])
async def stub(request: pytest.FixtureRequest) -> AsyncGenerator[Any]:
    """The service's client. The service echoes, but for two inputs that it fails upon."""
    errors = {"refused": not_found("session", "ses_1"), "fault": ValueError("password=secret123")}
    server = wire.new_server()
    service = request.param({given: failing(error) for given, error in errors.items()})
    dummy.add_DummyServiceServicer_to_server(service, server)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with wire.connect(endpoint) as channel:
            yield dummy.DummyServiceStub(channel)
    finally:
        await server.stop(0)


async def ask(stub: Any, method: str, *inputs: str, said: list[str]) -> None:
    """Call the method and take down what it says; one that takes a single request gets the last input."""
    requests = [DummyRequest(input=each) for each in inputs]
    answer = getattr(stub, method)(iter(requests) if "Client" in method else requests[-1])
    with wire.translated():
        if "Server" in method:
            async for response in answer:
                said.append(response.output)
        else:
            said.append((await answer).output)


@pytest.mark.parametrize("method", ANSWERS)
async def test_anothers_service_answers_as_it_does_elsewhere(stub: Any, method: str) -> None:
    said: list[str] = []
    await ask(stub, method, "a", "b", "c", said=said)
    assert said == ANSWERS[method]


@pytest.mark.parametrize("method", ANSWERS)
async def test_what_anothers_service_raises_arrives_after_what_it_said(stub: Any, method: str) -> None:
    expected = not_found("session", "ses_1")
    said: list[str] = []
    with pytest.raises(TurndockError) as caught:
        await ask(stub, method, "a", "b", "refused", said=said)
    assert said == (["a", "b"] if method == "ExecuteClientServerStream" else [])
    assert (caught.value.reason, caught.value.message) == (expected.reason, expected.message)
    assert caught.value.metadata == expected.metadata


@pytest.mark.parametrize("method", ANSWERS)
async def test_the_text_of_anothers_fault_stays_in_the_log(
    stub: Any, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TurndockError) as caught:
        await ask(stub, method, "fault", said=[])
    assert caught.value.reason == "INTERNAL_ERROR"
    assert "secret" not in caught.value.message
    [record] = caplog.records
    assert (record.name, caught.value.metadata["reference"] in record.getMessage()) == ("turndock.wire", True)
