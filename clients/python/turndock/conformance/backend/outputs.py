"""Outputs: what a turn may say, and what it must look like."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from turndock import jsontext
from turndock.conformance.backend.suite import TOOL_USING, Fixture, case
from turndock.conformance.backend.turn import Turn
from turndock.conformance.claims import ContractBroken, holds
from turndock.errors import TurndockError
from turndock.events import type_name
from turndock.types.v1 import Event, EventType, Usage

BACKEND_TYPES: Final = frozenset(
    (
        EventType.EVENT_TYPE_MESSAGE_STREAMED,
        EventType.EVENT_TYPE_MESSAGE_RECEIVED,
        EventType.EVENT_TYPE_TOOL_CALL_STARTED,
        EventType.EVENT_TYPE_TOOL_CALL_COMPLETED,
        EventType.EVENT_TYPE_TOOL_CALL_FAILED,
        EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED,
        EventType.EVENT_TYPE_TURN_COMPLETED,
        EventType.EVENT_TYPE_WORKSPACE_SNAPSHOT_TAKEN,
        EventType.EVENT_TYPE_WORKSPACE_DIFF_COMPUTED,
        EventType.EVENT_TYPE_POLICY_VIOLATION,
        EventType.EVENT_TYPE_ERROR_OCCURRED,
        EventType.EVENT_TYPE_ERROR_RECOVERED,
        EventType.EVENT_TYPE_CUSTOM,
    )
)
"""Types a backend may use, beside numbers that this release does not know."""

HOSTS_PREFIX: Final = "turndock."
"""What the names of the host's own custom events begin with."""

_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cached_input_tokens",
    "reasoning_tokens",
)


async def _turns(fixture: Fixture) -> list[Turn]:
    """A turn of each kind this backend has prompts for."""
    prompts = fixture.prompts
    kinds = (prompts.answering, prompts.failing, prompts.checkpointing, prompts.tool_using)
    return [await (await fixture.start(prompt)).ask() for prompt in kinds if prompt is not None]


@case("Prompt", "PF-B23")
async def streamed_text_is_text(fixture: Fixture) -> None:
    """Text is Unicode without U+0000; a character may be split over pieces, but both halves come."""
    for turn in await _turns(fixture):
        pieces = [output for output in turn.outputs if isinstance(output, str)]
        for text in ("".join(pieces), turn.text):
            holds("\0" not in text, "Streamed text must not hold U+0000; a store may not be able to keep it.")
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            holds(
                jsontext.REPLACEMENT in text or jsontext.REPLACEMENT not in whole,
                f"Streamed text must be valid Unicode; it holds half a surrogate pair: {text[:200]!r}",
            )


@case("Prompt", "B-02")
async def the_answer_is_the_results_text_or_what_was_streamed(fixture: Fixture) -> None:
    """A result's text is the whole answer; unset it stands for all streamed text, and empty text is an answer."""
    turn = await (await fixture.start()).ask()
    result = turn.result()
    holds(turn.answer, "An `answering` prompt must have an answer: in the result's text, or streamed.")
    if result.HasField("text"):
        repaired = jsontext.repair_text(result.text)
        holds(result.text == repaired, "The result's text must not hold U+0000.")


@case("Prompt", "B-03")
async def usage_counts_from_zero(fixture: Fixture) -> None:
    """Token counts and cost are never negative, never infinite, and count the run so far: they never fall."""
    for turn in await _turns(fixture):
        seen: dict[str, int] = {}
        for event in turn.events:
            if event.HasField("token_usage_updated"):
                usage = event.token_usage_updated.usage
                _check_usage(usage, seen)


def _check_usage(usage: Usage, seen: dict[str, int]) -> None:
    for name in _COUNTS:
        if not usage.HasField(name):
            continue
        count: int = getattr(usage, name)
        holds(count >= 0, f"usage.{name} must not be negative; it is {count}.")
        before = seen.setdefault(name, count)
        holds(
            count >= before, f"usage.{name} counts the run so far; it must not fall from {before} to {count}."
        )
        seen[name] = count
    cost = usage.cost_usd
    holds(math.isfinite(cost) and cost >= 0, f"usage.cost_usd must be a number from 0; it is {cost}.")


