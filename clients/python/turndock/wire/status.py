"""`TurndockError` ↔ gRPC status.

A status carries the reason in a `google.rpc.ErrorInfo` of the domain `turndock`, and beside it, where they fit,
`BadRequest` (the fields that are wrong), `RetryInfo` (when to try again) and `ResourceInfo` (what was not found). They
travel as a `google.rpc.Status` in the trailing metadata `grpc-status-details-bin`, as every gRPC library knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from turndock.errors import DOMAIN, MAX_MESSAGE_BYTES, Code, FieldViolation, TurndockError

DETAILS_KEY: Final = "grpc-status-details-bin"

_STATUS_CODES: Final[Mapping[Code, grpc.StatusCode]] = {code: grpc.StatusCode[code.name] for code in Code}

_REASONS: Final[Mapping[Code, str]] = {
    Code.INVALID_ARGUMENT: "VALIDATION_ERROR",
    Code.DEADLINE_EXCEEDED: "TIMEOUT",
    Code.NOT_FOUND: "NOT_FOUND",
    Code.ALREADY_EXISTS: "ALREADY_EXISTS",
    Code.PERMISSION_DENIED: "PERMISSION_DENIED",
    Code.RESOURCE_EXHAUSTED: "LIMIT_EXCEEDED",
    Code.FAILED_PRECONDITION: "INVALID_OPERATION",
    Code.UNIMPLEMENTED: "CAPABILITY_NOT_SUPPORTED",
    Code.INTERNAL: "INTERNAL_ERROR",
    Code.UNAVAILABLE: "UNAVAILABLE",
    Code.UNAUTHENTICATED: "UNAUTHENTICATED",
}
"""What a status without our ErrorInfo is taken for; any other code is UNKNOWN_ERROR with that code."""

# A peer may drop a response whose headers exceed 8 KiB. Text (percent-encoded: up to three times its size) and details
# (base64: a third more) stay below that together.
_MAX_DETAILS_BYTES: Final = 3072
_MAX_VALUE_BYTES: Final = 512


def cut_text(text: str, max_bytes: int = MAX_MESSAGE_BYTES) -> str:
    """The text, cut to `max_bytes` of UTF-8 between two characters; a cut text ends in `…`."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= max_bytes:
        return raw.decode()
    return raw[: max_bytes - len("…".encode())].decode("utf-8", "ignore") + "…"


def status_of(error: TurndockError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """The code, text and trailing metadata that say the same as `error`."""
    code = error.code
    text = cut_text(error.message)
    status = status_pb2.Status(code=code.value, message=cut_text(text, _MAX_VALUE_BYTES))
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    _attach(status, info)
    for key, value in error.metadata.items():
        info.metadata[key] = cut_text(value, _MAX_VALUE_BYTES)
        if not _attach_again(status, info):
            del info.metadata[key]
    for detail in _further_details(error):
        _attach(status, detail)
    return _STATUS_CODES[code], text, ((DETAILS_KEY, status.SerializeToString()),)


def error_of(error: grpc.aio.AioRpcError, *, unavailable: str = "UNAVAILABLE") -> TurndockError:
    """The error a status says. `unavailable` is the reason when nobody answered: the status is not from a Turndock."""
    code = _code_of(error.code())
    message = error.details() or ""
    status = _details_of(error)
    reason = ""
    metadata: dict[str, str] = {}
    violations: list[FieldViolation] = []
    retry_after_ms: int | None = None
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        request = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            if info.domain == DOMAIN:
                reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(request):
            violations += [FieldViolation(one.field, one.description) for one in request.field_violations]
        elif detail.Unpack(retry):
            retry_after_ms = retry.retry_delay.ToMilliseconds()
    if not reason:
        if code is Code.CANCELLED:
            # Our own cancellation comes as an exception. This is gRPC, about a call that was just going out over a
            # connection while that was being lost, or a peer that gave the call up: either way, nobody answered.
            code = Code.UNAVAILABLE
        reason = unavailable if code is Code.UNAVAILABLE else _REASONS.get(code, "UNKNOWN_ERROR")
    return TurndockError(reason, message, metadata, tuple(violations), retry_after_ms, wire_code=code)


@contextmanager
def translated(*, unavailable: str = "UNAVAILABLE") -> Generator[None]:
    """Turns what a gRPC call raises into `TurndockError`.

    gRPC raises `CancelledError` also when the call was cancelled by somebody else, such as a channel that is closed;
    that is UNAVAILABLE for the caller, whose own task goes on.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_of(error, unavailable=unavailable) from None
    except (grpc.aio.UsageError, grpc.aio.InternalError) as error:
        raise TurndockError(unavailable, f"the channel is closed: {error}") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise TurndockError(unavailable, "the channel was closed during the call") from None


def _further_details(error: TurndockError) -> Iterator[Message]:
    if error.violations:
        request = error_details_pb2.BadRequest()
        for violation in error.violations[:8]:
            request.field_violations.add(
                field=cut_text(violation.field, 128), description=cut_text(violation.description, 128)
            )
        yield request
    if error.retry_after_ms is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(error.retry_after_ms)
        yield retry
    if error.code is Code.NOT_FOUND and "key" in error.metadata:
        kind = error.reason.removesuffix("NOT_FOUND").removesuffix("_").lower()
        yield error_details_pb2.ResourceInfo(
            resource_type=kind, resource_name=cut_text(error.metadata["key"], _MAX_VALUE_BYTES)
        )


def _attach(status: status_pb2.Status, detail: Message) -> bool:
    """Add a detail unless the status would be too large with it."""
    status.details.add().Pack(detail)
    if status.ByteSize() <= _MAX_DETAILS_BYTES:
        return True
    del status.details[-1]
    return False


def _attach_again(status: status_pb2.Status, info: error_details_pb2.ErrorInfo) -> bool:
    """Replace the ErrorInfo, which is the first detail, unless the status would be too large with it."""
    before = status.details[0].value
    status.details[0].Pack(info)
    if status.ByteSize() <= _MAX_DETAILS_BYTES:
        return True
    status.details[0].value = before
    return False


def _details_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break  # The code and the text still say what went wrong.
    return status_pb2.Status()


def _code_of(code: grpc.StatusCode) -> Code:
    try:
        return Code[code.name]
    except KeyError:  # OK has no place among errors: a peer that fails a call with it is not to be trusted.
        return Code.UNKNOWN
