"""`turndock store`: a store as a whole."""

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import typer

from turndock_server.cli.connection import TOKEN_VARIABLE
from turndock_server.cli.exits import Exit
from turndock_server.cli.options import JsonOption
from turndock_server.cli.output import fail, hint, say, say_json

if TYPE_CHECKING:
    from turndock_server.stores.copying import Report
    from turndock_server.stores.copying.rows import Name

app = typer.Typer(no_args_is_help=True, help="Move a whole store.")

_PLACE = "A SQLite file, `postgresql://user@host/database`, or `grpc://host:port` of a server or plug-in."


@app.command("copy")
def copy(
    *,
    source: Annotated[str, typer.Argument(metavar="FROM", show_default=False, help=_PLACE)],
    target: Annotated[str, typer.Argument(metavar="TO", show_default=False, help=_PLACE)],
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="TENANT", show_default="all scopes", help="Only this scope; '' = the unscoped partition."
        ),
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Copy although calls over gRPC cannot carry everything.")
    ] = False,
    from_password_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="Environment variable with FROM's password."),
    ] = None,
    to_password_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="Environment variable with TO's password."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy all sessions with their runs, logs and mailboxes into another store, and compare them by digest.

    Nobody else may use a database meanwhile: stop its server first. A copy that was broken off goes on when the same
    command is given again; sessions that are there already and are the same are left alone. A target with other data
    in a session's place is refused. Artifacts are kept apart from the store and stay where they are.
    """
    from turndock.errors import TurndockError
    from turndock_server.stores.copying.ends import End, copy_store

    token = os.environ.get(TOKEN_VARIABLE, "")
    ends = [
        End(place, _password(variable), token)
        for place, variable in ((source, from_password_env), (target, to_password_env))
    ]

    def on_session(name: "Name", is_new: bool) -> None:
        if not as_json:
            hint(f"{'copied' if is_new else 'the same'}  {name}")

    try:
        report = asyncio.run(copy_store(*ends, tenant=scope, accept_loss=accept_loss, on_session=on_session))
    except TurndockError as error:
        raise fail(f"{error.message} ({error.reason})", _ADVICE.get(error.reason, "")) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise typer.Exit(Exit.INTERRUPTED) from None
    _say(report, as_json=as_json)


_ADVICE = {
    "MIGRATION_REQUIRED": "Start and stop a server of this release on it once: that brings its schema up to date.",
    "ALREADY_EXISTS": "Copy into an empty store, or delete those sessions from the target.",
    "SEQUENCE_CONFLICT": "What is copied already stays; the same command goes on from there.",
}


def _password(variable: str | None) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise fail(f"the environment variable {variable} is not set", code=Exit.USAGE)
    return value


def _say(report: "Report", *, as_json: bool) -> None:
    if as_json:
        digests = [
            {"scope": name.tenant, "session": name.id, "sha256": digest}
            for name, digest in sorted(report.digests.items(), key=lambda item: (item[0].tenant, item[0].id))
        ]
        say_json({"copied": report.copied, "same": report.same, "sessions": digests})
    else:
        say(f"{report.copied} sessions copied and compared, {report.same} were there already")
