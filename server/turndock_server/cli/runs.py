"""`turndock runs`."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.options import AgentArgument, JsonOption, LimitOption, RequestIdOption, RunArgument
from turndock_server.cli.output import first, say_facts, say_json, say_rows, to_json

if TYPE_CHECKING:
    from turndock.types.v1 import Run

app = typer.Typer(no_args_is_help=True, help="List, look at, cancel and edit an agent's runs.")


class Status(StrEnum):
    """Where a run stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


@app.command("list")
@connected
async def list_runs(
    host: Connection,
    *,
    agent: AgentArgument,
    status: Annotated[
        list[Status] | None, typer.Option(show_default=False, help="Only runs that stand so.")
    ] = None,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List an agent's runs in the order of its mailbox."""
    from turndock.types.v1 import RunStatus
    from turndock_server.cli.rendering import RUN_COLUMNS, run_row

    statuses = [RunStatus.Value(f"RUN_STATUS_{one.upper()}") for one in status or []]
    say_rows(await first(host.agent(agent).runs(*statuses), limit), RUN_COLUMNS, run_row, as_json=as_json)


@app.command("show")
@connected
async def show(
    host: Connection,
    *,
    agent: AgentArgument,
    run: RunArgument,
    wait: Annotated[float, typer.Option(min=0, max=60, help="Wait so many seconds for its end.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show a run, and what it answered or why it did not."""
    _say_run(await host.agent(agent).run(run, wait=wait), as_json=as_json)


@app.command("cancel")
@connected
async def cancel(
    host: Connection,
    *,
    agent: AgentArgument,
    run: RunArgument,
    reason: Annotated[str, typer.Option(show_default=False, help="For the log.")] = "",
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a run that still waits. (One whose turn is under way is ended by `turndock interrupt`.)"""
    _say_run(await host.agent(agent).cancel(run, reason=reason, request_id=request_id), as_json=as_json)


@app.command("edit")
@connected
async def edit(
    host: Connection,
    *,
    agent: AgentArgument,
    run: RunArgument,
    prompt: Annotated[str | None, typer.Option(show_default=False, help="Its new text.")] = None,
    before: Annotated[
        str, typer.Option(metavar="RUN", show_default=False, help="Move it before this one.")
    ] = "",
    to_tail: Annotated[bool, typer.Option("--to-tail", help="Move it behind all others.")] = False,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the text or the place of a run that still waits."""
    if prompt is None and not before and not to_tail:
        raise typer.BadParameter("nothing to change: use --prompt, --before or --to-tail")
    if before and to_tail:
        raise typer.BadParameter("excludes --before", param_hint="--to-tail")
    edited = await host.agent(agent).edit(
        run, prompt=prompt, before=before, to_tail=to_tail, request_id=request_id
    )
    _say_run(edited, as_json=as_json)


def _say_run(run: "Run", *, as_json: bool) -> None:
    from turndock_server.cli.rendering import run_facts

    if as_json:
        say_json(to_json(run))
    else:
        say_facts(run_facts(run))
