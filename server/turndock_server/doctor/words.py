"""Checks of what was written: variables that nobody reads, secrets that are not there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel

from turndock_server.config import ConfigError, Settings
from turndock_server.doctor.findings import Finding, Level
from turndock_server.observability.redaction import MIN_SECRET_CHARACTERS

PREFIX: Final = "TURNDOCK_"


def variables(_: Settings) -> Iterator[Finding]:
    """A variable that names a key without its table is read by nobody, and probably meant."""
    for name in sorted(os.environ):
        key = name.removeprefix(PREFIX).lower()
        if not name.startswith(PREFIX) or "__" in name or key in Settings.model_fields:
            continue
        for table, field in Settings.model_fields.items():
            model = field.annotation
            if isinstance(model, type) and issubclass(model, BaseModel) and key in model.model_fields:
                right = f"{PREFIX}{table}__{key}".upper()
                yield Finding(
                    Level.WARNING, name, "is read by nobody", f"If {table}.{key} is meant, set {right}"
                )


def secrets(settings: Settings) -> Iterator[Finding]:
    """Every reference leads to a secret that only its owner can read."""
    for key, reference in settings.references().items():
        try:
            secret = reference.read(key)
        except ConfigError as error:
            yield from (Finding(Level.ERROR, key, fault.problem, fault.remedy) for fault in error.faults)
            continue
        if len(secret) < MIN_SECRET_CHARACTERS:
            yield Finding(
                Level.WARNING, key, "is so short that it is not taken out of the log", "Use a longer secret"
            )
        elif reference.file is not None and reference.file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            yield Finding(
                Level.WARNING,
                key,
                f"{reference.file} can be read by other users",
                f"chmod 600 {reference.file}",
            )
        else:
            yield Finding(Level.OK, key, "is there")
