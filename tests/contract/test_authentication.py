"""Who may call a server that asks: by token, by JSON Web Token, by certificate, each for its scope and its role."""

import json
import time
from pathlib import Path
from typing import Any, cast

import grpc.aio
import jwt
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from support import secured
from support.probing import services_of
from support.secured import Authority, a_channel, an_app, sending
from turndock import events, wire
from turndock.agent.v1 import AskRequest, GetServerInfoRequest, StartAgentRequest, WatchRequest
from turndock.agent.v1.agent_host_pb2_grpc import AgentHostStub
from turndock.client import Client
from turndock.errors import Code, TurndockError
from turndock.remote import RemoteAgentPersistence, RemoteSessionStore
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventsRequest,
    DeleteSessionRequest,
    EditRunRequest,
    EnqueueRunRequest,
    FlushRequest,
    GetSessionRequest,
    ListSessionsRequest,
    MailboxLimits,
    PersistStateRequest,
    SaveRunRequest,
    SaveSessionRequest,
    SetInterruptedRequest,
)
from turndock.types.v1 import (
    AgentDefinition,
    Cursor,
    Fence,
    Run,
    RunStatus,
    Scope,
    Session,
    SessionStatus,
)
from turndock_server.access import Role, files, tokens
from turndock_server.app import CannotStart
from turndock_server.services import callers, permissions
from turndock_server.services.permissions import needed_role

TOKENS = 'auth.tokens = "tokens.json"\n'
SECRET = "0123456789abcdef0123456789abcdef"
SESSION = Session(id="s", agent_id="a", status=SessionStatus.SESSION_STATUS_ACTIVE)
JWT = """
    [jwt]
    algorithms = ["HS256"]
    issuer = "https://issuer.example"
    audience = "turndock"
    secret = {file = "jwt.key"}
    roles = {ops = "admin", dev = "controller"}
"""


async def refusal(call: Any) -> TurndockError:
    with pytest.raises(TurndockError) as caught, wire.translated():
        await call
    return caught.value


async def first(stream: Any) -> Any:
    async for frame in stream:
        return frame
    raise AssertionError("an empty stream")


async def test_without_credentials_nothing_is_answered_but_health(tmp_path: Path) -> None:
    secured.make_tokens(tmp_path / "tokens.json", "red")
    async with an_app(tmp_path, TOKENS) as (_, endpoint), a_channel(endpoint) as channel:
        stub: Any = AgentHostStub(channel)
        for metadata, why in (
            ((), "no credentials: send `authorization: Bearer <token>`"),
            (((wire.AUTHORIZATION, "Basic YTpi"),), "authorization: must be `Bearer <token>`"),
            (((wire.AUTHORIZATION, "Bearer"),), "authorization: must be `Bearer <token>`"),
            (sending("tdk_00000000_" + "x" * 43), "the token is not valid"),
            (sending("a.b.c"), "the token is not valid"),
        ):
            for call in (
                stub.GetServerInfo(GetServerInfoRequest(), metadata=metadata),
                first(stub.Watch(WatchRequest(cursors=[Cursor(session_id="s")]), metadata=metadata)),
            ):
                error = await refusal(call)
                assert (error.reason, error.code) == ("UNAUTHENTICATED", Code.UNAUTHENTICATED)
                assert error.message == why
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status


async def test_PF_E20_with_all_interceptors_on(tmp_path: Path) -> None:
    """Health Check and Watch, the list of services, an unknown method and one that is not offered."""
    made = secured.make_tokens(tmp_path / "tokens.json", "red")
    config = TOKENS + "limits = {max_calls_per_scope = 10, max_streams_per_scope = 10}\n"
    async with an_app(tmp_path, config) as (_, endpoint), a_channel(endpoint) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == serving
        assert (await first(health.Watch(health_pb2.HealthCheckRequest()))).status == serving
        assert "turndock.agent.v1.AgentHost" in await services_of(channel, sending(made["red-observer"]))
        assert (await refusal(services_of(channel))).reason == "UNAUTHENTICATED"
        for method in ("/turndock.agent.v1.AgentHost/Fly", "/no.Such/Service"):
            make: Any = channel.unary_unary
            assert (await refusal(make(method)(b""))).code is Code.UNIMPLEMENTED


