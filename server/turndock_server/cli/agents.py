"""`turndock agents`, and what is done to a single agent: `interrupt`, `notify`, `unhalt`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.jsonvalues import json_value
from turndock_server.cli.options import (
    AgentArgument,
    JsonOption,
    LimitOption,
    RequestIdOption,
    json_option,
)
from turndock_server.cli.output import first, hint, say, say_facts, say_json, say_rows, to_json

if TYPE_CHECKING:
    from turndock.agent.v1 import AgentStatus
    from turndock.types.v1 import AgentLimits

app = typer.Typer(no_args_is_help=True, help="Start, list, look at and stop agents.")


@app.command("start")
@connected
async def start(
    host: Connection,
    *,
    name: AgentArgument,
    backend: Annotated[
        str,
        typer.Option("--backend", "-b", show_default=False, help="What answers; `turndock info` lists them."),
    ],
    backend_config: Annotated[dict[str, Any] | None, json_option("Laid over the server's own.")] = None,
    behavior: Annotated[
        str, typer.Option(show_default="none", help="What decides between turns: a name, or plugin:NAME.")
    ] = "",
    behavior_config: Annotated[dict[str, Any] | None, json_option("Laid over the server's own.")] = None,
    session: Annotated[
        str, typer.Option(show_default="a new one", help="Continue the session of an agent that was stopped.")
    ] = "",
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", show_default=False, help="A limit, such as `watchdog_ms=60000`."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(show_default=False, help="A label of the session.")] = None,
    metadata: Annotated[dict[str, Any] | None, json_option("Kept with the session.")] = None,
    context: Annotated[
        dict[str, Any] | None, json_option("For the agent's use, kept with the session.")
    ] = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start an agent under a name that is free, and its backend with it."""
    agent = await host.client.start_agent(
        name,
        backend=backend,
        backend_config=backend_config,
        behavior=behavior,
        behavior_config=behavior_config,
        limits=_limits(limit or []),
        session_id=session,
        tags=tag or [],
        metadata=metadata,
        context=context,
        request_id=request_id,
    )
    _say_agent(await agent.status(), as_json=as_json)
    if not as_json:
        hint(f'Now: turndock ask --agent {name} "…"')


@app.command("list")
@connected
async def list_agents(host: Connection, *, limit: LimitOption = 100, as_json: JsonOption = False) -> None:
    """List the agents that are not stopped, newest change first."""
    from turndock_server.cli.rendering import AGENT_COLUMNS, agent_row

    agents = await first(host.client.list_agents(), limit)
    say_rows(agents, AGENT_COLUMNS, agent_row, as_json=as_json)


@app.command("show")
@connected
async def show(host: Connection, *, name: AgentArgument, as_json: JsonOption = False) -> None:
    """Show an agent. Does not wake it."""
    _say_agent(await host.agent(name).status(), as_json=as_json)


@app.command("stop")
@connected
async def stop(
    host: Connection,
    *,
    name: AgentArgument,
    reason: Annotated[str, typer.Option(show_default=False, help="For the log.")] = "",
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """End an agent for good: its turn is killed, waiting runs are cancelled, its name is free. Its session stays."""
    _say_agent(await host.agent(name).stop(reason=reason, request_id=request_id), as_json=as_json)


@connected
async def interrupt(
    host: Connection,
    *,
    name: AgentArgument,
    run: Annotated[str, typer.Option(show_default=False, help="Only if this run's turn is under way.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Kill the turn under way. The next run begins; an agent without a turn is left alone."""
    from turndock.agent.v1 import InterruptOutcome

    found = await host.agent(name).interrupt(run)
    if as_json:
        say_json(to_json(found))
    elif found.outcome == InterruptOutcome.INTERRUPT_OUTCOME_ACCEPTED:
        say(f"{found.run_id} is being interrupted")
    elif found.outcome == InterruptOutcome.INTERRUPT_OUTCOME_NOT_CURRENT:
        say("another run's turn is under way; nothing happened")
    else:
        say("no turn is under way")


@connected
async def notify(
    host: Connection,
    *,
    name: AgentArgument,
    payload: Annotated[
        str,
        typer.Argument(metavar="JSON", show_default=False, help="What happened: any JSON value, or `@file`."),
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Return when its effect is stored.")] = False,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hand an agent's behavior an event."""
    stored = await host.agent(name).notify(json_value(payload), wait_applied=wait, request_id=request_id)
    if as_json:
        say_json(to_json(stored))
    else:
        say(f"stored as event {stored.sequence}{', and applied' if stored.applied else ''}")


@connected
async def unhalt(host: Connection, *, name: AgentArgument, as_json: JsonOption = False) -> None:
    """Thaw an agent's mailbox. An agent that is not halted is left alone."""
    _say_agent(await host.agent(name).unhalt(), as_json=as_json)


def _say_agent(agent: "AgentStatus", *, as_json: bool) -> None:
    from turndock_server.cli.rendering import agent_facts

    if as_json:
        say_json(to_json(agent))
    else:
        say_facts(agent_facts(agent))


def _limits(entries: list[str]) -> "AgentLimits | None":
    """The limits that `KEY=VALUE` entries say."""
    if not entries:
        return None
    from google.protobuf.json_format import ParseDict, ParseError

    from turndock.types.v1 import AgentLimits

    try:
        return ParseDict(dict(_limit(entry) for entry in entries), AgentLimits())
    except ParseError as error:
        raise typer.BadParameter(str(error), param_hint="--limit") from None


def _limit(entry: str) -> tuple[str, str]:
    """The name of a limit and its value, as protobuf's JSON has them."""
    from turndock.types.v1 import AgentLimits

    key, equals, value = entry.partition("=")
    fields = AgentLimits.DESCRIPTOR.fields_by_name
    if not equals:
        problem = f"{entry!r} is not KEY=VALUE"
    elif key not in fields:
        problem = f"{key!r} is no limit. Limits are: {', '.join(fields)}"
    elif (kind := fields[key].enum_type) is not None:
        prefix = f"{key.upper()}_"
        words = {one.name.removeprefix(prefix).lower(): one.name for one in kind.values if one.number}
        if value in words:
            return key, words[value]
        problem = f"{key} is {' or '.join(words)}, not {value!r}"
    elif value.isascii() and value.isdecimal():
        return key, value
    else:
        problem = f"{key} is a whole number, not {value!r}"
    raise typer.BadParameter(problem, param_hint="--limit")
