"""`SqlAgentPersistence`: snapshots beside the sessions they belong to, in the same database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from turndock.errors import invalid
from turndock.store.v1 import (
    LoadStateRequest,
    LoadStateResponse,
    PersistStateRequest,
    PersistStateResponse,
    SetInterruptedRequest,
    SetInterruptedResponse,
)
from turndock.types.v1 import Session
from turndock_server.stores import checks, rules
from turndock_server.stores import snapshots as snapshot_rules
from turndock_server.stores.snapshots import Owner
from turndock_server.stores.sql.postgresql import SessionKey
from turndock_server.stores.sql.rows import Partition, fence_of, load
from turndock_server.stores.sql.schema import NEVER, sessions, snapshot_tokens, snapshots
from turndock_server.stores.sql.transaction import Transaction, Write

T = TypeVar("T")

_IS: Final = (
    (snapshots.c.scope == bindparam("in_scope"))
    & (snapshots.c.conversation_id == bindparam("of_conversation"))
    & (snapshots.c.agent_id == bindparam("of_agent"))
)
_FIND: Final = select(snapshots.c.key, snapshots.c.epoch).where(_IS).with_for_update()
_BODY: Final = select(snapshots.c.body).where(_IS)
_INSERT: Final = insert(snapshots).returning(snapshots.c.key)
_UPDATE: Final = update(snapshots).where(snapshots.c.key == bindparam("row"))
_TOKEN: Final = select(snapshot_tokens.c.fingerprint).where(
    snapshot_tokens.c.snapshot == bindparam("row"), snapshot_tokens.c.request_id == bindparam("token")
)


class Writes(Protocol):
    """Makes a write, as `Writer.write`."""

    def __call__(self, work: Write[T], sessions: Collection[SessionKey], /) -> Awaitable[T]: ...


class Reads(Protocol):
    """Reads, as `Database.read`."""

    def __call__(self, work: Callable[[Connection], T], /) -> Awaitable[T]: ...


class SqlAgentPersistence:
    """`turndock.ports.AgentPersistence` and `InterruptedFlag`.

    A conversation that is a session's goes with it: it knows the session's owner, the session shows its flag, and its
    deletion takes the snapshot along.
    """

    def __init__(
        self,
        write: Writes,
        read: Reads,
        partition: Callable[[checks.Scoped], Awaitable[Partition]],
        find: Callable[[Connection, str], Partition | None],
    ) -> None:
        """Use `SqlSessionStore.agent_persistence`."""
        self._write = write
        self._read = read
        self._partition = partition
        self._find = find

    async def persist_state(self, request: PersistStateRequest) -> PersistStateResponse:
        owner = _checked(request)
        partition = await self._partition(request)
        saved = LoadStateResponse(snapshot=request.snapshot, lifecycle=request.lifecycle)
        values = {"body": saved.SerializeToString()}
        await self._write(
            lambda tx: _write(tx, partition, owner, request, values), [(partition.key, owner[0])]
        )
        return PersistStateResponse()

    async def load_state(self, request: LoadStateRequest) -> LoadStateResponse:
        owner = snapshot_rules.owner_of(request)
        tenant = checks.partition(request)

        def read(connection: Connection) -> bytes | None:
            partition = self._find(connection, tenant)
            if partition is None:
                return None
            body: bytes | None = connection.execute(_BODY, _place(partition, owner)).scalar()
            return body

        body = await self._read(read)
        if body is None:
            raise snapshot_rules.missing(request)
        return LoadStateResponse.FromString(body)

    async def set_interrupted(self, request: SetInterruptedRequest) -> SetInterruptedResponse:
        owner = _checked(request)
        partition = await self._partition(request)
        values = {"interrupted": int(request.interrupted)}

        def write(tx: Transaction) -> None:
            if _write(tx, partition, owner, request, values):
                _show(tx, partition, owner[0], is_interrupted=request.interrupted)

        await self._write(write, [(partition.key, owner[0])])
        return SetInterruptedResponse()


def forget(tx: Transaction, scope: int, session_id: str) -> None:
    """Take away what belongs to a session that is deleted."""
    is_its = (snapshots.c.scope == scope) & (snapshots.c.conversation_id == session_id)
    key = tx.connection.execute(select(snapshots.c.key).where(is_its).with_for_update()).scalar()
    if key is not None:
        tx.connection.execute(delete(snapshot_tokens).where(snapshot_tokens.c.snapshot == key))
        tx.connection.execute(delete(snapshots).where(snapshots.c.key == key))


def _write(
    tx: Transaction, partition: Partition, owner: Owner, request: snapshot_rules.Write, values: dict[str, Any]
) -> bool:
    """Change a snapshot's row; False if that was done before. Raises FENCED, IDEMPOTENCY_CONFLICT."""
    # Locked first, as by whoever deletes it, so that nobody waits in a ring.
    session = load(tx, partition, owner[0]) if owner[0] else None
    found = tx.connection.execute(_FIND, _place(partition, owner)).first()
    key, epoch = (found.key, found.epoch) if found is not None else (None, 0)
    fingerprint = rules.fingerprint(request) if request.request_id else b""
    if key is not None and request.request_id:
        known = tx.connection.execute(_TOKEN, {"row": key, "token": request.request_id}).scalar()
        if known is not None and known != fingerprint:
            raise rules.token_conflict(request.request_id)
        if known is not None:
            return False
    fence = fence_of(request)
    if session is not None:
        session.epoch = epoch = max(session.epoch, epoch)
        session.check_fence(fence, tx.now_us)
    elif fence is not None and fence.epoch < epoch:
        raise rules.fenced(owner[1], fence.epoch, epoch)
    values = {**values, "epoch": max(epoch, fence.epoch if fence else 0), "saved_at": tx.now_us}
    if key is not None:
        tx.connection.execute(_UPDATE, values | {"row": key})
    else:
        place = {"scope": partition.key, "conversation_id": owner[0], "agent_id": owner[1]}
        key = tx.connection.execute(_INSERT, {"interrupted": 0, **values, **place}).scalar_one()
    if request.request_id:
        token = {"snapshot": key, "request_id": request.request_id, "fingerprint": fingerprint}
        tx.connection.execute(insert(snapshot_tokens), token)
    return True


def _show(tx: Transaction, partition: Partition, session_id: str, *, is_interrupted: bool) -> None:
    """Have the session say whether it waits."""
    is_it = (sessions.c.scope == partition.key) & (sessions.c.id == session_id)
    body = tx.connection.execute(select(sessions.c.body).where(is_it)).scalar()
    if body is None:
        return
    session = Session.FromString(body)
    if session.interrupted != is_interrupted:
        session.interrupted = is_interrupted
        tx.connection.execute(update(sessions).where(is_it).values(body=session.SerializeToString()))


def _place(partition: Partition, owner: Owner) -> dict[str, Any]:
    return {"in_scope": partition.key, "of_conversation": owner[0], "of_agent": owner[1]}


def _checked(request: snapshot_rules.Write) -> Owner:
    owner = snapshot_rules.check_write(request)
    if request.fence.epoch >= NEVER:
        raise invalid("fence.epoch", "is no epoch: none is that high")
    return owner
