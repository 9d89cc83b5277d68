"""`turndock.agent.v1.AgentHost`: requests checked, callers found out, the host asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, Protocol, cast

import grpc.aio

from turndock import events
from turndock.agent.v1 import (
    AskRequest,
    AskResponse,
    Batch,
    CancelRunRequest,
    CancelRunResponse,
    ForkSessionRequest,
    ForkSessionResponse,
    GetAgentRequest,
    GetAgentResponse,
    GetRunRequest,
    GetRunResponse,
    GetServerInfoRequest,
    GetServerInfoResponse,
    InterruptRequest,
    InterruptResponse,
    ListAgentsRequest,
    ListAgentsResponse,
    ListRunsRequest,
    ListRunsResponse,
    NotifyRequest,
    NotifyResponse,
    PromptAccepted,
    PromptOutcome,
    PromptRequest,
    PromptResponse,
    ResolveApprovalRequest,
    ResolveApprovalResponse,
    StartAgentRequest,
    StartAgentResponse,
    StopAgentRequest,
    StopAgentResponse,
    TellRequest,
    TellResponse,
    TouchRequest,
    TouchResponse,
    UnhaltRequest,
    UnhaltResponse,
    UpdateQueuedRunRequest,
    UpdateQueuedRunResponse,
    WatchRequest,
    WatchResponse,
    agent_host_pb2,
)
from turndock.errors import invalid
from turndock.serving.handlers import Handler, add_port
from turndock.types.v1 import Run, RunOrigin
from turndock_server.core.feed import AgentKey
from turndock_server.core.forking import Forker
from turndock_server.core.host import Host, Located
from turndock_server.core.prompts import Prompts, Submitted
from turndock_server.core.starter import Starter
from turndock_server.services.callers import caller

Context = grpc.aio.ServicerContext[Any, Any]

SERVICE: Final = agent_host_pb2.DESCRIPTOR.services_by_name["AgentHost"]

MAX_CURSORS = 100
MAX_WAIT_MS = 60_000
MIN_PROGRESS_MS = 100
MAX_DELAY_MS = 1_000
_DEADLINE_MARGIN_S = 1.0
"""A call that ends with less time left may have run out of it: the caller's clock began to run before ours."""


class _Addressed(Protocol):
    agent_name: str


