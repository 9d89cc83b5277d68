"""The language of command backends: a JSON object a line, and its `type` says what it is.

To the program: `prompt`, `checkpoint_answer`, `approval_answer`.
From the program: `accepted`, `rejected`; `text`, `thinking`, `tool_use`, `tool_result`, `usage`, `custom`;
`checkpoint`, `approval`, which are answered; `result`, `error`, `paused`, which end the turn.

What a program gets wrong does not end its turn; it becomes an ERROR_OCCURRED event and the line is left out:
another `type` (`unknown_event_type`, with the name kept), no JSON object or a field that does not fit (`invalid_line`),
a line that is too long (`line_too_long`). Bytes that are no UTF-8 become U+FFFD and are marked. But a question that
cannot be understood ends the turn with `invalid_line`, since its program waits for an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

from turndock import events, jsontext
from turndock.backend.v1 import Paused, PromptRequest, Result
from turndock.errors import MAX_MESSAGE_BYTES
from turndock.ports import TurnOutput
from turndock.types.v1 import (
    ApprovalDecision,
    ErrorOccurred,
    Event,
    EventType,
    Failure,
    TokenUsageUpdated,
    ToolApprovalDecided,
    ToolApprovalRequested,
    Usage,
)
from turndock_server.core.intake import REPAIRED, unknown_type
from turndock_server.processes import TooLong

_PREVIEW_BYTES: Final = 256
_DECISION: Final = "APPROVAL_DECISION_"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The session after this turn."""

    state: Any
    """The program's own JSON."""
    provider_session_id: str


@dataclass(frozen=True, slots=True)
class Rejection:
    """The turn cannot run at all."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    """The program wants its name for the conversation stored now."""

    provider_session_id: str


Question = CheckpointAsked | ToolApprovalRequested
"""A line that waits for an answer."""

Heard = TurnOutput | Accepted | Rejection | Question
"""What a line says."""


class Unanswerable(Exception):
    """A question that cannot be understood: its program would wait for ever."""


def read(line: bytes | TooLong) -> Heard | None:
    """What the program said; None for an empty line. Raises `Unanswerable`."""
    if isinstance(line, TooLong):
        return trouble("line_too_long", f"a line of {line.size} bytes was left out", line.head)
    if not line.strip():
        return None
    fields = None
    try:
        text, marked = _decode(line)
        fields = _Fields(json.loads(text, parse_constant=_no_constant))
        heard = _understand(fields)
    except (ValueError, RecursionError) as error:
        message = str(error) if isinstance(error, ValueError) else "is nested too deeply"
        if fields is not None and fields.type in _QUESTIONS:
            raise Unanswerable(f"{fields.type}: {message}") from None
        return trouble("invalid_line", message, line)
    if isinstance(heard, Event) and (marked or fields.repaired):
        heard.metadata_json = jsontext.canonical({REPAIRED: fields.repaired or ["line"]})
    return heard


def trouble(reason: str, message: str, line: bytes = b"") -> Event:
    """An event for what a program got wrong, with the beginning of the line."""
    preview = jsontext.repair_text(line[:_PREVIEW_BYTES].decode(errors="replace"))
    return Event(
        type=EventType.EVENT_TYPE_ERROR_OCCURRED,
        error_occurred=ErrorOccurred(failure=Failure(reason=reason, message=message)),
        data_json=jsontext.canonical({"line": preview}) if line else "",
    )


def prompt_line(request: PromptRequest, state: Any) -> bytes:
    """The line that begins a turn."""
    line: dict[str, Any] = {
        "type": "prompt",
        "prompt": request.prompt,
        "session": {"state": state, "provider_session_id": request.session.provider_session_id},
        "session_id": request.session_id,
        "agent_name": request.agent_name,
        "run_id": request.run_id,
        "attempt": request.attempt,
        "metadata": json.loads(request.metadata_json or "{}"),
    }
    if request.HasField("resume"):
        line["decisions"] = [_decision(decision) for decision in request.resume.decisions]
    return _line(line)


def checkpoint_answer(provider_session_id: str, reason: str = "") -> bytes:
    """The line that answers a checkpoint: stored, or the reason why not."""
    answer: dict[str, Any] = {"type": "checkpoint_answer", "provider_session_id": provider_session_id}
    return _line(answer | ({"ok": False, "reason": reason} if reason else {"ok": True}))


def approval_answer(decision: ToolApprovalDecided) -> bytes:
    """The line that answers an approval."""
    return _line({"type": "approval_answer"} | _decision(decision))


def _line(fields: dict[str, Any]) -> bytes:
    return jsontext.canonical(fields).encode() + b"\n"


def _decision(decision: ToolApprovalDecided) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "approval_id": decision.approval_id,
        "tool_call_id": decision.tool_call_id,
        "decision": ApprovalDecision.Name(decision.decision).removeprefix(_DECISION).lower(),
    }
    if decision.arguments_json:
        fields["arguments"] = json.loads(decision.arguments_json)
    if decision.feedback:
        fields["feedback"] = decision.feedback
    return fields


def _decode(line: bytes) -> tuple[str, bool]:
    """The line's text, and whether some of it was no UTF-8."""
    try:
        return line.decode(), False
    except UnicodeDecodeError:
        return line.decode(errors="replace"), True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class _Fields:
    """The fields of a line, by kind. A field that does not fit raises `ValueError` with its name."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise ValueError("is no JSON object")
        self.all = cast(dict[str, Any], value)
        self.repaired: list[str] = []
        self.type = self.raw_text("type")

    def raw_text(self, name: str, default: str | None = None) -> str:
        """A text as it is, which may hold half a character whose other half comes later."""
        value = self.all.get(name, default)
        if not isinstance(value, str):
            raise ValueError(f"`{name}` is {'no text' if name in self.all else 'missing'}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A text that protobuf can hold."""
        raw = self.raw_text(name, default)
        repaired = jsontext.repair_text(raw)
        if repaired != raw:
            self.repaired.append(name)
        return repaired

    def optional_text(self, name: str) -> str | None:
        """A text, or None if it is missing or null."""
        return self.text(name) if self.all.get(name) is not None else None

    def json(self, name: str, default: Any = None) -> str:
        """The JSON text of any value. What breaks a rule of `jsontext` the host replaces and marks."""
        text = jsontext.canonical(self.all.get(name, default))
        return text if text.isascii() or _is_unicode(text) else json.dumps(self.all[name])

    def number(self, name: str) -> int | None:
        """A whole number from 0, or None if it is missing or null."""
        value = self.all.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise ValueError(f"`{name}` is no whole number from 0")
        return value

    def fields(self, name: str) -> _Fields:
        """An object with fields of its own."""
        return _Fields({"type": name, **self.object(name)})

    def object(self, name: str) -> dict[str, Any]:
        """Any object; empty if it is missing."""
        value = self.all.get(name, {})
        if not isinstance(value, dict):
            raise ValueError(f"`{name}` is no object")
        return cast(dict[str, Any], value)

    def list(self, name: str) -> list[Any]:
        """Any list; empty if it is missing."""
        value = self.all.get(name, [])
        if not isinstance(value, list):
            raise ValueError(f"`{name}` is no list")
        return [*cast(Iterable[Any], value)]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _understand(fields: _Fields) -> Heard:
    read_fields = _TYPES.get(fields.type)
    if read_fields is None:
        rest = {name: value for name, value in fields.all.items() if name != "type"}
        return unknown_type(jsontext.repair_text(fields.type), json.dumps(rest) if rest else "")
    return read_fields(fields)


