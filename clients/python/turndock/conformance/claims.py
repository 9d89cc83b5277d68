"""How a case says what it found: each failure is a sentence for whoever wrote the implementation.

Not `assert`: a kit that Python's `-O` turns into one that finds nothing would be worse than none.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from google.protobuf.message import Message

from turndock.errors import Code, TurndockError

M = TypeVar("M", bound=Message)


class ContractBroken(AssertionError):
    """An implementation does not do what its contract says."""


def holds(condition: object, sentence: str) -> None:
    """Fail with the sentence unless the condition is true."""
    if not condition:
        raise ContractBroken(sentence)


def equal(actual: object, expected: object, sentence: str) -> None:
    """Fail with the sentence, and with both values, unless they are equal."""
    if actual != expected:
        raise ContractBroken(f"{sentence}\n  expected: {_short(expected)}\n  got:      {_short(actual)}")


async def refused(
    call: Awaitable[object], reason: str, sentence: str, *, field: str | None = None
) -> TurndockError:
    """Fail unless the call raises a `TurndockError` with this reason, its code and the field. Returns the error."""
    try:
        answer = await call
    except TurndockError as error:
        expected = TurndockError(reason, "")
        equal(error.reason, reason, f"{sentence} The reason of the refusal ({error}) is wrong.")
        equal(error.code, expected.code, f"{sentence} The code of {reason} is wrong.")
        if field is not None:
            fields = [violation.field for violation in error.violations]
            holds(
                any(field in named for named in fields),
                f"{sentence} The refusal ({error}) must name the field {field!r}; it names {fields or 'none'}.",
            )
        return error
    raise ContractBroken(f"{sentence}\n  expected: {reason}\n  got:      OK with {_short(answer)}")


async def unknown(call: Awaitable[object], reason: str, sentence: str) -> TurndockError:
    """Fail unless the call answers NOT_FOUND with this reason: what one may not see does not exist."""
    try:
        answer = await call
    except TurndockError as error:
        holds(
            error.code not in {Code.PERMISSION_DENIED, Code.UNAUTHENTICATED},
            f"{sentence} {error.code.name} tells that it exists; only NOT_FOUND does not.",
        )
        equal(
            (error.code, error.reason),
            (Code.NOT_FOUND, reason),
            f"{sentence} The refusal ({error}) is another.",
        )
        return error
    raise ContractBroken(f"{sentence}\n  expected: {reason}\n  got:      OK with {_short(answer)}")


def copied(message: M) -> M:
    """A copy of a message."""
    result = type(message)()
    result.CopyFrom(message)
    return result


def _short(value: Any) -> str:
    text = str(value).strip() if isinstance(value, Message) else repr(value)
    text = text or "an empty message"
    return text if len(text) <= 600 else f"{text[:300]} … {text[-300:]}"