async def test_every_call_of_every_served_service_has_its_role(tmp_path: Path) -> None:
    """As the server itself describes what it serves. A call without a role would be refused to everybody."""
    async with an_app(tmp_path, store="sqlite") as (_, endpoint), a_channel(endpoint) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast("Any", channel))
        served: dict[str, list[str]] = {}
        for name in await services_of(channel):
            asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
            answer = await first(stub.ServerReflectionInfo(iter([asked])))
            for encoded in answer.file_descriptor_response.file_descriptor_proto:
                file = FileDescriptorProto.FromString(encoded)
                for service in file.service:
                    if f"{file.package}.{service.name}" == name:
                        served[name] = [method.name for method in service.method]
    assert {"turndock.agent.v1.AgentHost", "grpc.health.v1.Health"} <= set(served)
    without = [
        f"{service}/{call}"
        for service, calls in served.items()
        for call in calls
        if service not in permissions.OPEN and needed_role(f"/{service}/{call}") is None
    ]
    assert without == []
    unknown = [
        f"{service}/{call}"
        for service, roles in permissions.ROLES.items()
        if service in served
        for calls in roles.values()
        for call in calls
        if call not in served[service]
    ]
    assert unknown == []


async def test_a_call_without_a_role_is_refused_to_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = secured.make_tokens(tmp_path / "tokens.json")
    monkeypatch.delitem(permissions._NEEDED, "/turndock.agent.v1.AgentHost/GetServerInfo")
    async with (
        an_app(tmp_path, TOKENS) as (_, endpoint),
        Client(str(endpoint), token=made["admin"]) as client,
    ):
        assert (await refusal(client.info())).reason == "PERMISSION_DENIED"


async def test_each_role_may_do_what_it_says_in_its_scope(tmp_path: Path) -> None:
    made = secured.make_tokens(tmp_path / "tokens.json", "red", "blue")
    async with an_app(tmp_path, TOKENS) as (_, endpoint):
        async with Client(str(endpoint), token=made["red-controller"]) as red:
            agent = await red.start_agent("ann", backend="echo")
            assert (await agent.ask("hello")).text == "hello"
        async with Client(str(endpoint), token=made["red-observer"]) as looking:
            assert [one.agent_name async for one in looking.list_agents()] == ["ann"]
            error = await refusal(looking.agent("ann").ask("hello"))
            assert (error.reason, error.code) == ("PERMISSION_DENIED", Code.PERMISSION_DENIED)
            assert error.message == "/turndock.agent.v1.AgentHost/Ask needs the role controller"
            assert error.metadata == {
                "method": "/turndock.agent.v1.AgentHost/Ask",
                "needed_role": "controller",
            }
            assert (await looking.info()).live_agents == 1
        async with Client(str(endpoint), token=made["blue-admin"]) as blue:
            assert (await blue.info()).live_agents == 0
            assert [one.agent_name async for one in blue.list_agents()] == []
            assert (await refusal(blue.agent("ann").status())).reason == "AGENT_NOT_FOUND"


async def test_credentials_without_a_scope_act_for_any_and_in_the_unscoped_partition(tmp_path: Path) -> None:
    made = secured.make_tokens(tmp_path / "tokens.json", "red")
    async with an_app(tmp_path, TOKENS) as (_, endpoint):
        async with Client(str(endpoint), token=made["admin"]) as unscoped:
            await unscoped.start_agent("own", backend="echo")
            assert [one.agent_name async for one in unscoped.list_agents()] == ["own"]
        async with Client(str(endpoint), token=made["admin"], scope="red") as acting:
            await acting.start_agent("theirs", backend="echo")
        async with Client(str(endpoint), token=made["red-observer"]) as red:
            assert [one.agent_name async for one in red.list_agents()] == ["theirs"]


@pytest.mark.parametrize("who", ["red-observer", "red-controller", "red-admin"])
async def test_credentials_of_a_scope_act_for_no_other(tmp_path: Path, who: str) -> None:
    made = secured.make_tokens(tmp_path / "tokens.json", "red", "blue")
    async with an_app(tmp_path, TOKENS) as (_, endpoint):
        async with Client(str(endpoint), token=made[who], scope="red") as client:
            assert (await client.info()).backends
        answers: list[TurndockError] = []
        for scope in ("blue", "nil!"):  # One that is in use, and one that is not.
            async with Client(str(endpoint), token=made[who], scope=scope) as client:
                answers.append(await refusal(client.info()))
        assert vars(answers[0]) == vars(answers[1])
        assert answers[0].reason == "PERMISSION_DENIED"
        assert answers[0].metadata["needed_role"] == "admin"


