"""Commands that need no server: `serve` is one, `demo` brings its own, `doctor` looks before one is started."""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from turndock_server.cli.exits import Exit
from turndock_server.cli.output import fail, say, say_json

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="TURNDOCK_CONFIG",
        dir_okay=False,
        show_default="turndock.toml here, if there is one",
        help="The configuration file.",
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option(show_default=False, help="Where to listen: host:port or unix:/path. Wins over the file."),
]
DataOption = Annotated[
    Path | None, typer.Option(show_default=False, help="The data directory. Wins over the file.")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|URL",
        show_default=False,
        help="Where sessions are kept: a SQLite file, or postgresql://user@host/database. Wins over the file.",
    ),
]


def serve(
    *,
    config: ConfigOption = None,
    listen: ListenOption = None,
    data: DataOption = None,
    store: StoreOption = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an unencrypted address that other machines can reach.")
    ] = False,
) -> None:
    """Run a server until SIGTERM or Ctrl-C.

    It then takes no more calls, lets turns end for as long as `server.grace_seconds` allows, and exits with 0. A second
    signal ends the wait. When it serves, its address is printed on standard output; the log goes to standard error.
    """
    from turndock_server.config import ConfigError, load
    from turndock_server.observability import Redactor, configure

    try:
        settings = load(config, _overrides(listen, data, store, insecure=insecure))
        redactor = Redactor(settings.secrets())
    except ConfigError as error:
        raise refused(error) from None
    configure(redactor, level=settings.log.level, format=settings.log.format)
    from turndock_server.app import CannotStart
    from turndock_server.process import run

    try:
        code = asyncio.run(run(settings, on_serving=lambda endpoint: say(str(endpoint))))
    except CannotStart as error:
        raise fail(f"cannot start: {error}") from None
    raise typer.Exit(code)


def demo(
    backend: Annotated[
        Literal["llama", "echo"],
        typer.Option(help="What answers: the small model, or an echo that needs none."),
    ] = "llama",
) -> None:
    """See Turndock survive a crash: a server, a small model, three prompts, and a kill in the middle."""
    from turndock_server import demo as story

    raise typer.Exit(story.run(backend=backend))


def doctor(
    *,
    config: ConfigOption = None,
    listen: ListenOption = None,
    data: DataOption = None,
    store: StoreOption = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="As for `serve`.")] = False,
    start: Annotated[
        bool, typer.Option("--start/--no-start", help="Start the plug-ins of the server, ask them, end them.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what is wrong with a configuration, and how to mend it.

    Looks at what `serve` with the same options would start with, and changes nothing. The programs of plug-ins are
    started for a moment, unless --no-start. Exits with 1 when something would keep the server from starting or from
    doing what it is told.
    """
    from turndock_server.doctor import Level, examine

    findings = examine(config, _overrides(listen, data, store, insecure=insecure), start=start)
    if as_json:
        say_json(
            [
                {"level": one.level, "subject": one.subject, "what": one.what, "mend": one.mend}
                for one in findings
            ]
        )
    else:
        marks = {Level.OK: ("ok", typer.colors.GREEN), Level.WARNING: ("!", typer.colors.YELLOW)}
        for finding in findings:
            mark, color = marks.get(finding.level, ("x", typer.colors.RED))
            typer.echo(typer.style(f"{mark:>3}", fg=color, bold=True), nl=False)
            say(f"  {finding.subject}: {finding.what}")
            if finding.mend:
                say(f"     {finding.mend}")
        say(_verdict([finding.level for finding in findings]))
    if any(finding.level is Level.ERROR for finding in findings):
        raise typer.Exit(Exit.FAILED)


def _verdict(levels: list[str]) -> str:
    """The findings in a sentence."""
    counts = [(levels.count(level), level) for level in ("error", "warning")]
    words = [f"{count} {level}{'s' if count > 1 else ''}" for count, level in counts if count]
    return " and ".join(words) or "Nothing is wrong."


def _overrides(listen: str | None, data: Path | None, store: str | None, *, insecure: bool) -> dict[str, Any]:
    """What the options say, nested like the file."""
    server: dict[str, Any] = {"listen": listen} if listen else {}
    if insecure:
        server["insecure"] = True
    overrides: dict[str, Any] = {"server": server} if server else {}
    if data:
        overrides["data"] = str(data)
    if store:
        is_url = store.startswith(("postgresql", "postgres:")) and "://" in store
        overrides["store"] = (
            {"kind": "postgresql", "url": store} if is_url else {"kind": "sqlite", "path": store}
        )
    return overrides


def refused(error: Any) -> typer.Exit:
    """Say what is wrong with the configuration, one line for each fault, and return what to raise."""
    for fault in error.faults:
        fail(str(fault))
    return fail("no server was started", "`turndock doctor` with the same options says more", code=Exit.USAGE)
