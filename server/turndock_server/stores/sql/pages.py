"""Pages of a search: cut by rows and by bytes, each one statement, and where the next one begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Table,
    bindparam,
    func,
    or_,
    select,
    tuple_,
)

from turndock_server.stores import checks
from turndock_server.stores.cursors import Place


@dataclass(frozen=True, slots=True)
class Search:
    """Rows of a table, in an order in which every column goes in the same direction."""

    table: Table
    source: FromClause
    """The table, joined with what filters and order need."""
    wanted: Sequence[ColumnElement[bool]]
    order: Sequence[ColumnElement[Any]]
    """Together they are different for each row."""
    is_descending: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A piece of a search."""

    rows: Sequence[Row[Any]] = ()
    last: Place | None = None
    """Place of the last row; None if there is none."""
    is_full: bool = False
    """Whether it has as many rows as it may have, or as many bytes."""


def read_page(connection: Connection, search: Search, after: Place | None, limit: int) -> Page:
    """The rows behind a place. A row that makes the page too heavy is not even fetched, unless it is the first."""
    places = [column.label(f"place_{index}") for index, column in enumerate(search.order)]
    candidates = (
        select(search.table.c.key.label("row"), func.length(search.table.c.body).label("size"), *places)
        .select_from(search.source)
        .where(*search.wanted)
        .order_by(*_directed(search.order, search))
        .limit(limit)
    )
    if after is not None:
        place, bound = tuple_(*search.order), tuple_(*after)
        candidates = candidates.where(place < bound if search.is_descending else place > bound)
    found = candidates.subquery()
    in_order = _directed([found.c[place.name] for place in places], search)
    weighed = select(
        *found.c,
        func.row_number().over(order_by=in_order).label("number"),
        func.sum(found.c.size).over(order_by=in_order, rows=(None, 0)).label("total"),
        func.count().over().label("candidates"),
    ).subquery()
    columns = [weighed.c[place.name] for place in places]
    rows = connection.execute(
        select(search.table, weighed.c.candidates, *columns)
        .join(weighed, weighed.c.row == search.table.c.key)
        .where(or_(weighed.c.number == 1, weighed.c.total <= checks.MAX_PAGE_BYTES))
        .order_by(weighed.c.number)
    ).all()
    if not rows:
        return Page()
    is_full = len(rows) == limit or len(rows) < rows[0].candidates
    return Page(rows, tuple(rows[-1][-len(places) :]), is_full)


def count(connection: Connection, search: Search) -> int:
    """How many rows there are on all pages together."""
    statement = select(func.count()).select_from(search.source).where(*search.wanted)
    return int(connection.execute(statement).scalar_one())


def is_one_of(column: ColumnElement[Any], numbers: Sequence[int] | set[int]) -> ColumnElement[bool]:
    """The numbers are written into the statement: however many there are, they are no parameters."""
    return column.in_(bindparam(None, sorted(set(numbers)), expanding=True, literal_execute=True))


def _directed(columns: Sequence[ColumnElement[Any]], search: Search) -> list[ColumnElement[Any]]:
    return [column.desc() if search.is_descending else column.asc() for column in columns]
