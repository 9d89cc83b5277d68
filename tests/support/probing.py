"""Any call of any service, filled in by the names of its fields: what a probe of every RPC needs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from turndock.types.v1 import EventType, RunStatus, SessionStatus

DEADLINE_S = 0.5
"""For a stream that has nothing to say."""


@dataclass(frozen=True)
class Ids:
    """The ids a request is filled with. Those of a kind are equally long, so that answers can be compared."""

    tenant: str
    agent: str
    session: str
    run: str
    event: str
    key: str


@dataclass(frozen=True)
class Outcome:
    """What a caller sees of a call, with the ids taken out."""

    code: str
    text: str
    details: bytes
    answer: str


def service_named(name: str) -> ServiceDescriptor:
    """The service of that full name."""
    found: ServiceDescriptor = descriptor_pool.Default().FindServiceByName(name)
    return found


def path_of(rpc: MethodDescriptor) -> str:
    """The call as gRPC names it."""
    return f"/{rpc.containing_service.full_name}/{rpc.name}"


def requests_for(rpc: MethodDescriptor, ids: Ids) -> Iterator[Message]:
    """The request with every id that fits; one with the name and one with the session where only one may be set."""
    request = GetMessageClass(rpc.input_type)()
    _fill(request, ids)
    excludes = {"agent_name", "session_id"} <= set(rpc.input_type.fields_by_name)
    if not excludes:
        yield request
        return
    for name in ("agent_name", "session_id"):
        one = GetMessageClass(rpc.input_type)()
        one.CopyFrom(request)
        one.ClearField(name)
        yield one


_NESTED = frozenset(
    ("session", "run", "event", "events", "definition", "cursors", "header", "claims", "filter", "answers")
)


def _fill(message: Message, ids: Ids) -> None:
    kind = message.DESCRIPTOR.name
    own = {"Session": ids.session, "Run": ids.run, "Event": ids.event}.get(kind, "")
    values: dict[str, Any] = {
        "id": own,
        "agent_name": ids.agent,
        "agent_id": ids.agent,
        "conversation_id": ids.session,
        "session_id": ids.session,
        "run_id": "" if kind == "WatchRequest" else ids.run,
        "approval_id": ids.run,
        "key": ids.key,
        "prompt": "x",
        "payload_json": "1",
        "backend": "echo",
        "owner": "somebody",
        "ticket_id": "t",
        "lease_ms": 1000,
        "type": EventType.EVENT_TYPE_RUN_CANCELLED if kind == "Event" else 0,
        "decision": 1,
        "reason": "x",
        "time_us": 1,
    }
    status = {"Run": RunStatus.RUN_STATUS_PENDING, "Session": SessionStatus.SESSION_STATUS_ACTIVE}.get(
        kind, 0
    )
    for field in cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields):
        if field.message_type is None:
            value = status if field.name == "status" else values.get(field.name, "")
            if value and not _is_list(field):
                setattr(message, field.name, value)
        elif field.name == "scope":
            message.scope.tenant = ids.tenant  # type: ignore[attr-defined]
        elif field.name == "fence" and kind.startswith("Release"):
            message.fence.epoch = 1  # type: ignore[attr-defined]
        elif field.name in _NESTED or (field.name == "failure" and kind == "CancelRunRequest"):
            inner = getattr(message, field.name)
            _fill(inner.add() if _is_list(field) else inner, ids)
    if kind == "Session":
        message.ClearField("scope")


def _is_list(field: FieldDescriptor) -> bool:
    return field.is_repeated


async def call(
    channel: grpc.aio.Channel,
    rpc: MethodDescriptor,
    request: Message,
    metadata: Sequence[tuple[str, str]],
    ids: Ids | None = None,
) -> Outcome:
    """Make a call, up to its first answer."""
    kinds = (rpc.client_streaming, rpc.server_streaming)
    make: Any = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }[kinds]
    method = make(path_of(rpc), type(request).SerializeToString, GetMessageClass(rpc.output_type).FromString)
    sent: Any = _one(request) if rpc.client_streaming else request
    try:
        started = method(sent, metadata=metadata, timeout=DEADLINE_S if rpc.server_streaming else 10)
        answer = await started.read() if rpc.server_streaming else await started
        if rpc.server_streaming:
            started.cancel()
    except grpc.aio.AioRpcError as error:
        trailing = dict(error.trailing_metadata() or ())
        details = trailing.get("grpc-status-details-bin", b"")
        assert isinstance(details, bytes)
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Outcome("DEADLINE_EXCEEDED", "", details, "")  # in the words of the caller's own library
        return _without(ids, Outcome(error.code().name, error.details() or "", details, ""))
    return _without(ids, Outcome("OK", "", b"", _text(answer)))


async def _one(request: Message) -> AsyncIterator[Message]:
    yield request


def _text(answer: Any) -> str:
    if answer is grpc.aio.EOF:
        return "(end)"
    lines = text_format.MessageToString(answer).splitlines()
    return "\n".join(line for line in lines if not re.search(r"(_us|incarnation|session_id|id): ", line))


def _without(ids: Ids | None, outcome: Outcome) -> Outcome:
    text, details, answer = outcome.text, outcome.details, outcome.answer
    for field in fields(ids) if ids is not None else ():
        value = getattr(ids, field.name)
        mark = "#" * len(value)
        text, answer = text.replace(value, mark), answer.replace(value, mark)
        details = details.replace(value.encode(), mark.encode())
    return Outcome(outcome.code, text, details, answer)


async def services_of(channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]] = ()) -> list[str]:
    """The services that reflection names."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast("Any", channel))
    call = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=metadata
    )
    answer = await call.read()
    call.cancel()
    return [service.name for service in answer.list_services_response.service]
