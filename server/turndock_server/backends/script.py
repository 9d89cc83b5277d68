"""Scripts: what `ScriptedBackend` plays, part by part. A script is a list of objects with one key each.

Said: `text`, `thinking`, `code_points` (text by numbers, for what JSON text may not hold), `usage`, `tool_use`,
`tool_result`, `custom`, `event` (protobuf JSON), `event_bytes` (base64), `emit` (many texts).
Done: `gate`, `ckpt`, `ckpt?` (goes on when refused), `approval`.
Ended by: `result`, `error`, `paused`, `eof` (no terminal), `reject`, `crash` (raises), `lost` (as a broken connection).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Annotated, Any, Literal, cast

from google.protobuf.json_format import ParseDict
from pydantic import Discriminator, Field, Tag

from turndock import events, jsontext
from turndock.backend.v1 import Paused as PausedOutput
from turndock.ports import TurnOutput
from turndock.types.v1 import (
    ApprovalDecision,
    Event,
    Failure,
    ToolApprovalDecided,
    ToolApprovalRequested,
)
from turndock_server.backends.sessions import Config

_Choice = Literal["approve", "edit", "reject"]


class Said(Config):
    """A part that is one output."""

    def output(self) -> TurnOutput:
        """What the turn says."""
        raise NotImplementedError


class Text(Said):
    """A piece of text."""

    text: str

    def output(self) -> TurnOutput:
        return self.text


class CodePoints(Said):
    """A piece of text, which may hold U+0000 and halves of surrogate pairs."""

    code_points: list[int]

    def output(self) -> TurnOutput:
        return "".join(map(chr, self.code_points))


class Thinking(Said):
    """A piece of reasoning."""

    thinking: str

    def output(self) -> TurnOutput:
        return events.thinking(self.thinking)


class Usage(Said):
    """Tokens read and written so far; null = not told."""

    usage: tuple[int | None, int | None]

    def output(self) -> TurnOutput:
        return events.usage(*self.usage)


class ToolCall(Config):
    """A call of a tool."""

    id: str
    name: str = ""
    arguments: Any = Field(default_factory=dict[str, Any])


class ToolUse(Said):
    """A tool is called."""

    tool_use: ToolCall

    def output(self) -> TurnOutput:
        call = self.tool_use
        return events.tool_use(call.id, call.name, jsontext.canonical(call.arguments))


class FailureDetail(Config):
    """Why something failed."""

    reason: str = ""
    message: str = ""
    retryable: bool = False

    def failure(self) -> Failure:
        """As the contract has it."""
        return events.error(self.reason, self.message, retryable=self.retryable)


class ToolOutcome(Config):
    """How a tool's call ended."""

    id: str
    name: str = ""
    result: Any = None
    failure: FailureDetail | None = None


class ToolResult(Said):
    """A tool returned, or failed."""

    tool_result: ToolOutcome

    def output(self) -> TurnOutput:
        outcome = self.tool_result
        if outcome.failure is not None:
            return events.tool_failed(outcome.id, outcome.failure.failure(), outcome.name)
        return events.tool_result(outcome.id, jsontext.canonical(outcome.result), outcome.name)


class CustomDetail(Config):
    """An event of a kind of its own."""

    name: str
    data: Any = None


class Custom(Said):
    """Something of a kind of its own."""

    custom: CustomDetail

    def output(self) -> TurnOutput:
        data = self.custom.data
        return events.custom(self.custom.name, "" if data is None else jsontext.canonical(data))


class AnyEvent(Said):
    """An event in protobuf's JSON."""

    event: dict[str, Any]

    def output(self) -> TurnOutput:
        return ParseDict(self.event, Event())


class EventBytes(Said):
    """An encoded event in base64, which may hold fields nobody knows yet."""

    event_bytes: str

    def output(self) -> TurnOutput:
        return Event.FromString(base64.b64decode(self.event_bytes))


class ResultDetail(Config):
    """All a result may carry."""

    text: str | None = None
    provider_session_id: str = ""
    stop_reason: str = ""
    data: dict[str, Any] | None = None


class Result(Said):
    """The end: the turn succeeded. Just a text, or null for what was streamed, will do."""

    result: ResultDetail | str | None

    def output(self) -> TurnOutput:
        if not isinstance(self.result, ResultDetail):
            return events.result(self.result)
        return events.result(
            self.result.text,
            provider_session_id=self.result.provider_session_id,
            stop_reason=self.result.stop_reason,
            data_json="" if self.result.data is None else jsontext.canonical(self.result.data),
        )


class Error(Said):
    """The end: the turn failed. Just a reason, or null for none, will do."""

    error: FailureDetail | str | None

    def output(self) -> TurnOutput:
        return (
            self.error.failure() if isinstance(self.error, FailureDetail) else events.error(self.error or "")
        )


