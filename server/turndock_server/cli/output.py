"""What commands print: texts that cannot command a terminal, tables for people, JSON for programs."""

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import typer

from turndock_server.cli.exits import Exit

Row = TypeVar("Row")

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}


def say(text: str = "", *, end: str = "\n") -> None:
    """Write to standard output at once, without the controls that a terminal would obey."""
    sys.stdout.write(safe(text) + end)
    sys.stdout.flush()


def hint(text: str) -> None:
    """Write a remark to standard error, where it does not mix with what the command prints."""
    typer.secho(safe(text), err=True, dim=True)


def fail(problem: str, remedy: str = "", *, code: Exit = Exit.FAILED) -> typer.Exit:
    """Say on standard error what went wrong, and return what to raise."""
    typer.secho(f"turndock: {safe(problem)}", err=True, fg=typer.colors.RED)
    if remedy:
        typer.echo(f"  {safe(remedy)}", err=True)
    return typer.Exit(code)


def safe(text: str) -> str:
    """The text with every control character but line breaks and tabs written out."""
    return text.translate(_CONTROLS)


def one_line(text: str, limit: int = 100) -> str:
    """The text on one line, cut to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def say_json(data: Any) -> None:
    """Print a document: indented, every character as it is."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()


def say_json_line(data: Any) -> None:
    """Print one line of JSON Lines."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()


_IDS = frozenset({"RUN", "SESSION", "APPROVAL", "ID"})
"""Columns of what people copy into the next command."""
_ID_LENGTH = 40
"""Longest id that Turndock makes, rounded up. Others make longer ones, which may not push everything else away."""


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below a headline. What goes to a file or a pipe is never broken; on a terminal ids are the last to."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    lines = [[safe(str(cell)) for cell in row] for row in rows]
    for place, column in enumerate(columns):
        is_id = column in _IDS and all(len(line[place]) <= _ID_LENGTH for line in lines)
        table.add_column(column, overflow="fold", no_wrap=is_id)
    for line in lines:
        table.add_row(*map(Text, line))
    width = None if sys.stdout.isatty() else 10_000
    Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False).print(table)


def say_facts(facts: Mapping[str, object]) -> None:
    """Print names and values below each other, leaving out what is empty."""
    shown = {name: str(value) for name, value in facts.items() if value not in ("", None)}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        say(f"{name:<{width}}  {value}")


def moment(microseconds: int) -> str:
    """A time since the epoch as people here write it; empty for 0."""
    if not microseconds:
        return ""
    return datetime.fromtimestamp(microseconds / 1_000_000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def size(count: int) -> str:
    """A number of bytes in the largest unit that fits."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def enum_name(kind: Any, number: int, prefix: str) -> str:
    """The name of an enum's value in lower case, without its prefix; the number when it is newer than this program."""
    try:
        return str(kind.Name(number)).removeprefix(prefix).lower()
    except ValueError:
        return str(number)


def to_json(message: Any, *, always: bool = False) -> dict[str, Any]:
    """A message as protobuf's JSON has it, with the fields' own names. 64-bit numbers are strings: no digit is lost.

    With `always` also figures that are 0.
    """
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=always
    )


async def first(rows: AsyncIterator[Row], limit: int) -> list[Row]:
    """The first `limit` rows, all for 0. Says so when there are more."""
    taken: list[Row] = []
    async for row in rows:
        if limit and len(taken) == limit:
            hint(f"There are more than these {limit}; --limit 0 shows all.")
            break
        taken.append(row)
    return taken


def say_rows(
    messages: Sequence[Row],
    columns: Sequence[str],
    cells: Callable[[Row], Sequence[object]],
    *,
    as_json: bool,
) -> None:
    """Print messages: as a JSON array, or as a table."""
    if as_json:
        say_json([to_json(message) for message in messages])
    else:
        say_table(columns, map(cells, messages))
