"""Every RPC, asked for what another scope has and for what nobody has: nothing a caller sees tells one from the other.

Timing is compared by what takes the time: the calls of the stores that were made.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor

from support import probing, secured
from support.probing import Ids
from turndock.agent.v1 import AskRequest, StartAgentRequest
from turndock.agent.v1.agent_host_pb2_grpc import AgentHostStub
from turndock.errors import Code, TurndockError
from turndock.ports import ArtifactStore, EventWatcher, Mailbox, SessionStore
from turndock.remote import RemoteArtifactStore, RemoteSessionStore
from turndock.store.v1 import (
    ArtifactHeader,
    ArtifactStorePutRequest,
    DeleteSessionRequest,
    GetEventsRequest,
    GetSessionRequest,
)
from turndock.types.v1 import AgentDefinition, Scope
from turndock_server.access import Role
from turndock_server.services.permissions import ROLES, needed_role
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

AUTH = 'auth.tokens = "tokens.json"\n'
SERVICES = [name for name in ROLES if name.startswith("turndock.")]
RPCS = [rpc for name in SERVICES for rpc in probing.service_named(name).methods]
IN_STORES = [rpc for rpc in RPCS if rpc.containing_service.full_name.startswith("turndock.store.")]
IN_MEMORY = ("AgentHost", "SessionStore", "ArtifactStore")
"""The contracts that are served without a database, too."""
UPKEEP = {"list_orphans", "renew_claims"}
"""What the host asks its store by itself, now and then."""

NOBODYS = Ids(
    tenant="nothing",
    agent="agent-nil",
    session="00000000-0000-4000-8000-000000000000",
    run="run-nil-1",
    event="00000000-0000-4000-8000-000000000001",
    key="key-nil",
)


@dataclass
class Probed:
    """A server in which the scope `scarlet` has an agent, a run, a log and an artifact."""

    channel: grpc.aio.Channel
    tokens: dict[str, str]
    reds: Ids
    store_calls: list[str]
    served: list[str]

    def serves(self, rpc: MethodDescriptor) -> bool:
        """Whether the server has the contract at all."""
        return rpc.containing_service.full_name in self.served

    async def ask(
        self, rpc: MethodDescriptor, ids: Ids, who: str = "blue-admin"
    ) -> list[tuple[probing.Outcome, list[str]]]:
        """What `who` is told, and which calls of the stores it cost."""
        found: list[tuple[probing.Outcome, list[str]]] = []
        for request in probing.requests_for(rpc, ids):
            self.store_calls.clear()
            outcome = await probing.call(
                self.channel, rpc, request, secured.sending(self.tokens[who]), ids=ids
            )
            found.append((outcome, [call for call in self.store_calls if call not in UPKEEP]))
        return found


@pytest.fixture
async def probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Probed]:
    calls: list[str] = []
    for kind, ports in (
        (MemorySessionStore, (SessionStore, Mailbox, EventWatcher)),
        (MemoryArtifactStore, (ArtifactStore,)),
    ):
        for name in {name for port in ports for name in vars(port) if not name.startswith("_")}:
            if hasattr(kind, name):
                monkeypatch.setattr(kind, name, _recorded(name, getattr(kind, name), calls))
    tokens = secured.make_tokens(tmp_path / "tokens.json", "scarlet", "blue")
    async with (
        secured.an_app(tmp_path, AUTH, store=_store_for(request)) as (_, endpoint),
        secured.a_channel(endpoint) as channel,
    ):
        reds = await _settle(channel, tokens["scarlet-controller"])
        served = await probing.services_of(channel, secured.sending(tokens["admin"]))
        yield Probed(channel, tokens, reds, calls, served)


def _store_for(request: pytest.FixtureRequest) -> str:
    """Where the contract that is probed is served: some only where there is a database."""
    rpc = request.node.callspec.params.get("rpc") if hasattr(request.node, "callspec") else None
    return "memory" if rpc is None or rpc.containing_service.name in IN_MEMORY else "sqlite"


def _recorded(name: str, method: Any, calls: list[str]) -> Any:
    def record(self: Any, request: Any, *more: Any) -> Any:
        calls.append(name)
        return method(self, request, *more)

    return record


async def _settle(channel: grpc.aio.Channel, token: str) -> Ids:
    """What scarlet has, as ids that are as long as nobody's."""
    metadata = secured.sending(token)
    stub: Any = AgentHostStub(channel)
    definition = AgentDefinition(agent_name="agent-red", backend="echo")
    started = await stub.StartAgent(StartAgentRequest(definition=definition), metadata=metadata)
    session_id: str = started.agent.session_id
    await stub.Ask(
        AskRequest(agent_name="agent-red", request_id="run-red-1", prompt="secret"), metadata=metadata
    )
    header = ArtifactHeader(scope=Scope(tenant="scarlet"), key="key-red", session_id=session_id)

    async def upload() -> AsyncIterator[ArtifactStorePutRequest]:
        yield ArtifactStorePutRequest(header=header)
        yield ArtifactStorePutRequest(chunk=b"secret")

    await RemoteArtifactStore(channel, metadata=metadata).put(upload())
    log = await RemoteSessionStore(channel, metadata=metadata).get_events(
        GetEventsRequest(scope=Scope(tenant="scarlet"), session_id=session_id)
    )
    return Ids("scarlet", "agent-red", session_id, "run-red-1", log.events[0].id, "key-red")


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.full_name.removeprefix("turndock."))
async def test_a_foreign_id_is_answered_like_an_unknown_one(probed: Probed, rpc: MethodDescriptor) -> None:
    foreign = await probed.ask(rpc, replace(probed.reds, tenant="blue"))
    unknown = await probed.ask(rpc, replace(NOBODYS, tenant="blue"))
    assert foreign == unknown
    for outcome, _ in foreign:
        if rpc.containing_service.name in IN_MEMORY:
            assert outcome.code != "INVALID_ARGUMENT", f"the probe does not reach what it is about: {outcome}"
        assert "secret" not in outcome.answer


