"""`turndock approvals`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.jsonvalues import json_value
from turndock_server.cli.options import AgentArgument, JsonOption, RequestIdOption
from turndock_server.cli.output import say, say_json, say_table, to_json

if TYPE_CHECKING:
    from turndock.agent.v1 import AgentStatus

app = typer.Typer(no_args_is_help=True, help="List what agents wait for a decision on, and decide.")

ApprovalsArgument = Annotated[
    list[str], typer.Argument(metavar="APPROVAL...", show_default=False, help="Ids, as `list` shows them.")
]


@app.command("list")
@connected
async def list_approvals(
    host: Connection,
    *,
    agent: Annotated[
        str, typer.Argument(metavar="[AGENT]", show_default="every agent", help="The agent's name.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List what waits for a decision. Wakes nobody."""
    from turndock_server.cli.rendering import APPROVAL_COLUMNS, approval_row

    if agent:
        statuses = [await host.agent(agent).status()]
    else:
        statuses = [status async for status in host.client.list_agents() if status.pending_approvals]
    waiting = [(status.agent_name, request) for status in statuses for request in status.pending_approvals]
    if as_json:
        say_json([{"agent_name": name, **to_json(request)} for name, request in waiting])
    else:
        say_table(APPROVAL_COLUMNS, [approval_row(name, request) for name, request in waiting])


@app.command("approve")
@connected
async def approve(
    host: Connection,
    *,
    agent: AgentArgument,
    approvals: ApprovalsArgument,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let calls run as they are: all of those named, or, if one cannot be decided any more, none."""
    _say_left(await host.agent(agent).approve(*approvals, request_id=request_id), as_json=as_json)


@app.command("edit")
@connected
async def edit(
    host: Connection,
    *,
    agent: AgentArgument,
    approval: Annotated[str, typer.Argument(metavar="APPROVAL", show_default=False, help="Its id.")],
    arguments: Annotated[
        Any,
        typer.Argument(
            parser=json_value, metavar="JSON", show_default=False, help="The new arguments, or `@file`."
        ),
    ],
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a call run with other arguments."""
    status = await host.agent(agent).edit_approval(approval, arguments, request_id=request_id)
    _say_left(status, as_json=as_json)


@app.command("reject")
@connected
async def reject(
    host: Connection,
    *,
    agent: AgentArgument,
    approvals: ApprovalsArgument,
    feedback: Annotated[str, typer.Option("--feedback", "-f", help="What the model is told.")] = "",
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep calls from running: all of those named, or none."""
    status = await host.agent(agent).reject(*approvals, feedback=feedback, request_id=request_id)
    _say_left(status, as_json=as_json)


def _say_left(status: "AgentStatus", *, as_json: bool) -> None:
    if as_json:
        say_json(to_json(status))
        return
    left = len(status.pending_approvals)
    say(f"decided; {left} more to decide" if left else "decided; the agent goes on")
