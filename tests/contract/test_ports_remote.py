"""Ports over a channel: calls, streams and uploads go through, errors and cancellations too."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import grpc.aio
import pytest

from turndock import ports, remote, serving, wire
from turndock.behavior.v1 import (
    HandleErrorRequest,
    HandleResponseRequest,
    HandleResponseResponse,
    InitAgentRequest,
    InitAgentResponse,
)
from turndock.errors import Code, TurndockError, is_not_offered, not_found
from turndock.plugin.v1 import (
    Contract,
    ContractKind,
    DescribeRequest,
    DescribeResponse,
    ProbeRequest,
    ProbeResponse,
)
from turndock.store.v1 import (
    ArtifactHeader,
    ArtifactStoreDeleteRequest,
    ArtifactStoreDeleteResponse,
    ArtifactStoreGetRequest,
    ArtifactStoreGetResponse,
    ArtifactStoreHeadRequest,
    ArtifactStoreHeadResponse,
    ArtifactStoreListRequest,
    ArtifactStoreListResponse,
    ArtifactStorePutRequest,
    ArtifactStorePutResponse,
    EnqueueRunRequest,
    ExecuteRequest,
    ExecuteResponse,
    GetEventsRequest,
    GetEventsResponse,
    GetSessionRequest,
    GetSessionResponse,
    SearchRunsRequest,
    SearchRunsResponse,
    SetInterruptedRequest,
    WatchEventsRequest,
    WatchEventsResponse,
)
from turndock.types.v1 import Artifact, Event, Session

DEADLINE_S = 10.0


@contextlib.asynccontextmanager
async def channel_to(add: Callable[[grpc.aio.Server], None]) -> AsyncGenerator[grpc.aio.Channel]:
    """A channel to a server that serves what `add` adds."""
    server = wire.new_server()
    add(server)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with wire.connect(endpoint) as channel:
            yield channel
    finally:
        await server.stop(0)


class Store:
    """As much of a session store as these cases need."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.watch_ended = asyncio.Event()
        self.calls = 0

    async def get_session(self, request: GetSessionRequest) -> GetSessionResponse:
        self.calls += 1
        if request.session_id == "ses_1":
            return GetSessionResponse(session=Session(id="ses_1", metadata_json='{"n":9007199254740993}'))
        raise not_found("session", request.session_id)

    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.waiting.wait(), request.wait_ms / 1000)
        return GetEventsResponse(head=7)

    async def watch_events(self, request: WatchEventsRequest) -> AsyncIterator[WatchEventsResponse]:
        try:
            for sequence in range(request.after_sequence + 1, 4):
                yield WatchEventsResponse(events=[Event(sequence=sequence)], head=3)
            if request.session_id == "broken":
                raise TurndockError("STORAGE_ERROR", "disk on fire")
            await asyncio.Event().wait()
        finally:
            self.watch_ended.set()


@contextlib.asynccontextmanager
async def remote_store(store: Store, *capabilities: str) -> AsyncGenerator[remote.RemotePlainSessionStore]:
    async with channel_to(lambda server: serving.add_session_store(server, store)) as channel:  # type: ignore[arg-type]  # a part of one
        yield remote.remote_session_store(channel, capabilities)


async def test_a_call_and_its_error_go_through() -> None:
    async with remote_store(Store()) as store:
        found = await store.get_session(GetSessionRequest(session_id="ses_1"))
        assert found.session.metadata_json == '{"n":9007199254740993}'
        with pytest.raises(TurndockError) as caught:
            await store.get_session(GetSessionRequest(session_id="nope"))
    assert (caught.value.reason, caught.value.message) == ("SESSION_NOT_FOUND", "session 'nope' not found")
    assert caught.value.metadata == {"key": "nope"}


async def test_an_ability_the_store_lacks_is_not_offered_and_not_asked_for_again() -> None:
    async with remote_store(Store(), "mailbox") as store:
        assert isinstance(store, remote.RemoteMailboxStore)
        for _ in range(2):
            with pytest.raises(TurndockError) as caught:
                await store.enqueue_run(EnqueueRunRequest())
            assert is_not_offered(caught.value)
            assert "SessionStore.EnqueueRun" in caught.value.message


@pytest.mark.parametrize(
    ("capabilities", "mailbox", "watcher"),
    [
        ((), False, False),
        (("mailbox",), True, False),
        (("watch_events",), False, True),
        (("mailbox", "watch_events", "long_poll", "newer"), True, True),
    ],
)
async def test_a_remote_store_has_the_abilities_its_description_names(
    capabilities: tuple[str, ...], mailbox: bool, watcher: bool
) -> None:
    async with wire.connect("127.0.0.1:1") as channel:
        store = remote.remote_session_store(channel, capabilities)
        assert isinstance(store, ports.Mailbox) is mailbox
        assert isinstance(store, ports.EventWatcher) is watcher
        assert serving.capabilities_of(store) == {*capabilities} - {"newer"} | {"long_poll"}


