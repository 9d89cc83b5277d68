"""The commands of `turndock` and their groups."""

from typing import Annotated

import typer

from turndock_server import __version__
from turndock_server.cli import (
    agents,
    approvals,
    artifacts,
    info,
    local,
    maintenance,
    prompts,
    queries,
    runs,
    sessions,
    store,
    tokens,
    transfer,
    watching,
)

_HELP = """Hosts LLM agents as durable, one-turn-at-a-time state machines, and talks to a host.

Commands that talk to a server find it by --server or TURNDOCK_SERVER (default 127.0.0.1:7420), act in the scope of
--scope or TURNDOCK_SCOPE, and take their token from TURNDOCK_TOKEN or the file that --token-file names.
"""
_EXIT_CODES = (
    "Exit codes: 0 done; 1 refused or failed; 2 wrong usage or configuration; 3 the turn did not succeed; "
    "4 no server answers; 130 Ctrl-C."
)

app = typer.Typer(
    name="turndock",
    help=_HELP,
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"turndock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """The options of `turndock` itself."""


RUN, USE, LOOK, STORED = "Run a server", "Use agents", "Look", "Stored things"

for command in (local.serve, local.demo, local.doctor):
    app.command(rich_help_panel=RUN)(command)
app.add_typer(tokens.app, name="tokens", rich_help_panel=RUN)
app.add_typer(agents.app, name="agents", rich_help_panel=USE)
for command in (prompts.ask, prompts.tell, agents.interrupt, agents.notify, agents.unhalt):
    app.command(rich_help_panel=USE)(command)
app.add_typer(runs.app, name="runs", rich_help_panel=USE)
app.add_typer(approvals.app, name="approvals", rich_help_panel=USE)
for command in (watching.watch, queries.usage, info.info):
    app.command(rich_help_panel=LOOK)(command)
transfer.add_to(sessions.app)
app.add_typer(sessions.app, name="sessions", rich_help_panel=STORED)
app.add_typer(artifacts.app, name="artifacts", rich_help_panel=STORED)
app.add_typer(maintenance.app, name="maintenance", rich_help_panel=STORED)
app.add_typer(store.app, name="store", rich_help_panel=STORED)
