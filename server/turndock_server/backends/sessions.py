"""What the backends here have in common: configuration from JSON, and sessions whose data is JSON.

A session's data holds all a backend needs, its configuration included. So a backend has no memory that a restart of
its process could lose.
"""

from __future__ import annotations

from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from turndock import jsontext
from turndock.errors import FieldViolation, TurndockError, invalid, not_found
from turndock.types.v1 import BackendSession


class Config(BaseModel):
    """Base of a backend's configuration: unknown keys are mistakes, 1 is no text and "1" no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


ConfigT = TypeVar("ConfigT", bound=Config)


def parse_config(kind: type[ConfigT], config_json: str) -> ConfigT:
    """The configuration in a request. Raises `TurndockError` (VALIDATION_ERROR) naming each field that is wrong."""
    jsontext.check_object(config_json, "config_json")
    try:
        return kind.model_validate_json(config_json or "{}")
    except ValidationError as error:
        violations = tuple(
            FieldViolation(".".join(("config_json", *map(str, fault["loc"]))), fault["msg"])
            for fault in error.errors(include_url=False, include_input=False)
        )
        message = "; ".join(f"{violation.field}: {violation.description}" for violation in violations)
        raise TurndockError("VALIDATION_ERROR", message, violations=violations) from None


class State(BaseModel):
    """Base of what a backend keeps in `BackendSession.data`."""

    model_config = ConfigDict(frozen=True, strict=True)

    @classmethod
    def of(cls, session: BackendSession) -> Self:
        """The state in a session. Raises `TurndockError` (VALIDATION_ERROR) if another backend wrote it."""
        try:
            return cls.model_validate_json(session.data)
        except ValidationError:
            raise invalid("session.data", f"is no {cls.__name__}") from None

    @classmethod
    def resumed(cls, session: BackendSession) -> Self:
        """The state in a session that is taken up again. Raises NOT_FOUND when only its provider's name is left."""
        if not session.data:
            raise not_found("conversation", session.provider_session_id)
        return cls.of(session)

    def session(self, provider_session_id: str = "") -> BackendSession:
        """A session with this state."""
        return BackendSession(
            data=self.model_dump_json(by_alias=True, exclude_unset=True).encode(),
            provider_session_id=provider_session_id,
        )


def renamed(session: BackendSession, provider_session_id: str) -> BackendSession:
    """The session under the provider's new name for the conversation; an empty name changes nothing."""
    return BackendSession(
        data=session.data, provider_session_id=provider_session_id or session.provider_session_id
    )