@case("Prompt", "E-01")
async def only_types_for_backends_are_used(fixture: Fixture) -> None:
    """A turn's events are of types a backend may use, or newer ones; the others are the host's own."""
    known = set(EventType.values())
    for turn in await _turns(fixture):
        for event in turn.events:
            name = type_name(event.type)
            holds(event.type, "An event must have a type.")
            holds(
                event.type in BACKEND_TYPES or event.type not in known,
                f"An event of type {name} is the host's to write; a backend must not.",
            )
            holds(
                not event.custom.name.startswith(HOSTS_PREFIX),
                f"The custom event {event.custom.name!r} has a name of the host's own ({HOSTS_PREFIX}…).",
            )


@case("Prompt", "E-01")
async def the_payload_is_that_of_the_type(fixture: Fixture) -> None:
    """An event's payload, where it has one, is that of its type; a custom event has a name."""
    for turn in await _turns(fixture):
        for event in turn.events:
            payload, name = event.WhichOneof("payload"), type_name(event.type)
            holds(
                payload is None or payload == name or name not in Event.DESCRIPTOR.fields_by_name,
                f"An event of type {name} has the payload {payload}.",
            )
            if event.type == EventType.EVENT_TYPE_CUSTOM:
                holds(event.custom.name, "A custom event must have a name.")


@case("Prompt", "PF-B25")
async def json_fields_hold_json(fixture: Fixture) -> None:
    """Every field that holds JSON text holds JSON the host can keep: an object where the contract says so."""
    for turn in await _turns(fixture):
        for event in turn.events:
            for field, text in _json_texts(event):
                _check_json(field, text)
            _check_json("Event.data_json", event.data_json, is_object=True)
            _check_json("Event.metadata_json", event.metadata_json, is_object=True)
        data = getattr(turn.outputs[-1], "data_json", "") if turn.outputs else ""
        _check_json("Result.data_json", data, is_object=True)


def _json_texts(event: Event) -> Iterator[tuple[str, str]]:
    yield "ToolCallStarted.arguments_json", event.tool_call_started.arguments_json
    yield "ToolCallCompleted.result_json", event.tool_call_completed.result_json
    yield "Custom.data_json", event.custom.data_json


def _check_json(field: str, text: str, *, is_object: bool = False) -> None:
    try:
        (jsontext.check_object if is_object else jsontext.check)(text, field)
    except TurndockError as error:
        raise ContractBroken(f"{field} must hold canonical JSON: {error.message}") from None


@case("Prompt", prompts=[TOOL_USING])
async def tool_calls_are_paired(fixture: Fixture) -> None:
    """Each tool call has an id of its own in its turn, begins before it ends, and ends once, by success or failure."""
    turn = await (await fixture.start(fixture.prompt(TOOL_USING))).ask()
    turn.result("The turn of a `tool_using` prompt")
    begun: dict[str, str] = {}
    ended: set[str] = set()
    for event in turn.events:
        if event.type == EventType.EVENT_TYPE_TOOL_CALL_STARTED:
            call_id = event.tool_call_started.tool_call_id
            holds(call_id, "A tool call must have a tool_call_id.")
            holds(
                call_id not in begun, f"The tool call {call_id!r} begins twice; each needs an id of its own."
            )
            begun[call_id] = event.tool_call_started.name
            holds(begun[call_id], f"The tool call {call_id!r} must name its tool.")
        elif event.type in {
            EventType.EVENT_TYPE_TOOL_CALL_COMPLETED,
            EventType.EVENT_TYPE_TOOL_CALL_FAILED,
        }:
            call_id = event.tool_call_completed.tool_call_id or event.tool_call_failed.tool_call_id
            holds(call_id in begun, f"The tool call {call_id!r} ends without having begun.")
            holds(call_id not in ended, f"The tool call {call_id!r} ends twice.")
            ended.add(call_id)
    holds(begun, "The turn of a `tool_using` prompt must use a tool.")
    open_calls = sorted(begun.keys() - ended)
    holds(not open_calls, f"A turn with a result leaves no tool call open; {open_calls} never ended.")
