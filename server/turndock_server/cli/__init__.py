"""The command line `turndock`. Imports neither grpc nor sqlalchemy before a command needs them: `--help` is instant."""

import os
import sys

_EXTRA = {"typer", "rich", "pydantic", "pydantic_settings", "filelock"}


def main() -> None:
    """Run the command that the arguments name, and exit with its code. What `turndock` in a shell calls."""
    os.environ.setdefault(
        "GRPC_VERBOSITY", "ERROR"
    )  # else its remarks on each lost handshake stand among ours
    try:
        from turndock_server.cli.root import app

        app()
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f'turndock: {error.name} is not installed. Run: pip install "turndock[server]"')
