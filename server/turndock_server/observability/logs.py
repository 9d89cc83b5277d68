"""The log: standard error, one record a line, text for people or JSON for programs, without secrets.

Code logs with `logging` as anywhere else; facts go into `extra` and become fields:
`log.info("agent started", extra={"agent": name, "session": session_id})`.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from turndock_server.observability.redaction import Redactor

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "text", "json"]

OURS: Final = ("turndock", "turndock_server")
"""Loggers that follow the configured level; others are heard from `warning` on."""

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_ESCAPES: Final = {
    code: repr(chr(code))[1:-1] for code in (*range(32), 127, *range(128, 160), 0x2028, 0x2029)
}


def configure(
    redactor: Redactor, *, level: Level = "info", format: Format = "auto", stream: TextIO | None = None
) -> None:
    """Have everything that is logged, warnings included, written to `stream` (standard error) from now on."""
    target = stream or sys.stderr
    is_json = format == "json" or (format == "auto" and not target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonFormatter(redactor) if is_json else TextFormatter(redactor))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())


class _Formatter(logging.Formatter):
    """What both forms have in common: the parts of a record, redacted."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def _message(self, record: logging.LogRecord) -> str:
        return self._redactor(record.getMessage())

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """What `extra` said. Numbers, truth values and null stay what they are; all else is text."""
        return {
            key: value
            if value is None or isinstance(value, (bool, int, float))
            else self._redactor(str(value))
            for key, value in record.__dict__.items()
            if key not in _STANDARD
        }

    def _trace(self, record: logging.LogRecord) -> str:
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return self._redactor("\n".join(parts))


class TextFormatter(_Formatter):
    """`2026-11-30 20:14:06.123 INFO    core.host: agent started agent=demo`, a traceback indented below it."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; what is in it cannot begin another."""
        time = datetime.fromtimestamp(record.created).astimezone()
        name = record.name.removeprefix("turndock_server.")
        fields = "".join(f" {key}={_quoted(value)}" for key, value in self._fields(record).items())
        line = f"{time:%Y-%m-%d %H:%M:%S}.{int(record.msecs):03d} {record.levelname:<7} {name}: "
        line += self._message(record).translate(_ESCAPES) + fields
        if trace := self._trace(record):
            line += "\n" + "\n".join(f"  {row.translate(_ESCAPES)}" for row in trace.split("\n"))
        return line


class JsonFormatter(_Formatter):
    """`{"time":"2026-11-30T19:14:06.123456+00:00","level":"info","logger":"…","message":"…","agent":"demo"}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One object on one line. A traceback is its `trace`."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
        }
        for key, value in self._fields(record).items():
            entry.setdefault(key, value)
        if trace := self._trace(record):
            entry["trace"] = trace
        return json.dumps(entry, ensure_ascii=False, default=str)


def _quoted(value: object) -> str:
    """A field's value; in quotes if it could be taken for more than one word."""
    text = str(value)
    plain = text and text.isprintable() and not any(character in text for character in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=False).translate(_ESCAPES)
