"""What a Query refuses before it looks at anything stored, and what each of its requests means once it is accepted.

One rule book for every Query of this package. Functions raise `TurndockError` naming the field.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeVar

from google.protobuf.message import Message

from turndock import jsontext
from turndock.errors import invalid
from turndock.store.v1 import (
    EventFilter,
    EventOrder,
    GetCostSummaryRequest,
    GetUsageSummaryRequest,
    RunOrder,
    SearchEventsRequest,
    SearchRunsRequest,
    SearchSessionsRequest,
    SessionOrder,
)
from turndock.types.v1 import EventType, Page, RunStatus, SessionStatus
from turndock_server.stores import checks
from turndock_server.stores.cursors import PageCodec, Place

DEFAULT_EVENTS: Final = 100
MAX_FILTER_VALUES: Final = 10_000
"""Most values of one list in a filter."""

MAX_INSTANT: Final = (1 << 63) - 1

M = TypeVar("M", bound=Message)


def check_texts(message: Message, path: str = "") -> None:
    """Refuse U+0000 in any text of a request: no row has it, and not every database takes it."""
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        values = value if field.is_repeated else (value,)
        for one in values:
            if isinstance(one, str):
                jsontext.check_text(one, name)
            elif isinstance(one, Message):
                check_texts(one, f"{name}.")


def search_sessions(request: SearchSessionsRequest) -> SearchSessionsRequest:
    """The request with its order said."""
    check_texts(request)
    _check_known(request.statuses, SessionStatus.values(), "statuses")
    _check_few(request.tags, "tags")
    return _ordered(request, SessionOrder.values(), SessionOrder.SESSION_ORDER_UPDATED_AT_DESC)


def search_runs(request: SearchRunsRequest) -> SearchRunsRequest:
    """The request with its order said."""
    check_texts(request)
    _check_known(request.statuses, RunStatus.values(), "statuses")
    if request.min_tokens < 0:
        raise invalid("min_tokens", f"must not be negative, and is {request.min_tokens}")
    return _ordered(request, RunOrder.values(), RunOrder.RUN_ORDER_STARTED_AT_DESC)


def search_events(request: SearchEventsRequest) -> SearchEventsRequest:
    """The request with its order said."""
    check_texts(request)
    check_filter(request.filter)
    return _ordered(request, EventOrder.values(), EventOrder.EVENT_ORDER_SEQUENCE_ASC)


def check_filter(wanted: EventFilter) -> None:
    """Refuse a filter of events that cannot be."""
    _check_known(wanted.types, EventType.values(), "filter.types")
    for name in ("session_ids", "run_ids", "providers"):
        _check_few(getattr(wanted, name), f"filter.{name}")


def page_limit(page: Page, default: int = checks.DEFAULT_ROWS) -> int:
    """Most rows of a page; refuses what is out of bounds."""
    return checks.page_limit(page) if page.HasField("limit") else default


class Cursors:
    """The cursors of one search: they fit this call, its order, its filters and its scope, and no other."""

    def __init__(
        self, call: str, partition: str, request: Message, kinds: tuple[type[int | str], ...]
    ) -> None:
        """`kinds` are the types of a place's parts. `request` has its order said."""
        self._codec = PageCodec(call, partition, _canonical(request))
        self._kinds = kinds

    def after(self, cursor: str) -> Place | None:
        """The place a page begins behind; None = at the beginning. Raises INVALID_CURSOR."""
        return self._codec.decode(cursor, kinds=self._kinds)

    def next(self, last: Place | None) -> str:
        """The cursor behind the last row of a page; empty for a page without rows."""
        return "" if last is None else self._codec.encode(last)


def started_between(request: GetUsageSummaryRequest | GetCostSummaryRequest) -> tuple[int, int] | None:
    """First and last instant at which runs may have started; None = they need not have started at all."""
    if not (request.HasField("since_us") or request.HasField("until_us")):
        return None
    since = request.since_us if request.HasField("since_us") else 1
    return max(since, 1), request.until_us if request.HasField("until_us") else MAX_INSTANT


def _ordered(request: M, orders: Collection[int], default: int) -> M:
    order: int = getattr(request, "order")  # noqa: B009 - a field that every search has, and Message does not
    if order not in orders:
        raise invalid("order", f"{order} is no order this release knows")
    result = type(request)()
    result.CopyFrom(request)
    setattr(result, "order", order or default)  # noqa: B010 - as above
    return result


def _check_known(numbers: Iterable[int], known: Collection[int], field: str) -> None:
    for index, number in enumerate(numbers):
        if not number:
            raise invalid(f"{field}[{index}]", "must be set")
        if number not in known:
            raise invalid(f"{field}[{index}]", f"{number} is nothing this release knows")


def _check_few(values: Collection[str], field: str) -> None:
    if len(values) > MAX_FILTER_VALUES:
        raise invalid(field, f"holds {len(values)} values; the limit is {MAX_FILTER_VALUES}")


def _canonical(request: M) -> M:
    """The request with every list in one order and without repetitions, as it means the same."""
    result = type(request)()
    result.CopyFrom(request)
    _sort_lists(result)
    return result


def _sort_lists(message: Message) -> None:
    for field, value in message.ListFields():
        if field.is_repeated and field.message_type is None:
            kept = sorted(set(value))
            del value[:]
            value.extend(kept)
        elif field.message_type is not None and not field.is_repeated:
            _sort_lists(value)