class AgentHostService:
    """The RPCs that answer once; `add_to` also serves those that stream or watch for their caller's going."""

    def __init__(
        self,
        host: Host,
        starter: Starter,
        prompts: Prompts,
        server_info: Callable[[], Awaitable[GetServerInfoResponse]],
    ) -> None:
        self._host = host
        self._starter = starter
        self._prompts = prompts
        self._server_info = server_info
        self._forker = Forker(host)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve every RPC."""
        own: dict[str, Handler] = {"Ask": self._ask, "Prompt": self._prompt, "Watch": self._watch}
        add_port(server, SERVICE, self, own=own, encoded=("Watch",))

    # --- Agents --------------------------------------------------------------------------------------------------

    async def start_agent(self, request: StartAgentRequest) -> StartAgentResponse:
        """Make an agent."""
        _check_request_id(request.request_id)
        started = await self._starter.start(caller().tenant, request)
        return StartAgentResponse(
            agent=await self._host.status(started.located),
            restored=started.restored,
            restored_backend=started.restored_backend,
        )

    async def get_agent(self, request: GetAgentRequest) -> GetAgentResponse:
        """Read a status."""
        located = await self._locate_either(request.agent_name, request.session_id)
        return GetAgentResponse(agent=await self._host.status(located))

    async def list_agents(self, request: ListAgentsRequest) -> ListAgentsResponse:
        """List agents."""
        return await self._host.list_agents(caller().tenant, request.page)

    async def stop_agent(self, request: StopAgentRequest) -> StopAgentResponse:
        """End an agent."""
        _check_request_id(request.request_id)
        _check_name(request)
        return StopAgentResponse(agent=await self._host.stop_agent(caller().tenant, request))

    async def notify(self, request: NotifyRequest) -> NotifyResponse:
        """Hand the behavior an event."""
        _check_request_id(request.request_id)
        return await self._host.notify(await self._locate(request), request)

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        """Kill the turn under way."""
        return await self._host.interrupt(await self._locate(request), request)

    async def unhalt(self, request: UnhaltRequest) -> UnhaltResponse:
        """Thaw the mailbox."""
        return UnhaltResponse(agent=await self._host.unhalt(await self._locate(request), request.request_id))

    async def resolve_approval(self, request: ResolveApprovalRequest) -> ResolveApprovalResponse:
        """Decide on approvals."""
        _check_request_id(request.request_id)
        status = await self._host.resolve_approval(
            await self._locate(request), request, principal=caller().name
        )
        return ResolveApprovalResponse(agent=status)

    async def touch(self, request: TouchRequest) -> TouchResponse:
        """Put the idle shutdown off."""
        await self._host.touch(await self._locate(request))
        return TouchResponse()

    async def fork_session(self, request: ForkSessionRequest) -> ForkSessionResponse:
        """Make a session that begins with another one's history."""
        _check_request_id(request.request_id)
        return ForkSessionResponse(session=await self._forker.fork(caller().tenant, request))

    async def get_server_info(self, _: GetServerInfoRequest) -> GetServerInfoResponse:
        """Describe the server, and the caller's place in it."""
        info = await self._server_info()
        tenant = caller().tenant
        if tenant is not None:
            info.scope.tenant = tenant
        if not caller().may_choose_scope:
            info.live_agents = self._host.roster.size_of(tenant)
        return info

    # --- Runs ----------------------------------------------------------------------------------------------------

    async def tell(self, request: TellRequest) -> TellResponse:
        """Accept a prompt."""
        _check_name(request)
        async with self._prompts.submitted(caller().tenant, request, RunOrigin.RUN_ORIGIN_TELL) as submitted:
            return TellResponse(run=submitted.run, cursor=submitted.cursor)

    async def get_run(self, request: GetRunRequest) -> GetRunResponse:
        """Read a run, perhaps after its end."""
        located = await self._locate_either(request.agent_name, request.session_id)
        _check_run_id(request.run_id)
        if not 0 <= request.wait_ms <= MAX_WAIT_MS:
            raise invalid("wait_ms", f"must be between 0 and {MAX_WAIT_MS}")
        run = await self._prompts.run(
            located, request.run_id, wait_s=request.wait_ms / 1000, with_events=request.with_events
        )
        return GetRunResponse(run=run)

    async def list_runs(self, request: ListRunsRequest) -> ListRunsResponse:
        """List runs."""
        located = await self._locate_either(request.agent_name, request.session_id)
        return await self._prompts.list(located, request)

    async def update_queued_run(self, request: UpdateQueuedRunRequest) -> UpdateQueuedRunResponse:
        """Change a waiting run."""
        _check_request_id(request.request_id)
        _check_run_id(request.run_id)
        if not (request.HasField("prompt") or request.before_run_id or request.to_tail):
            raise invalid("prompt", "nothing to change: set prompt, before_run_id or to_tail")
        if request.before_run_id and request.to_tail:
            raise invalid("to_tail", "excludes before_run_id")
        run = await self._prompts.update(await self._locate(request), request)
        return UpdateQueuedRunResponse(run=run)

    async def cancel_run(self, request: CancelRunRequest) -> CancelRunResponse:
        """End a waiting run."""
        _check_request_id(request.request_id)
        _check_run_id(request.run_id)
        return CancelRunResponse(run=await self._prompts.cancel(await self._locate(request), request))

    async def _ask(self, request: AskRequest, context: Context) -> AskResponse:
        """Accept a prompt and wait for its outcome."""
        _check_name(request)
        async with self._prompts.submitted(
            caller().tenant, request, RunOrigin.RUN_ORIGIN_ASK, unwanted=lambda: _hung_up(context)
        ) as submitted:
            run, response = await self._prompts.outcome(submitted)
        if response is not None:
            return AskResponse(run=_beside_its_response(run), response=response)
        return AskResponse(run=run, failure=run.failure)

    async def _prompt(self, request: PromptRequest, context: Context) -> None:
        """Accept a prompt and stream its run."""
        located = await self._locate(request)
        # Watched before it begins, the run is seen live from its first event on, without asking the store for it.
        with self._host.journal.feed.watching(located.key) as tail:
            await self._prompt_and_stream(
                request, context, lambda key: key == located.key and not tail.deleted
            )

    async def _prompt_and_stream(
        self, request: PromptRequest, context: Context, is_watched: Callable[[AgentKey], bool]
    ) -> None:
        async with self._prompts.submitted(
            caller().tenant, request, RunOrigin.RUN_ORIGIN_PROMPT
        ) as submitted:
            await context.send_initial_metadata(())
            accepted = PromptAccepted(run=submitted.run, cursor=submitted.cursor)
            await context.write(PromptResponse(accepted=accepted))
            # The name may have passed to another session, and the session may be gone: then the store has to be asked.
            is_fresh = submitted.is_new and is_watched(submitted.key)
            await self._stream_run(submitted, context, is_fresh=is_fresh)
            run, response = await self._prompts.outcome(submitted)
            outcome = PromptOutcome(
                run=_beside_its_response(run), response=response, failure=None if response else run.failure
            )
            await context.write(PromptResponse(outcome=outcome))

    async def _stream_run(self, submitted: Submitted, context: Context, *, is_fresh: bool) -> None:
        watched = WatchRequest(cursors=[submitted.cursor], run_id=submitted.run.id, until_terminal=True)
        watch = self._host.watch(submitted.key.tenant, watched, is_fresh=is_fresh)
        async with aclosing(watch) as frames:
            async for encoded in frames:
                frame = WatchResponse.FromString(encoded)
                if frame.HasField("batch"):
                    await context.write(PromptResponse(batch=Batch(events=frame.batch.events)))
        if self._host.stopping:
            self._host.refuse_when_stopping()

    async def _watch(self, request: WatchRequest, context: Context) -> None:
        """Stream logs."""
        _check_watch(request)
        await context.send_initial_metadata(())
        async with aclosing(self._host.watch(caller().tenant, request)) as frames:
            async for frame in frames:
                await context.write(frame)

    # --- Finding -------------------------------------------------------------------------------------------------

    async def _locate(self, request: _Addressed) -> Located:
        _check_name(request)
        return await self._host.locate(caller().tenant, request.agent_name)

    async def _locate_either(self, agent_name: str, session_id: str) -> Located:
        if bool(agent_name) == bool(session_id):
            raise invalid("agent_name", "set exactly one of agent_name and session_id")
        return await self._host.locate(caller().tenant, agent_name, session_id)


