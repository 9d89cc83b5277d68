"""What a behavior answers, in short: builders of decisions, and the agent's state as a value.

async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
state = state_of(request)
state["turns"] += 1
return HandleResponseResponse(state_json=canonical(state), decision=halt("enough"))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from turndock import jsontext
from turndock.behavior.v1 import Decision, Halt, NextPrompt, Noreply


class HasState(Protocol):
    """Every request to a behavior, but for `InitAgentRequest`."""

    @property
    def state_json(self) -> str:
        """The state: canonical JSON."""
        ...


def state_of(request: HasState) -> dict[str, Any]:
    """The state in a request, to be changed and put into the answer. Raises VALIDATION_ERROR when it is no object."""
    return jsontext.parse_object(request.state_json, "state_json")


def noreply() -> Decision:
    """Nothing more: the mailbox decides."""
    return Decision(noreply=Noreply())


def prompt(text: str, metadata: Mapping[str, Any] | None = None) -> Decision:
    """One more turn: before the mailbox after a turn, at its tail after a notification. The text must not be empty."""
    metadata_json = "" if metadata is None else jsontext.canonical(metadata)
    return Decision(prompt=NextPrompt(text=jsontext.repair_text(text), metadata_json=metadata_json))


def halt(reason: str = "") -> Decision:
    """Freeze the mailbox until somebody unhalts the agent."""
    return Decision(halt=Halt(reason=reason))
