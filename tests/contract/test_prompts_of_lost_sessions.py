"""A caller who waits for a run is told its end, also when the session goes away under it."""

import asyncio
from typing import Any

import pytest

from support.harness import WAIT_S, Harness, refused
from support.parts import asked, paused, result, text
from turndock.store.v1 import DeleteSessionRequest, EnqueueRunResponse
from turndock_server.core.feed import AgentKey


def after_enqueueing(host: Harness, monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Do something once, right after the next prompt is in its mailbox."""
    roster = host.served.host.roster
    enqueue = roster.enqueue_run

    async def enqueue_and_act(key: AgentKey, *request: Any, **fields: Any) -> EnqueueRunResponse:
        monkeypatch.setattr(roster, "enqueue_run", enqueue)
        accepted = await enqueue(key, *request, **fields)
        await act(key.session_id)
        return accepted

    monkeypatch.setattr(roster, "enqueue_run", enqueue_and_act)


async def delete(host: Harness, session_id: str) -> None:
    await host.served.host.journal.delete_session(DeleteSessionRequest(session_id=session_id))


async def test_a_prompt_whose_session_is_deleted_at_once_is_told_so(
    local_host: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_host.start([text("a"), result()])

    async def act(session_id: str) -> None:
        await local_host.stop()
        await delete(local_host, session_id)

    after_enqueueing(local_host, monkeypatch, act)
    with refused("SESSION_NOT_FOUND"):
        async with asyncio.timeout(WAIT_S / 4):
            await local_host.prompt("x")


async def test_a_prompt_sees_the_run_of_the_session_that_has_its_agents_name_now(
    local_host: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_host.start([text("a"), result()])
    host = local_host.served.host
    locate, times = host.locate, 0

    async def locate_another(*names: Any) -> Any:
        nonlocal times
        times += 1
        if times == 2:  # it was found, and now is to be prompted
            await local_host.stop()
            await local_host.start([text("b"), result()])
        return await locate(*names)

    monkeypatch.setattr(host, "locate", locate_another)

    async def act(session_id: str) -> None:
        await local_host.until_idle()

    after_enqueueing(local_host, monkeypatch, act)
    async with asyncio.timeout(WAIT_S / 4):
        frames = await local_host.prompt("x")
    said = [event.message_streamed.text for frame in frames for event in frame.batch.events]
    assert "b" in said
    assert frames[-1].outcome.response.text == "b"


@pytest.mark.parametrize("how", ["ask", "prompt"])
async def test_who_waits_for_a_parked_turn_is_told_when_its_session_is_deleted(
    local_host: Harness, how: str
) -> None:
    session_id = (await local_host.start([paused(asked("one"))])).agent.session_id
    waiting = asyncio.create_task(getattr(local_host, how)("x"))
    await local_host.until_asked()
    roster = local_host.served.host.roster
    agent = roster.get(AgentKey(None, session_id))
    assert agent is not None
    await roster.leave(agent, "test")
    await delete(local_host, session_id)
    with refused("SESSION_NOT_FOUND"):
        async with asyncio.timeout(WAIT_S / 4):
            await waiting
