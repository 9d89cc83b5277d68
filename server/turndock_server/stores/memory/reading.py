"""Reads: pages of rows and pages of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from google.protobuf.message import Message

from turndock.store.v1 import GetEventsRequest, GetEventsResponse
from turndock.types.v1 import Page
from turndock_server.stores import checks
from turndock_server.stores.cursors import PageCodec, Place
from turndock_server.stores.memory.database import Record

M = TypeVar("M", bound=Message)


def page_of(
    rows: Iterable[M], place: Callable[[M], Place], page: Page, codec: PageCodec
) -> tuple[list[M], str]:
    """The page of `rows` that `page` asks for, sorted by `place`, and the cursor of the next one."""
    limit = checks.page_limit(page)
    after = codec.decode(page.cursor)
    rest = sorted((row for row in rows if after is None or place(row) > after), key=place)
    taken: list[M] = []
    size = 0
    for row in rest[:limit]:
        size += row.ByteSize()
        if taken and size > checks.MAX_PAGE_BYTES:
            break
        taken.append(row)
    return taken, codec.encode(place(taken[-1])) if len(taken) < len(rest) else ""


def read_log(record: Record | None, request: GetEventsRequest, limit: int) -> GetEventsResponse:
    """The page of a log that a request asks for; of an unknown session, an empty one."""
    response = GetEventsResponse(scanned_through=request.after_sequence)
    if record is None:
        return response
    response.head = record.head
    response.oldest = record.oldest
    response.pruned_through = record.pruned_through
    response.incarnation = record.incarnation
    first = request.after_sequence + 1
    last = (
        min(record.head, request.before_sequence - 1) if request.HasField("before_sequence") else record.head
    )
    if last < first:
        return response
    response.scanned_through = first if request.descending else last
    numbers = range(last, first - 1, -1) if request.descending else range(first, last + 1)
    types = frozenset(request.types)
    size = 0
    for sequence in numbers:
        stored = record.log.get(sequence)
        if (
            stored is None
            or (request.run_id and stored.run_id != request.run_id)
            or (types and stored.type not in types)
            or (request.HasField("since_us") and stored.stored_at_us <= request.since_us)
        ):
            continue
        size += len(stored.body)
        if response.events and (len(response.events) == limit or size > checks.MAX_PAGE_BYTES):
            response.scanned_through = response.events[-1].sequence
            break
        response.events.add().ParseFromString(stored.body)
    return response
