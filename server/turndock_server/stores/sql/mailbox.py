"""Mailboxes and ownership: each function is one write."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, func, select, tuple_, update

from turndock.errors import TurndockError, not_found
from turndock.store.v1 import (
    CancelRunRequest,
    CancelRunResponse,
    Claim,
    ClaimAgentRequest,
    ClaimAgentResponse,
    EditRunRequest,
    EditRunResponse,
    EnqueueRunRequest,
    EnqueueRunResponse,
    ReleaseIfEmptyRequest,
    ReleaseIfEmptyResponse,
    RenewClaimsRequest,
    RenewClaimsResponse,
)
from turndock.types.v1 import Run, RunStatus, Session
from turndock_server.stores import rules
from turndock_server.stores.sql import sessions
from turndock_server.stores.sql import runs as run_rows
from turndock_server.stores.sql.appends import Append, Book
from turndock_server.stores.sql.schema import runs
from turndock_server.stores.sql.schema import sessions as sessions_table
from turndock_server.stores.sql.sessions import Partition, SessionRow
from turndock_server.stores.sql.tokens import once
from turndock_server.stores.sql.transaction import Transaction
