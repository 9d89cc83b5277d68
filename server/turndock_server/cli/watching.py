"""`turndock watch`."""

from typing import TYPE_CHECKING, Annotated

import typer

from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.options import AgentArgument
from turndock_server.cli.output import hint, say, say_json_line, to_json

if TYPE_CHECKING:
    from turndock.client import AgentHandle


@connected
async def watch(
    host: Connection,
    *,
    name: AgentArgument,
    after: Annotated[int, typer.Option(min=0, help="Show what came after this number; 0 = everything.")] = 0,
    new: Annotated[bool, typer.Option("--new", help="Show only what happens from now on.")] = False,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", "--types", "-t", metavar="TYPE", show_default=False, help="Only these types."),
    ] = None,
    run: Annotated[str, typer.Option(show_default=False, help="Only this run's events.")] = "",
    until_terminal: Annotated[
        bool, typer.Option("--until-terminal", help="End with the end of --run.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON Lines.")] = False,
) -> None:
    """Show an agent's log, live: what happened, then whatever happens next, until Ctrl-C.

    Each event comes once and in order, also over lost connections and restarts of the server. A watch that is to go on
    later begins `--after` the last number it has seen.
    """
    from turndock import events
    from turndock_server.cli.rendering import event_line

    if until_terminal and not run:
        raise typer.BadParameter("needs --run", param_hint="--until-terminal")
    wanted = [
        events.parse_type(name, "--type")
        for entry in types or []
        for name in entry.split(",")
        if name.strip()
    ]
    agent = host.agent(name)
    if new:
        after = (await agent.status()).last_sequence
    log = agent.watch(
        after,
        types=wanted,
        run_id=run,
        until_terminal=until_terminal,
        on_lost=lambda why: hint(f"the connection is lost ({why.message}); trying again until it is back"),
        on_resumed=lambda: hint("the connection is back"),
    )
    async with log:
        reported = 0
        async for event in log:
            for gap in log.skipped[reported:]:
                hint(f"events {gap.from_sequence} to {gap.to_sequence} were pruned")
            reported = len(log.skipped)
            if as_json:
                say_json_line(to_json(event))
            else:
                say(event_line(event))
            if event.HasField("tool_approval_requested"):
                await _say_how_to_decide(agent, event.tool_approval_requested.approval_id)


async def _say_how_to_decide(agent: "AgentHandle", approval_id: str) -> None:
    """Say what somebody may do about a request, unless it is decided already."""
    from turndock_server.cli.rendering import how_to_decide

    for request in await agent.approvals():
        if request.approval_id == approval_id:
            hint(how_to_decide(agent.name, request))
