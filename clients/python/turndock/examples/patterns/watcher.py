"""Watcher: an agent that is told of everything and speaks only when it matters.

Shows `handle_event` as a filter in front of a model: each reading is a notification, durable before it is acknowledged;
only one that crosses the threshold costs a turn. What it has seen is its state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turndock.behavior.v1 import (
    HandleEventRequest,
    HandleEventResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    InitAgentRequest,
    InitAgentResponse,
)
from turndock.client import Client
from turndock.decisions import noreply, prompt, state_of
from turndock.examples.patterns.program import agent, main, state, until
from turndock.jsontext import canonical, parse_object
from turndock.ports import Behavior
from turndock.types.v1 import AgentPhase

READINGS = (19, 24, 31, 33, 28, 22, 35)


class Watcher(Behavior):
    """Has a model look at a reading when the threshold is crossed upwards."""

    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        config = parse_object(request.config_json, "config_json")
        start: dict[str, Any] = {"threshold": config["threshold"], "seen": 0, "hot": False, "alerts": []}
        return InitAgentResponse(state_json=canonical(start))

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        state = state_of(request)
        degrees = parse_object(request.payload_json, "payload_json")["degrees"]
        was_hot, state["hot"] = state["hot"], degrees > state["threshold"]
        state["seen"] += 1
        crossed = state["hot"] and not was_hot
        decision = prompt(f"It is {degrees} degrees.") if crossed else noreply()
        return HandleEventResponse(state_json=canonical(state), decision=decision)

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        state = state_of(request)
        state["alerts"].append(request.response.text)
        return HandleResponseResponse(state_json=canonical(state))


async def watcher(
    client: Client,
    *,
    behavior: str = "plugin:watcher",
    backend: str = "echo",
    readings: Iterable[int] = READINGS,
) -> dict[str, Any]:
    """How many readings there were, and the alerts."""
    config = {"behavior": behavior, "behavior_config": {"threshold": 30}}
    async with agent(client, "thermometer", backend=backend, **config) as thermometer:
        for number, degrees in enumerate(readings):
            # A feed that is started again repeats its numbers, and the agent hears each reading once.
            await thermometer.notify({"degrees": degrees}, request_id=f"reading-{number}")
        await until(thermometer, _has_heard_all)
        seen = await state(thermometer)
        return {"seen": seen["seen"], "alerts": seen["alerts"]}


def _has_heard_all(status: Any) -> bool:
    idle: bool = status.phase == AgentPhase.AGENT_PHASE_IDLE
    return idle and not status.queued and not status.pending_notifications


if __name__ == "__main__":
    main("watcher", watcher, behavior=Watcher())
