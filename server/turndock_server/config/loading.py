"""Reads the configuration: command line over environment over file over defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from turndock_server.config import checks
from turndock_server.config.errors import ConfigError, Fault
from turndock_server.config.settings import Settings
from turndock_server.config.unknown import fault_of
from turndock_server.config.values import is_table

FILE_NAME: Final = "turndock.toml"
FILE_VARIABLE: Final = "TURNDOCK_CONFIG"
PREFIX: Final = "TURNDOCK_"
COMMAND_LINE: Final = "command line"
ENVIRONMENT: Final = "environment"

Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """What one place says."""

    name: str
    values: Table

    def has(self, path: tuple[str, ...]) -> bool:
        """Whether it says anything at, or above, or below a path of keys."""
        node: Any = self.values
        for key in path:
            if not is_table(node):
                return True
            if key not in node:
                return False
            node = node[key]
        return True


def find_file(config: Path | None = None) -> Path | None:
    """The file to read: the one given, else that of `TURNDOCK_CONFIG`, else `turndock.toml` here; None without any.

    Raises `ConfigError` for one that was asked for and is not there.
    """
    asked = config or (Path(os.environ[FILE_VARIABLE]) if os.environ.get(FILE_VARIABLE) else None)
    path = asked or Path(FILE_NAME)
    if path.is_file():
        return path
    if asked:
        raise ConfigError(
            [Fault("", f"{asked}: no such file", "Name an existing one, or none for the defaults")]
        )
    return None


def load(config: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a host. `overrides` is what the command line says, nested like the file.

    Raises `ConfigError` with everything that is wrong.
    """
    file = find_file(config)
    sources = [
        Source(COMMAND_LINE, dict(overrides or {})),
        Source(ENVIRONMENT, _environment()),
        Source(str(file), _read(file) if file else {}),
    ]
    values: Table = {}
    for source in reversed(sources):
        values = _merged(values, source.values)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        raise ConfigError(_sourced(fault_of(Settings, detail), sources) for detail in details) from None
    if faults := checks.faults(settings):
        raise ConfigError(_sourced(fault, sources) for fault in faults)
    return settings


def _environment() -> Table:
    """What variables such as `TURNDOCK_SERVER__LISTEN` say.

    Only those that name a key within a table, and `TURNDOCK_DATA`: others with the prefix are the command line's, or
    a cluster's (`TURNDOCK_PORT_7420_TCP`). Raises `ConfigError` for a table that does not exist.
    """
    source = EnvSettingsSource(Settings)
    source.env_vars = {
        name: value
        for name, value in source.env_vars.items()
        if name == "turndock_data" or (name.startswith(PREFIX.lower()) and "__" in name)
    }
    faults = [
        fault_of(Settings, {"type": "extra_forbidden", "loc": (section,), "msg": ""}, source=name.upper())
        for name in source.env_vars
        if (section := name.removeprefix(PREFIX.lower()).partition("__")[0]) not in Settings.model_fields
    ]
    if faults:
        raise ConfigError(faults)
    try:
        return source()
    except SettingsError as error:
        raise ConfigError(
            [Fault("", str(error), "Tables and lists are written as JSON", ENVIRONMENT)]
        ) from None


def _read(path: Path) -> Table:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([Fault("", f"cannot read {path}: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([Fault("", f"is no TOML: {error}", source=str(path))]) from None
    return _anchored(Settings, table, path.parent)


def _anchored(kind: type[BaseModel], table: Table, directory: Path) -> Table:
    """The table with its relative paths made relative to the working directory instead of the file's."""
    result: Table = {}
    for key, value in table.items():
        field = kind.model_fields.get(key)
        annotation = field.annotation if field else None
        if isinstance(value, str) and Path in (annotation, *get_args(annotation)):
            result[key] = str(directory / value)
        elif is_table(value):
            result[key] = _anchored_table(annotation, value, directory)
        else:
            result[key] = value
    return result


def _anchored_table(annotation: Any, table: Table, directory: Path) -> Table:
    if get_origin(annotation) is dict:
        inner = get_args(annotation)[1]
        return {
            key: _anchored_table(inner, value, directory) if is_table(value) else value
            for key, value in table.items()
        }
    for kind in (annotation, *get_args(annotation)):  # a table that may be left out is a union with None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return _anchored(kind, table, directory)
    return table


def _merged(below: Table, above: Mapping[str, Any]) -> Table:
    result = dict(below)
    for key, value in above.items():
        present = result.get(key)
        result[key] = _merged(present, value) if is_table(present) and is_table(value) else value
    return result


def _sourced(fault: Fault, sources: list[Source]) -> Fault:
    """The fault with the place that states its key, or what the key is in."""
    if fault.source or not fault.key:
        return fault
    path = tuple(fault.key.split("."))
    while path:
        for source in sources:
            if source.has(path):
                name = source.name if source.name != ENVIRONMENT else PREFIX + "__".join(path).upper()
                return replace(fault, source=name)
        path = path[:-1]
    return fault
