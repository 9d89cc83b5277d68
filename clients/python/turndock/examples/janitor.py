"""A backend that asks before it acts: a janitor who deletes the files that a prompt names, if he may.

It asks for all of them at once, and does what people decide: delete a file, delete another one instead, or leave it.
With `--park` he does not wait at the door: his turn ends for now and begins again with the decisions, also if he, or
the server, was away in between. docs/guides/approvals.md goes through it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from turndock import events, jsontext
from turndock.backend.v1 import (
    PromptRequest,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
)
from turndock.ports import Backend, Rejected, TurnContext, TurnOutput
from turndock.serving import serve
from turndock.types.v1 import ApprovalDecision, Failure, ToolApprovalDecided, ToolApprovalRequested

TOOL = "delete_file"
GRANTED = (ApprovalDecision.APPROVAL_DECISION_APPROVE, ApprovalDecision.APPROVAL_DECISION_EDIT)


class Janitor(Backend):
    """Deletes files of one folder."""

    def __init__(self, folder: Path, *, parks: bool = False, patience_s: float | None = None) -> None:
        self._folder = folder
        self._parks = parks
        self._patience_s = patience_s
        folder.mkdir(parents=True, exist_ok=True)

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse()

    async def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        requests = self._requests(request)
        if not requests:
            raise Rejected(events.error("nothing_to_do", "name the files to delete"))

        decisions: Sequence[ToolApprovalDecided]
        if request.HasField("resume"):
            decisions = request.resume.decisions
        elif self._parks:
            yield f"I ask for {len(requests)}.\n"
            yield events.paused(requests)
            return
        else:
            decisions = await asyncio.gather(*(turn.approval(asked) for asked in requests))

        asked_for = {asked.tool_call_id: asked.arguments_json for asked in requests}
        for decided in decisions:
            arguments_json = decided.arguments_json or asked_for[decided.tool_call_id]
            yield events.tool_use(decided.tool_call_id, TOOL, arguments_json)
            yield await self._carry_out(decided, jsontext.parse_object(arguments_json, "arguments"))
        yield events.result("".join(self._said(decided, asked_for) for decided in decisions))

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()

    def _requests(self, request: PromptRequest) -> list[ToolApprovalRequested]:
        """One request for each file; the same ones whenever the turn is taken up."""
        expires_at_us = None
        if self._patience_s is not None:
            expires_at_us = events.now_us() + round(self._patience_s * 1e6)
        return [
            ToolApprovalRequested(
                approval_id=f"{request.run_id}-{number}",
                tool_call_id=f"call-{number}",
                tool_name=TOOL,
                arguments_json=jsontext.canonical({"file": name}),
                message=f"delete {name}?",
                expires_at_us=expires_at_us,
            )
            for number, name in enumerate(request.prompt.split(), start=1)
        ]

    async def _carry_out(self, decided: ToolApprovalDecided, arguments: dict[str, Any]) -> TurnOutput:
        call_id = decided.tool_call_id
        if decided.decision not in GRANTED:
            why = Failure(reason=_word(decided), message=decided.feedback)
            return events.tool_failed(call_id, why, TOOL)
        try:
            await asyncio.to_thread(self._delete, str(arguments["file"]))
        except (OSError, KeyError, ValueError) as error:
            return events.tool_failed(call_id, Failure(reason="not_deleted", message=str(error)), TOOL)
        return events.tool_result(call_id, "null", TOOL)

    def _delete(self, name: str) -> None:
        if Path(name).name != name:
            raise ValueError(f"{name!r} is no name of a file")
        (self._folder / name).unlink()

    def _said(self, decided: ToolApprovalDecided, asked_for: dict[str, str]) -> str:
        arguments_json = decided.arguments_json or asked_for[decided.tool_call_id]
        return f"{_word(decided)}: {arguments_json}\n"


def _word(decided: ToolApprovalDecided) -> str:
    return ApprovalDecision.Name(decided.decision).removeprefix("APPROVAL_DECISION_").lower()


def main() -> None:
    """Serve until the server that started this process says so, or is gone."""
    parser = argparse.ArgumentParser(prog="python -m turndock.examples.janitor", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("rubbish"))
    parser.add_argument("--park", action="store_true", help="do not keep turns open while people decide")
    parser.add_argument("--patience", type=float, help="seconds after which a request expires")
    parser.add_argument("--endpoint", help="unix:/path or host:port; default: what the server says")
    options = parser.parse_args()
    janitor = Janitor(options.folder, parks=options.park, patience_s=options.patience)
    asyncio.run(serve(name="janitor", version="1.0", backend=janitor, endpoint=options.endpoint))


if __name__ == "__main__":
    main()
