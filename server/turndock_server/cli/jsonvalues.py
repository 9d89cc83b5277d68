"""JSON on the command line: written out, or `@file`; `@-` is standard input."""

import sys
from pathlib import Path
from typing import Any, cast

import typer

_FIELD = "JSON"
_REMEDY = """In a shell it stands between single quotes: '{"key": "value"}'"""


def json_value(text: str) -> Any:
    """The value of a JSON text, or of the file it names."""
    from turndock import jsontext
    from turndock.errors import TurndockError

    try:
        return jsontext.parse(_written_out(text), _FIELD)
    except TurndockError as error:
        problem = error.message.removeprefix(f"{_FIELD}: ")
        raise typer.BadParameter(f"{problem}. {_REMEDY}" if not text.startswith("@") else problem) from None


def json_object(text: str) -> dict[str, Any]:
    """As `json_value`, for an object."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise typer.BadParameter("must be a JSON object")
    return cast("dict[str, Any]", value)


def _written_out(text: str) -> str:
    if not text.startswith("@"):
        return text
    if text == "@-":
        return sys.stdin.read()
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {text[1:]}: {error}") from None
