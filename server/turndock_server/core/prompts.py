"""Prompts and the runs they make: accept, wait, read, edit, cancel."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from turndock import events, jsontext
from turndock.agent.v1 import (
    BusyPolicy,
    CancelRunRequest,
    ListRunsRequest,
    ListRunsResponse,
    UpdateQueuedRunRequest,
)
from turndock.errors import TurndockError, invalid
from turndock.store.v1 import EditRunRequest, EnqueueRunRequest, GetSessionRequest, MailboxLimits
from turndock.store.v1 import ListRunsRequest as StoredRunsRequest
from turndock.types.v1 import AgentLimits, Cursor, Response, Run, RunOrigin, RunStatus
from turndock_server.core import history, transcript
from turndock_server.core.feed import AgentKey
from turndock_server.core.finishing import carried_out, to_its_end
from turndock_server.core.host import Host, Located
from turndock_server.core.lifecycle import is_terminal
from turndock_server.core.waiting import RunWaiter

log = logging.getLogger(__name__)

CALLER_GONE = "caller_gone"

_UNBOUNDED_COUNT: Final = (1 << 31) - 1
_UNBOUNDED_BYTES: Final = (1 << 63) - 1


class PromptCall(Protocol):
    """What Ask, Tell and Prompt have in common."""

    request_id: str
    agent_name: str
    prompt: str
    busy_policy: BusyPolicy.ValueType
    metadata_json: str
    correlation_id: str


@dataclass(frozen=True, slots=True)
class Submitted:
    """A prompt that is durable."""

    key: AgentKey
    run: Run
    cursor: Cursor
    """A place in the log before the run's first event."""
    waiter: RunWaiter
    is_new: bool
    """Whether this call has made it; else an earlier one with the same token has."""


