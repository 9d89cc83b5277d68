"""One agent, from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from turndock import jsontext
from turndock.agent.v1 import (
    AgentStatus,
    ApprovalAnswer,
    AskRequest,
    BusyPolicy,
    CancelRunRequest,
    GetAgentRequest,
    GetRunRequest,
    InterruptRequest,
    InterruptResponse,
    ListRunsRequest,
    NotifyRequest,
    NotifyResponse,
    PromptRequest,
    ResolveApprovalRequest,
    StopAgentRequest,
    TellRequest,
    TellResponse,
    TouchRequest,
    UnhaltRequest,
    UpdateQueuedRunRequest,
    WatchRequest,
)
from turndock.client import answering
from turndock.client.answering import Asked
from turndock.client.host import HostCalls, rows_of
from turndock.client.outcome import TurnFailed, has_ended, response_of
from turndock.client.prompt import PromptStream
from turndock.client.streams import OnLost, OnResumed
from turndock.client.watch import FrameWatch, Watch
from turndock.errors import TurndockError
from turndock.events import new_id
from turndock.types.v1 import Cursor, EventType, Page, Response, Run, RunStatus, ToolApprovalRequested

Busy = Literal["enqueue", "reject", "interrupt"]
"""What happens to a prompt when the agent is busy: it waits, it is refused, or it takes the current turn's place."""

LONGEST_POLL_S = 60.0
POLL_SLACK_S = 5.0


