"""The index of a FileArtifactStore: which file holds an artifact's bytes, its row, and answered retry tokens.

One SQLite file beside the bytes. A commit here is what makes a Put or a Delete happen; a file no entry names is
litter. The index is opened exclusively, so that two processes never work on one folder.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turndock.errors import TurndockError
from turndock.types.v1 import Artifact
from turndock_server.stores.artifacts import Answer, Row, without_row

SCHEMA_VERSION: Final = 1

_SCHEMA: Final = f"""
CREATE TABLE artifacts (
  id INTEGER PRIMARY KEY AUTOINCREMENT, -- the order in which keys were first put; never used twice
  partition TEXT NOT NULL,
  key BLOB NOT NULL,                    -- UTF-8, compared byte for byte
  listed INTEGER NOT NULL,              -- 0 = the row is gone and only the bytes are left
  session_id TEXT NOT NULL,
  size INTEGER NOT NULL,
  stored_at_us INTEGER NOT NULL,
  artifact BLOB NOT NULL,               -- turndock.types.v1.Artifact
  file TEXT NOT NULL UNIQUE,            -- where the bytes are, below the folder of objects
  UNIQUE (partition, key)
);
CREATE INDEX artifacts_by_session ON artifacts (partition, session_id, id) WHERE listed AND session_id <> '';
CREATE TABLE answers (
  partition TEXT NOT NULL,
  request_id TEXT NOT NULL,
  session_id TEXT NOT NULL,
  fingerprint BLOB NOT NULL,
  response BLOB NOT NULL,
  PRIMARY KEY (partition, request_id)
) WITHOUT ROWID;
CREATE INDEX answers_by_session ON answers (partition, session_id) WHERE session_id <> '';
PRAGMA user_version = {SCHEMA_VERSION};
"""

_COLUMNS: Final = "id, partition, listed, artifact, file"


@dataclass(frozen=True, slots=True)
class Entry:
    """An artifact, whether it has a row, and the file with its bytes."""

    id: int
    partition: str
    listed: bool
    artifact: Artifact
    file: str


class ArtifactIndex:
    """Blocking, and usable from any thread: everything happens within `transaction`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, made if it is missing. Raises `sqlite3.Error`, `OSError`, `TurndockError`.

        STORAGE_BUSY when another store has it open, MIGRATION_REQUIRED when a newer release wrote it.
        """
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite would make it readable for all
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            # Its journal keeps its room on the disk, so that Delete works on a disk that is full; a WAL would grow.
            connection.execute("PRAGMA journal_mode = PERSIST")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN EXCLUSIVE")
            self._prepare(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise TurndockError("STORAGE_BUSY", f"another server has {self._path.parent}") from error
            raise
        self._connection = connection

    def close(self) -> None:
        """Close the file; repeatable."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        """All of it or nothing, one after the other. Raises `sqlite3.Error`, also on the way out."""
        with self._lock:
            connection = self._connection
            if connection is None:
                raise TurndockError("STORAGE_ERROR", "the artifact store is not open")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables if they are missing. Leaves no transaction open."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _SCHEMA.split(";\n"):
                connection.execute(statement)
        elif version != SCHEMA_VERSION:
            raise TurndockError(
                "MIGRATION_REQUIRED",
                f"the artifact index has schema {version}; this release reads schema {SCHEMA_VERSION}",
                metadata={"found": str(version), "known": str(SCHEMA_VERSION)},
            )
        connection.execute("COMMIT")


class Transaction:
    """What can be read and changed within one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def find(self, partition: str, key: str) -> Entry | None:
        """The entry of a key."""
        found = self._execute(
            f"SELECT {_COLUMNS} FROM artifacts WHERE partition = ? AND key = ?", (partition, key.encode())
        ).fetchone()
        return _entry(found) if found else None

    def put(self, partition: str, artifact: Artifact, file: str) -> None:
        """Let a key have this row and these bytes. A key that is there keeps its place in the order."""
        self._execute(
            "INSERT INTO artifacts (partition, key, listed, session_id, size, stored_at_us, artifact, file)"
            " VALUES (?, ?, 1, ?, ?, ?, ?, ?) ON CONFLICT (partition, key) DO UPDATE SET"
            " listed = 1, session_id = excluded.session_id, size = excluded.size,"
            " stored_at_us = excluded.stored_at_us, artifact = excluded.artifact, file = excluded.file",
            (
                partition,
                artifact.key.encode(),
                artifact.session_id,
                artifact.size,
                artifact.stored_at_us,
                artifact.SerializeToString(),
                file,
            ),
        )

    def remove(self, entry: Entry) -> None:
        """Let a key have nothing."""
        self._execute("DELETE FROM artifacts WHERE id = ?", (entry.id,))

    def restore(self, entry: Entry) -> None:
        """Undo `remove`, unless the key has been put again since."""
        artifact = entry.artifact
        self._execute(
            "INSERT OR IGNORE INTO artifacts"
            " (id, partition, key, listed, session_id, size, stored_at_us, artifact, file)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.id,
                entry.partition,
                artifact.key.encode(),
                entry.listed,
                artifact.session_id,
                artifact.size,
                artifact.stored_at_us,
                artifact.SerializeToString(),
                entry.file,
            ),
        )

    def hide(self, entry: Entry) -> None:
        """Take a key's row away and leave its bytes."""
        self._execute(
            "UPDATE artifacts SET listed = 0, session_id = '', artifact = ? WHERE id = ?",
            (without_row(entry.artifact).SerializeToString(), entry.id),
        )

    def rows(self, partition: str, session_id: str, after: int, limit: int) -> Iterator[Row]:
        """The first `limit` rows of a partition, or of one of its sessions, that come after a place."""
        where, values = _filter(partition, session_id)
        for place, encoded in self._execute(
            f"SELECT id, artifact FROM artifacts WHERE {where} AND id > ? ORDER BY id LIMIT ?",
            (*values, after, limit),
        ):
            yield place, Artifact.FromString(encoded)

    def totals(self, partition: str, session_id: str) -> tuple[int, int]:
        """How many rows there are, and their sizes added up."""
        where, values = _filter(partition, session_id)
        count, size = self._execute(
            f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM artifacts WHERE {where}", values
        ).fetchone()
        return count, size

    def of_session(
        self, partition: str, session_id: str, stored_before_us: int | None, limit: int | None
    ) -> list[Entry]:
        """The entries of a session's rows, or the first `limit` of those stored before a time."""
        where, values = _filter(partition, session_id)
        if stored_before_us is not None:
            where, values = f"{where} AND stored_at_us < ?", (*values, stored_before_us)
        query = f"SELECT {_COLUMNS} FROM artifacts WHERE {where} ORDER BY id LIMIT ?"
        return [_entry(found) for found in self._execute(query, (*values, -1 if limit is None else limit))]

    def sessions(self) -> list[tuple[str, str]]:
        """Partition and id of every session with rows."""
        return self._execute(
            "SELECT DISTINCT partition, session_id FROM artifacts WHERE listed AND session_id <> ''"
            " ORDER BY partition, session_id"
        ).fetchall()

    def names(self, file: str) -> bool:
        """Whether an entry's bytes are in this file."""
        return self._execute("SELECT 1 FROM artifacts WHERE file = ?", (file,)).fetchone() is not None

    def answer(self, partition: str, request_id: str) -> Answer | None:
        """What a retry token was used for."""
        found = (
            request_id
            and self._execute(
                "SELECT fingerprint, session_id, response FROM answers WHERE partition = ? AND request_id = ?",
                (partition, request_id),
            ).fetchone()
        )
        return Answer(*found) if found else None

    def remember(self, partition: str, request_id: str, answer: Answer) -> None:
        """Keep the answer to a retry token, if there is one."""
        if request_id:
            self._execute(
                "INSERT INTO answers (partition, request_id, fingerprint, session_id, response)"
                " VALUES (?, ?, ?, ?, ?)",
                (partition, request_id, answer.fingerprint, answer.session_id, answer.response),
            )

    def forget_answer(self, partition: str, request_id: str) -> None:
        """Undo `remember`."""
        self._execute("DELETE FROM answers WHERE partition = ? AND request_id = ?", (partition, request_id))

    def forget_answers(self, partition: str, session_id: str) -> None:
        """Drop the retry tokens of a session."""
        self._execute("DELETE FROM answers WHERE partition = ? AND session_id = ?", (partition, session_id))


def _filter(partition: str, session_id: str) -> tuple[str, tuple[str | int, ...]]:
    if session_id:
        return "listed AND session_id <> '' AND partition = ? AND session_id = ?", (partition, session_id)
    return "listed AND partition = ?", (partition,)


def _entry(found: tuple[int, str, int, bytes, str]) -> Entry:
    place, partition, listed, encoded, file = found
    return Entry(place, partition, bool(listed), Artifact.FromString(encoded), file)
