"""TurndockError → status → TurndockError."""

import asyncio

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from turndock import wire
from turndock.errors import DOMAIN, REASONS, Code, FieldViolation, TurndockError, invalid, not_found
from turndock.wire.status import DETAILS_KEY


def received(error: TurndockError) -> grpc.aio.AioRpcError:
    """The error as a client's gRPC library raises it."""
    code, text, trailing = wire.status_of(error)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata.from_tuple(trailing), text)


def round_trip(error: TurndockError) -> TurndockError:
    return wire.error_of(received(error))


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_survives_with_its_code_and_advice_to_retry(reason: str) -> None:
    info = REASONS[reason]
    error = round_trip(TurndockError(reason, "why", metadata={"limit": "7"}, retry_after_ms=1500))
    assert (error.reason, error.code, error.retryable) == (reason, info.code, info.retryable)
    assert (error.message, error.metadata, error.retry_after_ms) == ("why", {"limit": "7"}, 1500)


def test_the_fields_that_are_wrong_survive() -> None:
    error = round_trip(invalid("events[2].time_us", "must be above 0"))
    assert error.violations == (FieldViolation("events[2].time_us", "must be above 0"),)
    assert error.message == "events[2].time_us: must be above 0"


def test_what_was_not_found_is_named_in_a_resource_info() -> None:
    _, _, trailing = wire.status_of(not_found("session", "ses_1"))
    status = status_pb2.Status.FromString(trailing[0][1])
    resource = error_details_pb2.ResourceInfo()
    assert any(detail.Unpack(resource) for detail in status.details)
    assert (resource.resource_type, resource.resource_name) == ("session", "ses_1")


def test_a_reason_of_a_newer_peer_is_passed_on_with_the_code_it_came_with() -> None:
    first = round_trip(TurndockError("BRAND_NEW", "?", wire_code=Code.DATA_LOSS))
    second = round_trip(first)
    assert (second.reason, second.code, second.retryable) == ("BRAND_NEW", Code.DATA_LOSS, False)


def test_a_known_reason_keeps_an_unusual_code() -> None:
    error = round_trip(TurndockError("NOT_FOUND", "?", wire_code=Code.ABORTED))
    assert (error.reason, error.code) == ("NOT_FOUND", Code.ABORTED)


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.CANCELLED])
def test_a_status_without_details_gets_a_reason_for_its_code(code: Code) -> None:
    status = grpc.StatusCode[code.name]
    error = wire.error_of(grpc.aio.AioRpcError(status, None, None, "plain"))
    assert error.code is code
    assert error.reason in REASONS
    assert error.message == "plain"


def test_an_unavailable_peer_gets_the_reason_the_caller_has_for_it() -> None:
    plain = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, None, None, "connection refused")
    assert wire.error_of(plain, unavailable="PLUGIN_UNAVAILABLE").reason == "PLUGIN_UNAVAILABLE"
    cancelled = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, None, None, "CANCELLED")
    given_up = wire.error_of(cancelled, unavailable="PLUGIN_UNAVAILABLE")
    assert (given_up.reason, given_up.code) == ("PLUGIN_UNAVAILABLE", Code.UNAVAILABLE)
    own = received(TurndockError("SERVER_STOPPING", "bye"))
    assert wire.error_of(own, unavailable="PLUGIN_UNAVAILABLE").reason == "SERVER_STOPPING"


def test_an_error_info_of_another_domain_is_not_taken_for_ours() -> None:
    status = status_pb2.Status()
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="FENCED", domain="example.com"))
    trailing = grpc.aio.Metadata((DETAILS_KEY, status.SerializeToString()))
    error = wire.error_of(grpc.aio.AioRpcError(grpc.StatusCode.ABORTED, None, trailing, "x"))
    assert (error.reason, error.code) == ("UNKNOWN_ERROR", Code.ABORTED)


def test_details_that_cannot_be_read_leave_code_and_text() -> None:
    trailing = grpc.aio.Metadata((DETAILS_KEY, b"\xff\xff\xff"))
    error = wire.error_of(grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, None, trailing, "gone"))
    assert (error.reason, error.message) == ("NOT_FOUND", "gone")


@given(st.text(st.characters(), max_size=600), st.integers(3, 1200))
def test_a_text_is_cut_between_two_characters(text: str, limit: int) -> None:
    cut = wire.cut_text(text, limit)
    sendable = text.encode("utf-8", "replace").decode()
    assert len(cut.encode()) <= limit
    assert cut == sendable or (cut.endswith("…") and sendable.startswith(cut[:-1]))


@given(
    st.text(max_size=3000),
    st.dictionaries(st.text(max_size=300), st.text(max_size=3000), max_size=20),
    st.lists(st.tuples(st.text(max_size=500), st.text(max_size=500)), max_size=20),
)
def test_a_status_fits_into_the_headers_every_peer_accepts(
    message: str, metadata: dict[str, str], violations: list[tuple[str, str]]
) -> None:
    fields = tuple(FieldViolation(*violation) for violation in violations)
    code, text, trailing = wire.status_of(TurndockError("VALIDATION_ERROR", message, metadata, fields))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert len(text.encode()) <= 1024
    assert 3 * len(text.encode()) + len(trailing[0][1]) * 4 // 3 < 7500
    error = round_trip(TurndockError("VALIDATION_ERROR", message, metadata, fields))
    assert error.reason == "VALIDATION_ERROR"


async def test_a_call_cancelled_by_others_is_an_error_and_our_own_cancellation_passes() -> None:
    with pytest.raises(TurndockError, match="UNAVAILABLE"), wire.translated():
        raise asyncio.CancelledError

    async def waits() -> None:
        with wire.translated():
            await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    await asyncio.wait([task], timeout=0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_the_domain_is_ours() -> None:
    _, _, trailing = wire.status_of(TurndockError("FENCED", "x"))
    info = error_details_pb2.ErrorInfo()
    assert status_pb2.Status.FromString(trailing[0][1]).details[0].Unpack(info)
    assert (info.reason, info.domain) == ("FENCED", DOMAIN)


@given(st.text(min_size=1, max_size=64))
def test_any_tenant_travels_in_metadata(tenant: str) -> None:
    value = wire.encode_tenant(tenant)
    assert value.isascii()
    assert value.isprintable()
    assert value == value.strip()
    assert wire.decode_tenant(value) == tenant


def test_a_plain_tenant_travels_as_it_is() -> None:
    assert wire.encode_tenant("acme/eu west") == "acme/eu west"
    assert wire.encode_tenant("100%") == "100%25"
    with pytest.raises(TurndockError, match="turndock-scope"):
        wire.decode_tenant("%ff")