class Prompts:
    """The mailbox as callers see it."""

    def __init__(
        self, host: Host, *, max_prompt_bytes: int, scope_limits: MailboxLimits | None = None
    ) -> None:
        """`scope_limits`: what bounds all mailboxes of a scope together, beside each one's own bounds."""
        self._host = host
        self._max_prompt_bytes = max_prompt_bytes
        self._scope_limits = scope_limits or MailboxLimits()

    @asynccontextmanager
    async def submitted(
        self,
        tenant: str | None,
        call: PromptCall,
        origin: RunOrigin.ValueType,
        *,
        unwanted: Callable[[], bool] = lambda: False,
    ) -> AsyncGenerator[Submitted]:
        """A prompt in its agent's mailbox, durable, for as long as the caller waits for what becomes of it.

        Whoever leaves leaves the run alone. But when the block is cancelled and `unwanted` says so then, a run that
        still waits is CANCELLED with `caller_gone`.
        """
        submitting = carried_out(self._submit(tenant, call, origin))
        try:
            yield await asyncio.shield(submitting)
        except asyncio.CancelledError:
            if unwanted():
                await self._caller_gone(submitting)
            raise
        finally:
            submitting.add_done_callback(self._stop_waiting)

    async def _submit(self, tenant: str | None, call: PromptCall, origin: RunOrigin.ValueType) -> Submitted:
        self._host.refuse_when_stopping()
        self._check(call)
        located = await self._host.locate(tenant, call.agent_name)
        run = Run(
            id=call.request_id or events.new_id(),
            session_id=located.key.session_id,
            status=RunStatus.RUN_STATUS_PENDING,
            origin=origin,
            prompt=call.prompt,
            metadata_json=call.metadata_json,
            correlation_id=call.correlation_id,
            request_sha256=_digest(call),
        )
        cursor = Cursor(
            session_id=run.session_id,
            incarnation=located.session.incarnation,
            after_sequence=located.session.last_sequence,
        )
        limits = located.session.agent.definition.limits
        interrupts = call.busy_policy == BusyPolicy.BUSY_POLICY_INTERRUPT
        request = EnqueueRunRequest(
            scope=located.key.scope,
            run=run,
            limits=self._limits(limits),
            front=interrupts,
            only_if_idle=call.busy_policy == BusyPolicy.BUSY_POLICY_REJECT,
        )
        if interrupts and located.session.agent.HasField("parked"):
            await self._host.claimed(located)  # What it interrupts has to be in memory.
        waiter = self._host.roster.waiting.wait_for(located.key, run.id)
        try:
            accepted = await self._host.roster.enqueue_run(located.key, request, interrupts=interrupts)
        except BaseException:
            self._host.roster.waiting.stop_waiting(located.key, run.id, waiter)
            raise
        if accepted.duplicate:
            # Its first event may lie before the current head.
            cursor.after_sequence = 0
        return Submitted(located.key, accepted.run, cursor, waiter, is_new=not accepted.duplicate)

    def _limits(self, own: AgentLimits) -> MailboxLimits:
        limits = MailboxLimits(max_count=own.max_pending_prompts, max_bytes=own.max_pending_bytes)
        limits.MergeFrom(self._scope_limits)
        return limits

    async def bounded(self, key: AgentKey, request: EnqueueRunRequest) -> EnqueueRunRequest:
        """A run from somebody else on its way into a mailbox, within the bounds of a prompt; theirs may be narrower.

        Raises LIMIT_EXCEEDED for a prompt that is too long, SESSION_NOT_FOUND.
        """
        self.check_size(request.run.prompt, "run.prompt")
        asked = GetSessionRequest(scope=key.scope, session_id=key.session_id)
        session = (await self._host.journal.get_session(asked)).session
        limits = self._limits(session.agent.definition.limits)
        if not session.HasField("agent"):
            limits.max_count, limits.max_bytes = _UNBOUNDED_COUNT, _UNBOUNDED_BYTES
        bounded = EnqueueRunRequest()
        bounded.CopyFrom(request)
        bounded.limits.CopyFrom(_narrower(limits, request.limits) if request.HasField("limits") else limits)
        return bounded

    async def outcome(self, submitted: Submitted) -> tuple[Run, Response | None]:
        """Wait for a submitted prompt's end. Cancelling the wait leaves the run alone.

        Raises SERVER_STOPPING when the run will not end here.
        """
        if is_terminal(submitted.run.status):
            return await self._ended(submitted.key, submitted.run)
        if not submitted.waiter.done():
            self._host.refuse_when_stopping()
        return await asyncio.shield(submitted.waiter)

    def _stop_waiting(self, submitting: asyncio.Task[Submitted]) -> None:
        if not submitting.cancelled() and submitting.exception() is None:
            submitted = submitting.result()
            self._host.roster.waiting.stop_waiting(submitted.key, submitted.run.id, submitted.waiter)

    async def _caller_gone(self, submitting: asyncio.Task[Submitted]) -> None:
        """The caller of an Ask hung up: a run that still waits is not wanted any more.

        A server that stops ends its calls itself, and drops nothing.
        """
        if self._host.stopping:
            return
        try:
            submitted = await asyncio.shield(submitting)
            await self._cancel(submitted.key, submitted.run.id, CALLER_GONE)
        except TurndockError as error:
            log.info("a run whose caller had gone was not cancelled: %s", error)

    async def run(self, located: Located, run_id: str, *, wait_s: float, with_events: bool) -> Run:
        """A run; waits for its end if asked to."""
        waiter = self._host.roster.waiting.wait_for(located.key, run_id)
        try:
            run = await self._read(located.key, run_id)
            # A run whose decision is due has ended, but what follows from it is not stored yet.
            if (not is_terminal(run.status) or run.decision_pending) and wait_s > 0:
                await asyncio.wait((waiter,), timeout=wait_s)
                run = await self._read(located.key, run_id)
        finally:
            self._host.roster.waiting.stop_waiting(located.key, run_id, waiter)
        if with_events and run.HasField("response"):
            _, response = await self._ended(located.key, run)
            if response is not None:
                run.response.CopyFrom(response)
        return run

    async def list(self, located: Located, request: ListRunsRequest) -> ListRunsResponse:
        """A page of an agent's runs."""
        page = await self._host.journal.list_runs(
            StoredRunsRequest(
                scope=located.key.scope,
                session_id=located.key.session_id,
                statuses=request.statuses,
                page=request.page,
            )
        )
        return ListRunsResponse(runs=page.runs, next_cursor=page.next_cursor)

    async def update(self, located: Located, request: UpdateQueuedRunRequest) -> Run:
        """Change a waiting run's prompt or place. Raises INVALID_STATUS when its turn has begun."""
        if request.HasField("prompt"):
            self._check_prompt(request.prompt)
        edit = EditRunRequest(
            scope=located.key.scope,
            request_id=request.request_id,
            session_id=located.key.session_id,
            run_id=request.run_id,
            prompt=request.prompt if request.HasField("prompt") else None,
            before_run_id=request.before_run_id,
            to_tail=request.to_tail,
        )
        return await self._host.roster.edit_run(located.key, edit)

    async def cancel(self, located: Located, request: CancelRunRequest) -> Run:
        """End a waiting run; a repeat finds it cancelled. Raises INVALID_STATUS for any other run."""
        return await self._cancel(
            located.key, request.run_id, request.reason or "cancelled", request.request_id
        )

    @to_its_end
    async def _cancel(self, key: AgentKey, run_id: str, reason: str, request_id: str = "") -> Run:
        async with self._host.roster.holding_mailbox(key) as agent:
            run = await self._read(key, run_id)
            if run.status == RunStatus.RUN_STATUS_CANCELLED:
                return run
            return await self._host.roster.cancel_waiting(key, run, reason, agent, request_id)

    async def _read(self, key: AgentKey, run_id: str) -> Run:
        request = transcript.stored_run(key.scope, key.session_id, run_id)
        return (await self._host.journal.get_run(request)).run

    async def _ended(self, key: AgentKey, run: Run) -> tuple[Run, Response | None]:
        return run, await history.response_of(self._host.journal, key, run)

    def _check(self, call: PromptCall) -> None:
        if call.request_id:
            events.check_id(call.request_id, "request_id")
            if "/" in call.request_id:
                raise invalid("request_id", "must not contain '/', which marks ids the host derives")
        self._check_prompt(call.prompt)
        jsontext.check_object(call.metadata_json, "metadata_json")

    def _check_prompt(self, prompt: str) -> None:
        if not prompt:
            raise invalid("prompt", "must not be empty")
        jsontext.check_text(prompt, "prompt")
        self.check_size(prompt, "prompt")

    def check_size(self, prompt: str, field: str) -> None:
        """Refuse a prompt that is too long (LIMIT_EXCEEDED)."""
        size = len(prompt.encode())
        if size > self._max_prompt_bytes:
            raise TurndockError(
                "LIMIT_EXCEEDED",
                f"{field}: is {size} bytes; the limit is {self._max_prompt_bytes}",
                metadata={"limit": "max_prompt_bytes", "max": str(self._max_prompt_bytes), "size": str(size)},
            )


def _narrower(limits: MailboxLimits, others: MailboxLimits) -> MailboxLimits:
    """What both allow."""
    both = MailboxLimits()
    both.CopyFrom(limits)
    both.max_count = min(limits.max_count, others.max_count)
    both.max_bytes = min(limits.max_bytes, others.max_bytes)
    if others.HasField("max_scope_count"):
        known = limits.max_scope_count if limits.HasField("max_scope_count") else _UNBOUNDED_COUNT
        both.max_scope_count = min(known, others.max_scope_count)
    if others.HasField("max_scope_bytes"):
        known = limits.max_scope_bytes if limits.HasField("max_scope_bytes") else _UNBOUNDED_BYTES
        both.max_scope_bytes = min(known, others.max_scope_bytes)
    return both


def _digest(call: PromptCall) -> bytes:
    """What makes two requests the same: what is asked, not how the caller waits for it."""
    parts = (call.agent_name, call.prompt, call.metadata_json, call.correlation_id)
    return hashlib.sha256("\0".join(f"{len(part)}:{part}" for part in parts).encode()).digest()
