"""A backend in this process that does not answer: nobody waits for it for ever."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from support.docking import Outputs
from support.harness import Harness, refused, types
from turndock import events
from turndock.agent.v1 import InterruptOutcome
from turndock.backend.v1 import (
    PromptRequest,
    ResumeSessionRequest,
    ResumeSessionResponse,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
)
from turndock.ports import Backend, TurnContext
from turndock.types.v1 import AgentLimits, AgentPhase, BackendSession, RunStatus

CANCELLED = RunStatus.RUN_STATUS_CANCELLED
DORMANT_SOON = AgentLimits(idle_shutdown_ms=30)


class Hangs(Backend):
    """Answers at once, but for what it was told to hang in until `free` is set; perhaps deaf to its cancellation."""

    def __init__(self, *hangs_in: str, deaf: bool = False) -> None:
        self.hangs_in = set(hangs_in)
        self.deaf = deaf
        self.hung = asyncio.Event()
        self.free = asyncio.Event()

    async def _at(self, call: str) -> None:
        while call in self.hangs_in and not self.free.is_set():
            self.hung.set()
            with contextlib.suppress(asyncio.CancelledError) if self.deaf else contextlib.nullcontext():
                await self.free.wait()

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        await self._at("start")
        return StartSessionResponse(session=BackendSession(provider_session_id="s-1"))

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        await self._at("resume")
        return ResumeSessionResponse(session=request.session)

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        yield events.result(request.prompt)

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        await self._at("terminate")
        return TerminateSessionResponse()


async def dormant(host: Harness, backend: Hangs) -> None:
    """An agent that has to take its session up again before its next turn."""
    host.backends["hangs"] = backend
    await host.start(backend="hangs", limits=DORMANT_SOON)
    await host.ask("one")
    await host.until(lambda status: status.phase == AgentPhase.AGENT_PHASE_DORMANT)


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_turn_whose_backend_hangs_while_it_resumes_can_be_interrupted(
    local_host: Harness, deaf: bool
) -> None:
    backend = Hangs("resume", deaf=deaf)
    await dormant(local_host, backend)
    run_id = await local_host.tell("two")
    await backend.hung.wait()
    assert await local_host.interrupt() == InterruptOutcome.INTERRUPT_OUTCOME_ACCEPTED
    run = await local_host.ended(run_id)
    assert (run.status, run.failure.reason) == (CANCELLED, "interrupted")
    backend.free.set()
    assert (await local_host.ask("three")).response.text == "three"
    assert types(await local_host.log(run_id=run_id)) == ["run_started", "message_sent", "run_cancelled"]


async def test_an_agent_whose_backend_hangs_while_it_resumes_can_be_stopped(local_host: Harness) -> None:
    backend = Hangs("resume")
    await dormant(local_host, backend)
    run_id = await local_host.tell("two")
    session_id = (await local_host.status()).session_id
    await backend.hung.wait()
    assert (await local_host.stop()).phase == AgentPhase.AGENT_PHASE_STOPPED
    assert "session_completed" in types(await local_host.log_of(session_id))
    [*_, ended] = await local_host.log_of(session_id, run_id=run_id)
    assert events.type_name(ended.type) == "run_cancelled"
    assert ended.run_failed.failure.reason == "agent_terminated"


async def test_a_turn_does_not_wait_longer_than_the_limit(local_host: Harness) -> None:
    backend = Hangs("resume")
    await dormant(local_host, backend)
    began = time.monotonic()
    answer = await local_host.ask("two")
    assert 0.4 < time.monotonic() - began < 5
    assert (answer.failure.reason, answer.failure.retryable) == ("backend_start_failed", True)
    assert answer.failure.message.startswith("the backend did not answer within 0.")
    backend.free.set()
    assert (await local_host.ask("three")).response.text == "three"


async def test_a_start_does_not_wait_longer_than_the_limit_and_the_name_is_free(local_host: Harness) -> None:
    backend = local_host.backends["hangs"] = Hangs("start")
    with refused("BACKEND_START_FAILED") as caught:
        await local_host.start(backend="hangs")
    assert "did not answer within" in caught.value.message
    backend.free.set()
    await local_host.start(backend="hangs")


async def test_an_agent_ends_although_its_backend_does_not_let_go(
    local_host: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turndock_server.core.attach._RELEASE_WITHIN_S", 0.05)
    backend = local_host.backends["hangs"] = Hangs("terminate")
    await local_host.start(backend="hangs")
    assert (await local_host.stop()).phase == AgentPhase.AGENT_PHASE_STOPPED
    assert backend.hung.is_set()
