"""PF-E19 at the host's own service: every shape of call fails alike, and who calls is forgotten with the call."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.harness import Harness, refused
from support.parts import gate, result
from turndock import jsontext, wire
from turndock.agent.v1 import (
    AskRequest,
    CancelRunRequest,
    GetAgentRequest,
    GetRunRequest,
    InterruptRequest,
    ListRunsRequest,
    NotifyRequest,
    PromptRequest,
    StartAgentRequest,
    StopAgentRequest,
    TellRequest,
    TouchRequest,
    UnhaltRequest,
    UpdateQueuedRunRequest,
    WatchRequest,
)
from turndock.errors import Code, TurndockError
from turndock.types.v1 import AgentDefinition, Cursor

Metadata = tuple[tuple[str, str], ...]
RED: Metadata = ((wire.SCOPE, wire.encode_tenant("red")),)
BLUE: Metadata = ((wire.SCOPE, wire.encode_tenant("blue")),)

CALLS: dict[str, Callable[[Any, Metadata], Awaitable[Any]]] = {
    "GetAgent": lambda stub, who: stub.GetAgent(GetAgentRequest(agent_name="a1"), metadata=who),
    "StopAgent": lambda stub, who: stub.StopAgent(StopAgentRequest(agent_name="a1"), metadata=who),
    "Ask": lambda stub, who: stub.Ask(AskRequest(agent_name="a1", prompt="x"), metadata=who),
    "Tell": lambda stub, who: stub.Tell(TellRequest(agent_name="a1", prompt="x"), metadata=who),
    "Prompt": lambda stub, who: _first(stub.Prompt(PromptRequest(agent_name="a1", prompt="x"), metadata=who)),
    "GetRun": lambda stub, who: stub.GetRun(GetRunRequest(agent_name="a1", run_id="r1"), metadata=who),
    "ListRuns": lambda stub, who: stub.ListRuns(ListRunsRequest(agent_name="a1"), metadata=who),
    "UpdateQueuedRun": lambda stub, who: stub.UpdateQueuedRun(
        UpdateQueuedRunRequest(agent_name="a1", run_id="r1", prompt="y"), metadata=who
    ),
    "CancelRun": lambda stub, who: stub.CancelRun(
        CancelRunRequest(agent_name="a1", run_id="r1"), metadata=who
    ),
    "Notify": lambda stub, who: stub.Notify(
        NotifyRequest(agent_name="a1", payload_json=jsontext.canonical("e")), metadata=who
    ),
    "Interrupt": lambda stub, who: stub.Interrupt(InterruptRequest(agent_name="a1"), metadata=who),
    "Unhalt": lambda stub, who: stub.Unhalt(UnhaltRequest(agent_name="a1"), metadata=who),
    "Touch": lambda stub, who: stub.Touch(TouchRequest(agent_name="a1"), metadata=who),
}


async def _first(stream: Any) -> Any:
    async for frame in stream:
        return frame
    raise AssertionError("an empty stream")


async def start(host: Harness, who: Metadata) -> str:
    """The session of an agent `a1` in that scope."""
    definition = AgentDefinition(
        agent_name="a1",
        backend="scripted",
        behavior="scripted",
        backend_config_json=jsontext.canonical({"scripts": [[gate("g"), result("x")]]}),
    )
    stub: Any = host.served.stub
    answer = await stub.StartAgent(StartAgentRequest(definition=definition), metadata=who)
    session_id: str = answer.agent.session_id
    return session_id


async def failure_of(call: Awaitable[Any]) -> TurndockError:
    with pytest.raises(TurndockError) as caught, wire.translated():
        await call
    return caught.value


@pytest.mark.parametrize("name", CALLS)
async def test_PF_E19_an_agent_of_another_scope_is_unknown_in_every_call(
    local_host: Harness, name: str
) -> None:
    stub = local_host.served.stub
    unknown = await failure_of(CALLS[name](stub, BLUE))
    await start(local_host, RED)
    for who in (BLUE, ()):
        foreign = await failure_of(CALLS[name](stub, who))
        assert vars(foreign) == vars(unknown)
        assert (foreign.reason, foreign.code) == ("AGENT_NOT_FOUND", Code.NOT_FOUND)
        assert foreign.metadata == {"key": "a1"}
    own = await stub.GetAgent(GetAgentRequest(agent_name="a1"), metadata=RED)
    assert own.agent.agent_name == "a1"


async def test_PF_E19_a_watch_of_another_scope_is_unknown_too(local_host: Harness) -> None:
    session_id = await start(local_host, RED)
    stub: Any = local_host.served.stub
    request = WatchRequest(cursors=[Cursor(session_id=session_id)])
    for who in (BLUE, ()):
        error = await failure_of(_first(stub.Watch(request, metadata=who)))
        assert (error.reason, error.metadata) == ("SESSION_NOT_FOUND", {"key": session_id})
    assert (await _first(stub.Watch(request, metadata=RED))).created.head == 2


async def test_PF_E19_who_calls_is_known_to_each_call_alone(local_host: Harness) -> None:
    """Calls of many scopes at once, some of which fail: each sees its own."""
    tenants: list[Metadata] = [((wire.SCOPE, wire.encode_tenant(f"t{number}")),) for number in range(8)]
    sessions = await asyncio.gather(*(start(local_host, who) for who in tenants))
    stub: Any = local_host.served.stub

    async def look(number: int) -> None:
        for _ in range(5):
            status = await stub.GetAgent(GetAgentRequest(agent_name="a1"), metadata=tenants[number])
            assert status.agent.session_id == sessions[number]
            other = WatchRequest(cursors=[Cursor(session_id=sessions[number - 1])])
            error = await failure_of(_first(stub.Watch(other, metadata=tenants[number])))
            assert error.reason == "SESSION_NOT_FOUND"

    await asyncio.gather(*(look(number) for number in range(8)))
    with refused("AGENT_NOT_FOUND"):
        await local_host.status()
