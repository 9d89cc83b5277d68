"""Free-form data travels as JSON text, and text has to be text: one validator for every boundary.

`google.protobuf.Struct` would turn 7 into 7.0 and lose 2**53 + 1; JSON text keeps every digit. The rules are those
of RFC 8259 with these narrowings: numbers are finite, integers are exact, nesting is bounded, no key appears twice in
an object, and strings are valid Unicode without U+0000 (which not every store can keep).
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeGuard

from turndock.errors import invalid

MAX_DEPTH = 64
"""Deepest nesting of objects and arrays that is accepted."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Stands for what a text cannot keep: U+0000 and halves of surrogate pairs."""


class _Refused(ValueError):
    """Says why a JSON text is refused."""


def parse(text: str, field: str, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value of a JSON text.

    Raises `TurndockError` (VALIDATION_ERROR) naming `field` when the text is no JSON or breaks a rule of this module.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
        _check(value, max_depth)
    except RecursionError:
        raise invalid(field, f"is nested deeper than {max_depth} levels") from None
    except ValueError as error:
        raise invalid(field, f"is not acceptable JSON: {error}") from None
    return value


def parse_object(text: str, field: str, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """The object in a JSON text; `{}` for an empty text. Raises as `parse`, also when it is no object."""
    if not text:
        return {}
    value = parse(text, field, max_depth=max_depth)
    if not _is_object(value):
        raise invalid(field, "must be a JSON object")
    return value


def check(text: str, field: str, *, max_depth: int = MAX_DEPTH) -> None:
    """Refuse a text that is neither empty nor acceptable JSON. Raises as `parse`."""
    if text:
        parse(text, field, max_depth=max_depth)


def check_object(text: str, field: str, *, max_depth: int = MAX_DEPTH) -> None:
    """Refuse a text that is neither empty nor an acceptable JSON object. Raises as `parse_object`."""
    if text and text != "{}":
        parse_object(text, field, max_depth=max_depth)


def canonical(value: Any) -> str:
    """The canonical JSON text of a value: sorted keys, no blanks, no escapes but the required ones.

    Raises `ValueError` for what JSON cannot say (infinite numbers, other types).
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def check_text(text: str, field: str) -> None:
    """Refuse a text with U+0000. (A protobuf string cannot hold halves of surrogate pairs.)"""
    if "\0" in text:
        raise invalid(field, "contains U+0000, which not every store can keep")


def repair_text(text: str) -> str:
    """The text with U+0000 and halves of surrogate pairs replaced by U+FFFD; whole pairs become their character."""
    if text.isascii():
        return text.replace("\0", REPLACEMENT) if "\0" in text else text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined.replace("\0", REPLACEMENT)


class TextJoiner:
    """Repairs a text that arrives in pieces, one piece at a time.

    A piece that ends in the first half of a surrogate pair keeps that half back until the next piece brings the other.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """The repaired text that can be passed on now."""
        piece = self._held + piece
        self._held = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            self._held, piece = piece[-1], piece[:-1]
        return repair_text(piece)

    def end(self) -> str:
        """What is left at the end of the text: a replacement character if half a pair was kept back."""
        held, self._held = self._held, ""
        return repair_text(held)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _Refused("an object has the same key twice")
    return result


def _no_constant(name: str) -> float:
    raise _Refused(f"{name} is not a finite number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _Refused(f"{digits} is not a finite number")
    return number


def _check(value: Any, max_depth: int) -> None:
    """Walk without recursion, so that a hostile depth cannot exhaust the stack."""
    level: list[Any] = [value]
    depth = 0
    while level:
        deeper: list[Any] = []
        nested = False
        for item in level:
            if isinstance(item, str):
                _check_string(item)
            elif _is_object(item):
                nested = True
                for key, member in item.items():
                    _check_string(key)
                    deeper.append(member)
            elif _is_array(item):
                nested = True
                deeper.extend(item)
        if nested:
            depth += 1
            if depth > max_depth:
                raise _Refused(f"it is nested deeper than {max_depth} levels")
        level = deeper


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_array(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _check_string(text: str) -> None:
    if "\0" in text:
        raise _Refused("a string contains U+0000, which not every store can keep")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Refused("a string contains half a surrogate pair") from None
