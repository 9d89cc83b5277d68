"""A session's conversation as the messages of a model API: what was asked, answered, called and returned.

Thinking, usage, approvals and everything else that is no part of a conversation is left out; the JSON Lines have it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeGuard

from turndock.events import RUN_TERMINAL
from turndock.types.v1 import Event, EventType

Message = dict[str, Any]
"""A message as JSON has it."""

ASSISTANT: Final = "assistant"
USER: Final = "user"


@dataclass(slots=True)
class _Call:
    """A tool call."""

    id: str
    name: str
    arguments: str
    """JSON."""


@dataclass(slots=True)
class _Outcome:
    """What a tool call came to."""

    call_id: str
    text: str
    is_error: bool = False


@dataclass(slots=True)
class _Turn:
    """What one side says at once: a text, then tool calls or what these came to."""

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    calls: list[_Call] = field(default_factory=list[_Call])
    outcomes: list[_Outcome] = field(default_factory=list[_Outcome])


def openai_messages(events: Iterable[Event]) -> list[Message]:
    """A log, in the order of its numbers, as `messages` of OpenAI's chat completions."""
    messages: list[Message] = []
    for turn in _turns(events):
        if turn.role == "tool":
            messages += (
                {"role": "tool", "tool_call_id": outcome.call_id, "content": outcome.text}
                for outcome in turn.outcomes
            )
        else:
            message: Message = {"role": turn.role, "content": turn.text or (None if turn.calls else "")}
            if turn.calls:
                message["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in turn.calls
                ]
            messages.append(message)
    return messages


def anthropic_messages(events: Iterable[Event]) -> list[Message]:
    """A log, in the order of its numbers, as `messages` of Anthropic's API: user and assistant take turns."""
    messages: list[Message] = []
    for turn in _turns(events):
        role = ASSISTANT if turn.role == ASSISTANT else USER
        blocks: list[Message] = [{"type": "text", "text": turn.text}] if turn.text else []
        blocks += (
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)}
            for call in turn.calls
        )
        blocks += (
            {
                "type": "tool_result",
                "tool_use_id": outcome.call_id,
                "content": outcome.text,
                **({"is_error": True} if outcome.is_error else {}),
            }
            for outcome in turn.outcomes
        )
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})
    return messages


class _Reader:
    """Puts events together to turns."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._streamed: defaultdict[str, list[str]] = defaultdict(list)
        """By run: what was streamed and is in no turn yet."""
        self._told: defaultdict[str, list[str]] = defaultdict(list)
        """By run: what was streamed and is."""
        self._open: dict[tuple[str, str], str] = {}
        """Calls without an outcome, by run and id: what they are called in the turns, where ids must not repeat."""
        self._ids: set[str] = set()

    def read(self, event: Event) -> None:
        """Take the next event."""
        kind = event.WhichOneof("payload")
        if event.HasField("offloaded"):
            self._read_offloaded(event)
        elif kind == "message_sent":
            self.turns.append(_Turn(USER, event.message_sent.text))
        elif kind == "message_streamed" and not event.message_streamed.thinking:
            self._streamed[event.run_id].append(event.message_streamed.text)
        elif kind == "message_received":
            self._answer(event.run_id, event.message_received.text)
        elif kind == "tool_call_started":
            started = event.tool_call_started
            self._call(event, started.tool_call_id, started.name, started.arguments_json)
        elif kind == "tool_call_completed":
            completed = event.tool_call_completed
            self._outcome(event, completed.tool_call_id, completed.result_json)
        elif kind == "tool_call_failed":
            failure = event.tool_call_failed.failure
            text = f"{failure.reason}: {failure.message}" if failure.message else failure.reason
            self._outcome(event, event.tool_call_failed.tool_call_id, text, is_error=True)
        if event.type in RUN_TERMINAL:
            self._flush(event.run_id)

    def _read_offloaded(self, event: Event) -> None:
        """A message that is elsewhere leaves a word where it was."""
        text = f"[{event.offloaded.size} bytes in artifact {event.offloaded.key}]"
        if event.type == EventType.EVENT_TYPE_MESSAGE_SENT:
            self.turns.append(_Turn(USER, text))
        elif event.type == EventType.EVENT_TYPE_MESSAGE_RECEIVED:
            self._streamed.pop(event.run_id, None)
            self.turns.append(_Turn(ASSISTANT, text))

    def _answer(self, run_id: str, text: str) -> None:
        """A whole message: what of it was streamed before a tool call has its turn already."""
        told, rest = "".join(self._told[run_id]), "".join(self._streamed.pop(run_id, ()))
        answer = rest if told + rest == text else text
        if answer:
            self.turns.append(_Turn(ASSISTANT, answer))
        self._told.pop(run_id)

    def _call(self, event: Event, call_id: str, name: str, arguments: str) -> None:
        text = "".join(self._streamed.pop(event.run_id, ()))
        if text:
            self._told[event.run_id].append(text)
        unique = call_id
        while unique in self._ids:
            unique = f"{unique}-{event.sequence}"
        self._ids.add(unique)
        self._open[event.run_id, call_id] = unique
        call = _Call(unique, name, arguments or "{}")
        last = self.turns[-1] if self.turns else None
        if last is not None and last.role == ASSISTANT and last.calls and not text:
            last.calls.append(call)
        else:
            self.turns.append(_Turn(ASSISTANT, text, calls=[call]))

    def _outcome(self, event: Event, call_id: str, text: str, *, is_error: bool = False) -> None:
        unique = self._open.pop((event.run_id, call_id), None)
        if unique is None:
            return  # of a call that is not in the log any more: no API takes an outcome without its call
        last = self.turns[-1] if self.turns else None
        if last is None or last.role != "tool":
            last = _Turn("tool")
            self.turns.append(last)
        last.outcomes.append(_Outcome(unique, text, is_error))

    def _flush(self, run_id: str) -> None:
        """What was streamed in a turn without a whole message is what there is of it."""
        text = "".join(self._streamed.pop(run_id, ()))
        if text:
            self.turns.append(_Turn(ASSISTANT, text))
        self._told.pop(run_id, None)


def _turns(events: Iterable[Event]) -> Sequence[_Turn]:
    reader = _Reader()
    for event in events:
        reader.read(event)
    return _with_every_outcome(reader.turns)


def _with_every_outcome(turns: Sequence[_Turn]) -> list[_Turn]:
    """The turns with what calls came to directly behind them, as both APIs ask for."""
    outcomes = {outcome.call_id: outcome for turn in turns for outcome in turn.outcomes}
    result: list[_Turn] = []
    for turn in turns:
        if turn.role == "tool":
            continue
        result.append(turn)
        if turn.calls:
            missing = "no result"
            result.append(
                _Turn(
                    "tool",
                    outcomes=[
                        outcomes.get(call.id, _Outcome(call.id, missing, is_error=True))
                        for call in turn.calls
                    ],
                )
            )
    return result


def _object(text: str) -> Message:
    """The value of a tool's arguments, which must be an object; what is none is put into one."""
    value: Any = json.loads(text)
    return value if _is_object(value) else {"value": value}


def _is_object(value: Any) -> TypeGuard[Message]:
    return isinstance(value, dict)
