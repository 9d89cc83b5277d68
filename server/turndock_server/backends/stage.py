"""Where scripted turns are played: the gates that hold them, and the record of what happened.

A tester in the same process uses `ScriptedBackend.stage`; one in another process uses a `RemoteStage`, which speaks to
`serve_stage` over a unix socket. Both offer the same calls, and neither ever polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field


class HeardPrompt(BaseModel):
    """A prompt as the backend got it."""

    prompt: str
    n: int
    """The session's counter: 0 at first, one more after each turn that ended by itself."""
    provider_session_id: str
    session_id: str
    agent_name: str
    run_id: str
    attempt: int
    metadata_json: str
    decisions: list[str] = []
    """Decisions a parked turn is taken up with: `approve`, `edit`, `reject` or `expired`."""


class FoldedResult(BaseModel):
    """A result as UpdateSession got it."""

    text: str | None
    provider_session_id: str
    stop_reason: str
    data_json: str


class Record(BaseModel):
    """What happened on a stage."""

    model_config = ConfigDict(extra="forbid")

    prompts: list[HeardPrompt] = Field(default_factory=list[HeardPrompt])
    updates: list[FoldedResult] = Field(default_factory=list[FoldedResult])
    checkpoints: list[str] = []
    """Ids that CheckpointSession applied, in order; an accepted one comes twice in a turn that ends by itself."""
    interrupts: list[str] = []
    """Reasons of Interrupt calls."""
    started: int = 0
    resumed: int = 0
    terminated: int = 0
    """TerminateSession calls."""
    left: int = 0
    """Turns whose caller went before their script had come to an end."""

    def count(self, name: str) -> int:
        """How many of a kind there were: the number, or the length of the list, under that name."""
        value = getattr(self, name)
        return value if isinstance(value, int) else len(value)


class StageControl(Protocol):
    """What a tester can do, wherever the stage is."""

    async def release(self, gate: str) -> None:
        """Open a gate, for those who wait and for all who come."""

    async def entered(self, gate: str, times: int = 1) -> None:
        """Wait until turns have come to the gate so many times, counted from the beginning."""

    async def reached(self, **counts: int) -> None:
        """Wait until the record shows at least so many: `reached(prompts=2, left=1)`."""

    async def recorded(self) -> Record:
        """The record so far."""
        ...


class Stage(StageControl):
    """A stage in this process."""

    def __init__(self) -> None:
        self.record = Record()
        self._entered: Counter[str] = Counter()
        self._released: set[str] = set()
        self._change = asyncio.Event()

    async def release(self, gate: str) -> None:
        self.open(gate)

    async def entered(self, gate: str, times: int = 1) -> None:
        await self._until(lambda: self._entered[gate] >= times)

    async def reached(self, **counts: int) -> None:
        await self._until(lambda: all(self.record.count(name) >= count for name, count in counts.items()))

    async def recorded(self) -> Record:
        return self.record.model_copy(deep=True)

    def open(self, gate: str) -> None:
        """Open a gate."""
        self._released.add(gate)
        self.changed()

    async def pass_gate(self, gate: str) -> None:
        """Come to a gate and wait until it is open."""
        self._entered[gate] += 1
        self.changed()
        await self._until(lambda: gate in self._released)

    def changed(self) -> None:
        """Wake everybody who waits for something."""
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._change.wait()


@contextlib.asynccontextmanager
async def serve_stage(stage: Stage, path: Path) -> AsyncGenerator[None]:
    """Let testers in other processes use the stage, over a unix socket at `path`, as long as the block runs.

    A connection carries one call, `[name, arguments, keyword arguments]`, and its answer, `[result, error]`, each a
    line of JSON. A caller that hangs up takes its call back.
    """
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, arguments, named = json.loads(await reader.readline())
        call = asyncio.ensure_future(_answer(stage, name, arguments, named))
        gone = asyncio.ensure_future(reader.read())
        try:
            await asyncio.wait((call, gone), return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                writer.write(json.dumps(call.result()).encode() + b"\n")
        finally:
            call.cancel()
            gone.cancel()
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(connected(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    async with await asyncio.start_unix_server(accept, path):
        try:
            yield
        finally:
            for task in connections:
                task.cancel()


async def _answer(
    stage: Stage, name: str, arguments: list[Any], named: dict[str, Any]
) -> tuple[Any, str | None]:
    match name:
        case "release":
            await stage.release(*arguments)
        case "entered":
            await stage.entered(*arguments)
        case "reached" if named.keys() <= Record.model_fields.keys():
            await stage.reached(**named)
        case "recorded":
            return (await stage.recorded()).model_dump(), None
        case _:
            return None, f"no such call or count: {name} {[*named]}"
    return None, None


class RemoteStage(StageControl):
    """A stage in another process. A call raises `ConnectionError` when that process is gone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def release(self, gate: str) -> None:
        await self._call("release", gate)

    async def entered(self, gate: str, times: int = 1) -> None:
        await self._call("entered", gate, times)

    async def reached(self, **counts: int) -> None:
        await self._call("reached", **counts)

    async def recorded(self) -> Record:
        return Record.model_validate(await self._call("recorded"))

    async def _call(self, name: str, *arguments: object, **named: object) -> Any:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=1 << 26)
        try:
            writer.write(json.dumps([name, arguments, named]).encode() + b"\n")
            answer = await reader.readline()
        finally:
            writer.close()
            await writer.wait_closed()
        if not answer:
            raise ConnectionError(f"the stage at {self._path} is gone")
        result, error = json.loads(answer)
        if error is not None:
            raise ValueError(error)
        return result