async def test_the_stores_answer_for_the_credentials_own_scope_alone(tmp_path: Path) -> None:
    made = secured.make_tokens(tmp_path / "tokens.json", "red")
    async with an_app(tmp_path, TOKENS) as (_, endpoint), a_channel(endpoint) as channel:
        store = RemoteSessionStore(channel, metadata=sending(made["red-admin"]))
        await store.save_session(SaveSessionRequest(scope=Scope(tenant="red"), session=SESSION))
        for request in (ListSessionsRequest(scope=Scope(tenant="blue")), ListSessionsRequest()):
            error = await refusal(store.list_sessions(request))
            assert (error.reason, error.code) == ("NOT_FOUND", Code.NOT_FOUND)
        everything = RemoteSessionStore(channel, metadata=sending(made["admin"]))
        for scope in (Scope(tenant="red"), Scope(tenant="blue"), None):
            found = await everything.list_sessions(ListSessionsRequest(scope=scope))
            assert [session.id for session in found.sessions] == (
                ["s"] if scope == Scope(tenant="red") else []
            )


async def test_a_json_web_token_names_its_scope_and_its_roles(tmp_path: Path) -> None:
    (tmp_path / "jwt.key").write_text(SECRET)

    def signed(secret: str = SECRET, **claims: Any) -> str:
        standard = {"iss": "https://issuer.example", "aud": "turndock", "exp": int(time.time()) + 60}
        return jwt.encode({**standard, **claims}, secret, algorithm="HS256")

    async with an_app(tmp_path, JWT) as (_, endpoint):
        async with Client(str(endpoint), token=signed(sub="ann", tenant="red", roles=["dev"])) as client:
            await client.start_agent("ann", backend="echo")
        async with Client(str(endpoint), token=signed(roles="ops"), scope="red") as ops:
            assert [one.agent_name async for one in ops.list_agents()] == ["ann"]
        for token, reason in (
            (signed(tenant="red", roles=["observer"]), "PERMISSION_DENIED"),  # not a role of the mapping
            (signed(roles=["dev"]), "PERMISSION_DENIED"),  # without a scope
            (signed(SECRET[::-1], tenant="red", roles=["dev"]), "UNAUTHENTICATED"),
            (signed(tenant="red", roles=["dev"], exp=1), "UNAUTHENTICATED"),
        ):
            async with Client(str(endpoint), token=token) as client:
                error = await refusal(client.info())
                assert error.reason == reason
                assert token not in error.message


async def test_a_certificate_says_who_calls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("server", "127.0.0.1")
    ann, bob = authority.issue("ann.example"), authority.issue("bob", "bob.example")
    eve = authority.issue("eve.example")
    secured.make_tokens(tmp_path / "tokens.json", "blue")
    config = """
        [tls]
        cert = "server.pem"
        key = "server.key"
        client_ca = "ca.pem"
        [certificates.ann]
        name = "ann.example"
        role = "controller"
        scope = "red"
        [certificates.bob]
        name = "bob"
        role = "observer"
        scope = "red"
    """
    async with an_app(tmp_path, TOKENS + config) as (_, endpoint):
        where = str(endpoint)
        async with Client(where, tls=ann) as client:
            await client.start_agent("x", backend="echo")
        async with Client(where, tls=bob) as client:
            assert [one.agent_name async for one in client.list_agents()] == ["x"]
            assert (await refusal(client.agent("x").stop())).reason == "PERMISSION_DENIED"
        async with Client(where, tls=eve) as client:
            assert (await refusal(client.info())).reason == "UNAUTHENTICATED"
        token = tokens.create(tmp_path / "tokens.json", "carol", Role.OBSERVER, "green")[0]
        async with Client(where, tls=ann, token=token + "x") as client:
            # A token that is not valid is not made good by a certificate.
            assert (await refusal(client.info())).reason == "UNAUTHENTICATED"


