"""JSON Lines: a header, then one line for each session, run, event and artifact, and one for the end.

    {"format":"turndock.export","version":1}
    {"session":{"agent_id":"ann","created_at_us":1767225600000000,"id":"…",…}}
    {"run":{…}}
    {"event":{"id":"…","sequence":1,"type":"EVENT_TYPE_RUN_STARTED",…}}
    {"end":{"event_count":1,"head":1,"run_count":1}}

A field has its proto's name; numbers are JSON numbers with every digit, bytes are Base64, enum values have their names,
or their numbers when this release has no name for them. Texts that are JSON themselves (`…_json`) stay texts, so that
they come back as they were. Where that does not say all there is, as with fields of a newer release, the line carries
the message's own `bytes` beside it, and these count.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from typing import Any, Final, TypeGuard

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from turndock.errors import TurndockError, invalid
from turndock.store.v1 import ExportEnd, ExportSessionResponse
from turndock.types.v1 import Artifact, Event, Run, Session

Record = Session | Run | Event | Artifact | ExportEnd
"""What one line holds."""

FORMAT: Final = "turndock.export"
VERSION: Final = 1
HEADER: Final = f'{{"format":"{FORMAT}","version":{VERSION}}}'
"""The first line."""

_BYTES: Final = "bytes"
_KINDS: Final[Mapping[str, type[Record]]] = {
    "session": Session,
    "run": Run,
    "event": Event,
    "artifact": Artifact,
    "end": ExportEnd,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_MAX_DEPTH: Final = 100


async def json_lines(parts: AsyncIterable[ExportSessionResponse]) -> AsyncIterator[str]:
    """An export as lines without line breaks, the header first. Raises what the export raises.

    An export without its end is incomplete: CANCELLED. One that fails at once yields nothing, not even the header.
    """
    has_begun = is_whole = False
    async for part in parts:
        if not has_begun:
            yield HEADER
            has_begun = True
        for record in records_of(part):
            yield to_line(record)
        is_whole = part.HasField("end")
    if not is_whole:
        raise TurndockError("CANCELLED", "the export broke off before its end")


def records_of(part: ExportSessionResponse) -> Iterator[Record]:
    """What one part of an export carries."""
    if part.HasField("session"):
        yield part.session
    yield from part.runs.runs
    yield from part.events.events
    yield from part.artifacts.artifacts
    if part.HasField("end"):
        yield part.end


def to_line(record: Record) -> str:
    """A record as a line."""
    name = _NAMES[type(record)]
    line: dict[str, Any] = {name: _to_json(record)}
    written = record.SerializeToString(deterministic=True)
    again = _from_json(line[name], type(record))
    if again is None or again.SerializeToString(deterministic=True) != written:
        line[_BYTES] = base64.b64encode(written).decode()
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def parse_line(line: str, number: int) -> Record | None:
    """The record in a line; None for the header. `number` is the line's, for errors.

    Raises VALIDATION_ERROR for what is neither, and for a header of another version.
    """
    field = f"line {number}"
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise invalid(field, "is not JSON") from None
    if not _is_object(document):
        raise invalid(field, "is not a JSON object")
    if "format" in document:
        if (document["format"], document.get("version")) != (FORMAT, VERSION):
            raise invalid(field, f"is not the header of {FORMAT}, version {VERSION}")
        return None
    names = document.keys() - {_BYTES}
    if len(names) != 1 or not names <= _KINDS.keys():
        raise invalid(field, f"must hold one of {', '.join(_KINDS)}")
    (name,) = names
    if _BYTES in document:
        return _from_bytes(document[_BYTES], _KINDS[name], field)
    record = _from_json(document[name], _KINDS[name])
    if record is None:
        raise invalid(f"{field}: {name}", "is not what its fields allow")
    return record


def _to_json(message: Message) -> dict[str, Any]:
    """A message as JSON values, with 64-bit numbers as numbers."""
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {str(key): _scalar(inner, value[key]) for key in value}
    if field.is_repeated:
        return [_scalar(field, one) for one in value]
    return _scalar(field, value)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Message):
        return _to_json(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return value


def _from_json(document: Any, kind: type[Record]) -> Record | None:
    """The message that JSON values say; None if they do not say one."""
    if not _is_object(document):
        return None
    try:
        return json_format.ParseDict(document, kind(), max_recursion_depth=_MAX_DEPTH)
    except (json_format.ParseError, TypeError, ValueError, AttributeError):
        return None


def _from_bytes(text: Any, kind: type[Record], field: str) -> Record:
    try:
        return kind.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, TypeError, ValueError, DecodeError):
        raise invalid(f"{field}: {_BYTES}", "is not an encoded message") from None


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
