"""Workspace: an agent that works on files, whose every state is recorded and can be gone back to.

Shows a backend and a behavior in one plug-in. The backend records the folder before and after each turn, by the digest
of its content, and says so in the log (`workspace_snapshot_taken`, `workspace_diff_computed`). The behavior makes the
folder before the first turn, refuses paths that lead out of it, goes back to the last record when a turn has failed,
and takes everything away at the agent's end.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath
from typing import Any

from turndock import events
from turndock.backend.v1 import (
    PromptRequest,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
)
from turndock.behavior.v1 import (
    Deny,
    HandleErrorRequest,
    HandleErrorResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    HandleStreamEventRequest,
    HandleStreamEventResponse,
    InitAgentRequest,
    InitAgentResponse,
    PreRunRequest,
    PreRunResponse,
    PreTurnRequest,
    PreTurnResponse,
    Proceed,
    TerminateAgentRequest,
    TerminateAgentResponse,
)
from turndock.client import AgentHandle, Client, TurnFailed
from turndock.decisions import state_of
from turndock.examples.patterns.program import agent, main, state
from turndock.jsontext import canonical
from turndock.ports import Backend, Behavior, TurnContext, TurnOutput
from turndock.types.v1 import EventType, Failure

CHANGES = (EventType.EVENT_TYPE_WORKSPACE_SNAPSHOT_TAKEN, EventType.EVENT_TYPE_WORKSPACE_DIFF_COMPUTED)


class Workspaces:
    """A folder for each session, and what was recorded of it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def files(self, session_id: str) -> Path:
        """The folder an agent works in."""
        return self._root / session_id / "files"

    def record(self, session_id: str) -> str:
        """Keep a copy of the folder as it is; the copy's name, which follows from its content."""
        files = self.files(session_id)
        digest = hashlib.sha256()
        for path in sorted(path for path in files.rglob("*") if path.is_file()):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(files)}\0{len(content)}\0".encode() + content)
        name = digest.hexdigest()
        kept = self._kept(session_id, name)
        if not kept.exists():
            shutil.copytree(files, kept)
        return name

    def restore(self, session_id: str, name: str) -> None:
        """Go back to a recorded state."""
        shutil.rmtree(self.files(session_id))
        shutil.copytree(self._kept(session_id, name), self.files(session_id))

    def diff(self, session_id: str, base: str, name: str) -> str:
        """What changed between two recorded states, as a unified diff."""
        before, after = self._kept(session_id, base), self._kept(session_id, name)
        paths = {
            path.relative_to(side) for side in (before, after) for path in side.rglob("*") if path.is_file()
        }
        lines: list[str] = []
        for path in sorted(paths):
            old, new = (
                (side / path).read_text().splitlines() if (side / path).exists() else []
                for side in (before, after)
            )
            lines += difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm="")
        return "\n".join(lines)

    def make(self, session_id: str) -> None:
        """An empty folder, unless there is one."""
        self.files(session_id).mkdir(parents=True, exist_ok=True)

    def remove(self, session_id: str) -> None:
        """Everything of a session."""
        shutil.rmtree(self._root / session_id, ignore_errors=True)

    def _kept(self, session_id: str, name: str) -> Path:
        return self._root / session_id / "recorded" / name


class Clerk(Backend):
    """Writes what it is told: `path: a line`. The line `!` makes it fail when the damage is done."""

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse()

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        session_id = request.session_id
        base = await asyncio.to_thread(self._workspaces.record, session_id)
        yield events.workspace_snapshot(base)
        path, _, line = request.prompt.partition(": ")
        await asyncio.to_thread(self._write, session_id, path, line)
        if line == "!":
            yield events.error("pen_broken")
            return
        name = await asyncio.to_thread(self._workspaces.record, session_id)
        yield events.workspace_diff(name, base)
        yield events.result(await asyncio.to_thread(self._workspaces.diff, session_id, base, name))

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()

    def _write(self, session_id: str, path: str, line: str) -> None:
        file = self._workspaces.files(session_id) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as open_file:
            open_file.write(f"{line}\n")


class Caretaker(Behavior):
    """Looks after the folder."""

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(state_json=canonical({"recorded": "", "went_back": 0}))

    async def pre_run(self, request: PreRunRequest) -> PreRunResponse:
        await asyncio.to_thread(self._workspaces.make, request.session_id)
        return PreRunResponse()

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        path = PurePosixPath(request.run.prompt.partition(": ")[0])
        if path.is_absolute() or ".." in path.parts:
            failure = Failure(reason="outside", message=f"{path} is not in the workspace")
            return PreTurnResponse(deny=Deny(failure=failure))
        return PreTurnResponse(proceed=Proceed())

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        state = state_of(request)
        for event in request.events:
            if event.type in CHANGES:
                state["recorded"] = event.workspace_changed.reference
        return HandleStreamEventResponse(state_json=canonical(state))

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        return HandleResponseResponse()

    async def handle_error(self, request: HandleErrorRequest) -> HandleErrorResponse:
        state = state_of(request)
        if state["recorded"]:
            await asyncio.to_thread(self._workspaces.restore, request.session_id, state["recorded"])
            state["went_back"] += 1
        return HandleErrorResponse(state_json=canonical(state))

    async def terminate_agent(self, request: TerminateAgentRequest) -> TerminateAgentResponse:
        await asyncio.to_thread(self._workspaces.remove, request.session_id)
        return TerminateAgentResponse()


async def workspace(
    client: Client, *, behavior: str = "plugin:workspace", backend: str = "workspace"
) -> dict[str, Any]:
    """What the turns changed, what was refused, and the log's records of the folder."""
    async with agent(client, "clerk", backend=backend, behavior=behavior) as clerk:
        first = (await clerk.ask("list.txt: milk")).text
        failures: list[str] = []
        for prompt in ("list.txt: !", "../list.txt: bread"):
            try:
                await clerk.ask(prompt)
            except TurnFailed as failed:
                failures.append(failed.failure.reason)
        second = (await clerk.ask("list.txt: bread")).text
        records = await changes(clerk)
        return {
            "diffs": [first, second],
            "failures": failures,
            "went_back": (await state(clerk))["went_back"],
            "records": records,
        }


async def changes(clerk: AgentHandle) -> list[list[str]]:
    """The log's records: a state's name, and the one it is compared to."""
    head = (await clerk.status()).last_sequence
    found: list[list[str]] = []
    async with clerk.watch() as log:
        async for event in log:
            if event.type in CHANGES:
                found.append([event.workspace_changed.reference, event.workspace_changed.base_reference])
            if event.sequence >= head:
                break
    return found


if __name__ == "__main__":
    place = Workspaces(Path(tempfile.gettempdir()) / "turndock-workspaces")
    main("workspace", workspace, behavior=Caretaker(place), backend=Clerk(place))