async def test_a_stream_ends_with_the_credentials_it_was_opened_with(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    short = tokens.create(path, "ann", Role.CONTROLLER, "red", int(time.time()) + 2)[0]
    async with an_app(tmp_path, TOKENS) as (_, endpoint), a_channel(endpoint) as channel:
        stub: Any = AgentHostStub(channel)
        definition = AgentDefinition(agent_name="ann", backend="echo")
        started = await stub.StartAgent(StartAgentRequest(definition=definition), metadata=sending(short))
        watched = WatchRequest(cursors=[Cursor(session_id=started.agent.session_id)])

        async def watch() -> None:
            async for _ in stub.Watch(watched, metadata=sending(short), timeout=20):
                pass

        error = await refusal(watch())
    assert error.reason == "UNAUTHENTICATED"
    assert error.message == "the credentials are not valid any more"


async def test_a_revoked_token_ends_its_streams_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr(files, "_LOOK_EVERY_S", 0.0)
    made = secured.make_tokens(tmp_path / "tokens.json", "red")
    async with an_app(tmp_path, TOKENS) as (_, endpoint), a_channel(endpoint) as channel:
        stub: Any = AgentHostStub(channel)
        definition = AgentDefinition(agent_name="ann", backend="echo")
        metadata = sending(made["red-controller"])
        started = await stub.StartAgent(StartAgentRequest(definition=definition), metadata=metadata)
        watched = WatchRequest(cursors=[Cursor(session_id=started.agent.session_id)])
        calls = {
            name: stub.Watch(watched, metadata=sending(made[name]), timeout=20)
            for name in ("red-observer", "red-admin")
        }
        for call in calls.values():
            assert (await call.read()).created.head == 2
        tokens.revoke(tmp_path / "tokens.json", "red-observer")

        async def to_its_end() -> None:
            while await calls["red-observer"].read() is not grpc.aio.EOF:
                pass

        assert (await refusal(to_its_end())).reason == "UNAUTHENTICATED"
        await stub.Ask(AskRequest(agent_name="ann", prompt="x"), metadata=metadata)
        while (await calls["red-admin"].read()).batch.events[-1:] == []:
            pass


async def test_what_cannot_be_read_starts_nothing_and_shows_no_secret(tmp_path: Path) -> None:
    for config, why in (
        (TOKENS, "auth.tokens: cannot read .*tokens.json"),
        (JWT, "jwt.secret: cannot read"),
    ):
        with pytest.raises(CannotStart, match=why):
            async with an_app(tmp_path, config):
                pass
    (tmp_path / "jwt.key").write_text("short-secret")
    with pytest.raises(CannotStart, match=r"jwt\.secret: is shorter than 32 bytes") as caught:
        async with an_app(tmp_path, JWT):
            pass
    assert "short-secret" not in str(caught.value)
    keys = JWT.replace("HS256", "ES256").replace('secret = {file = "jwt.key"}', 'keys = "jwks.json"')
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": []}))
    with pytest.raises(CannotStart, match=r"jwt\.keys: .*is no JSON Web Key Set"):
        async with an_app(tmp_path, keys):
            pass


async def test_what_is_refused_is_logged_without_the_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "turndock_server")
    made = secured.make_tokens(tmp_path / "tokens.json", "red")
    async with an_app(tmp_path, TOKENS) as (_, endpoint):
        for token in (made["red-observer"], made["red-admin"][:-1]):
            async with Client(str(endpoint), token=token) as client:
                await refusal(client.start_agent("x", backend="echo"))
    refused = [record for record in caplog.records if record.getMessage().startswith("refused: ")]
    assert [record.__dict__.get("principal") for record in refused] == ["red-observer", None]
    assert {record.__dict__["method"] for record in refused} == {"/turndock.agent.v1.AgentHost/StartAgent"}
    assert not any(token in caplog.text for token in made.values())


async def test_a_token_in_a_file_is_sent(tmp_path: Path) -> None:
    made = secured.make_tokens(tmp_path / "tokens.json", "red")
    (tmp_path / "token").write_text(made["red-observer"] + "\n")
    async with (
        an_app(tmp_path, TOKENS) as (_, endpoint),
        Client(str(endpoint), token_file=tmp_path / "token") as client,
    ):
        assert (await client.info()).backends
    with pytest.raises(TurndockError, match="token_file: cannot read"):
        Client("127.0.0.1:1", token_file=tmp_path / "missing")
    (tmp_path / "token").write_text("\n")
    with pytest.raises(TurndockError, match=r"token_file: .*is empty"):
        Client("127.0.0.1:1", token_file=tmp_path / "token")


