"""All that is PostgreSQL's own: settings of connections, what waits for whom, bulk writes, and what errors mean.

Transactions are READ COMMITTED. What a write decides by is under the lock of its session's row, which `rows` takes with
SELECT … FOR UPDATE: whoever waited for it reads what the one before has committed. Reading connections are in
autocommit: each statement is a transaction of its own.

The URL is handed to asyncpg as it is, so that all that libpq understands may be said in it (`sslmode`, `sslrootcert`,
several hosts, `search_path`); what it does not say is taken from PGHOST, PGSSLMODE and their like.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, select, tuple_
from sqlalchemy.exc import DBAPIError

from turndock.errors import TurndockError
from turndock_server.stores.sql.schema import sessions

ENGINE_URL: Final = "postgresql+asyncpg://"
_CONNECT_SECONDS: Final = 10.0
_MAX_REPORT: Final = 300
_CHUNK: Final = 1_000
_MIGRATION_LOCK: Final = 0x7475726E646F636B  # "turndock"
_PRESENCE_LOCK: Final = _MIGRATION_LOCK + 1

SessionKey = tuple[int, str]
"""Key of a scope, and a session's id."""


def options(url: str, password: str | None, *, lock_timeout_ms: int, read_only: bool) -> dict[str, Any]:
    """How an engine is made. `url` is as libpq takes it."""
    settings = {
        "application_name": "turndock",
        # A process that stands still in the middle of a transaction must not hold up the others for ever.
        "idle_in_transaction_session_timeout": str(max(lock_timeout_ms, 1_000)),
        "lock_timeout": str(lock_timeout_ms),
        # A machine that has vanished must not keep its locks.
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "3",
    }
    if read_only:
        settings["default_transaction_read_only"] = "on"
    connect: dict[str, Any] = {"dsn": url, "timeout": _CONNECT_SECONDS, "server_settings": settings}
    if password is not None:
        connect["password"] = password
    return {"connect_args": connect}


def reading_options(url: str, password: str | None, *, lock_timeout_ms: int, readers: int) -> dict[str, Any]:
    """How the engine that reads is made."""
    return {
        **options(url, password, lock_timeout_ms=lock_timeout_ms, read_only=True),
        "pool_size": readers
        + 2,  # one is kept by whoever looks out for other processes, one for the server's lock
        "max_overflow": 0,
        "pool_reset_on_return": None,
        "isolation_level": "AUTOCOMMIT",
        "skip_autocommit_rollback": True,
    }


def committed(connection: Connection) -> str:
    """Differs from what was told before if anybody has committed anything since: which transactions are visible."""
    snapshot: str = connection.exec_driver_sql("SELECT pg_current_snapshot()::text").scalar_one()
    return snapshot


@contextmanager
def at_one_moment(connection: Connection) -> Generator[None]:
    """Let a connection that reads fetch the rows of one statement by and by, as they are at one moment.

    A cursor lives no longer than a transaction. In SQLite a statement is one anyway.
    """
    if connection.dialect.name != "postgresql":
        yield
        return
    connection.rollback()  # of nothing, as the connection is in autocommit: its mode changes only in between
    connection.execution_options(isolation_level="REPEATABLE READ")  # until it is given back
    with connection.begin():
        yield


def clock_us(connection: Connection) -> int:
    """The server's time of day, in microseconds since the Unix epoch."""
    statement = "SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint"
    now: int = connection.exec_driver_sql(statement).scalar_one()
    return now


def lock_migrations(connection: Connection) -> None:
    """Let one process at a time look at the schema and change it, until the transaction's end."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")


def take_presence(connection: Connection) -> bool:
    """Be the database's only server for as long as the connection lasts. Repeatable. False if another one is."""
    taken: bool = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({_PRESENCE_LOCK})").scalar_one()
    return taken


def present_server(connection: Connection) -> str:
    """Where the database's server connects from, in words; empty if none is there."""
    statement = (
        "SELECT coalesce(host(client_addr), 'the database''s own machine') FROM pg_locks"
        " JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted"
        f" AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        f" AND (classid::bigint << 32 | objid::bigint) = {_PRESENCE_LOCK}"
    )
    return connection.exec_driver_sql(statement).scalar() or ""


def lock_sessions(connection: Connection, keys: Iterable[SessionKey]) -> None:
    """Lock the rows of these sessions in one order for all, so that two groups never wait for each other."""
    ordered = sorted(keys)
    for first in range(0, len(ordered), _CHUNK):
        chunk = ordered[first : first + _CHUNK]
        connection.execute(
            select(sessions.c.key)
            .where(tuple_(sessions.c.scope, sessions.c.id).in_(chunk))
            .order_by(sessions.c.scope, sessions.c.id)
            .with_for_update(key_share=True)
        )


