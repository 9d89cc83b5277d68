"""What no single key can be wrong about: keys that do not fit each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from turndock_server.config import security_checks
from turndock_server.config.errors import Fault
from turndock_server.config.settings import EXEC, Settings
from turndock_server.config.unknown import nearest

_ENVELOPE_BYTES: Final = 64 << 10
"""Room in a message for what travels with a prompt."""


def faults(settings: Settings) -> list[Fault]:
    """Everything that does not fit together."""
    return [fault for check in _CHECKS for fault in check(settings)]


def _store_plugins(settings: Settings) -> Iterator[Fault]:
    for key, name in (
        ("store.kind", settings.store.plugin),
        ("artifacts.kind", settings.artifacts.plugin),
        ("persistence.kind", settings.persistence.plugin),
    ):
        if name and name not in settings.plugins:
            yield _no_plugin(key, name, settings.plugins)


def _docked_plugins(settings: Settings) -> Iterator[Fault]:
    for table, docked in (("backends", settings.backends), ("behaviors", settings.behaviors)):
        for name, one in docked.items():
            key = f"{table}.{name}.plugin"
            if one.kind == "plugin" and one.plugin is None:
                yield Fault(key, "is missing", 'Name a table of plugins, such as plugin = "model"')
            elif one.kind != "plugin" and one.plugin is not None:
                yield Fault(
                    key, f'is only for kind = "plugin", and this is {one.kind!r}', "Take one of them away"
                )
            elif one.plugin is not None and one.plugin not in settings.plugins:
                yield _no_plugin(key, one.plugin, settings.plugins)


def _no_plugin(key: str, name: str, known: Iterable[str]) -> Fault:
    remedy = nearest(name, known) or f"Describe it in [plugins.{name}]"
    return Fault(key, f"there is no plug-in {name!r}", remedy)


def _paths(settings: Settings) -> Iterator[Fault]:
    if settings.store.path is not None and settings.store.kind != "sqlite":
        yield Fault(
            "store.path", f'is only for kind = "sqlite", and this is {settings.store.kind!r}', "Take it away"
        )
    if settings.artifacts.path is not None and settings.artifacts.kind != "files":
        yield Fault(
            "artifacts.path",
            f'is only for kind = "files", and this is {settings.artifacts.kind!r}',
            "Take it away",
        )


def _plugin_environments(settings: Settings) -> Iterator[Fault]:
    for name, plugin in settings.plugins.items():
        if plugin.env and not plugin.endpoint.startswith(EXEC):
            yield Fault(
                f"plugins.{name}.env",
                "is only for a plug-in that the server starts (exec:), and this one runs by itself",
                "Give it to that program directly",
            )


def _sizes(settings: Settings) -> Iterator[Fault]:
    largest = settings.server.max_message_bytes - _ENVELOPE_BYTES
    if settings.limits.max_prompt_bytes > largest:
        yield Fault(
            "limits.max_prompt_bytes",
            f"such a prompt does not fit into a message of {settings.server.max_message_bytes} bytes",
            f"Make it {largest} or less, or raise server.max_message_bytes",
        )


_CHECKS: Final[tuple[Callable[[Settings], Iterator[Fault]], ...]] = (
    security_checks.exposure,
    security_checks.encryption,
    security_checks.web_tokens,
    security_checks.certificates,
    security_checks.plugin_encryption,
    _store_plugins,
    _docked_plugins,
    _paths,
    _plugin_environments,
    _sizes,
)
