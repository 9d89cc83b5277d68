"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from turndock_server.cli.jsonvalues import json_object

DEFAULT_SERVER = "127.0.0.1:7420"

ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        "-s",
        envvar="TURNDOCK_SERVER",
        metavar="ADDRESS",
        help="Where the server is: `host:port`, `grpcs://host:port` (TLS) or `unix:/path`.",
        rich_help_panel="Connection",
    ),
]
ScopeOption = Annotated[
    str | None,
    typer.Option(
        envvar="TURNDOCK_SCOPE",
        metavar="TENANT",
        show_default="the unscoped partition",
        help="Whose agents and sessions are meant.",
        rich_help_panel="Connection",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        envvar="TURNDOCK_TOKEN_FILE",
        metavar="FILE",
        show_default="the token in TURNDOCK_TOKEN, if any",
        help="A file with the token to send.",
        rich_help_panel="Connection",
    ),
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        envvar="TURNDOCK_TLS_CA",
        metavar="FILE",
        show_default="public authorities, at grpcs:// alone",
        help="Encrypt, and trust the authority in this PEM file.",
        rich_help_panel="Connection",
    ),
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        envvar="TURNDOCK_TLS_CERT",
        metavar="FILE",
        show_default=False,
        help="The certificate to show, PEM.",
        rich_help_panel="Connection",
    ),
]
TlsKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        envvar="TURNDOCK_TLS_KEY",
        metavar="FILE",
        show_default=False,
        help="Its private key, PEM.",
        rich_help_panel="Connection",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LimitOption = Annotated[int, typer.Option(min=0, help="Most rows to print; 0 = all.")]

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", show_default=False, help="The agent's name.")]
AgentOption = Annotated[
    str,
    typer.Option(
        "--agent",
        "-a",
        envvar="TURNDOCK_AGENT",
        metavar="AGENT",
        show_default=False,
        help="The agent's name.",
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", show_default=False, help="The run's id.")]
SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", show_default=False, help="The session's id.")
]
RequestIdOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        show_default=False,
        help="Makes the command safe to repeat: the same id with the same request does nothing twice.",
    ),
]
PromptArgument = Annotated[
    str, typer.Argument(metavar="PROMPT", show_default=False, help="The text; `-` reads standard input.")
]


def json_option(help: str, *names: str) -> Any:
    """An option that takes a JSON object, or `@file` with one."""
    return typer.Option(
        *names,
        parser=json_object,
        metavar="JSON",
        show_default=False,
        help=f"{help} A JSON object, or `@file`.",
    )
