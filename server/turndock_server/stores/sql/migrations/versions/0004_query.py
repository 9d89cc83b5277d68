"""What is searched and added up gets columns and indexes; those of stored rows are filled from their bodies.

The index of events is not: searches fill it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

import sqlalchemy as sa
from alembic import op

from turndock.types.v1 import Run, Session

revision = "0004"
down_revision = "0003"

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_BATCH = 2_000


def upgrade() -> None:
    """Add the columns, fill them, then index them."""
    _index_events()
    _widen_sessions()
    _widen_runs()


def _widen_sessions() -> None:
    op.add_column("sessions", sa.Column("tag_count", sa.Integer, nullable=False, server_default="0"))
    tags = op.create_table(
        "session_tags",
        sa.Column("scope", _KEY, primary_key=True, autoincrement=False),
        sa.Column("tag", _WORD, primary_key=True),
        sa.Column(
            "session",
            _KEY,
            sa.ForeignKey("sessions.key", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
        ),
    )
    sessions = sa.table(
        "sessions", sa.column("key"), sa.column("body"), sa.column("scope"), sa.column("tag_count")
    )
    counted = sa.update(sessions).where(sessions.c.key == sa.bindparam("row"))
    for rows in _batches(sessions, sessions.c.scope):
        labels = {row.key: sorted(set(Session.FromString(row.body).tags)) for row in rows if row.body}
        counts = [{"row": key, "tag_count": len(found)} for key, found in labels.items() if found]
        if counts:
            op.get_bind().execute(counted, counts)
            scopes = {row.key: row.scope for row in rows}
            op.bulk_insert(
                tags,
                [
                    {"scope": scopes[key], "tag": tag, "session": key}
                    for key, found in labels.items()
                    for tag in found
                ],
            )
    op.create_index("session_tags_of_session", "session_tags", ["session"])
    op.create_index("sessions_by_creation", "sessions", ["scope", "created_at", "id"])


def _widen_runs() -> None:
    for column in (
        sa.Column("scope", _KEY, nullable=False, server_default="0"),
        sa.Column("provider", _WORD, nullable=False, server_default=""),
        sa.Column("model", _WORD, nullable=False, server_default=""),
        sa.Column("started_at", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("input_tokens", sa.BigInteger),
        sa.Column("output_tokens", sa.BigInteger),
        sa.Column("total_tokens", sa.BigInteger),
        sa.Column("cached_input_tokens", sa.BigInteger),
        sa.Column("reasoning_tokens", sa.BigInteger),
        sa.Column("cost_usd", sa.Double),
    ):
        op.add_column("runs", column)
    runs = sa.table("runs", *map(sa.column, ("key", "body", "session", "scope", *_run_columns(b""))))
    filled = sa.update(runs).where(runs.c.key == sa.bindparam("row"))
    for rows in _batches(runs):
        op.get_bind().execute(filled, [{"row": row.key, **_run_columns(row.body)} for row in rows])
    sessions = sa.table("sessions", sa.column("key"), sa.column("scope"))
    scope = sa.select(sessions.c.scope).where(sessions.c.key == runs.c.session).scalar_subquery()
    op.get_bind().execute(sa.update(runs).values(scope=scope))
    op.create_index("runs_by_start", "runs", ["scope", "started_at", "id"])
    op.create_index("runs_by_tokens", "runs", ["scope", sa.text("coalesce(total_tokens, 0)"), "id"])
    op.create_index("runs_by_provider", "runs", ["scope", "provider", "session"])


def _index_events() -> None:
    op.add_column("sessions", sa.Column("indexed_through", sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "event_index",
        sa.Column("session", _KEY, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("scope", _KEY, nullable=False),
        sa.Column("type", sa.Integer, nullable=False),
        sa.Column("run", sa.BigInteger, nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("provider", sa.BigInteger, nullable=False),
        sa.Column("correlation", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(
            ("session", "sequence"), ("events.session", "events.sequence"), ondelete="CASCADE"
        ),
    )
    op.create_index("event_index_by_time", "event_index", ["scope", "time", "sequence"])
    is_correlated = sa.text("correlation != 0")
    op.create_index(
        "event_index_by_correlation",
        "event_index",
        ["correlation"],
        sqlite_where=is_correlated,
        postgresql_where=is_correlated,
    )


def _batches(table: Any, *columns: Any) -> Iterator[list[Any]]:
    """Key, body and further columns of all rows, a few at a time."""
    last = 0
    while True:
        statement = (
            sa.select(table.c.key, table.c.body, *columns)
            .where(table.c.key > last)
            .order_by(table.c.key)
            .limit(_BATCH)
        )
        rows = list(op.get_bind().execute(statement))
        if not rows:
            return
        yield rows
        last = rows[-1].key


def _run_columns(body: bytes) -> dict[str, Any]:
    run = Run.FromString(body)
    usage = run.usage
    reported = {
        field.name: min(max(count, 0), 1 << 50)
        for field, count in usage.ListFields()
        if field.name.endswith("_tokens")
    }
    parts = [reported[name] for name in ("input_tokens", "output_tokens") if name in reported]
    costs = (source.cost_usd for source in (run, usage) if source.HasField("cost_usd"))
    return {
        "provider": run.provider,
        "model": usage.model,
        "started_at": run.started_at_us,
        "input_tokens": reported.get("input_tokens"),
        "output_tokens": reported.get("output_tokens"),
        "total_tokens": reported.get("total_tokens", sum(parts) if parts else None),
        "cached_input_tokens": reported.get("cached_input_tokens"),
        "reasoning_tokens": reported.get("reasoning_tokens"),
        "cost_usd": next(filter(isfinite, costs), None),
    }