async def test_S_21_a_long_poll_outlives_the_usual_deadline() -> None:
    served = Store()
    async with channel_to(lambda server: serving.add_session_store(server, served)) as channel:  # type: ignore[arg-type]  # a part of one
        store = remote.RemoteSessionStore(channel, timeout=0.05)
        empty = await store.get_events(GetEventsRequest(wait_ms=300))
    assert empty.head == 7


async def test_a_stream_goes_through_and_leaving_it_ends_it_on_the_other_side() -> None:
    served = Store()
    async with remote_store(served, "watch_events") as store:
        assert isinstance(store, ports.EventWatcher)
        stream = store.watch_events(WatchEventsRequest(session_id="s", after_sequence=1))
        got = [(await anext(stream)).events[0].sequence for _ in range(2)]
        assert got == [2, 3]
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        await asyncio.wait_for(served.watch_ended.wait(), DEADLINE_S)


async def test_cancelling_the_reader_of_a_stream_ends_it_on_the_other_side() -> None:
    served = Store()
    async with remote_store(served, "watch_events") as store:
        assert isinstance(store, ports.EventWatcher)
        begun = asyncio.Event()

        async def read(watcher: ports.EventWatcher) -> None:
            async for _ in watcher.watch_events(WatchEventsRequest(session_id="s")):
                begun.set()

        task = asyncio.create_task(read(store))
        await asyncio.wait_for(begun.wait(), DEADLINE_S)
        task.cancel()
        await asyncio.wait_for(served.watch_ended.wait(), DEADLINE_S)


async def test_an_error_in_mid_stream_comes_after_what_was_sent() -> None:
    async with remote_store(Store(), "watch_events") as store:
        assert isinstance(store, ports.EventWatcher)
        got: list[int] = []

        async def read(watcher: ports.EventWatcher) -> None:
            async for response in watcher.watch_events(WatchEventsRequest(session_id="broken")):
                got.append(response.events[0].sequence)

        with pytest.raises(TurndockError) as caught:
            await read(store)
    assert (caught.value.reason, caught.value.code) == ("STORAGE_ERROR", Code.INTERNAL)
    assert got == [1, 2, 3]


# --- Uploads and downloads -----------------------------------------------------------------------------------


