"""Deletion in small transactions, and the retry tokens of maintenance."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the partition of what is deleted, and a table."""
    scopes = sa.table("scopes", sa.column("key", sa.BigInteger), sa.column("tenant", sa.Text))
    op.bulk_insert(scopes, [{"key": -1, "tenant": "\ndeleted"}])
    op.create_table(
        "maintenance_answers",
        sa.Column("scope", _KEY, sa.ForeignKey("scopes.key"), primary_key=True, autoincrement=False),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
    )