class AgentHandle:
    """An agent by its name. Making one calls nobody.

    Each method raises `TurndockError`: what the server answers, UNAVAILABLE when it cannot be reached, and TIMEOUT.
    Methods that change something take a `request_id`, so that the caller may repeat the call itself; without one each
    call makes its own. A `request_id` of a prompt becomes the id of its run.
    """

    def __init__(self, host: HostCalls, name: str) -> None:
        self.name = name
        self._host = host

    def __repr__(self) -> str:
        return f"AgentHandle({self.name!r})"

    # --- Prompts -------------------------------------------------------------------------------------------------

    async def ask(
        self,
        prompt: str,
        *,
        busy: Busy = "enqueue",
        metadata: Mapping[str, Any] | None = None,
        correlation_id: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Response:
        """Send a prompt and wait for what the turn answers.

        `timeout`, in seconds, ends the wait and not the run. Raises `TurnFailed` when the turn did not succeed.
        """
        request = AskRequest(
            request_id=request_id or new_id(),
            agent_name=self.name,
            prompt=prompt,
            busy_policy=_busy_policy(busy),
            metadata_json=_object(metadata),
            correlation_id=correlation_id,
        )
        answer = await self._host.call(self._host.stub.Ask, request, timeout=timeout)
        if not answer.HasField("response"):
            raise TurnFailed(answer.failure, answer.run)
        return answer.response

    async def tell(
        self,
        prompt: str,
        *,
        busy: Busy = "enqueue",
        metadata: Mapping[str, Any] | None = None,
        correlation_id: str = "",
        request_id: str | None = None,
    ) -> TellResponse:
        """Send a prompt, and return as soon as it is durable: its run, and a place in the log before its events."""
        request = TellRequest(
            request_id=request_id or new_id(),
            agent_name=self.name,
            prompt=prompt,
            busy_policy=_busy_policy(busy),
            metadata_json=_object(metadata),
            correlation_id=correlation_id,
        )
        return await self._host.quick(self._host.stub.Tell, request)

    def prompt(
        self,
        prompt: str,
        *,
        busy: Busy = "enqueue",
        metadata: Mapping[str, Any] | None = None,
        correlation_id: str = "",
        request_id: str | None = None,
    ) -> PromptStream:
        """Send a prompt and stream its run's events; the call begins with the first step of the iteration."""
        request = PromptRequest(
            request_id=request_id or new_id(),
            agent_name=self.name,
            prompt=prompt,
            busy_policy=_busy_policy(busy),
            metadata_json=_object(metadata),
            correlation_id=correlation_id,
        )
        return PromptStream(self._host, request)

    # --- Runs ----------------------------------------------------------------------------------------------------

    async def run(self, run_id: str, *, wait: float = 0.0, with_events: bool = False) -> Run:
        """A run as it is now, or as it is at its end if that comes within `wait` seconds (at most 60)."""
        request = GetRunRequest(
            agent_name=self.name, run_id=run_id, wait_ms=round(wait * 1000), with_events=with_events
        )
        timeout = max(self._host.timeout, wait + POLL_SLACK_S)
        return (await self._host.call(self._host.stub.GetRun, request, timeout=timeout)).run

    async def result(
        self, run_id: str, *, timeout: float | None = None, with_events: bool = False
    ) -> Response:
        """Wait for a run's end and return what it answered.

        Raises `TurnFailed` when it did not succeed, and TIMEOUT when it has not ended after `timeout` seconds.
        """
        now = asyncio.get_running_loop().time
        deadline = None if timeout is None else now() + timeout
        while True:
            left = LONGEST_POLL_S if deadline is None else min(LONGEST_POLL_S, max(0.0, deadline - now()))
            run = await self.run(run_id, wait=left, with_events=with_events)
            if has_ended(run):
                return response_of(run)
            if deadline is not None and now() >= deadline:
                raise TurndockError("TIMEOUT", f"run {run_id!r} has not ended within {timeout} s")

    def runs(self, *statuses: RunStatus.ValueType, page_size: int = 100) -> AsyncIterator[Run]:
        """Its runs in mailbox order; of these statuses, or all."""

        async def read(cursor: str) -> tuple[Sequence[Run], str]:
            page = Page(limit=page_size, cursor=cursor)
            request = ListRunsRequest(agent_name=self.name, statuses=statuses, page=page)
            answer = await self._host.quick(self._host.stub.ListRuns, request)
            return answer.runs, answer.next_cursor

        return rows_of(read)

    async def edit(
        self,
        run_id: str,
        *,
        prompt: str | None = None,
        before: str = "",
        to_tail: bool = False,
        request_id: str | None = None,
    ) -> Run:
        """Change the prompt of a run that still waits, or its place: before another one, or at the tail."""
        request = UpdateQueuedRunRequest(
            request_id=request_id or new_id(),
            agent_name=self.name,
            run_id=run_id,
            prompt=prompt,
            before_run_id=before,
            to_tail=to_tail,
        )
        return (await self._host.quick(self._host.stub.UpdateQueuedRun, request)).run

    async def cancel(self, run_id: str, *, reason: str = "", request_id: str | None = None) -> Run:
        """End a run that still waits."""
        request = CancelRunRequest(
            request_id=request_id or new_id(), agent_name=self.name, run_id=run_id, reason=reason
        )
        return (await self._host.quick(self._host.stub.CancelRun, request)).run

    # --- The agent -----------------------------------------------------------------------------------------------

    async def status(self) -> AgentStatus:
        """How it is. Does not wake it."""
        return (await self._host.quick(self._host.stub.GetAgent, GetAgentRequest(agent_name=self.name))).agent

    async def interrupt(self, run_id: str = "", *, request_id: str | None = None) -> InterruptResponse:
        """Kill the turn under way; only this run's, if one is named. The answer says what it found."""
        request = InterruptRequest(request_id=request_id or new_id(), agent_name=self.name, run_id=run_id)
        return await self._host.quick(self._host.stub.Interrupt, request)

    async def notify(
        self,
        payload: Any,
        *,
        wait_applied: bool = False,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> NotifyResponse:
        """Hand its behavior an event: any JSON value. With `wait_applied` it waits `timeout` seconds for the effect."""
        request = NotifyRequest(
            request_id=request_id or new_id(),
            agent_name=self.name,
            payload_json=jsontext.canonical(payload),
            wait_applied=wait_applied,
        )
        longest = timeout if wait_applied or timeout is not None else self._host.timeout
        return await self._host.call(self._host.stub.Notify, request, timeout=longest)

    async def unhalt(self, *, request_id: str | None = None) -> AgentStatus:
        """Thaw its mailbox."""
        request = UnhaltRequest(request_id=request_id or new_id(), agent_name=self.name)
        return (await self._host.quick(self._host.stub.Unhalt, request)).agent

    # --- Approvals -----------------------------------------------------------------------------------------------

    async def approvals(self) -> Sequence[ToolApprovalRequested]:
        """What waits for a decision, the oldest first. Does not wake the agent."""
        return (await self.status()).pending_approvals

    async def resolve_approval(self, *answers: ApprovalAnswer, request_id: str | None = None) -> AgentStatus:
        """Answer approval requests, all or none; `turndock.client.approve`, `edit` and `reject` make answers.

        Raises APPROVAL_RESOLVED, with the answer in its metadata, for one that somebody answered before.
        """
        request = ResolveApprovalRequest(
            request_id=request_id or new_id(), agent_name=self.name, answers=answers
        )
        return (await self._host.quick(self._host.stub.ResolveApproval, request)).agent

    async def approve(self, *asked: Asked, request_id: str | None = None) -> AgentStatus:
        """Let these calls run as they are. Raises as `resolve_approval`."""
        answers = [answering.approve(one) for one in asked]
        return await self.resolve_approval(*answers, request_id=request_id)

    async def edit_approval(
        self, asked: Asked, arguments: Any, *, request_id: str | None = None
    ) -> AgentStatus:
        """Let a call run with other arguments, any JSON value. Raises as `resolve_approval`."""
        return await self.resolve_approval(answering.edit(asked, arguments), request_id=request_id)

    async def reject(self, *asked: Asked, feedback: str = "", request_id: str | None = None) -> AgentStatus:
        """Keep these calls from running, and tell the model why. Raises as `resolve_approval`."""
        answers = [answering.reject(one, feedback) for one in asked]
        return await self.resolve_approval(*answers, request_id=request_id)

    # --- Its life ------------------------------------------------------------------------------------------------

    async def touch(self, *, request_id: str | None = None) -> None:
        """Put its idle shutdown off."""
        request = TouchRequest(request_id=request_id or new_id(), agent_name=self.name)
        await self._host.quick(self._host.stub.Touch, request)

    async def stop(self, *, reason: str = "", request_id: str | None = None) -> AgentStatus:
        """End it for good and free its name."""
        request = StopAgentRequest(request_id=request_id or new_id(), agent_name=self.name, reason=reason)
        return (await self._host.quick(self._host.stub.StopAgent, request)).agent

    # --- Its log -------------------------------------------------------------------------------------------------

    @overload
    def watch(
        self,
        after: int | Cursor = 0,
        *,
        types: Iterable[EventType.ValueType] = (),
        run_id: str = "",
        until_terminal: bool = False,
        max_delay: float = 0.0,
        tries: int | None = None,
        on_lost: OnLost | None = None,
        on_resumed: OnResumed | None = None,
        frames: Literal[False] = False,
    ) -> Watch: ...
    @overload
    def watch(
        self,
        after: int | Cursor = 0,
        *,
        types: Iterable[EventType.ValueType] = (),
        run_id: str = "",
        until_terminal: bool = False,
        max_delay: float = 0.0,
        progress_interval: float | None = None,
        with_status: bool = False,
        tries: int | None = None,
        on_lost: OnLost | None = None,
        on_resumed: OnResumed | None = None,
        frames: Literal[True],
    ) -> FrameWatch: ...
    def watch(
        self,
        after: int | Cursor = 0,
        *,
        types: Iterable[EventType.ValueType] = (),
        run_id: str = "",
        until_terminal: bool = False,
        max_delay: float = 0.0,
        progress_interval: float | None = None,
        with_status: bool = False,
        tries: int | None = None,
        on_lost: OnLost | None = None,
        on_resumed: OnResumed | None = None,
        frames: bool = False,
    ) -> Watch | FrameWatch:
        """Its log after a sequence number or a cursor, and on as it grows, across lost connections.

        Args:
            after: The last number that is known already, or the cursor of an earlier watch.
            types: Only these types; others still move the cursor.
            run_id: Only this run's events.
            until_terminal: End with the terminal event of `run_id`.
            max_delay: How long events may be held back to fill a frame, in seconds.
            progress_interval: Yield a `progress` frame after so many seconds without another.
            with_status: Yield `status` frames.
            tries: Give up after so many failures in a row; None = never.
            on_lost: Called with the reason when the connection is lost; the watch tries to get it back.
            on_resumed: Called when it is back. Both are called in the event loop and must not block.
            frames: Yield frames instead of events.
        """

        async def locate() -> list[Cursor]:
            if isinstance(after, Cursor):
                return [after]
            status = await self.status()
            return [Cursor(session_id=status.session_id, after_sequence=after)]

        request = watch_request(
            types=types,
            run_id=run_id,
            until_terminal=until_terminal,
            max_delay=max_delay,
            progress_interval=progress_interval,
            with_status=with_status,
        )
        return (FrameWatch if frames else Watch)(
            self._host, request, locate, tries=tries, on_lost=on_lost, on_resumed=on_resumed
        )


def watch_request(
    *,
    types: Iterable[EventType.ValueType],
    run_id: str = "",
    until_terminal: bool = False,
    max_delay: float,
    progress_interval: float | None,
    with_status: bool,
) -> WatchRequest:
    """A request for a watch, without its cursors. Times in seconds."""
    return WatchRequest(
        types=types,
        run_id=run_id,
        until_terminal=until_terminal,
        max_delay_ms=round(max_delay * 1000) or None,
        progress_interval_ms=None if progress_interval is None else round(progress_interval * 1000),
        with_status=with_status,
    )


def _busy_policy(busy: Busy) -> BusyPolicy.ValueType:
    return BusyPolicy.Value(f"BUSY_POLICY_{busy.upper()}")


def _object(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else jsontext.canonical(value)
