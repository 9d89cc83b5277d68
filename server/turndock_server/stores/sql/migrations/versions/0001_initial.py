"""Everything there is at the beginning."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the tables, and the unscoped partition."""
    scopes = op.create_table(
        "scopes",
        sa.Column("key", _KEY, primary_key=True),
        sa.Column("tenant", _WORD, nullable=False),
        sa.UniqueConstraint("tenant"),
    )
    op.bulk_insert(scopes, [{"key": 0, "tenant": ""}])
    op.create_table(
        "sessions",
        sa.Column("key", _KEY, primary_key=True),
        sa.Column("scope", _KEY, sa.ForeignKey("scopes.key"), nullable=False),
        sa.Column("id", _WORD, nullable=False),
        sa.Column("incarnation", _WORD, nullable=False),
        sa.Column("body", sa.LargeBinary),
        sa.Column("agent_id", _WORD, nullable=False),
        sa.Column("live_agent", _WORD),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("deleted_at", sa.BigInteger),
        sa.Column("stopped", sa.Integer, nullable=False),
        sa.Column("halted", sa.Integer, nullable=False),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sa.Column("pruned_through", sa.BigInteger, nullable=False),
        sa.Column("largest_event", sa.BigInteger, nullable=False),
        sa.Column("last_notification", sa.BigInteger, nullable=False),
        sa.Column("notified_sequence", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("owner", _WORD, nullable=False),
        sa.Column("ticket_id", _WORD, nullable=False),
        sa.Column("lease_until", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("scope", "id"),
        sa.UniqueConstraint("scope", "live_agent"),
        sqlite_autoincrement=True,
    )
    op.create_index("sessions_by_change", "sessions", ["scope", sa.text("updated_at DESC"), "id"])
    op.create_index("sessions_by_change_everywhere", "sessions", [sa.text("updated_at DESC"), "id", "scope"])
    op.create_index(
        "sessions_with_unapplied_notification",
        "sessions",
        ["key"],
        sqlite_where=sa.text("last_notification > notified_sequence"),
        postgresql_where=sa.text("last_notification > notified_sequence"),
    )
    op.create_table(
        "tombstones",
        sa.Column("scope", _KEY, sa.ForeignKey("scopes.key"), primary_key=True, autoincrement=False),
        sa.Column("session_id", _WORD, primary_key=True),
        sa.Column("incarnation", _WORD, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("deleted_at", sa.BigInteger, nullable=False),
        sa.Column("request_id", _WORD, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "retry_tokens",
        sa.Column("session", _KEY, sa.ForeignKey("sessions.key"), primary_key=True, autoincrement=False),
        sa.Column("request_id", _WORD, primary_key=True),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("key", _KEY, primary_key=True),
        sa.Column("session", _KEY, sa.ForeignKey("sessions.key"), nullable=False),
        sa.Column("id", _WORD, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("queue_key", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("prompt_bytes", sa.BigInteger, nullable=False),
        sa.Column("unsettled", sa.Integer),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("session", "id"),
    )
    op.create_index("runs_in_mailbox_order", "runs", ["session", "queue_key", "created_at", "id"])
    op.create_index(
        "runs_unsettled",
        "runs",
        ["unsettled", "session", "queue_key", "created_at", "id"],
        sqlite_where=sa.text("unsettled IS NOT NULL"),
        postgresql_where=sa.text("unsettled IS NOT NULL"),
    )
    op.create_table(
        "events",
        sa.Column("key", _KEY, primary_key=True),
        sa.Column("session", _KEY, sa.ForeignKey("sessions.key"), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("scope", _KEY, nullable=False),
        sa.Column("id", sa.LargeBinary, nullable=False),
        sa.Column("type", sa.Integer, nullable=False),
        sa.Column("run", sa.BigInteger, nullable=False),
        sa.Column("stored_at", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("session", "sequence"),
        sa.UniqueConstraint("scope", "id"),
    )
    op.create_index("events_of_run", "events", ["session", "run", "sequence"])