def _hung_up(context: Context) -> bool:
    """Whether the caller took the call back, rather than ran out of time."""
    left = cast("float | None", context.time_remaining())  # None for a call without a deadline
    return left is None or left > _DEADLINE_MARGIN_S


def _beside_its_response(run: Run) -> Run:
    """The run without the response that travels beside it: a long answer need not travel twice."""
    slim = Run()
    slim.CopyFrom(run)
    slim.ClearField("response")
    return slim


def _check_name(request: _Addressed) -> None:
    events.check_id(request.agent_name, "agent_name", max_bytes=256)


def _check_run_id(run_id: str) -> None:
    events.check_id(run_id, "run_id", max_bytes=256)


def _check_request_id(request_id: str) -> None:
    if request_id:
        events.check_id(request_id, "request_id")


def _check_watch(request: WatchRequest) -> None:
    if not 1 <= len(request.cursors) <= MAX_CURSORS:
        raise invalid("cursors", f"must be 1 to {MAX_CURSORS}")
    seen: set[str] = set()
    for index, cursor in enumerate(request.cursors):
        events.check_id(cursor.session_id, f"cursors[{index}].session_id")
        if cursor.session_id in seen:
            raise invalid(f"cursors[{index}].session_id", "is named twice")
        seen.add(cursor.session_id)
    if request.until_terminal and not request.run_id:
        raise invalid("run_id", "until_terminal needs it")
    if request.HasField("progress_interval_ms") and request.progress_interval_ms < MIN_PROGRESS_MS:
        raise invalid("progress_interval_ms", f"must be at least {MIN_PROGRESS_MS}")
    if not 0 <= request.max_delay_ms <= MAX_DELAY_MS:
        raise invalid("max_delay_ms", f"must be between 0 and {MAX_DELAY_MS}")