@pytest.mark.parametrize("rpc", IN_STORES, ids=lambda rpc: rpc.full_name.removeprefix("turndock."))
async def test_a_foreign_scope_is_answered_like_an_unknown_one_and_costs_no_look(
    probed: Probed, rpc: MethodDescriptor
) -> None:
    foreign = await probed.ask(rpc, probed.reds)
    unknown = await probed.ask(rpc, NOBODYS)
    assert foreign == unknown
    for outcome, calls in foreign:
        assert (outcome.code in ("NOT_FOUND", "UNIMPLEMENTED"), calls) == (True, []), outcome


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.full_name.removeprefix("turndock."))
async def test_who_lacks_the_role_learns_nothing_and_costs_no_look(
    probed: Probed, rpc: MethodDescriptor
) -> None:
    """Its own scope, a foreign one, an unknown one: the same refusal, which names the role."""
    needed = needed_role(probing.path_of(rpc))
    assert needed is not None
    if not probed.serves(rpc):
        assert {outcome.code for outcome, _ in await probed.ask(rpc, probed.reds)} == {"UNIMPLEMENTED"}
        return
    for role in (Role.OBSERVER, Role.CONTROLLER):
        if role >= needed:
            continue
        answers = [
            answer
            for ids in (
                probed.reds,
                replace(probed.reds, tenant="nothing"),
                replace(NOBODYS, tenant="scarlet"),
            )
            for answer in await probed.ask(rpc, ids, f"scarlet-{role}")
        ]
        for outcome, calls in answers:
            assert (outcome.code, calls) == ("PERMISSION_DENIED", [])
            assert outcome.text == f"{probing.path_of(rpc)} needs the role {needed}"
        assert len({outcome for outcome, _ in answers}) == 1


@pytest.mark.parametrize(
    "rpc",
    [rpc for rpc in IN_STORES if "every_scope" in rpc.input_type.fields_by_name],
    ids=lambda rpc: rpc.full_name.removeprefix("turndock."),
)
async def test_every_scope_is_not_for_credentials_of_one(probed: Probed, rpc: MethodDescriptor) -> None:
    for request in probing.requests_for(rpc, probed.reds):
        request.ClearField("scope")
        setattr(request, "every_scope", True)  # noqa: B010 - the field of whichever request it is
        outcome = await probing.call(
            probed.channel, rpc, request, secured.sending(probed.tokens["blue-admin"])
        )
        refusals = ("PERMISSION_DENIED", "NOT_FOUND") if probed.serves(rpc) else ("UNIMPLEMENTED",)
        assert outcome.code in refusals


async def test_P_13_another_scopes_session_is_unknown_and_stays_as_it_is(probed: Probed) -> None:
    blue = RemoteSessionStore(probed.channel, metadata=secured.sending(probed.tokens["blue-admin"]))
    red = RemoteSessionStore(probed.channel, metadata=secured.sending(probed.tokens["scarlet-observer"]))
    for tenant in ("scarlet", "blue"):
        with pytest.raises(TurndockError) as caught:
            await blue.get_session(
                GetSessionRequest(scope=Scope(tenant=tenant), session_id=probed.reds.session)
            )
        assert caught.value.code is Code.NOT_FOUND
    with pytest.raises(TurndockError) as caught:
        await blue.delete_session(
            DeleteSessionRequest(scope=Scope(tenant="scarlet"), session_id=probed.reds.session)
        )
    assert caught.value.code is Code.NOT_FOUND
    found = await red.get_session(
        GetSessionRequest(scope=Scope(tenant="scarlet"), session_id=probed.reds.session)
    )
    assert found.session.agent_id == "agent-red"
    everything = RemoteSessionStore(probed.channel, metadata=secured.sending(probed.tokens["admin"]))
    with pytest.raises(TurndockError) as caught:  # The unscoped partition is one of its own.
        await everything.get_session(GetSessionRequest(session_id=probed.reds.session))
    assert caught.value.reason == "SESSION_NOT_FOUND"
    await everything.get_session(
        GetSessionRequest(scope=Scope(tenant="scarlet"), session_id=probed.reds.session)
    )


async def test_PF_E19_a_refusal_is_the_same_in_every_shape_of_call(probed: Probed) -> None:
    """Unary, server-streaming and client-streaming calls without credentials, or with bad ones."""
    shapes = {(rpc.client_streaming, rpc.server_streaming): rpc for rpc in RPCS if probed.serves(rpc)}
    assert len(shapes) == 3
    for metadata in ((), secured.sending("tdk_00000000_" + "x" * 43)):
        outcomes = {
            await probing.call(probed.channel, rpc, next(probing.requests_for(rpc, NOBODYS)), metadata)
            for rpc in shapes.values()
        }
        assert [outcome.code for outcome in outcomes] == ["UNAUTHENTICATED"]
