"""`turndock tokens`: who may call a server, by bearer tokens of which the server knows no more than a digest."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turndock_server.cli.exits import Exit
from turndock_server.cli.local import ConfigOption
from turndock_server.cli.options import JsonOption
from turndock_server.cli.output import fail, hint, say, say_json, say_table

if TYPE_CHECKING:
    from turndock_server.access.tokens import TokenRow

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke the tokens that a server accepts.")

FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        dir_okay=False,
        show_default="auth.tokens of the configuration",
        help="The file that holds the tokens' digests.",
    ),
]

_DAY_S = 24 * 3600


@app.command()
def create(
    name: Annotated[str, typer.Argument(show_default=False, help="Who gets it, for people and logs.")],
    role: Annotated[
        Literal["observer", "controller", "admin"],
        typer.Option(show_default=False, help="What it allows: to look, to use agents, or everything."),
    ],
    *,
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="TENANT", show_default="every scope, for admin", help="The only scope it is good for."
        ),
    ] = None,
    expires_days: Annotated[
        int | None, typer.Option(min=1, show_default="never", help="How many days it is good for.")
    ] = None,
    file: FileOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token, and print it: it is shown this once. A running server accepts it within a second."""
    from turndock_server.access.files import UnusableFileError
    from turndock_server.access.principal import Role
    from turndock_server.access.tokens import create as make

    if scope is None and role != "admin":
        problem = f"a token of the role {role} needs a scope: only admin is good for all of them"
        raise fail(problem, "Name it with --scope TENANT.", code=Exit.USAGE)
    path = _path(file, config)
    expires_at = None if expires_days is None else int(time.time()) + expires_days * _DAY_S
    try:
        token, row = make(path, name, Role.of(role), scope, expires_at)
    except UnusableFileError as error:
        raise fail(str(error)) from None
    if as_json:
        say_json({"token": token, **_facts(row)})
        return
    say(token)
    hint(f"It is not shown again. {path} knows its digest alone; `turndock tokens revoke {row.id}` ends it.")


@app.command("list")
def list_tokens(file: FileOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List who has a token. The tokens themselves are nowhere."""
    from turndock_server.access.files import UnusableFileError
    from turndock_server.access.tokens import read

    path = _path(file, config)
    try:
        rows = read(path) if path.exists() else []
    except UnusableFileError as error:
        raise fail(str(error)) from None
    if as_json:
        say_json([_facts(row) for row in rows])
        return
    now = time.time()
    say_table(
        ("ID", "NAME", "ROLE", "SCOPE", "CREATED", "EXPIRES"),
        [
            (
                row.id,
                row.name,
                row.role,
                row.scope if row.scope is not None else "(every one)",
                _moment(row.created_at),
                "never"
                if row.expires_at is None
                else _moment(row.expires_at) + (" (over)" if row.has_expired(now) else ""),
            )
            for row in rows
        ],
    )


@app.command()
def revoke(
    token: Annotated[
        str, typer.Argument(metavar="ID", show_default=False, help="The token's id, or its name.")
    ],
    file: FileOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a token worthless. A running server refuses it within a second, and ends its streams soon after."""
    from turndock_server.access.files import UnusableFileError
    from turndock_server.access.tokens import revoke as forget

    try:
        row = forget(_path(file, config), token)
    except UnusableFileError as error:
        raise fail(str(error)) from None
    say(f"{row.id} ({row.name}) is revoked")


def _path(file: Path | None, config: Path | None) -> Path:
    """Where the tokens are."""
    if file is not None:
        return file
    from turndock_server.config import ConfigError, load

    try:
        path = load(config).auth.tokens
    except ConfigError as error:
        for fault in error.faults:
            fail(str(fault))
        raise typer.Exit(Exit.USAGE) from None
    if path is None:
        raise fail(
            "the configuration names no file of tokens",
            'Set auth.tokens = "tokens.json" in turndock.toml, or name a file with --file.',
            code=Exit.USAGE,
        )
    return path


def _facts(row: "TokenRow") -> dict[str, Any]:
    return row.model_dump(exclude={"sha256"})


def _moment(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
