"""A backend with a memory of its own: each conversation is a file, each prompt a line of it, the answer all lines.

Files take the place of a provider that keeps conversations under names it chooses. What a backend needs to survive
every crash is here: a checkpoint, a session that can be resumed, a refusal, a failure. docs/guides/write-a-backend.md
goes through it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from turndock import events
from turndock.backend.v1 import (
    CheckpointSessionRequest,
    CheckpointSessionResponse,
    PromptRequest,
    ResumeSessionRequest,
    ResumeSessionResponse,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
)
from turndock.errors import not_found
from turndock.ports import Backend, Rejected, TurnContext, TurnOutput
from turndock.serving import serve
from turndock.types.v1 import BackendSession


class Diary(Backend):
    """Keeps diaries in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse()

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        if "\n" in request.prompt:
            raise Rejected(events.error("not_one_line", "a diary takes one line at a time"))

        name = request.session.provider_session_id
        if not name:
            name = events.new_id()
            await asyncio.to_thread(self._file(name).touch)
            await turn.checkpoint(name)

        try:
            lines = await asyncio.to_thread(self._add, name, request.prompt)
        except OSError as error:
            yield events.error("disk", str(error), retryable=True)
            return

        for number, line in enumerate(lines, start=1):
            yield f"{number}. {line}\n"
        yield events.result(stop_reason="stop")

    async def checkpoint_session(self, request: CheckpointSessionRequest) -> CheckpointSessionResponse:
        session = BackendSession(provider_session_id=request.provider_session_id)
        return CheckpointSessionResponse(session=session)

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        name = request.session.provider_session_id
        if not await asyncio.to_thread(self._file(name).exists):
            raise not_found("diary", name)
        return ResumeSessionResponse(session=request.session)

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.txt"

    def _add(self, name: str, line: str) -> list[str]:
        with self._file(name).open("r+", encoding="utf-8") as diary:
            lines = diary.read().splitlines()
            diary.write(f"{line}\n")
        return [*lines, line]


def main() -> None:
    """Serve until the server that started this process says so, or is gone."""
    parser = argparse.ArgumentParser(prog="python -m turndock.examples.diary", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("diaries"))
    parser.add_argument("--endpoint", help="unix:/path or host:port; default: what the server says")
    options = parser.parse_args()
    diary = Diary(options.folder)
    asyncio.run(serve(name="diary", version="1.0", backend=diary, endpoint=options.endpoint))


if __name__ == "__main__":
    main()