# --- Bulk writes: one statement for a table, however many rows, and always the same one -------------------------------

_INSERT_EVENTS: Final = (
    "INSERT INTO events (session, sequence, scope, id, type, run, stored_at, body) SELECT * FROM unnest("
    "$1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::integer[], $6::bigint[], $7::bigint[], $8::bytea[])"
)
_ADVANCE: Final = (
    "UPDATE sessions SET last_sequence = new.last_sequence, largest_event = new.largest_event,"
    " last_notification = new.last_notification, epoch = new.epoch"
    " FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])"
    " AS new (row, last_sequence, largest_event, last_notification, epoch) WHERE sessions.key = new.row"
)
_ADVANCED: Final = ("row", "last_sequence", "largest_event", "last_notification", "epoch")


def insert_events(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows of events; their values are in the order of the statement."""
    connection.exec_driver_sql(_INSERT_EVENTS, tuple(list(column) for column in zip(*rows, strict=True)))


def advance(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Let the rows of sessions say how far their logs have grown."""
    connection.exec_driver_sql(_ADVANCE, tuple([row[name] for row in rows] for name in _ADVANCED))


# --- Errors -----------------------------------------------------------------------------------------------------------

_TRY_AGAIN: Final = frozenset({"40001", "40P01"})
"""A serialization failure and a deadlock: the transaction is undone, and nothing is wrong with it."""
_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300"})
"""Beside class 08: the server stops, starts, has ended the connection, or takes no more of them."""
_BUSY: Final = {
    "55P03": "another process holds what is to be written",
    "57014": "the statement took too long",
}
_REFUSED: Final = {
    "28P01": "the password is wrong",
    "28000": "the server does not let this user in",
    "3D000": "there is no such database",
    "42501": "this user lacks a privilege",
}


def _cause(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def sqlstate(error: BaseException) -> str:
    """PostgreSQL's code of an error; empty if it is none of the server's."""
    return getattr(_cause(error), "sqlstate", None) or ""


def is_transient(error: BaseException) -> bool:
    """Whether the transaction was undone for no fault of its own and may be made again."""
    return sqlstate(error) in _TRY_AGAIN or type(_cause(error)).__name__ == "InvalidCachedStatementError"


def is_lost(error: BaseException) -> bool:
    """Whether there is no connection any more, or none can be made."""
    state = sqlstate(error)
    if state:
        return state.startswith("08") or state in _LOST
    cause = _cause(error)
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(cause, OSError) or "connection is closed" in str(cause)


def storage_error(error: BaseException) -> TurndockError:
    """What a caller is told about an error of the database."""
    state = sqlstate(error)
    cause = _cause(error)
    # The adapter puts the class of asyncpg's error before its text.
    report = re.sub(r"^<class '[\w.]+'>: ", "", str(cause))[:_MAX_REPORT] or type(cause).__name__
    if state in _REFUSED:
        reason = "STORAGE_ERROR" if state == "42501" else "STORAGE_CONNECTION_FAILED"
        return TurndockError(reason, f"{_REFUSED[state]}: {report}", metadata={"sqlstate": state})
    if state in _BUSY:
        return TurndockError("STORAGE_BUSY", f"{_BUSY[state]}: {report}", metadata={"sqlstate": state})
    if is_transient(error):
        return TurndockError("STORAGE_BUSY", f"others write the same: {report}", metadata={"sqlstate": state})
    metadata = {"sqlstate": state} if state else {}
    if is_lost(error):
        return TurndockError(
            "STORAGE_CONNECTION_FAILED", f"the database cannot be reached: {report}", metadata=metadata
        )
    return TurndockError("STORAGE_ERROR", f"the database reported: {report}", metadata=metadata)


def is_about_a_row(failure: TurndockError) -> bool:
    """Whether a write failed for what others do to the same rows, so that those to other rows may go on."""
    state = (failure.metadata or {}).get("sqlstate", "")
    return state in _BUSY or state in _TRY_AGAIN


def outcome_unknown(error: BaseException) -> TurndockError:
    """The error for a connection that was lost while it committed."""
    failure = storage_error(error)
    return TurndockError(
        "STORAGE_CONNECTION_FAILED",
        f"the connection was lost during a commit, so this may be stored or not; {failure.message}",
        metadata=failure.metadata,
    )
