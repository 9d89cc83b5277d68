"""What is wrong with a configuration, and how to mend it. Nothing is changed, and nothing goes on afterwards.

Every check is one function that takes the settings and says what it found; `CHECKS` is the list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from turndock_server.config import ConfigError, Settings, find_file, load
from turndock_server.doctor import database, docking, places, security, storage, trying, words
from turndock_server.doctor.findings import Finding as Finding
from turndock_server.doctor.findings import Level as Level

Check = Callable[[Settings], Iterable[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    words.variables,
    words.secrets,
    security.exposure,
    security.certificates,
    security.authentication,
    security.plugin_encryption,
    places.address,
    places.data_directory,
    places.free_space,
    storage.sqlite_library,
    storage.store_file,
    storage.store_schema,
    storage.store_lock,
    database.database,
    storage.durability,
    storage.snapshots,
    storage.prices,
    docking.backends,
    docking.models,
    docking.behaviors,
    docking.commands,
    docking.programs,
)
"""All but the one that asks the plug-ins, and starts them or not."""


def examine(
    config: Path | None = None, overrides: Mapping[str, Any] | None = None, *, start: bool = True
) -> list[Finding]:
    """Everything there is to say about the configuration that a server started the same way would have.

    Plug-ins that the server would start are started, asked and ended, unless `start` is false.
    """
    try:
        file = find_file(config)
        settings = load(config, overrides)
    except ConfigError as error:
        return [
            Finding(
                Level.ERROR,
                fault.key or "configuration",
                _sentence(fault.source, fault.problem),
                fault.remedy,
            )
            for fault in error.faults
        ]
    plugins: Check = trying.plugins if start else docking.plugins
    source = f"{file} is read" if file else "there is no file; defaults and environment"
    return [
        Finding(Level.OK, "configuration", source),
        *(finding for check in (*CHECKS, plugins) for finding in check(settings)),
    ]


def _sentence(source: str, problem: str) -> str:
    return f"{source}: {problem}" if source else problem