def _accepted(fields: _Fields) -> Accepted:
    session = fields.fields("session")
    jsontext.check(session.json("state"), "session.state")
    return Accepted(session.all.get("state"), session.text("provider_session_id", ""))


def _failure(fields: _Fields) -> Failure:
    message = fields.text("message", "").encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    retryable = fields.all.get("retryable", False) is True
    return events.error(fields.text("reason", ""), message, retryable=retryable)


def _tool_use(fields: _Fields) -> Event:
    return events.tool_use(fields.text("id"), fields.text("name", ""), fields.json("arguments", {}))


def _tool_result(fields: _Fields) -> Event:
    call_id, name = fields.text("id"), fields.text("name", "")
    if "error" in fields.all:
        return events.tool_failed(call_id, _failure(fields.fields("error")), name)
    return events.tool_result(call_id, fields.json("result"), name)


def _usage(fields: _Fields) -> Event:
    cost = fields.all.get("cost_usd")
    if cost is not None and (not isinstance(cost, int | float) or isinstance(cost, bool)):
        raise ValueError("`cost_usd` is no number")
    usage = Usage(
        input_tokens=fields.number("input_tokens"),
        output_tokens=fields.number("output_tokens"),
        total_tokens=fields.number("total_tokens"),
        cached_input_tokens=fields.number("cached_input_tokens"),
        reasoning_tokens=fields.number("reasoning_tokens"),
        model=fields.text("model", ""),
        cost_usd=cost,
    )
    return Event(
        type=EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED, token_usage_updated=TokenUsageUpdated(usage=usage)
    )


def _custom(fields: _Fields) -> Event:
    return events.custom(fields.text("name"), fields.json("data") if "data" in fields.all else "")


def _checkpoint(fields: _Fields) -> CheckpointAsked:
    provider_session_id = fields.raw_text("provider_session_id")
    if not _is_unicode(provider_session_id):
        raise ValueError("`provider_session_id` is no Unicode")
    return CheckpointAsked(provider_session_id)


def _approval(fields: _Fields) -> ToolApprovalRequested:
    decisions = [f"{_DECISION}{name}".upper() for name in fields.list("allowed")]
    approval_id = fields.text("approval_id")
    return ToolApprovalRequested(
        approval_id=approval_id,
        tool_call_id=fields.text("tool_call_id", approval_id),
        tool_name=fields.text("tool_name", ""),
        arguments_json=fields.json("arguments", {}),
        allowed_decisions=[ApprovalDecision.Value(decision) for decision in decisions],
        message=fields.text("message", ""),
    )


def _paused(fields: _Fields) -> Paused:
    asked = [_Fields({"type": "approval", **approval}) for approval in fields.list("approvals")]
    return Paused(approvals=[_approval(approval) for approval in asked])


def _result(fields: _Fields) -> Result:
    return Result(
        text=fields.optional_text("text"),
        provider_session_id=fields.text("provider_session_id", ""),
        stop_reason=fields.text("stop_reason", ""),
        data_json=jsontext.canonical(fields.object("data")) if "data" in fields.all else "",
    )


_TYPES: Final[dict[str, Callable[[_Fields], Heard]]] = {
    "accepted": _accepted,
    "rejected": lambda fields: Rejection(_failure(fields)),
    "text": lambda fields: fields.raw_text("text"),
    "thinking": lambda fields: events.thinking(fields.raw_text("text")),
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "usage": _usage,
    "custom": _custom,
    "checkpoint": _checkpoint,
    "approval": _approval,
    "result": _result,
    "error": _failure,
    "paused": _paused,
}
_QUESTIONS: Final = frozenset(("checkpoint", "approval"))
