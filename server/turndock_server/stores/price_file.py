"""The operator's own prices: a TOML file with one table for each price."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, Final, TypeGuard

from turndock.errors import invalid
from turndock.store.v1 import ModelPrice
from turndock_server.stores.spending import PriceList

TABLE: Final = "prices"
_TEXTS: Final = ("provider", "model")
_AMOUNTS: Final = ("input_usd_per_million", "output_usd_per_million", "cached_input_usd_per_million")
_REQUIRED: Final = ("input_usd_per_million", "output_usd_per_million")
_SINCE: Final = "since"


def read_prices(path: Path) -> list[ModelPrice]:
    """The prices in a file. Raises VALIDATION_ERROR, naming the file and the key, for one that says no prices."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise invalid(str(path), f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise invalid(str(path), f"is not TOML: {error}") from None
    unknown = sorted(document.keys() - {TABLE})
    if unknown:
        raise invalid(f"{path}: {unknown[0]}", f"is no key of a price file; each price is a [[{TABLE}]]")
    tables: Any = document.get(TABLE, [])
    if not _is_list(tables):
        raise invalid(f"{path}: {TABLE}", f"must be tables: [[{TABLE}]]")
    field = f"{path}: {TABLE}"
    prices = [_price(table, f"{field}[{index}]") for index, table in enumerate(tables)]
    PriceList(prices, field)
    return prices


def _price(table: Any, field: str) -> ModelPrice:
    if not _is_table(table):
        raise invalid(field, "must be a table")
    unknown = sorted(table.keys() - {*_TEXTS, *_AMOUNTS, _SINCE})
    if unknown:
        raise invalid(
            f"{field}.{unknown[0]}", f"is no key of a price: {', '.join((*_TEXTS, *_AMOUNTS, _SINCE))}"
        )
    missing = [name for name in _REQUIRED if name not in table]
    if missing:
        raise invalid(f"{field}.{missing[0]}", "must be set")
    for name in _TEXTS:
        if not isinstance(table.get(name, ""), str):
            raise invalid(f"{field}.{name}", "must be a text")
    for name in _AMOUNTS:
        if isinstance(table.get(name, 0), bool) or not isinstance(table.get(name, 0), int | float):
            raise invalid(f"{field}.{name}", "must be a number of US dollars")
    price = ModelPrice(**{name: table[name] for name in (*_TEXTS, *_AMOUNTS) if name in table})
    if _SINCE in table:
        price.since_us = _instant(table[_SINCE], f"{field}.{_SINCE}")
    return price


def _instant(value: Any, field: str) -> int:
    """Microseconds since the Unix epoch. A date is its first moment, and what names no zone is UTC."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise invalid(field, "must be a date or a time, such as 2026-01-31")
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_table(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, dict)
