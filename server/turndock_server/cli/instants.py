"""Instants on the command line."""

import re
from datetime import UTC, datetime, timedelta

import typer

_AGO = re.compile(r"(\d+)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def instant(text: str) -> int:
    """Microseconds since the Unix epoch: a date or a time, local unless it says otherwise, or how long ago."""
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            moment = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            moment = datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            "must be a date (2026-01-31), a time (2026-01-31T12:00), or how long ago (24h, 7d)"
        ) from None
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond
