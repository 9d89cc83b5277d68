"""The tables. What a row is, is a protobuf message in `body`; columns beside it are what reads and rules look at.

A change here goes with a revision under `migrations/versions`; a test holds the two together.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    func,
    literal_column,
)

REVISIONS: Final = ("0001", "0002", "0003", "0004", "0005")
"""Every schema there has been, oldest first. The last is the one this release reads and writes."""

UNSCOPED_KEY: Final = 0
"""Key of the unscoped partition, which is there from the beginning."""

GRAVEYARD_KEY: Final = -1
"""Key of the partition of sessions that are deleted and have rows left; see `graves`. Nothing in it is anybody's."""

GRAVEYARD: Final = "\ndeleted"
"""Its name, which no tenant can have: theirs hold no control characters."""

NEVER: Final = (1 << 63) - 1
"""As `notified_sequence`: nothing in the log is a notification that somebody still has to apply."""

metadata = MetaData()

# SQLite numbers rows by itself only where the type is called INTEGER; it is 64 bits wide there all the same.
RowKey = BigInteger().with_variant(Integer(), "sqlite")

# Compared and ordered by code points in every database, as SQLite does by itself, and so do cursors.
Word = Text().with_variant(Text(collation="C"), "postgresql")

alembic_version = Table(
    "alembic_version",
    metadata,
    Column("version_num", String(32), nullable=False, primary_key=True),
)

scopes = Table(
    "scopes",
    metadata,
    Column("key", RowKey, primary_key=True),
    Column("tenant", Word, nullable=False, unique=True),
)
"""Partitions by number, so that no index repeats their names."""

