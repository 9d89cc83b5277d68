"""A SessionStore on an SQL database, SQLite by default, and a Query over it."""

from turndock_server.stores.sql.maintenance import SqlMaintenance as SqlMaintenance
from turndock_server.stores.sql.query import SqlQuery as SqlQuery
from turndock_server.stores.sql.store import SqlSessionStore as SqlSessionStore
