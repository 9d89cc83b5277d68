"""Values with rules of their own: names, references to secrets, and what must not be written into a file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Self, TypeGuard, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from turndock_server.config.errors import ConfigError, Fault
from turndock_server.observability.redaction import has_secret_form

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A name people choose in the configuration."""

_SECRET_KEY: Final = re.compile(
    r"(?:^|[_-])(?:api_?key|access_?key|private_?key|secret|token|password|passwd|passphrase|credentials?|auth)"
    r"(?:[_-](?:id|key|value))?$",
    re.IGNORECASE,
)
BY_REFERENCE: Final = 'Secrets are given by reference only: {env = "NAME"} or {file = "path"}'


def is_table(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a table of the file."""
    return isinstance(value, dict)


def bare(annotation: Any) -> Any:
    """A type without the None it may be instead."""
    options = [option for option in get_args(annotation) if option is not NoneType]
    is_optional = len(options) == 1 and NoneType in get_args(annotation)
    return options[0] if is_optional else annotation


def looks_secret(key: str, value: object) -> bool:
    """Whether a text under this key is probably a secret: by what the key is called, or by its own form."""
    if not isinstance(value, str) or not value:
        return False
    return bool(_SECRET_KEY.search(key) or has_secret_form(value))


def inline_secrets(table: dict[str, Any], path: str) -> list[str]:
    """The keys below `path` whose values look like secrets, whatever they are nested in."""
    found: list[str] = []
    waiting: list[tuple[str, str, Any]] = [(f"{path}.{key}", key, value) for key, value in table.items()]
    while waiting:
        where, key, value = waiting.pop()
        if is_table(value):
            waiting += [(f"{where}.{inner}", inner, item) for inner, item in value.items()]
        elif isinstance(value, list):
            items = cast(list[object], value)
            waiting += [(f"{where}[{index}]", key, item) for index, item in enumerate(items)]
        elif looks_secret(key, value):
            found.append(where)
    return sorted(found)


class Section(BaseModel):
    """Base of every table of the configuration: what it does not know is a mistake, and nothing changes it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class Reference(Section):
    """Says where a secret is. Exactly one of `env` and `file` is set."""

    env: str | None = Field(default=None, min_length=1)
    """Name of an environment variable of the host that holds it."""
    file: Path | None = None
    """A file that holds it. One line break at its end is no part of it."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"must be exactly one of {self._forms()}")
        return self

    @property
    def is_secret(self) -> bool:
        """Whether what it reads must never be shown."""
        return True

    def read(self, key: str) -> str:
        """What it refers to. Raises `ConfigError` naming `key` when that is not there, is empty, or is no text."""
        if self.env is not None:
            value = os.environ.get(self.env)
            if value is None:
                raise _unreadable(
                    key, f"the environment variable {self.env} is not set", "Set it, or refer elsewhere"
                )
        else:
            value = _content(key, self.file)
        if not value:
            raise _unreadable(key, "what it refers to is empty", "Put the secret there, or refer elsewhere")
        return value

    @classmethod
    def _forms(cls) -> str:
        return '{env = "NAME"} and {file = "path"}'


class Value(Reference):
    """A text, or a reference to one that is secret."""

    literal: str | None = None
    """The text itself; what a plain string stands for."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"literal": value} if isinstance(value, str) else value

    @property
    def is_secret(self) -> bool:
        return self.literal is None

    def read(self, key: str) -> str:
        return super().read(key) if self.literal is None else self.literal

    @classmethod
    def _forms(cls) -> str:
        return f'"a text", {super()._forms()}'


def _content(key: str, path: Path | None) -> str:
    assert path is not None, "a reference without env has a file"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _unreadable(
            key, f"cannot read {path}: {reason}", "Make it readable, or refer elsewhere"
        ) from None
    except UnicodeDecodeError:
        raise _unreadable(key, f"{path} is not UTF-8 text", "Put the secret there as text") from None
    return text.removesuffix("\n").removesuffix("\r")


def _unreadable(key: str, problem: str, remedy: str) -> ConfigError:
    return ConfigError([Fault(key, problem, remedy)])
