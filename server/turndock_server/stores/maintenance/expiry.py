"""Sessions that nobody needs any more: marked first, deleted later."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from turndock.errors import TurndockError
from turndock.store.v1 import DeleteSessionRequest
from turndock_server.stores.checks import scope_of
from turndock_server.stores.maintenance.policy import Policy
from turndock_server.stores.maintenance.upkeep import Upkeep
from turndock_server.stores.pace import paced

OnDeleted = Callable[[DeleteSessionRequest], Awaitable[None]]
"""What else has to know that a session is gone: its artifacts, its watchers."""


async def soft_delete(
    upkeep: Upkeep, partition: str, policy: Policy, *, dry_run: bool
) -> AsyncGenerator[str]:
    """Mark what has expired. Yields the id of each session that was marked, or would be. Raises `TurndockError`."""
    now_us = upkeep.now_us()
    after: str | None = ""
    while after is not None:
        found = await upkeep.expired(partition, policy, now_us, after, policy.batch_size)
        marked = found.ids
        if marked and not dry_run:
            async with paced():
                marked = await upkeep.soft_delete(partition, marked, policy, now_us)
        for session_id in marked:
            yield session_id
        after = found.next


async def hard_delete(
    upkeep: Upkeep,
    partition: str,
    policy: Policy,
    on_deleted: OnDeleted,
    *,
    delete_artifacts: bool,
    dry_run: bool,
) -> AsyncGenerator[str]:
    """Delete what was marked long enough ago. Yields the id of each session that was deleted, or would be.

    Raises `TurndockError` for the first that could not be, with `session_id` in its metadata.
    """
    if policy.hard_delete_after_us is None:
        return
    before_us = upkeep.now_us() - policy.hard_delete_after_us
    after: str | None = ""
    while after is not None:
        found = await upkeep.condemned(partition, before_us, after, policy.batch_size)
        for session_id in found.ids:
            if not dry_run and not await _delete(
                upkeep, partition, session_id, before_us, on_deleted, delete_artifacts=delete_artifacts
            ):
                continue
            yield session_id
        after = found.next


async def _delete(
    upkeep: Upkeep,
    partition: str,
    session_id: str,
    before_us: int,
    on_deleted: OnDeleted,
    *,
    delete_artifacts: bool,
) -> bool:
    what = "could not be deleted, and nothing of it was"
    try:
        async with paced():
            if not await upkeep.hard_delete(partition, session_id, before_us):
                return False
        what = "is deleted, but its artifacts are not forgotten; CleanOrphanedArtifacts does that"
        await on_deleted(
            DeleteSessionRequest(
                scope=scope_of(partition), session_id=session_id, delete_artifacts=delete_artifacts
            )
        )
    except TurndockError as error:
        raise TurndockError(
            error.reason,
            f"session {session_id!r} {what}: {error.message}",
            metadata={**error.metadata, "session_id": session_id},
            retry_after_ms=error.retry_after_ms,
        ) from error
    return True
