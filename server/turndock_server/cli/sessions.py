"""`turndock sessions`: the server's session store."""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.options import JsonOption, LimitOption, RequestIdOption, SessionArgument
from turndock_server.cli.output import first, say, say_facts, say_json, say_rows, to_json

if TYPE_CHECKING:
    from turndock.types.v1 import Session

app = typer.Typer(
    no_args_is_help=True, help="List, search, look at, fork, export, import and delete sessions."
)


class Status(StrEnum):
    """Where a session stands."""

    PENDING = "pending"
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@app.command("list")
@connected
async def list_sessions(
    host: Connection,
    *,
    agent: Annotated[str, typer.Option(show_default=False, help="Only sessions of this agent.")] = "",
    status: Annotated[
        list[Status] | None, typer.Option(show_default=False, help="Only sessions that stand so.")
    ] = None,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List sessions, newest change first: those of stopped agents, too."""
    from turndock.store.v1 import ListSessionsRequest
    from turndock.types.v1 import Page, SessionStatus
    from turndock_server.cli.rendering import SESSION_COLUMNS, session_row

    statuses = [SessionStatus.Value(f"SESSION_STATUS_{one.upper()}") for one in status or []]

    async def pages() -> "AsyncIterator[Session]":
        cursor = ""
        while True:
            answer = await host.sessions.list_sessions(
                ListSessionsRequest(
                    scope=host.scope, agent_id=agent, statuses=statuses, page=Page(cursor=cursor)
                )
            )
            for session in answer.sessions:
                yield session
            if not (cursor := answer.next_cursor):
                return

    say_rows(await first(pages(), limit), SESSION_COLUMNS, session_row, as_json=as_json)


@app.command("show")
@connected
async def show(host: Connection, *, session: SessionArgument, as_json: JsonOption = False) -> None:
    """Show a session."""
    from turndock.store.v1 import GetSessionRequest
    from turndock_server.cli.rendering import session_facts

    request = GetSessionRequest(scope=host.scope, session_id=session)
    found = (await host.sessions.get_session(request)).session
    if as_json:
        say_json(to_json(found))
    else:
        say_facts(session_facts(found))


@app.command("fork")
@connected
async def fork(
    host: Connection,
    *,
    session: SessionArgument,
    at: Annotated[
        int | None,
        typer.Option(
            min=0, show_default="the last", help="Number of the last event that the fork begins with."
        ),
    ] = None,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a session that begins with this one's history, and print its id.

    `turndock agents start NAME --session ID` goes on from there; the session itself and its agent are left alone.
    """
    forked = await host.client.fork_session(session, at_sequence=at, request_id=request_id)
    if as_json:
        say_json(to_json(forked))
    else:
        say(forked.id)


@app.command("delete")
@connected
async def delete(
    host: Connection,
    *,
    session: SessionArgument,
    artifacts: Annotated[
        bool, typer.Option("--artifacts", help="Delete the bytes of its artifacts, too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a session for good, with its runs and its log; one that is not there is fine.

    Its agent goes with it if it is at rest. One that is in the server's memory has to be stopped first.
    """
    from turndock.store.v1 import DeleteSessionRequest

    if not yes:
        typer.confirm(f"Delete session {session} for good?", abort=True)
    request = DeleteSessionRequest(scope=host.scope, session_id=session, delete_artifacts=artifacts)
    await host.sessions.delete_session(request)
    say(f"{session} is deleted")
