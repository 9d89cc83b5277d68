"""What a caller is told about an error of the database, whichever it is."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from turndock.errors import TurndockError
from turndock_server.stores.sql import postgresql, sqlite

REPORTED: Final = (SQLAlchemyError, sqlite3.Error, OSError)
"""What the database, or the way to it, reports."""


def storage_error(error: BaseException) -> TurndockError:
    """The error for what was reported. One of this tree stays as it is."""
    if isinstance(error, TurndockError):
        return error
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, OSError) or hasattr(cause, "sqlstate"):
        return postgresql.storage_error(error)
    return sqlite.storage_error(error)


def is_everybodys(failure: Exception) -> bool:
    """Whether no write of a group would fare better alone, so that trying is only waiting longer."""
    if not isinstance(failure, TurndockError) or not failure.retryable:
        return False
    return not postgresql.is_about_a_row(failure)
