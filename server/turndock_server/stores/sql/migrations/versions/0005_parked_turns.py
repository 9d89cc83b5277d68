"""Sessions that wait for approvals have no work until then."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column. No turn could be parked before."""
    op.add_column("sessions", sa.Column("rests_until", sa.BigInteger))
