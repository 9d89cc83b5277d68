"""`Mailbox` over an SQL database: the calls by which runs wait and agents have an owner."""

from __future__ import annotations

from turndock.store.v1 import (
    CancelRunRequest,
    CancelRunResponse,
    ClaimAgentRequest,
    ClaimAgentResponse,
    EditRunRequest,
    EditRunResponse,
    EnqueueRunRequest,
    EnqueueRunResponse,
    ListOrphansRequest,
    ListOrphansResponse,
    ReleaseIfEmptyRequest,
    ReleaseIfEmptyResponse,
    RenewClaimsRequest,
    RenewClaimsResponse,
)
from turndock_server.stores import checks
from turndock_server.stores.sql import encoding, lists, mailbox
from turndock_server.stores.sql.appends import Append
from turndock_server.stores.sql.calls import SqlCalls, check_fence
from turndock_server.stores.sql.rows import fence_of


class SqlMailbox(SqlCalls):
    """The calls."""

    async def enqueue_run(self, request: EnqueueRunRequest) -> EnqueueRunResponse:
        checks.check_enqueue(request)
        check_fence(fence_of(request))
        partition = await self._partition(request)
        return await self._write(
            partition, request.run.session_id, lambda tx: mailbox.enqueue(tx, partition, request)
        )

    async def claim_agent(self, request: ClaimAgentRequest) -> ClaimAgentResponse:
        checks.check_claim(request)
        partition = await self._partition(request)
        return await self._write(
            partition, request.session_id, lambda tx: mailbox.claim(tx, partition, request)
        )

    async def renew_claims(self, request: RenewClaimsRequest) -> RenewClaimsResponse:
        tenants = [tenant for tenant, _ in checks.check_renew(request)]
        held_in = await self._read(
            lambda connection: [self._scopes.find(connection, tenant) for tenant in tenants]
        )
        pairs = zip(held_in, request.claims, strict=True)
        held = [(partition.key, claim.session_id) for partition, claim in pairs if partition is not None]
        return await self._writer.write(lambda tx: mailbox.renew(tx, held_in, request), held)

    async def release_if_empty(self, request: ReleaseIfEmptyRequest) -> ReleaseIfEmptyResponse:
        checks.check_release(request)
        check_fence(request.fence)
        partition = await self._partition(request)
        return await self._write(
            partition, request.session_id, lambda tx: mailbox.release(tx, partition, request)
        )

    async def edit_run(self, request: EditRunRequest) -> EditRunResponse:
        checks.check_edit(request)
        checks.check_request_id(request.request_id)
        partition = await self._partition(request)
        return await self._write(
            partition, request.session_id, lambda tx: mailbox.edit(tx, partition, request)
        )

    async def cancel_run(self, request: CancelRunRequest) -> CancelRunResponse:
        checks.check_cancel(request)
        checks.check_request_id(request.request_id)
        append = Append(
            await self._partition(request),
            encoding.drafts((request.event,), "event"),
            field="event",
            is_owners=False,
        )
        return await self._write(
            append.partition, request.session_id, lambda tx: mailbox.cancel(tx, append, request)
        )

    async def list_orphans(self, request: ListOrphansRequest) -> ListOrphansResponse:
        now_us = self._clock()
        return await self._read(lambda connection: lists.list_orphans(connection, now_us, request))
