"""What Alembic runs: the revisions, in the transaction of the connection it is given."""

from __future__ import annotations

from alembic import context

from turndock_server.stores.sql.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,  # the transaction is the caller's
)
context.run_migrations()