class Artifacts:
    """Keeps bytes in memory; refuses keys that begin with `no`."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def put(self, requests: AsyncIterator[ArtifactStorePutRequest]) -> ArtifactStorePutResponse:
        header = (await anext(requests)).header
        if header.key.startswith("no"):
            raise TurndockError("LIMIT_EXCEEDED", "too large", {"limit": "1"})
        content = b"".join([request.chunk async for request in requests])
        self.kept[header.key] = content
        return ArtifactStorePutResponse(artifact=Artifact(key=header.key, size=len(content)))

    async def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]:
        if request.key not in self.kept:
            raise not_found("artifact", request.key)
        yield ArtifactStoreGetResponse(artifact=Artifact(key=request.key))
        yield ArtifactStoreGetResponse(chunk=self.kept[request.key])

    async def delete(self, request: ArtifactStoreDeleteRequest) -> ArtifactStoreDeleteResponse:
        self.kept.pop(request.key, None)
        return ArtifactStoreDeleteResponse()

    async def head(self, request: ArtifactStoreHeadRequest) -> ArtifactStoreHeadResponse:
        return ArtifactStoreHeadResponse()

    async def list(self, request: ArtifactStoreListRequest) -> ArtifactStoreListResponse:
        return ArtifactStoreListResponse(total_count=len(self.kept))


@contextlib.asynccontextmanager
async def remote_artifacts(artifacts: ports.ArtifactStore) -> AsyncGenerator[ports.ArtifactStore]:
    async with channel_to(lambda server: serving.add_artifact_store(server, artifacts)) as channel:
        yield remote.RemoteArtifactStore(channel)


async def upload(key: str, *chunks: bytes) -> AsyncIterator[ArtifactStorePutRequest]:
    yield ArtifactStorePutRequest(header=ArtifactHeader(key=key))
    for chunk in chunks:
        yield ArtifactStorePutRequest(chunk=chunk)


async def test_A_01_chunks_go_up_and_come_down() -> None:
    async with remote_artifacts(Artifacts()) as store:
        stored = await store.put(upload("k", b"hello", b" ", b"world"))
        assert stored.artifact.size == 11
        parts = [part async for part in store.get(ArtifactStoreGetRequest(key="k"))]
        assert b"".join(part.chunk for part in parts) == b"hello world"
        assert (await store.list(ArtifactStoreListRequest())).total_count == 1
        with pytest.raises(TurndockError, match="NOT_FOUND"):
            await anext(store.get(ArtifactStoreGetRequest(key="missing")))


async def test_a_refusal_comes_through_while_the_caller_is_still_sending() -> None:
    """gRPC reports INTERNAL for a write that meets the end of its call; the real status must come through."""
    async with remote_artifacts(Artifacts()) as store:
        for _ in range(30):
            with pytest.raises(TurndockError) as caught:
                await store.put(upload("no", *(b"x" * 65536 for _ in range(50))))
            assert (caught.value.reason, caught.value.metadata) == ("LIMIT_EXCEEDED", {"limit": "1"})


async def test_what_the_caller_s_iterator_raises_comes_back_to_the_caller_and_nothing_is_stored() -> None:
    async def broken() -> AsyncIterator[ArtifactStorePutRequest]:
        async for request in upload("k", b"half"):
            yield request
        raise LookupError("the file is gone")

    artifacts = Artifacts()
    async with remote_artifacts(artifacts) as store:
        with pytest.raises(LookupError, match="the file is gone"):
            await store.put(broken())
        assert (await store.list(ArtifactStoreListRequest())).total_count == 0


# --- The other contracts ---------------------------------------------------------------------------------------


class Behavior(ports.Behavior):
    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        return InitAgentResponse(state_json=request.config_json)

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        return HandleResponseResponse()


async def test_a_behavior_goes_through() -> None:
    behavior = Behavior()
    async with channel_to(lambda server: serving.add_behavior(server, behavior)) as channel:
        far = remote.RemoteBehavior(channel, serving.capabilities_of(behavior))
        assert far.capabilities == behavior.capabilities == frozenset()
        assert (await far.init_agent(InitAgentRequest(config_json='{"a":1}'))).state_json == '{"a":1}'
        with pytest.raises(TurndockError, match=r"Behavior\.HandleError"):
            await far.handle_error(HandleErrorRequest())


class Searching:
    async def search_runs(self, request: SearchRunsRequest) -> SearchRunsResponse:
        return SearchRunsResponse(next_cursor="c")

    async def execute(self, request: ExecuteRequest) -> ExecuteResponse:
        raise TurndockError("VALIDATION_ERROR", "policy")


async def test_query_maintenance_and_persistence_go_through() -> None:
    def add(server: grpc.aio.Server) -> None:
        serving.add_query(server, Searching())  # type: ignore[arg-type]  # a part of one
        serving.add_maintenance(server, Searching())  # type: ignore[arg-type]  # a part of one
        serving.add_agent_persistence(server, Searching())  # type: ignore[arg-type]  # nothing of one

    async with channel_to(add) as channel:
        query: ports.Query = remote.RemoteQuery(channel)
        maintenance: ports.Maintenance = remote.RemoteMaintenance(channel)
        persistence = remote.RemoteAgentPersistence(channel)
        assert isinstance(persistence, ports.InterruptedFlag)
        assert (await query.search_runs(SearchRunsRequest())).next_cursor == "c"
        with pytest.raises(TurndockError, match="VALIDATION_ERROR"):
            await maintenance.execute(ExecuteRequest())
        with pytest.raises(TurndockError) as caught:
            await persistence.set_interrupted(SetInterruptedRequest())
        assert is_not_offered(caught.value)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_plug_in_describes_itself_and_says_how_it_is(fails: bool) -> None:
    description = DescribeResponse(
        name="echo", contracts=[Contract(kind=ContractKind.CONTRACT_KIND_BACKEND, capabilities=["interrupt"])]
    )

    async def probe() -> ProbeResponse:
        if fails:
            raise TurndockError("STORAGE_CONNECTION_FAILED", "no database")
        return ProbeResponse(state=ProbeResponse.STATE_NOT_READY, message="loading")

    async with channel_to(lambda server: serving.add_plugin(server, description, probe)) as channel:
        plugin = remote.RemotePlugin(channel)
        assert await plugin.describe(DescribeRequest(host_version="1")) == description
        answer = await plugin.probe(ProbeRequest())
    if fails:
        assert answer.state == ProbeResponse.STATE_ERROR
        assert "no database" in answer.message
    else:
        assert (answer.state, answer.message) == (ProbeResponse.STATE_NOT_READY, "loading")
