"""What pydantic reports, as faults a person can mend: the key as the file spells it, and the nearest key there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from turndock_server.config.errors import Fault
from turndock_server.config.values import BY_REFERENCE, Reference


def fault_of(kind: type[BaseModel], detail: Mapping[str, Any], *, source: str = "") -> Fault:
    """The fault that one of pydantic's error details is. Never shows the value that is wrong."""
    location: tuple[str | int, ...] = detail["loc"]
    key = ".".join(map(str, location))
    if detail["type"] == "extra_forbidden":
        *above, last = location
        known = _keys(kind, above)
        return Fault(
            key,
            "unknown key",
            nearest(str(last), known, prefix="".join(f"{part}." for part in above)),
            source,
        )
    if location[-1] == "[key]":  # pydantic's own mark for the name of a table, not what is in it
        key = key.removesuffix(".[key]")
        return Fault(key, "is no name", "Use up to 128 letters, digits, dots, dashes and underscores", source)
    if detail["type"] == "missing":
        return Fault(key, "is missing", "", source)
    owner = _type_at(kind, location)
    owners = (owner, *get_args(owner))  # what may be left out is a union with None
    is_reference = any(isinstance(one, type) and issubclass(one, Reference) for one in owners)
    if is_reference and detail["type"].endswith("_type"):
        return Fault(key, "is no reference", BY_REFERENCE, source)
    message = str(detail["msg"]).removeprefix("Value error, ")
    return Fault(key, message[:1].lower() + message[1:], "", source)


def nearest(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """A sentence that names the known word that was probably meant, or all there are."""
    words = sorted(known)
    close = get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {prefix}{close[0]}?"
    return f"Known here: {', '.join(words)}" if words else ""


def _keys(kind: Any, location: Iterable[str | int]) -> list[str]:
    """The keys of the table at a location."""
    table = _type_at(kind, location)
    return list(table.model_fields) if isinstance(table, type) and issubclass(table, BaseModel) else []


def _type_at(kind: Any, location: Iterable[str | int]) -> Any:
    """The type of what is at a location."""
    for part in location:
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            kind = kind.model_fields[str(part)].annotation
        else:
            return None
    return kind
