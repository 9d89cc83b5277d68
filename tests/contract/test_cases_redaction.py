"""E-05 over a served host: what is redacted is redacted everywhere, and off it is off."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.hosting import Served, make_host, served
from turndock.agent.v1 import AskRequest, GetRunRequest, StartAgentRequest, WatchRequest
from turndock.backend.v1 import PromptRequest, Result
from turndock.ports import TurnContext, TurnOutput
from turndock.store.v1 import ArtifactStoreGetRequest, GetEventsRequest
from turndock.store.v1.session_store_pb2_grpc import SessionStoreStub
from turndock.types.v1 import AgentDefinition, Cursor, Event, EventType, Failure, MessageStreamed
from turndock_server.backends.echo import EchoBackend
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.observability import Redactor
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore
from turndock_server.stores.sql import SqlSessionStore

SECRET = "secret123"
SCRIPT = {"scripts": [[{"text": f"password={SECRET} ok"}, {"result": {"text": f"password={SECRET} ok"}}]]}


async def a_turn(host: Served) -> tuple[str, list[bytes]]:
    """One turn that says a secret; the session's id, and everything a caller can get to see of the turn."""
    definition = AgentDefinition(agent_name="ann", backend="scripted", backend_config_json=json.dumps(SCRIPT))
    session_id = (await host.stub.StartAgent(StartAgentRequest(definition=definition))).agent.session_id
    answer = await host.stub.Ask(AskRequest(agent_name="ann", request_id="r", prompt="hello"))
    run = await host.stub.GetRun(GetRunRequest(agent_name="ann", run_id="r", with_events=True))
    return session_id, [answer.SerializeToString(), run.SerializeToString()]


async def watched(host: Served, session_id: str) -> list[Event]:
    """What a watcher of the run gets."""
    call = host.stub.Watch(
        WatchRequest(cursors=[Cursor(session_id=session_id)], run_id="r", until_terminal=True)
    )
    return [event async for frame in call for event in frame.batch.events]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_E_05_store_watchers_and_answers_show_the_same_redacted_text(kind: str, tmp_path: Path) -> None:
    store = MemorySessionStore() if kind == "memory" else await SqlSessionStore.open(tmp_path / "store.db")
    try:
        host = make_host(store, {"scripted": ScriptedBackend()}, redactor=Redactor())
        async with served(host) as server:
            session_id, answers = await a_turn(server)
            stored = await SessionStoreStub(server.channel).GetEvents(
                GetEventsRequest(session_id=session_id, run_id="r")
            )
            live = await watched(server, session_id)
    finally:
        await store.close()
    assert list(stored.events) == live
    [piece] = [event for event in live if event.HasField("message_streamed")]
    assert piece.message_streamed.text == "[REDACTED] ok"
    assert json.loads(piece.metadata_json)["turndock.redacted"] == 1
    [received] = [event for event in live if event.HasField("message_received")]
    assert received.message_received.text == "[REDACTED] ok"
    for seen in [*answers, *(event.SerializeToString() for event in live)]:
        assert SECRET.encode() not in seen


async def test_E_05_a_payload_that_is_kept_elsewhere_is_redacted_too() -> None:
    artifacts = MemoryArtifactStore()
    said = f"password={SECRET} " + "x" * (1 << 20)
    script = json.dumps({"scripts": [[{"text": said}, {"result": {"text": "done"}}]]})
    host = make_host(
        MemorySessionStore(), {"scripted": ScriptedBackend()}, redactor=Redactor(), artifacts=artifacts
    )
    async with served(host) as server:
        definition = AgentDefinition(agent_name="ann", backend="scripted", backend_config_json=script)
        await server.stub.StartAgent(StartAgentRequest(definition=definition))
        run = (await server.stub.Ask(AskRequest(agent_name="ann", request_id="r", prompt="hello"))).run
        stored = await SessionStoreStub(server.channel).GetEvents(
            GetEventsRequest(session_id=run.session_id, run_id="r")
        )
    [key] = [event.offloaded.key for event in stored.events if event.HasField("offloaded")]
    kept = b"".join([part.chunk async for part in artifacts.get(ArtifactStoreGetRequest(key=key))])
    event = Event.FromString(kept)
    assert event.message_streamed.text.startswith("[REDACTED] xxx")
    assert json.loads(event.metadata_json)["turndock.redacted"] == 1
    assert SECRET.encode() not in kept


SAID = f"password={SECRET} ok"
ENDS: dict[str, dict[str, Any]] = {
    "a failure": {"fail": {"reason": "odd", "message": SAID, "details_json": json.dumps({"a": SAID})}},
    "a crash": {"raise": SAID},
    "a result with data": {"result": {"text": "done", "data_json": json.dumps({"a": SAID})}},
}


@pytest.mark.parametrize("end", ENDS)
async def test_E_05_what_is_told_of_a_turns_end_is_redacted_like_the_log(end: str) -> None:
    class Ending(EchoBackend):
        """Says a secret under a type that carries none, and ends as the case wants."""

        async def prompt(self, request: PromptRequest, turn: TurnContext) -> AsyncIterator[TurnOutput]:
            yield Event(type=EventType.EVENT_TYPE_TURN_COMPLETED, message_streamed=MessageStreamed(text=SAID))
            for kind, fields in ENDS[end].items():
                if kind == "raise":
                    raise RuntimeError(fields)
                yield Failure(**fields) if kind == "fail" else Result(**fields)

    host = make_host(MemorySessionStore(), {"ending": Ending()}, redactor=Redactor())
    async with served(host) as server:
        definition = AgentDefinition(agent_name="ann", backend="ending")
        await server.stub.StartAgent(StartAgentRequest(definition=definition))
        answer = await server.stub.Ask(AskRequest(agent_name="ann", request_id="r", prompt="hello"))
        stored = await server.stub.GetRun(GetRunRequest(agent_name="ann", run_id="r", with_events=True))
        live = await watched(server, answer.run.session_id)
    told = [each.SerializeToString() for each in (answer, stored, *live)]
    assert b"[REDACTED] ok" in told[0]
    assert not [each for each in told if SECRET.encode() in each]


async def test_E_05_off_by_default() -> None:
    host = make_host(MemorySessionStore(), {"scripted": ScriptedBackend()})
    async with served(host) as server:
        session_id, answers = await a_turn(server)
        live = await watched(server, session_id)
    assert all(SECRET.encode() in answer for answer in answers)
    [piece] = [event for event in live if event.HasField("message_streamed")]
    assert piece.message_streamed.text == f"password={SECRET} ok"
