"""Snapshots of agents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables of AgentPersistence."""
    op.create_table(
        "snapshots",
        sa.Column("key", _KEY, primary_key=True),
        sa.Column("scope", _KEY, sa.ForeignKey("scopes.key"), nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary),
        sa.Column("interrupted", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("saved_at", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("scope", "conversation_id", "agent_id"),
    )
    op.create_table(
        "snapshot_tokens",
        sa.Column("snapshot", _KEY, sa.ForeignKey("snapshots.key"), primary_key=True, autoincrement=False),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
    )