async def test_the_mailboxes_bounds_hold_for_whoever_writes_to_the_store(tmp_path: Path) -> None:
    made = secured.make_tokens(tmp_path / "tokens.json", "red")
    config = TOKENS + "limits = {max_queued_prompts_per_scope = 2, max_prompt_bytes = 1000}\n"
    async with (
        an_app(tmp_path, config) as (_, endpoint),
        a_channel(endpoint) as channel,
        Client(str(endpoint), token=made["red-controller"]) as client,
    ):
        agent = await client.start_agent("ann", backend="echo", backend_config={"delay_ms": 60_000})
        await agent.tell("busy")
        session_id = (await agent.status()).session_id
        store = RemoteSessionStore(channel, metadata=sending(made["red-controller"]))

        async def put(run_id: str, prompt: str = "p", limits: MailboxLimits | None = None) -> None:
            run = Run(id=run_id, session_id=session_id, prompt=prompt)
            await store.enqueue_run(EnqueueRunRequest(scope=Scope(tenant="red"), run=run, limits=limits))

        assert (await refusal(put("long", "x" * 1001))).reason == "LIMIT_EXCEEDED"
        await put("r0")
        narrow = MailboxLimits(max_count=1, max_bytes=1000)
        assert (await refusal(put("narrow", limits=narrow))).metadata["limit"] == "count"
        wide = MailboxLimits(max_count=1000, max_bytes=1000, max_scope_count=1000)
        await put("r1", limits=wide)
        for bounds in (None, wide):
            assert (await refusal(put("r2", limits=bounds))).metadata["limit"] == "scope_count"
        await put("r1")  # a retry finds what it put there
        longer = EditRunRequest(
            scope=Scope(tenant="red"), session_id=session_id, run_id="r1", prompt="x" * 1001
        )
        assert (await refusal(store.edit_run(longer))).reason == "LIMIT_EXCEEDED"


async def test_only_who_may_claim_writes_as_an_owner(tmp_path: Path) -> None:
    """A fence that was guessed would write behind a live agent's back, and one that is high would lock it out."""
    made = secured.make_tokens(tmp_path / "tokens.json", "red")
    async with (
        an_app(tmp_path, TOKENS + 'persistence.kind = "store"\n', store="sqlite") as (_, endpoint),
        a_channel(endpoint) as channel,
        Client(str(endpoint), token=made["red-controller"]) as client,
    ):
        agent = await client.start_agent("ann", backend="echo")
        session_id = (await agent.status()).session_id
        store = RemoteSessionStore(channel, metadata=sending(made["red-controller"]))
        snapshots = RemoteAgentPersistence(channel, metadata=sending(made["red-controller"]))
        red, fence = Scope(tenant="red"), Fence(epoch=(1 << 62))
        session = (await store.get_session(GetSessionRequest(scope=red, session_id=session_id))).session
        session.agent.halted = True
        event = events.text("forged")
        event.id, event.session_id, event.time_us = events.new_id(), session_id, 1
        run = Run(id="r", session_id=session_id, status=RunStatus.RUN_STATUS_PENDING, prompt="p")
        for call in (
            store.save_session(SaveSessionRequest(scope=red, session=session, fence=fence)),
            store.delete_session(DeleteSessionRequest(scope=red, session_id=session_id, fence=fence)),
            store.save_run(SaveRunRequest(scope=red, run=run, fence=fence)),
            store.append_event(AppendEventRequest(scope=red, event=event, fence=fence)),
            store.append_events(AppendEventsRequest(scope=red, events=[event], fence=fence)),
            store.flush(FlushRequest(scope=red, session=session, fence=fence)),
            store.enqueue_run(EnqueueRunRequest(scope=red, run=run, fence=fence)),
            snapshots.set_interrupted(SetInterruptedRequest(scope=red, fence=fence)),
            snapshots.persist_state(PersistStateRequest(scope=red, fence=fence)),
        ):
            error = await refusal(call)
            assert (error.reason, error.metadata["needed_role"]) == ("PERMISSION_DENIED", "admin")
        assert (await agent.ask("still there")).text == "still there"
