"""The commands of `turndock` and their groups."""

import typer

from turndock_server.cli import local

_HELP = """Hosts LLM agents as durable, one-turn-at-a-time state machines, and talks to a host.

Commands that talk to a server find it by --server or TURNDOCK_SERVER (default 127.0.0.1:7420), act in the scope of
--scope or TURNDOCK_SCOPE, and take their token from TURNDOCK_TOKEN.
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


app.command(rich_help_panel="Run")(local.serve)
app.command(rich_help_panel="Run")(local.demo)
app.command(rich_help_panel="Run")(local.doctor)
