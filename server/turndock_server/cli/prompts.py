"""`turndock ask` and `turndock tell`."""

import asyncio
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.options import (
    AgentOption,
    JsonOption,
    PromptArgument,
    RequestIdOption,
    json_option,
)
from turndock_server.cli.output import hint, say, say_json, to_json

if TYPE_CHECKING:
    from turndock.client import PromptStream


class Busy(StrEnum):
    """What happens to a prompt when the agent is busy."""

    ENQUEUE = "enqueue"
    REJECT = "reject"
    INTERRUPT = "interrupt"


BusyOption = Annotated[
    Busy,
    typer.Option(help="When the agent is busy: wait, be refused, or kill the current turn and go first."),
]
MetadataOption = Annotated[dict[str, Any] | None, json_option("Kept with the run.", "--metadata")]
CorrelationOption = Annotated[
    str, typer.Option(show_default=False, help="Joins the run with a wider operation; copied to its events.")
]


@connected
async def ask(
    host: Connection,
    *,
    prompt: PromptArgument,
    agent: AgentOption,
    stream: Annotated[
        bool, typer.Option(help="Print the answer as it arrives, or when it is complete.")
    ] = True,
    busy: BusyOption = Busy.ENQUEUE,
    metadata: MetadataOption = None,
    correlation_id: CorrelationOption = "",
    request_id: RequestIdOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the outcome as JSON, when it is complete.")
    ] = False,
) -> None:
    """Ask an agent and print its answer.

    Ctrl-C leaves the run alone; `turndock interrupt` kills its turn. The exit code is 3 when the turn did not succeed.
    """
    await host.agent(agent).status()  # so that a wrong name or address is said at once
    prompts = host.patient.agent(agent).prompt(
        _text(prompt),
        busy=busy.value,
        metadata=metadata,
        correlation_id=correlation_id,
        request_id=request_id,
    )
    async with prompts:
        try:
            streamed = await _streamed(prompts) if stream and not as_json else await _passed_over(prompts)
        except asyncio.CancelledError:  # Ctrl-C
            hint(f"\nThe run goes on: turndock runs show {agent} {prompts.run.id} --wait 60")
            raise
    if as_json:
        say_json(to_json(prompts.outcome))
        _ = prompts.response
    elif streamed:
        say()
        _ = prompts.response
    else:
        say(prompts.response.text)


async def _streamed(prompts: "PromptStream") -> bool:
    """Print the pieces of the answer as they come. Returns whether there were any."""
    is_any = False
    async for event in prompts:
        piece = event.message_streamed
        if piece.text and not piece.thinking:
            say(piece.text, end="")
            is_any = True
    return is_any


async def _passed_over(prompts: "PromptStream") -> bool:
    async for _ in prompts:
        pass
    return False


@connected
async def tell(
    host: Connection,
    *,
    prompt: PromptArgument,
    agent: AgentOption,
    busy: BusyOption = Busy.ENQUEUE,
    metadata: MetadataOption = None,
    correlation_id: CorrelationOption = "",
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a prompt into an agent's mailbox and return as soon as it is durable."""
    told = await host.agent(agent).tell(
        _text(prompt),
        busy=busy.value,
        metadata=metadata,
        correlation_id=correlation_id,
        request_id=request_id,
    )
    if as_json:
        say_json(to_json(told))
        return
    say(told.run.id)
    hint(f"Its outcome: turndock runs show {agent} {told.run.id} --wait 60")


def _text(prompt: str) -> str:
    return sys.stdin.read() if prompt == "-" else prompt
