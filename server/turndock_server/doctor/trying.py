"""The check that starts what a server would start: its plug-ins, each for a moment."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Iterator
from typing import Final

from turndock.plugin.v1 import ProbeResponse
from turndock.serving import ENDPOINT_VARIABLE
from turndock_server.config import ConfigError, Settings
from turndock_server.doctor import docking
from turndock_server.doctor.findings import Finding
from turndock_server.plugins import SupervisedPlugin
from turndock_server.processes import find_program

TRY_S: Final = 10.0
"""Seconds a plug-in gets to come up, or its `start_timeout_seconds` if that is less."""

_GRACE_S: Final = 2.0
_SETTLED: Final = (ProbeResponse.State.STATE_READY, ProbeResponse.State.STATE_ERROR)


def plugins(settings: Settings) -> Iterator[Finding]:
    """As `docking.plugins`, and every plug-in the server starts comes up, too, and says how it is.

    Each is ended before this returns, with its process group. Those whose program or secret is not there are left to
    the checks that say so.
    """
    if settings.plugins:
        # What they write is for a log; a finding quotes its last line.
        logging.getLogger("turndock.plugins").addHandler(logging.NullHandler())
        for findings in asyncio.run(_all(settings)):
            yield from findings


async def _all(settings: Settings) -> list[list[Finding]]:
    """All in one event loop: gRPC does not take well to the end of one and the beginning of another."""
    running = [
        docking.look(settings, name) for name, plugin in settings.plugins.items() if not plugin.command
    ]
    tried = [_try(settings, plugin, limit) for plugin, limit in _startable(settings)]
    return await asyncio.gather(*running, *tried)


def _startable(settings: Settings) -> Iterator[tuple[SupervisedPlugin, float]]:
    for name, plugin in settings.plugins.items():
        if plugin.command and find_program(plugin.command[0]) is not None:
            try:
                environment = plugin.environment(f"plugins.{name}")
            except ConfigError:
                continue
            limit = min(TRY_S, plugin.start_timeout_seconds)
            once = (2 * limit, 2 * limit)
            yield (
                SupervisedPlugin(name, plugin.command, environment, restart_s=once, grace_s=_GRACE_S),
                limit,
            )


async def _try(settings: Settings, plugin: SupervisedPlugin, limit_s: float) -> list[Finding]:
    """Start one, see how it is, and end it."""
    key, level = f"plugins.{plugin.name}", docking.weight(settings, plugin.name)
    await plugin.start()
    try:
        try:
            async with asyncio.timeout(limit_s):
                while plugin.state not in _SETTLED and not plugin.ending:
                    await plugin.changed()
        except TimeoutError:
            pass  # what it is by now is what there is to say
        description, state, message, ending = plugin.description, plugin.state, plugin.message, plugin.ending
    finally:
        await plugin.stop()
    if ending:
        command = shlex.join(settings.plugins[plugin.name].command)
        mend = f"See what it says by hand: {ENDPOINT_VARIABLE}=unix:/tmp/plugin.sock {command}"
        return [Finding(level, key, ending, mend)]
    if description is None:
        what = f"was started, and did not answer at {ENDPOINT_VARIABLE} within {limit_s:g} s: {message}"
        mend = f"Have it serve turndock.plugin.v1.Plugin at the address in {ENDPOINT_VARIABLE}"
        return [Finding(level, key, what, mend)]
    probe = ProbeResponse(state=state, message=message)
    return list(docking.judged(settings, plugin.name, (description, probe)))
