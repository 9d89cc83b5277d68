"""Prompts and the runs they make: accept, wait, read, edit, cancel."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Protocol

from turndock import events, jsontext
from turndock.agent.v1 import (
    BusyPolicy,
    CancelRunRequest,
    ListRunsRequest,
    ListRunsResponse,
    UpdateQueuedRunRequest,
)
from turndock.errors import TurndockError, invalid
from turndock.store.v1 import EditRunRequest, EnqueueRunRequest, MailboxLimits
from turndock.store.v1 import ListRunsRequest as StoredRunsRequest
from turndock.types.v1 import Cursor, Response, Run, RunOrigin, RunStatus
from turndock_server.core import history, transcript
from turndock_server.core.feed import AgentKey
from turndock_server.core.host import Host, Located
from turndock_server.core.lifecycle import is_terminal
from turndock_server.core.roster import RunWaiter

CALLER_GONE = "caller_gone"


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


class Prompts:
    """The mailbox as callers see it."""

    def __init__(self, host: Host, *, max_prompt_bytes: int) -> None:
        self._host = host
        self._max_prompt_bytes = max_prompt_bytes

    async def submit(self, tenant: str | None, call: PromptCall, origin: RunOrigin.ValueType) -> Submitted:
        """Put a prompt into its agent's mailbox. Give the waiter back with `stop_waiting`."""
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
            limits=MailboxLimits(max_count=limits.max_pending_prompts, max_bytes=limits.max_pending_bytes),
            front=interrupts,
            only_if_idle=call.busy_policy == BusyPolicy.BUSY_POLICY_REJECT,
        )
        waiter = self._host.roster.wait_for_run(located.key, run.id)
        try:
            accepted = await self._host.journal.enqueue_run(request)
        except BaseException:
            self._host.roster.stop_waiting(located.key, run.id, waiter)
            raise
        if accepted.duplicate:
            # Its first event may lie before the current head.
            cursor.after_sequence = 0
        else:
            await self._host.roster.run_enqueued(located.key, accepted.run, interrupts=interrupts)
        return Submitted(located.key, accepted.run, cursor, waiter)

    async def outcome(self, submitted: Submitted) -> tuple[Run, Response | None]:
        """Wait for a submitted prompt's end. Cancelling the wait leaves the run alone."""
        if is_terminal(submitted.run.status):
            return await self._ended(submitted.key, submitted.run)
        return await asyncio.shield(submitted.waiter)

    def stop_waiting(self, submitted: Submitted) -> None:
        """The caller does not wait any more."""
        self._host.roster.stop_waiting(submitted.key, submitted.run.id, submitted.waiter)

    async def caller_gone(self, submitted: Submitted) -> None:
        """The caller of an Ask hung up: a run that still waits is not wanted any more."""
        try:
            await self._cancel(submitted.key, submitted.run.id, CALLER_GONE)
        except TurndockError as error:
            if error.reason not in ("INVALID_STATUS", "RUN_NOT_FOUND"):
                raise

    async def run(self, located: Located, run_id: str, *, wait_s: float, with_events: bool) -> Run:
        """A run; waits for its end if asked to."""
        waiter = self._host.roster.wait_for_run(located.key, run_id)
        try:
            run = await self._read(located.key, run_id)
            if not is_terminal(run.status) and wait_s > 0:
                await asyncio.wait((waiter,), timeout=wait_s)
                run = await self._read(located.key, run_id)
        finally:
            self._host.roster.stop_waiting(located.key, run_id, waiter)
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
        async with self._host.roster.holding_mailbox(located.key) as agent:
            run = (await self._host.journal.edit_run(edit)).run
            if agent is not None:
                agent.mailbox.put(run)
            return run

    async def cancel(self, located: Located, request: CancelRunRequest) -> Run:
        """End a waiting run; a repeat finds it cancelled. Raises INVALID_STATUS for any other run."""
        return await self._cancel(
            located.key, request.run_id, request.reason or "cancelled", request.request_id
        )

    async def _cancel(self, key: AgentKey, run_id: str, reason: str, request_id: str = "") -> Run:
        async with self._host.roster.holding_mailbox(key) as agent:
            run = await self._read(key, run_id)
            return await self._host.cancel_waiting(key, run, reason, agent, request_id)

    async def _read(self, key: AgentKey, run_id: str) -> Run:
        request = transcript.stored_run(key.scope, key.session_id, run_id)
        return (await self._host.journal.get_run(request)).run

    async def _ended(self, key: AgentKey, run: Run) -> tuple[Run, Response | None]:
        located = await self._host.locate(key.tenant, "", key.session_id)
        limits = located.session.agent.definition.limits
        return run, await history.response_of(self._host.journal, key, run, limits)

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
        size = len(prompt.encode())
        if size > self._max_prompt_bytes:
            raise TurndockError(
                "LIMIT_EXCEEDED",
                f"prompt: is {size} bytes; the limit is {self._max_prompt_bytes}",
                metadata={"limit": "max_prompt_bytes", "max": str(self._max_prompt_bytes), "size": str(size)},
            )


def _digest(call: PromptCall) -> bytes:
    """What makes two requests the same: what is asked, not how the caller waits for it."""
    parts = (call.agent_name, call.prompt, call.metadata_json, call.correlation_id)
    return hashlib.sha256("\0".join(f"{len(part)}:{part}" for part in parts).encode()).digest()
