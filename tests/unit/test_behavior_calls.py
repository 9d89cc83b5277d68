"""How a behavior is called that cannot be reached, or does not answer."""

from __future__ import annotations

import asyncio

import pytest

from turndock.behavior.v1 import PreRunRequest, PreRunResponse
from turndock.errors import TurndockError
from turndock_server.core.behavior_calls import BehaviorAway, BehaviorCalls, Patience

REQUEST = PreRunRequest(request_id="one")


class Away:
    """A behavior that is away for some calls, and hears the others."""

    def __init__(self, times: int, reason: str = "PLUGIN_UNAVAILABLE") -> None:
        self.heard: list[str] = []
        self._times = times
        self._reason = reason

    async def pre_run(self, request: PreRunRequest) -> PreRunResponse:
        self.heard.append(request.request_id)
        if len(self.heard) <= self._times:
            raise TurndockError(self._reason, "nobody answers")
        return PreRunResponse(state_json="{}")


def calls(
    *, timeout_s: float = 5.0, wait_s: float = 5.0, leaving: bool = False, ending: bool = False
) -> BehaviorCalls:
    patience = Patience(timeout_s=timeout_s, wait_s=wait_s)
    return BehaviorCalls(patience, leaving=lambda: leaving, ending=lambda: ending)


async def test_a_call_is_made_again_until_it_reaches_the_behavior() -> None:
    away = Away(3)
    assert (await calls().make(away.pre_run, REQUEST)).state_json == "{}"
    assert away.heard == ["one"] * 4


async def test_what_a_behavior_says_itself_counts_at_once() -> None:
    refusing = Away(1, reason="UNAVAILABLE")
    with pytest.raises(TurndockError, match="UNAVAILABLE"):
        await calls().make(refusing.pre_run, REQUEST)
    assert refusing.heard == ["one"]


async def test_patience_ends() -> None:
    away = Away(1_000)
    with pytest.raises(TurndockError, match="PLUGIN_UNAVAILABLE"):
        await calls(wait_s=0.12).make(away.pre_run, REQUEST)
    assert 2 <= len(away.heard) <= 4


async def test_an_agent_that_leaves_leaves_the_call_to_its_next_owner() -> None:
    with pytest.raises(BehaviorAway):
        await calls(leaving=True).make(Away(1).pre_run, REQUEST)


async def test_an_agent_that_ends_does_not_wait() -> None:
    away = Away(1_000)
    with pytest.raises(TurndockError, match="PLUGIN_UNAVAILABLE"):
        await calls(ending=True).make(away.pre_run, REQUEST)
    assert away.heard == ["one"]


async def test_a_call_has_its_time() -> None:
    async def for_ever(_: PreRunRequest) -> PreRunResponse:
        await asyncio.Event().wait()
        raise AssertionError("nobody waits so long")

    with pytest.raises(TurndockError, match=r"TIMEOUT: the behavior did not answer within 0\.05 s"):
        await calls(timeout_s=0.05).make(for_ever, REQUEST)
    with pytest.raises(TurndockError, match=r"within 0\.01 s"):
        await calls().once(for_ever, REQUEST, within_s=0.01)
