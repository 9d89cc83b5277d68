"""RPCs as methods: a port over a channel is a table of them.

    class RemoteArtifactStore(Remote, service=artifact_store_pb2.DESCRIPTOR.services_by_name["ArtifactStore"]):
        head: Unary[ArtifactStoreHeadRequest, ArtifactStoreHeadResponse]

`head` then is an async method that calls the RPC `Head` and raises `TurndockError` for whatever goes wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from turndock.errors import TurndockError, is_not_offered, not_offered
from turndock.remote.uploads import upload
from turndock.wire import method_name, translated

DEFAULT_TIMEOUT_S: Final = 10.0
"""How long a unary call may take, unless its request asks for a wait."""

POLL_SLACK_S: Final = 5.0
"""What a waiting call may take beyond the wait its request asks for."""

UNAVAILABLE: Final = "PLUGIN_UNAVAILABLE"
"""Reason of a call that did not reach the other side, unless a caller wants another one."""

_Request = TypeVar("_Request", bound=Message, contravariant=True)  # noqa: PLC0105 - private to the three protocols
_Response = TypeVar("_Response", bound=Message, covariant=True)  # noqa: PLC0105 - private to the three protocols


class Unary(Protocol[_Request, _Response]):
    """A method with one request and one response."""

    async def __call__(self, request: _Request) -> _Response: ...


class Stream(Protocol[_Request, _Response]):
    """A method with one request and a stream of responses; leaving the stream cancels the call."""

    def __call__(self, request: _Request) -> AsyncIterator[_Response]: ...


class Upload(Protocol[_Request, _Response]):
    """A method with a stream of requests and one response."""

    async def __call__(self, requests: AsyncIterator[_Request]) -> _Response: ...


class Remote:
    """A service over a channel. The channel belongs to the caller, who closes it.

    A subclass names its service and annotates the methods it offers. An RPC that answered UNIMPLEMENTED once is not
    offered, and is not asked for again.
    """

    _service: ClassVar[ServiceDescriptor]
    _offered: ClassVar[tuple[MethodDescriptor, ...]]

    def __init_subclass__(cls, *, service: ServiceDescriptor | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if service is not None:
            cls._service = service
        annotated = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
        cls._offered = tuple(rpc for rpc in cls._service.methods if method_name(rpc.name) in annotated)

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        metadata: Sequence[tuple[str, str]] = (),
        unavailable: str = UNAVAILABLE,
    ) -> None:
        """Offer the service's methods. `timeout` is in seconds and for unary calls; `metadata` goes with every call.

        `unavailable` is the reason of a call that did not reach the other side.
        """
        self._metadata = tuple(metadata)
        self._unavailable = unavailable
        self._absent: set[str] = set()
        for rpc in self._offered:
            if rpc.client_streaming:
                method: Any = self._upload(channel, rpc)
            elif rpc.server_streaming:
                method = self._stream(channel, rpc)
            else:
                method = self._unary(channel, rpc, timeout)
            setattr(self, method_name(rpc.name), method)

    @property
    def absent(self) -> frozenset[str]:
        """Methods that turned out not to be offered."""
        return frozenset(method_name(name) for name in self._absent)

    def _unary(self, channel: grpc.aio.Channel, rpc: MethodDescriptor, timeout: float) -> Unary[Any, Any]:
        method = channel.unary_unary(*_signature(rpc))
        waits = "wait_ms" in rpc.input_type.fields_by_name

        async def call(request: Any) -> Any:
            self._check_offered(rpc)
            longest = max(timeout, request.wait_ms / 1000 + POLL_SLACK_S) if waits else timeout
            try:
                with translated(unavailable=self._unavailable):
                    return await method(request, timeout=longest, metadata=self._metadata)
            except TurndockError as error:
                raise self._learn(rpc, error) from None

        return call

    def _stream(self, channel: grpc.aio.Channel, rpc: MethodDescriptor) -> Stream[Any, Any]:
        method = channel.unary_stream(*_signature(rpc))

        async def call(request: Any) -> AsyncIterator[Any]:
            self._check_offered(rpc)
            responses = method(request, metadata=self._metadata)
            try:
                while True:
                    try:
                        with translated(unavailable=self._unavailable):
                            response = await responses.read()
                    except TurndockError as error:
                        raise self._learn(rpc, error) from None
                    if response is grpc.aio.EOF:
                        return
                    yield response
            finally:
                responses.cancel()

        return call

    def _upload(self, channel: grpc.aio.Channel, rpc: MethodDescriptor) -> Upload[Any, Any]:
        method = channel.stream_unary(*_signature(rpc))

        async def call(requests: AsyncIterator[Any]) -> Any:
            self._check_offered(rpc)
            try:
                with translated(unavailable=self._unavailable):
                    return await upload(lambda: method(metadata=self._metadata), requests)
            except TurndockError as error:
                raise self._learn(rpc, error) from None

        return call

    def _check_offered(self, rpc: MethodDescriptor) -> None:
        if rpc.name in self._absent:
            raise not_offered(f"{rpc.containing_service.name}.{rpc.name}")

    def _learn(self, rpc: MethodDescriptor, error: TurndockError) -> TurndockError:
        if is_not_offered(error):
            self._absent.add(rpc.name)
        return error


def _signature(rpc: MethodDescriptor) -> tuple[str, Any, Any]:
    """Name, serializer and parser for a channel."""
    return (
        f"/{rpc.containing_service.full_name}/{rpc.name}",
        GetMessageClass(rpc.input_type).SerializeToString,
        GetMessageClass(rpc.output_type).FromString,
    )