class Asked(Config):
    """A tool call that needs a decision."""

    approval_id: str
    tool_call_id: str = ""
    """The call that waits; the approval's id if empty."""
    tool_name: str = ""
    arguments: Any = Field(default_factory=dict[str, Any])
    allowed: list[_Choice] = Field(default_factory=list[_Choice])
    message: str = ""
    expires_in_ms: int | None = None
    """How long it waits for an answer; unset = for ever."""

    def request(self) -> ToolApprovalRequested:
        """As the contract has it."""
        expires_at_us = None
        if self.expires_in_ms is not None:
            expires_at_us = events.now_us() + self.expires_in_ms * 1000
        return ToolApprovalRequested(
            approval_id=self.approval_id,
            tool_call_id=self.tool_call_id or self.approval_id,
            tool_name=self.tool_name,
            arguments_json=jsontext.canonical(self.arguments),
            allowed_decisions=[_DECISIONS[name] for name in self.allowed],
            message=self.message,
            expires_at_us=expires_at_us,
        )


class Paused(Said):
    """The end for now: the turn waits for decisions."""

    paused: list[Asked]

    def output(self) -> TurnOutput:
        return PausedOutput(approvals=[asked.request() for asked in self.paused])


class Many(Config):
    """A load of texts; each is its number, padded with zeros."""

    count: int = Field(ge=0)
    size: int = Field(default=8, ge=1)
    """Characters of each text."""
    batch: int = Field(default=1, ge=1)
    """Texts given to the host at once."""

    def batches(self) -> Iterable[list[TurnOutput]]:
        """The texts, as they are given out."""
        for start in range(0, self.count, self.batch):
            numbers = range(start, min(start + self.batch, self.count))
            yield [f"{number:0{self.size}d}"[-self.size :] for number in numbers]


class Emit(Config):
    """Many texts, as fast as they are taken."""

    emit: Many


class Gate(Config):
    """Waits until the tester opens the gate."""

    gate: str


class Checkpoint(Config):
    """Asks for a checkpoint; the turn breaks if it is refused."""

    ckpt: str


class TriedCheckpoint(Config):
    """Asks for a checkpoint and goes on whatever the answer."""

    ckpt: str = Field(alias="ckpt?")


class Approval(Config):
    """Waits for a decision with the turn open, then says how the tool's call ended."""

    approval: Asked


class Eof(Config):
    """The end: nothing more comes."""

    eof: None


class Crash(Config):
    """The end: the backend's code raises."""

    crash: str


class Lost(Config):
    """The end: as when the connection to a backend breaks."""

    lost: str


class Reject(Config):
    """At the beginning: the turn cannot run at all."""

    reject: FailureDetail | str

    def failure(self) -> Failure:
        """Why."""
        return self.reject.failure() if isinstance(self.reject, FailureDetail) else events.error(self.reject)


def _key(part: object) -> str:
    """The one key of a part, given as JSON or as the part itself."""
    if isinstance(part, Config):
        return ",".join(field.alias or name for name, field in type(part).model_fields.items())
    return ",".join(cast(dict[str, Any], part)) if isinstance(part, dict) else type(part).__name__


Part = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[CodePoints, Tag("code_points")]
    | Annotated[Thinking, Tag("thinking")]
    | Annotated[Usage, Tag("usage")]
    | Annotated[ToolUse, Tag("tool_use")]
    | Annotated[ToolResult, Tag("tool_result")]
    | Annotated[Custom, Tag("custom")]
    | Annotated[AnyEvent, Tag("event")]
    | Annotated[EventBytes, Tag("event_bytes")]
    | Annotated[Emit, Tag("emit")]
    | Annotated[Gate, Tag("gate")]
    | Annotated[Checkpoint, Tag("ckpt")]
    | Annotated[TriedCheckpoint, Tag("ckpt?")]
    | Annotated[Approval, Tag("approval")]
    | Annotated[Result, Tag("result")]
    | Annotated[Error, Tag("error")]
    | Annotated[Paused, Tag("paused")]
    | Annotated[Eof, Tag("eof")]
    | Annotated[Crash, Tag("crash")]
    | Annotated[Lost, Tag("lost")]
    | Annotated[Reject, Tag("reject")],
    Discriminator(_key),
]
Script = list[Part]

_DECISIONS = {
    "approve": ApprovalDecision.APPROVAL_DECISION_APPROVE,
    "edit": ApprovalDecision.APPROVAL_DECISION_EDIT,
    "reject": ApprovalDecision.APPROVAL_DECISION_REJECT,
}


def decision_name(decision: ToolApprovalDecided) -> str:
    """What was decided: `approve`, `edit`, `reject` or `expired`."""
    name = ApprovalDecision.Name(decision.decision)
    return name.removeprefix("APPROVAL_DECISION_").lower()


def outcome(decision: ToolApprovalDecided, arguments_json: str = "null") -> Event:
    """How the tool call ended that waited for this decision: it returns its arguments, or was not run."""
    call_id = decision.tool_call_id or decision.approval_id
    match decision_name(decision):
        case "approve" | "edit":
            return events.tool_result(call_id, decision.arguments_json or arguments_json)
        case "reject":
            message = decision.feedback or "rejected by a human reviewer"
            return events.tool_failed(call_id, events.error("rejected", message))
        case name:
            return events.tool_failed(call_id, events.error(name, "nobody decided in time"))
