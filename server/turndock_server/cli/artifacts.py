"""`turndock artifacts`: the server's artifact store."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.exits import Exit
from turndock_server.cli.options import JsonOption, LimitOption, json_option
from turndock_server.cli.output import fail, first, hint, say, say_facts, say_json, say_rows, size, to_json

if TYPE_CHECKING:
    from collections.abc import Generator

    from turndock.store.v1 import ArtifactHeader, ArtifactStorePutRequest
    from turndock.types.v1 import Artifact

app = typer.Typer(no_args_is_help=True, help="Put, get, list and delete artifacts.")

CHUNK_BYTES = 256 << 10

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", show_default=False, help="The artifact's key.")]


@app.command("put")
@connected
async def put(
    host: Connection,
    *,
    key: KeyArgument,
    file: Annotated[
        Path,
        typer.Argument(
            show_default=False, help="The file to store; `-` reads standard input.", allow_dash=True
        ),
    ],
    session: Annotated[str, typer.Option(show_default=False, help="The session it belongs to.")] = "",
    media_type: Annotated[
        str, typer.Option(show_default="guessed from the name", help="Its media type.")
    ] = "",
    metadata: Annotated[dict[str, Any] | None, json_option("Kept with it.")] = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Never replace other bytes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Store a file under a key, in place of what was there."""
    import mimetypes

    from turndock import jsontext
    from turndock.store.v1 import ArtifactHeader
    from turndock_server.cli.rendering import artifact_facts

    header = ArtifactHeader(
        scope=host.scope,
        key=key,
        session_id=session,
        media_type=media_type or mimetypes.guess_type(file.name)[0] or "",
        metadata_json=jsontext.canonical(metadata) if metadata else "",
        if_absent=if_absent,
    )
    with _reading(file) as source:
        stored = (await host.artifacts.put(_upload(header, source))).artifact
    if as_json:
        say_json(to_json(stored))
    else:
        say_facts(artifact_facts(stored))


@app.command("get")
@connected
async def get(
    host: Connection,
    *,
    key: KeyArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", dir_okay=False, show_default="standard output", help="The file to write."
        ),
    ] = None,
) -> None:
    """Read the bytes under a key. A file is there only when all of them have arrived."""
    from turndock.store.v1 import ArtifactStoreGetRequest

    request = ArtifactStoreGetRequest(scope=host.scope, key=key)
    with writing(output) as sink:
        async for part in host.artifacts.get(request):
            sink.write(part.chunk)


@app.command("list")
@connected
async def list_artifacts(
    host: Connection,
    *,
    session: Annotated[str, typer.Option(show_default=False, help="Only those of this session.")] = "",
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List artifacts in the order in which their keys were first put."""
    from turndock.store.v1 import ArtifactStoreListRequest
    from turndock.types.v1 import Page
    from turndock_server.cli.rendering import ARTIFACT_COLUMNS, artifact_row

    total = ""

    async def pages() -> "AsyncIterator[Artifact]":
        nonlocal total
        cursor = ""
        while True:
            page = Page(cursor=cursor)
            answer = await host.artifacts.list(
                ArtifactStoreListRequest(scope=host.scope, session_id=session, page=page)
            )
            total = f"{answer.total_count} artifacts, {size(answer.total_bytes)}"
            for artifact in answer.artifacts:
                yield artifact
            if not (cursor := answer.next_cursor):
                return

    say_rows(await first(pages(), limit), ARTIFACT_COLUMNS, artifact_row, as_json=as_json)
    hint(total)


@app.command("delete")
@connected
async def delete(host: Connection, *, key: KeyArgument) -> None:
    """Delete the bytes under a key. A key that is not there is fine."""
    from turndock.store.v1 import ArtifactStoreDeleteRequest

    await host.artifacts.delete(ArtifactStoreDeleteRequest(scope=host.scope, key=key))
    say(f"{key} is deleted")


async def _upload(header: "ArtifactHeader", source: IO[bytes]) -> "AsyncIterator[ArtifactStorePutRequest]":
    from turndock.store.v1 import ArtifactStorePutRequest

    yield ArtifactStorePutRequest(header=header)
    while chunk := source.read(CHUNK_BYTES):
        yield ArtifactStorePutRequest(chunk=chunk)


@contextmanager
def _reading(file: Path) -> "Generator[IO[bytes]]":
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        source = file.open("rb")
    except OSError as error:
        raise fail(f"cannot read {file}: {error.strerror}", code=Exit.USAGE) from None
    with source:
        yield source


@contextmanager
def writing(file: Path | None) -> "Generator[IO[bytes]]":
    """Standard output, or a file beside the one that is meant, which takes its place at the end."""
    if file is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    is_special = file.exists() and not file.is_file()  # such as /dev/null: nothing may take its place
    part = file if is_special else file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as sink:
            yield sink
        if not is_special:
            part.replace(file)
    except OSError as error:
        raise fail(f"cannot write {file}: {error.strerror}") from None
    finally:
        if not is_special:
            part.unlink(missing_ok=True)
