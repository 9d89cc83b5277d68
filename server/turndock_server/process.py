"""The server as a process: from its start to the signals that end it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import signal
from collections.abc import Callable

from turndock import wire
from turndock_server.app import App
from turndock_server.config import Settings

log = logging.getLogger("turndock.server")


async def run(settings: Settings, *, on_serving: Callable[[wire.Endpoint], None] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then stop gracefully.

    A second signal ends the turns under way at once, a third one the process. Returns the exit code. Raises
    `CannotStart`.
    """
    asked_to_stop = asyncio.Event()
    app = App(settings, on_superseded=asked_to_stop.set)
    signals = itertools.count(1)

    def on_signal() -> None:
        match next(signals):
            case 1:
                asked_to_stop.set()
            case 2:
                log.warning("asked to stop twice: turns end at once")
                app.hurry()
            case _:
                log.warning("asked to stop three times: ending at once")
                os._exit(1)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if not await _started(app, asked_to_stop):
        log.info("stopped before it served")
        return 0
    _collect_garbage_seldom()
    if on_serving is not None and app.endpoint is not None:
        on_serving(app.endpoint)
    await asked_to_stop.wait()
    log.info("stopping; turns may take %g s to end", settings.server.grace_seconds)
    await app.stop(settings.server.grace_seconds)
    log.info("stopped")
    return 0


def _collect_garbage_seldom() -> None:
    """What is loaded by now stays; and a batch of events, of which nothing is cyclic, must not set off a search.

    With Python's own threshold of 700 objects a seventh of the host's time under load goes into looking at events.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def _started(app: App, asked_to_stop: asyncio.Event) -> bool:
    """Whether the server serves; False if it was asked to stop before. Raises `CannotStart`."""
    start = asyncio.create_task(app.start())
    asked = asyncio.create_task(asked_to_stop.wait())
    await asyncio.wait((start, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not start.done():
        start.cancel()
    await asyncio.wait((start,))
    return not start.cancelled() and start.result() is None
