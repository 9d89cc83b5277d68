"""A SessionStore on an SQL database: SQLite by default."""

from turndock_server.stores.sql.maintenance import SqlMaintenance as SqlMaintenance
from turndock_server.stores.sql.store import SqlSessionStore as SqlSessionStore
