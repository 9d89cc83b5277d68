"""Retry tokens: a call that is repeated with its `request_id` gets the stored answer and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message
from sqlalchemy import bindparam, insert, select

from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventsRequest,
    AppendEventWithSequenceRequest,
    CancelRunRequest,
    EditRunRequest,
    FlushRequest,
    SaveRunRequest,
    SaveSessionRequest,
)
from turndock_server.stores import rules
from turndock_server.stores.sql.schema import retry_tokens
from turndock_server.stores.sql.transaction import Transaction

R = TypeVar("R", bound=Message)

Repeatable = (
    SaveSessionRequest
    | SaveRunRequest
    | AppendEventRequest
    | AppendEventWithSequenceRequest
    | AppendEventsRequest
    | FlushRequest
    | EditRunRequest
    | CancelRunRequest
)

_FIND: Final = select(retry_tokens.c.fingerprint, retry_tokens.c.response).where(
    retry_tokens.c.session == bindparam("session"), retry_tokens.c.request_id == bindparam("request_id")
)
_INSERT: Final = insert(retry_tokens)


class Owner(Protocol):
    """The session a token lives with."""

    key: int | None


def once(tx: Transaction, session: Owner, request: Repeatable, answer: type[R], write: Callable[[], R]) -> R:
    """Answer a repeated request as before (an `answer`), or make the write and keep what it answers.

    Raises IDEMPOTENCY_CONFLICT when the token was used for another request.
    """
    if not request.request_id:
        return write()
    fingerprint = rules.fingerprint(request)
    if session.key is not None:
        key = {"session": session.key, "request_id": request.request_id}
        known = tx.connection.execute(_FIND, key).first()
        if known is not None:
            if known.fingerprint != fingerprint:
                raise rules.token_conflict(request.request_id)
            return answer.FromString(known.response)
    response = write()
    if session.key is None:  # nothing was written, and there is nothing the token could live with
        return response
    tx.connection.execute(
        _INSERT,
        {
            "session": session.key,
            "request_id": request.request_id,
            "fingerprint": fingerprint,
            "response": response.SerializeToString(),
        },
    )
    return response
