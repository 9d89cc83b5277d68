"""Child programs that end when they must: each in a process group of its own, killed as a whole.

`asyncio.subprocess` leaves three things open that matter here. It reaps a program before its group could be killed
(its number may then belong to somebody else); its pipes stay open as long as any grandchild holds them; and children
outlive a host that was itself killed. `Child` waits on a pidfd and kills the group before it reaps, ends the pipes
together with the program, and has every group watched by a guardian process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL, unless a caller says otherwise."""

_HEAD_BYTES = 256
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")


def base_environment() -> dict[str, str]:
    """What every child inherits: where programs, files and words are, and nothing that may be a secret.

    Programs are looked for beside this Python first: `python` is the one that has Turndock, also when the environment
    it is installed in is not activated.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    beside = str(Path(sys.executable).parent)
    return inherited | {"PATH": os.pathsep.join((beside, inherited.get("PATH", os.defpath)))}


def find_program(name: str) -> str | None:
    """Where a child's program would be found; None = nowhere."""
    return shutil.which(name, path=base_environment()["PATH"])


class Child:
    """A running program, its pipes, and whatever it started in its group."""

    stdout: asyncio.StreamReader
    """What it writes. Reading too little makes the program wait: no more than about `buffer_bytes` is held."""
    stderr: asyncio.StreamReader
    """What it complains about. Somebody must read it, or the program may wait for ever."""

    def __init__(self, process: subprocess.Popen[bytes], buffer_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._pidfd: int | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._outputs: list[tuple[asyncio.StreamReader, asyncio.ReadTransport]] = []
        self.stdout = asyncio.StreamReader(buffer_bytes // 2)  # asyncio holds up to twice its limit
        self.stderr = asyncio.StreamReader(buffer_bytes // 2)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: str | Path | None = None,
        buffer_bytes: int = 1 << 17,
    ) -> Child:
        """Start a program in a session, and so in a group, of its own. Raises `OSError` when that fails."""
        process = subprocess.Popen(  # noqa: ASYNC220 - what asyncio does too: vfork returns within milliseconds
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
        child = cls(process, buffer_bytes)
        _guardian.watch(str(process.pid))
        child._watch_exit()
        connecting = asyncio.ensure_future(child._connect())
        try:
            await asyncio.shield(connecting)
        except BaseException:
            signal_group(process.pid, signal.SIGKILL)
            await asyncio.wait([connecting])
            await asyncio.wait([child._exited])
            raise
        return child

    @property
    def pid(self) -> int:
        """Number of the program and of its group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, or minus the signal that killed it; None while it runs."""
        return self._exited.result() if self._exited.done() else None

    def write(self, data: bytes) -> None:
        """Give the program input. Never waits; what a program does not read is dropped when it ends."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    def close_stdin(self) -> None:
        """Let the program read the end of its input, after what was written."""
        if self._stdin is not None:
            self._stdin.close()

    async def wait(self) -> int:
        """Wait for the program's exit. Returns as `returncode`."""
        return await asyncio.shield(self._exited)

    async def exits_within(self, timeout: float) -> bool:
        """Wait for the program's exit, at most `timeout` seconds; whether it has come."""
        await asyncio.wait([self._exited], timeout=timeout)
        return self._exited.done()

    async def stop(self, grace: float = GRACE_S) -> int:
        """End the program and its group: SIGTERM, and SIGKILL `grace` seconds later, or at once if cancelled.

        What is left of the group is killed as soon as the program itself has ended. Repeatable.
        """
        if not self._exited.done():
            signal_group(self.pid, signal.SIGTERM)
            try:
                await asyncio.wait([self._exited], timeout=grace)
            finally:
                if not self._exited.done():
                    signal_group(self.pid, signal.SIGKILL)
        return await asyncio.shield(self._exited)

    async def _connect(self) -> None:
        process, loop = self._process, self._loop
        for reader, pipe in ((self.stdout, process.stdout), (self.stderr, process.stderr)):

            def protocol(reader: asyncio.StreamReader = reader) -> asyncio.StreamReaderProtocol:
                return asyncio.StreamReaderProtocol(reader)

            transport, _ = await loop.connect_read_pipe(protocol, pipe)
            self._outputs.append((reader, transport))
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        if self._exited.done():
            self._end_pipes()

    def _watch_exit(self) -> None:
        self._pidfd = _open_pidfd(self.pid)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._on_exit)
        else:
            threading.Thread(target=self._wait_in_thread, name=f"wait-{self.pid}", daemon=True).start()

    def _wait_in_thread(self) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._on_exit)

    def _on_exit(self) -> None:
        # With a pidfd the program is dead but not reaped: its number, which is its group's, is nobody else's yet.
        signal_group(self.pid, signal.SIGKILL)
        returncode = self._process.wait()
        _guardian.forget(str(self.pid))
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._end_pipes()
        self._exited.set_result(returncode)

    def _end_pipes(self) -> None:
        """Take what the program left in its pipes and close them, whoever else may hold them."""
        for reader, transport in self._outputs:
            if not transport.is_closing():
                pipe = transport.get_extra_info("pipe")
                left = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
                reader.feed_data(os.read(pipe.fileno(), int.from_bytes(left, sys.byteorder)))
                reader.feed_eof()
                transport.close()
        if self._stdin and (not self._stdin.is_closing() or self._stdin.get_write_buffer_size()):
            self._stdin.abort()


def exit_text(code: int) -> str:
    """How a program ended, for people."""
    return (
        f"exited with code {code}"
        if code >= 0
        else f"was ended by signal {-code} ({signal.strsignal(-code)})"
    )


class TooLong(NamedTuple):
    """What is kept of a line that was longer than it may be."""

    size: int
    """Bytes of the whole line."""
    head: bytes
    """Its beginning."""


async def read_lines(reader: asyncio.StreamReader, max_bytes: int) -> AsyncGenerator[list[bytes | TooLong]]:
    """A program's output by lines, without their ends: all that are there at once, again and again.

    Ends with the output; a last line without an end counts. No more than `max_bytes` of a line are ever held.
    """
    kept, size = bytearray(), 0

    def end() -> bytes | TooLong:
        nonlocal size
        line = bytes(kept) if size <= max_bytes else TooLong(size, bytes(kept[:_HEAD_BYTES]))
        kept.clear()
        size = 0
        return line

    while chunk := await reader.read(1 << 16):
        lines: list[bytes | TooLong] = []
        for number, piece in enumerate(chunk.split(b"\n")):
            if number:
                lines.append(end())
            size += len(piece)
            kept += piece[: max_bytes - len(kept)]
        if lines:
            yield lines
    if size:
        yield [end()]


def _open_pidfd(pid: int) -> int | None:
    """A file that becomes readable when the process has exited; None where the kernel, or its guard, has no such."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal every process of a group; an empty group is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM when only zombies are left
        os.killpg(group, number)


def private_folder(prefix: str, *, within: str | None = None) -> Path:
    """A new directory of sockets, for this user alone. It goes with this process, however that ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
    if "\n" not in str(folder):  # a name that cannot be told; somebody's TMPDIR
        _guardian.watch(str(folder.absolute()))
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a private folder and what is in it."""
    shutil.rmtree(folder)
    _guardian.forget(str(folder.absolute()))


class _Guardian:
    """Our end of `turndock_server.guardian`, one for the whole process, started with the first child."""

    def __init__(self) -> None:
        self._things: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, thing: str) -> None:
        """Have a group killed, or a directory removed, should this process be gone."""
        self._things.add(thing)
        self._tell(f"+{thing}\n")

    def forget(self, thing: str) -> None:
        """The group has ended; the directory is no more."""
        self._things.discard(thing)
        self._tell(f"-{thing}\n")

    def close(self) -> None:
        """End the guardian, and with it what is left."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()

    def _tell(self, line: str) -> None:
        if self._process is None:
            self._start()
        elif not self._write(line):  # somebody killed it
            self.close()
            self._start()

    def _start(self) -> None:
        program = Path(__file__).with_name("guardian.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._write("".join(f"+{thing}\n" for thing in self._things))

    def _write(self, lines: str) -> bool:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(os.fsencode(lines))
        except BrokenPipeError:
            return False
        return True


_guardian = _Guardian()
atexit.register(_guardian.close)
