"""`turndock sessions export` and `import`: a session as a file, and back."""

import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from turndock_server.cli.artifacts import writing
from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.exits import Exit
from turndock_server.cli.options import JsonOption, SessionArgument
from turndock_server.cli.output import fail, hint, say, say_json, to_json

if TYPE_CHECKING:
    from turndock.types.v1 import Event


class Format(StrEnum):
    """What an export is written as."""

    JSONL = "jsonl"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


async def export(
    host: Connection,
    *,
    session: SessionArgument,
    format: Annotated[
        Format,
        typer.Option(
            help="`jsonl`: all of it, a JSON object on each line, which `sessions import` takes. `openai`, "
            "`anthropic`: the conversation as those model APIs take one."
        ),
    ] = Format.JSONL,
    artifacts: Annotated[
        bool, typer.Option("--artifacts", help="Also the rows of its artifacts. Their bytes travel apart.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", dir_okay=False, show_default="standard output", help="The file to write."
        ),
    ] = None,
) -> None:
    """Write a session out. A file is there only when all of it has arrived."""
    from turndock.exports import anthropic_messages, json_lines, openai_messages
    from turndock.exports.reading import read_session

    parts = read_session(host.sessions, host.scope, session, artifacts=host.artifacts if artifacts else None)
    if format is Format.JSONL:
        with writing(output) as sink:
            async for line in json_lines(parts):
                sink.write(line.encode() + b"\n")
        return
    events: list[Event] = []
    async for part in parts:
        events += part.events.events
    messages = (openai_messages if format is Format.OPENAI else anthropic_messages)(events)
    with writing(output) as sink:
        import json

        sink.write(json.dumps(messages, ensure_ascii=False, indent=2).encode() + b"\n")


async def import_(
    host: Connection,
    *,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", show_default=False, help="What `sessions export` wrote; `-`: standard input."
        ),
    ],
    session_id: Annotated[
        str,
        typer.Option(
            show_default="its own", help="Import it as a copy under this id, whose agent is stopped."
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Read a session in that `sessions export` wrote. The file is checked as a whole before anything is stored.

    An import that broke off can be made again.
    """
    from turndock.errors import TurndockError
    from turndock.exports.importing import check, import_session, read_lines

    with _opened(file) as source:
        try:
            check(read_lines(_lines(source, file)))
        except TurndockError as error:
            remedy = "What can be imported is what `turndock sessions export SESSION -o FILE` writes."
            raise fail(f"{file}: {error.message}", remedy, code=Exit.USAGE) from None
        source.seek(0)
        imported = await import_session(
            read_lines(_lines(source, file)),
            host.sessions,
            host.scope,
            session_id=session_id,
            artifacts=host.artifacts,
        )
    if as_json:
        say_json(
            {
                "session": to_json(imported.session),
                "runs": imported.run_count,
                "events": imported.event_count,
                "renumbered": imported.renumbered,
                "missing_artifacts": imported.missing_artifacts,
            }
        )
    else:
        counts = f"{imported.run_count} runs, {imported.event_count} events"
        say(f"{imported.session.id} is imported: {counts}")
    if imported.renumbered:
        hint("Some of its events were pruned: those after them have other numbers now.")
    for key in imported.missing_artifacts:
        hint(f"artifact {key} is not here: `turndock artifacts get` and `put` carry its bytes over")


@contextmanager
def _opened(file: Path) -> Generator[IO[bytes]]:
    """A file that can be read twice."""
    try:
        if str(file) == "-":
            with tempfile.TemporaryFile() as copy:
                while chunk := sys.stdin.buffer.read(1 << 20):
                    copy.write(chunk)
                copy.seek(0)
                yield copy
        else:
            with file.open("rb") as source:
                yield source
    except OSError as error:
        raise fail(f"cannot read {file}: {error.strerror}", code=Exit.USAGE) from None


def _lines(source: IO[bytes], file: Path) -> Iterator[str]:
    for number, line in enumerate(source, start=1):
        try:
            yield line.decode()
        except UnicodeDecodeError:
            raise fail(f"{file}: line {number} is not UTF-8", code=Exit.USAGE) from None


def add_to(app: typer.Typer) -> None:
    """Make them commands of a group."""
    app.command("export")(connected(export))
    app.command("import")(connected(import_))