sessions = Table(
    "sessions",
    metadata,
    Column("key", RowKey, primary_key=True),
    Column("scope", RowKey, ForeignKey("scopes.key"), nullable=False),
    Column("id", Word, nullable=False),
    Column("incarnation", Word, nullable=False),
    # NULL for a session that was never saved and only has a log or runs.
    Column("body", LargeBinary),
    Column("agent_id", Word, nullable=False, default=""),
    # `agent_id` while the session's agent is not stopped: unique, as NULLs never collide.
    Column("live_agent", Word),
    Column("status", Integer, nullable=False, default=0),
    Column("created_at", BigInteger, nullable=False, default=0),
    Column("updated_at", BigInteger, nullable=False, default=0),
    Column("deleted_at", BigInteger),
    Column("stopped", Integer, nullable=False, default=0),
    Column("halted", Integer, nullable=False, default=0),
    Column("last_sequence", BigInteger, nullable=False),
    Column("pruned_through", BigInteger, nullable=False, default=0),
    # Bytes of the largest event there ever was: bounds what a page may weigh before it is read.
    Column("largest_event", BigInteger, nullable=False),
    Column("last_notification", BigInteger, nullable=False),
    # `NEVER` for a session without an agent: none of its events is a notification to anyone.
    Column("notified_sequence", BigInteger, nullable=False, default=NEVER),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", Word, nullable=False),
    Column("ticket_id", Word, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    # Through which number its log is in `event_index`.
    Column("indexed_through", BigInteger, nullable=False, default=0, server_default="0"),
    # How many rows it has in `session_tags`.
    Column("tag_count", Integer, nullable=False, default=0, server_default="0"),
    # NULL unless the session is PAUSED: until then it has no work, whatever waits in it.
    Column("rests_until", BigInteger),
    UniqueConstraint("scope", "id"),
    UniqueConstraint("scope", "live_agent"),
    sqlite_autoincrement=True,  # a deleted session's key must not come back: readers may hold it
)
Index("sessions_by_change", sessions.c.scope, sessions.c.updated_at.desc(), sessions.c.id)
Index("sessions_by_change_everywhere", sessions.c.updated_at.desc(), sessions.c.id, sessions.c.scope)
Index("sessions_by_creation", sessions.c.scope, sessions.c.created_at, sessions.c.id)
Index(
    "sessions_with_unapplied_notification",
    sessions.c.key,
    sqlite_where=sessions.c.last_notification > sessions.c.notified_sequence,
    postgresql_where=sessions.c.last_notification > sessions.c.notified_sequence,
)

session_tags = Table(
    "session_tags",
    metadata,
    Column("scope", RowKey, primary_key=True, autoincrement=False),
    Column("tag", Word, primary_key=True),
    Column(
        "session",
        RowKey,
        ForeignKey("sessions.key", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
)
Index("session_tags_of_session", session_tags.c.session)

tombstones = Table(
    "tombstones",
    metadata,
    Column("scope", RowKey, ForeignKey("scopes.key"), primary_key=True, autoincrement=False),
    Column("session_id", Word, primary_key=True),
    Column("incarnation", Word, nullable=False),
    # A session made again grants epochs above it, so that no owner of the old one can write into the new one.
    Column("epoch", BigInteger, nullable=False),
    Column("deleted_at", BigInteger, nullable=False),
    # The retry token of the deletion, which cannot live with the session: a late retry must not delete the next one.
    Column("request_id", Word, nullable=False),
    Column("fingerprint", LargeBinary, nullable=False),
)
"""The latest deletion of each session that was ever deleted."""

retry_tokens = Table(
    "retry_tokens",
    metadata,
    Column("session", RowKey, ForeignKey("sessions.key"), primary_key=True, autoincrement=False),
    Column("request_id", Word, primary_key=True),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("response", LargeBinary, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("key", RowKey, primary_key=True),
    Column("session", RowKey, ForeignKey("sessions.key"), nullable=False),
    Column("id", Word, nullable=False),
    Column("status", Integer, nullable=False),
    Column("queue_key", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("prompt_bytes", BigInteger, nullable=False),
    # 1 while it is PENDING or RUNNING or waits for a decision, else NULL.
    Column("unsettled", Integer),
    Column("body", LargeBinary, nullable=False),
    # What is searched and added up. The session's scope again, so that one index has a scope's runs in their order.
    Column("scope", RowKey, nullable=False, server_default="0"),
    Column("provider", Word, nullable=False, server_default=""),
    Column("model", Word, nullable=False, server_default=""),
    Column("started_at", BigInteger, nullable=False, server_default="0"),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    # Input and output together where no total was reported.
    Column("total_tokens", BigInteger),
    Column("cached_input_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("cost_usd", Double),
    UniqueConstraint("session", "id"),
)
run_tokens = func.coalesce(runs.c.total_tokens, literal_column("0", BigInteger))
"""A run's tokens; 0 if it reported none. Written so that an index has it."""
Index("runs_by_start", runs.c.scope, runs.c.started_at, runs.c.id)
Index("runs_by_tokens", runs.c.scope, run_tokens, runs.c.id)
Index("runs_by_provider", runs.c.scope, runs.c.provider, runs.c.session)
Index("runs_in_mailbox_order", runs.c.session, runs.c.queue_key, runs.c.created_at, runs.c.id)
Index(
    "runs_unsettled",
    runs.c.unsettled,
    runs.c.session,
    runs.c.queue_key,
    runs.c.created_at,
    runs.c.id,
    sqlite_where=runs.c.unsettled.is_not(None),
    postgresql_where=runs.c.unsettled.is_not(None),
)

events = Table(
    "events",
    metadata,
    Column("key", RowKey, primary_key=True),
    Column("session", RowKey, ForeignKey("sessions.key"), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("scope", RowKey, nullable=False),
    # 16 bytes; see `appends.event_key`.
    Column("id", LargeBinary, nullable=False),
    Column("type", Integer, nullable=False),
    # 8 bytes as a number; see `appends.run_key`. 0 = no run.
    Column("run", BigInteger, nullable=False),
    Column("stored_at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("session", "sequence"),
    UniqueConstraint("scope", "id"),
)
Index("events_of_run", events.c.session, events.c.run, events.c.sequence)

snapshots = Table(
    "snapshots",
    metadata,
    Column("key", RowKey, primary_key=True),
    Column("scope", RowKey, ForeignKey("scopes.key"), nullable=False),
    # One of the two says whose it is; the other is empty.
    Column("conversation_id", Word, nullable=False),
    Column("agent_id", Word, nullable=False),
    # NULL where nothing was saved but the flag.
    Column("body", LargeBinary),
    Column("interrupted", Integer, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("saved_at", BigInteger, nullable=False),
    UniqueConstraint("scope", "conversation_id", "agent_id"),
)

snapshot_tokens = Table(
    "snapshot_tokens",
    metadata,
    Column("snapshot", RowKey, ForeignKey("snapshots.key"), primary_key=True, autoincrement=False),
    Column("request_id", Word, primary_key=True),
    Column("fingerprint", LargeBinary, nullable=False),
)
maintenance_answers = Table(
    "maintenance_answers",
    metadata,
    Column("scope", RowKey, ForeignKey("scopes.key"), primary_key=True, autoincrement=False),
    Column("request_id", Word, primary_key=True),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("response", LargeBinary, nullable=False),
)
"""Retry tokens of Maintenance, which live as long as the store."""
event_index = Table(
    "event_index",
    metadata,
    Column("session", RowKey, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("scope", RowKey, nullable=False),
    Column("type", Integer, nullable=False),
    Column("run", BigInteger, nullable=False),
    # When it happened by the writer's clock.
    Column("time", BigInteger, nullable=False),
    # 8 bytes each as a number, as `run`; 0 = none.
    Column("provider", BigInteger, nullable=False),
    Column("correlation", BigInteger, nullable=False),
    ForeignKeyConstraint(("session", "sequence"), ("events.session", "events.sequence"), ondelete="CASCADE"),
)
"""What events are searched by that is only in their bodies. Searches fill it: appending costs nothing more."""
Index("event_index_by_time", event_index.c.scope, event_index.c.time, event_index.c.sequence)
is_correlated = event_index.c.correlation != literal_column("0", BigInteger)
Index(
    "event_index_by_correlation",
    event_index.c.correlation,
    sqlite_where=is_correlated,
    postgresql_where=is_correlated,
)
