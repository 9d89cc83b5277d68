"""The operator's price file."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from turndock.errors import TurndockError
from turndock.store.v1 import ModelPrice
from turndock_server.stores.price_file import read_prices


def written(folder: Path, text: str) -> Path:
    path = folder / "prices.toml"
    path.write_text(text)
    return path


def test_a_file_says_prices(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [[prices]]
        provider = "p"
        model = "m"
        input_usd_per_million = 3
        output_usd_per_million = 15.5
        cached_input_usd_per_million = 0.3
        since = 2026-01-31

        [[prices]]
        input_usd_per_million = 0
        output_usd_per_million = 0
        since = 2026-01-31T12:00:00+02:00
        """,
    )
    day = int(datetime(2026, 1, 31, tzinfo=UTC).timestamp() * 1_000_000)
    assert read_prices(path) == [
        ModelPrice(
            provider="p",
            model="m",
            input_usd_per_million=3,
            output_usd_per_million=15.5,
            cached_input_usd_per_million=0.3,
            since_us=day,
        ),
        ModelPrice(since_us=day + 10 * 3_600_000_000),
    ]
    assert read_prices(written(tmp_path, "")) == []


PRICE = "[[prices]]\ninput_usd_per_million = 1\noutput_usd_per_million = 1\n"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("prices = 1", "prices"),
        ("prices = [1]", r"prices\[0\]"),
        (f"{PRICE}input = 2", r"prices\[0\]\.input"),
        (f"{PRICE}provider = 2", r"prices\[0\]\.provider"),
        (f"{PRICE}since = 'yesterday'", r"prices\[0\]\.since"),
        (f"{PRICE}cached_input_usd_per_million = true", r"prices\[0\]\.cached_input_usd_per_million"),
        (f"{PRICE}cached_input_usd_per_million = nan", r"prices\[0\]\.cached_input_usd_per_million"),
        (f"{PRICE}{PRICE}", r"prices\[1\]"),
        ("[price]\nx = 1", "price"),
    ],
)
def test_a_price_that_cannot_be_is_refused_by_its_place(text: str, where: str, tmp_path: Path) -> None:
    with pytest.raises(TurndockError, match=where) as refusal:
        read_prices(written(tmp_path, text))
    assert refusal.value.reason == "VALIDATION_ERROR"
    assert "prices.toml" in refusal.value.message
