"""A plug-in whose process this server starts, watches, starts again, and ends."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from turndock.errors import Code, TurndockError, invalid
from turndock.serving import ENDPOINT_VARIABLE, PARENT_VARIABLE
from turndock.wire import Endpoint, parse_endpoint
from turndock_server.plugins.backoff import Backoff
from turndock_server.plugins.dock import NOT_READY, Dock
from turndock_server.processes import (
    Child,
    TooLong,
    base_environment,
    exit_text,
    private_folder,
    read_lines,
    remove_folder,
)

_SCHEME: Final = "exec:"
_PREFIX: Final = "turndock-"
_SOCKET: Final = "plugin.sock"
_MAX_LINE_BYTES: Final = 8192
_SETTLED_S: Final = 60.0
"""A process that ran for so long is started again without much delay."""


class SupervisedPlugin(Dock):
    """Runs `command` (`exec:program arguments`, or the arguments as a list) and docks it.

    The process gets the address to serve at in TURNDOCK_PLUGIN_ENDPOINT: a unix socket in a directory that only this
    user can enter. It inherits the few variables of `turndock_server.processes`, and `environment`. When it ends it is
    started again, after a delay that doubles from 0.1 to 30 seconds. What it writes goes to the log
    `turndock.plugins.<name>`. `stop` ends it and its whole process group with SIGTERM, and SIGKILL `grace_s` later.
    """

    def __init__(
        self,
        name: str,
        command: str | Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        probe_interval_s: float = 10.0,
        restart_s: tuple[float, float] = (0.1, 30.0),
        grace_s: float = 5.0,
    ) -> None:
        super().__init__(name, probe_interval_s=probe_interval_s)
        self._argv = shlex.split(command.removeprefix(_SCHEME)) if isinstance(command, str) else [*command]
        if not self._argv:
            raise invalid("command", "names no program")
        self._environment = {**(environment or {})}
        self._restart = Backoff(*restart_s, jitter=0.5)
        self._grace_s = grace_s
        self._folder: Path | None = None
        self._starts = 0
        self._child: Child | None = None
        self._last_line = ""
        self._ending = ""
        self._supervising: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> Endpoint:
        if self._folder is None:
            raise RuntimeError(f"plug-in {self.name} is not docked")
        return Endpoint(path=str(self._folder / _SOCKET))

    @property
    def starts(self) -> int:
        return self._starts

    @property
    def pid(self) -> int | None:
        """Number of the running process; None if there is none."""
        return self._child.pid if self._child is not None else None

    @property
    def ending(self) -> str:
        """How the process ended, or failed to start, the last time it did; empty = it never has."""
        return self._ending

    async def start(self) -> None:
        """Start the process and begin to connect. Returns at once; `wait_ready` waits."""
        self._folder = _private_folder()
        self._supervising = self._look_after(self._supervise())
        await super().start()

    async def stop(self) -> None:
        """End the process and everything it started. Repeatable."""
        await super().stop()  # first the calls: a process that has none left ends at once
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.wait([self._supervising])
            self._supervising = None
        if self._folder is not None:
            remove_folder(self._folder)
            self._folder = None

    def trouble(self, error: TurndockError) -> str:
        if self._child is None:
            return self._ending or "was not started yet"
        if self._expected and error.code is Code.UNAVAILABLE:
            return self._silence(self._child)
        return f"runs as process {self._child.pid} and does not answer: {error.message}"

    def _silence(self, child: Child) -> str:
        """What to say before the first answer: every process begins so, and one that is no plug-in stays so."""
        return f"runs as process {child.pid}, which has not answered at {ENDPOINT_VARIABLE} yet"

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._run()
            except OSError as error:
                self._ending = f"cannot be started: {error}"
            if loop.time() - began > _SETTLED_S:
                self._restart.reset()
            self._settle(NOT_READY, self._ending)
            delay = self._restart.next()
            self.log.info("is started again in %.1f s", delay)
            await asyncio.sleep(delay)

    async def _run(self) -> None:
        """Run the process once, to its end. Raises `OSError` when it cannot be started."""
        _remove(self.endpoint)  # what a killed process left would be in the way of many a server
        told = {ENDPOINT_VARIABLE: str(self.endpoint), PARENT_VARIABLE: str(os.getpid())}
        environment = base_environment() | self._environment | told
        child = self._child = await Child.start(self._argv, environment=environment)
        self._starts += 1
        self._expected = True
        self._settle(NOT_READY, self._silence(child))
        forwarding = [asyncio.create_task(self._forward(output)) for output in (child.stdout, child.stderr)]
        try:
            code = await child.wait()
        finally:
            self._child = None
            self._expected = False
            await child.stop(self._grace_s)
            await asyncio.wait(forwarding)  # the output ends with the process
        self._ending = f"{exit_text(code)}: {self._last_line}" if self._last_line else exit_text(code)

    async def _forward(self, output: asyncio.StreamReader) -> None:
        """Write a process's output to the log, line by line."""
        async for lines in read_lines(output, _MAX_LINE_BYTES):
            for line in lines:
                text = (line.head if isinstance(line, TooLong) else line).decode(errors="replace").rstrip()
                if isinstance(line, TooLong):
                    text += f"… ({line.size} bytes)"
                if text:
                    self._last_line = text
                    self.log.info("%s", text)


def _private_folder() -> Path:
    """A new directory for this user alone, whose path is short enough for a socket."""
    folder = private_folder(_PREFIX)
    try:
        parse_endpoint(f"unix:{folder / _SOCKET}")
    except TurndockError:
        remove_folder(folder)
        folder = private_folder(_PREFIX, within="/tmp")
    return folder


def _remove(endpoint: Endpoint) -> None:
    Path(endpoint.path).unlink(missing_ok=True)
