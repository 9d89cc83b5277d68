"""How much a scope may take up at a time: refused with the figures, exact under concurrency, given back at the end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from support.harness import WAIT_S
from support.secured import a_channel, an_app
from turndock import jsontext, wire
from turndock.agent.v1 import (
    AskRequest,
    CancelRunRequest,
    GetServerInfoRequest,
    ListRunsRequest,
    PromptRequest,
    StartAgentRequest,
    StopAgentRequest,
    TellRequest,
    WatchRequest,
)
from turndock.agent.v1.agent_host_pb2_grpc import AgentHostStub
from turndock.errors import Code, TurndockError
from turndock.types.v1 import AgentDefinition, Cursor, RunStatus
from turndock_server.core.finishing import to_its_end
from turndock_server.services.callers import CallerInterceptor
from turndock_server.services.limits import ScopeLimits

RED, BLUE = (((wire.SCOPE, tenant),) for tenant in ("red", "blue"))
SLOW = jsontext.canonical({"delay_ms": 60_000})


@asynccontextmanager
async def limited(folder: Path, **limits: int) -> AsyncGenerator[Any]:
    """A stub of a server with these limits."""
    lines = "".join(f"{name} = {value}\n" for name, value in limits.items())
    async with an_app(folder, f"[limits]\n{lines}") as (_, endpoint), a_channel(endpoint) as channel:
        yield AgentHostStub(channel)


async def started(stub: Any, name: str = "a1", metadata: Any = RED, config: str = "") -> str:
    with wire.translated():
        definition = AgentDefinition(agent_name=name, backend="echo", backend_config_json=config)
        answer = await stub.StartAgent(StartAgentRequest(definition=definition), metadata=metadata)
        session_id: str = answer.agent.session_id
        return session_id


async def watching(stub: Any, *session_ids: str, metadata: Any = RED) -> Any:
    """A watch that has begun."""
    request = WatchRequest(cursors=[Cursor(session_id=one) for one in session_ids])
    call = stub.Watch(request, metadata=metadata)
    with wire.translated():
        assert await call.read() is not grpc.aio.EOF
    return call


async def refusal(call: Any) -> TurndockError:
    with pytest.raises(TurndockError) as caught, wire.translated():
        await call
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    return caught.value


async def until_admitted(attempt: Any) -> Any:
    """What is answered once a place is free; the server learns of a hang-up a moment after the caller."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await attempt()
            except TurndockError as error:
                if error.reason != "SCOPE_LIMIT_EXCEEDED":
                    raise


async def test_watchers_are_counted_by_the_logs_they_watch(tmp_path: Path) -> None:
    async with limited(tmp_path, max_watchers_per_scope=3) as stub:
        one, two = await started(stub), await started(stub, "a2")
        blue = await started(stub, metadata=BLUE)
        both = await watching(stub, one, two)
        await watching(stub, one)
        error = await refusal(watching(stub, two))
        assert (error.reason, error.retryable) == ("SCOPE_LIMIT_EXCEEDED", True)
        assert error.metadata == {"limit": "max_watchers_per_scope", "max": "3", "current": "3"}
        assert await watching(stub, blue, metadata=BLUE)  # Another scope has places of its own.
        both.cancel()
        await until_admitted(lambda: watching(stub, one, two))
        assert (await refusal(watching(stub, one))).metadata["current"] == "3"


async def test_a_watcher_who_hangs_up_frees_its_place_every_time(tmp_path: Path) -> None:
    async with limited(tmp_path, max_watchers_per_scope=4) as stub:
        session_id = await started(stub)

        async def come_and_go() -> None:
            for _ in range(25):
                call = await until_admitted(lambda: watching(stub, session_id))
                call.cancel()

        await asyncio.gather(*(come_and_go() for _ in range(6)))
        held = [await until_admitted(lambda: watching(stub, session_id)) for _ in range(4)]
        error = await refusal(watching(stub, session_id))
        assert error.metadata["current"] == "4"
        assert not any(call.done() for call in held)


async def test_a_watch_that_is_refused_or_fails_frees_its_place(tmp_path: Path) -> None:
    async with limited(tmp_path, max_watchers_per_scope=1) as stub:
        session_id = await started(stub)
        for _ in range(5):
            with pytest.raises(TurndockError, match="not found"):
                await watching(stub, "unknown")
        await watching(stub, session_id)


async def test_streams_and_calls_are_counted(tmp_path: Path) -> None:
    async with limited(tmp_path, max_streams_per_scope=1, max_calls_per_scope=3) as stub:
        session_id = await started(stub, config=SLOW)
        stream = stub.Prompt(PromptRequest(agent_name="a1", prompt="one two"), metadata=RED)
        assert await stream.read() is not grpc.aio.EOF
        error = await refusal(watching(stub, session_id))
        assert error.metadata == {"limit": "max_streams_per_scope", "max": "1", "current": "1"}
        asking = [stub.Ask(AskRequest(agent_name="a1", prompt="x"), metadata=RED) for _ in range(2)]

        async def all_taken() -> TurndockError:
            while True:
                try:
                    with wire.translated():
                        await stub.GetServerInfo(GetServerInfoRequest(), metadata=RED)
                except TurndockError as error:
                    return error

        async with asyncio.timeout(WAIT_S):
            error = await all_taken()
        assert error.metadata == {"limit": "max_calls_per_scope", "max": "3", "current": "3"}
        assert error.code is Code.RESOURCE_EXHAUSTED
        with wire.translated():
            await stub.GetServerInfo(GetServerInfoRequest(), metadata=BLUE)
        stream.cancel()
        asking[0].cancel()

        async def look() -> None:
            with wire.translated():
                await stub.GetServerInfo(GetServerInfoRequest(), metadata=RED)

        await until_admitted(look)
        await until_admitted(lambda: watching(stub, session_id))
        asking[1].cancel()


async def test_a_call_whose_caller_hung_up_keeps_its_place_until_it_is_carried_out() -> None:
    limits = ScopeLimits(max_calls=1)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    @to_its_end
    async def work(request: Any, context: Any) -> None:
        begun.set()
        await goes_on.wait()

    make: Any = grpc.unary_unary_rpc_method_handler

    class Details(grpc.HandlerCallDetails):
        method, invocation_metadata = "/turndock.agent.v1.AgentHost/ForkSession", ()

    async def found(_: Any) -> Any:
        return make(work)

    handler: Any = await CallerInterceptor(None, limits).intercept_service(found, Details())
    call = asyncio.create_task(handler.unary_unary(None, None))
    await begun.wait()
    call.cancel()
    await asyncio.wait((call,))
    assert limits.calls.taken(None) == 1
    with pytest.raises(TurndockError, match="calls under way"):
        await handler.unary_unary(None, None)
    goes_on.set()

    async def attempt() -> None:
        await asyncio.sleep(0)
        await handler.unary_unary(None, None)

    await until_admitted(attempt)
    assert limits.calls.taken(None) == 0


async def test_agents_are_counted_exactly_however_many_start_at_once(tmp_path: Path) -> None:
    async with limited(tmp_path, max_agents_per_scope=5) as stub:
        for attempt in range(5):
            starts = [started(stub, f"{attempt}-{number}") for number in range(12)]
            ended = await asyncio.gather(*starts, return_exceptions=True)
            failures = [one for one in ended if isinstance(one, BaseException)]
            assert len(failures) == 7
            for error in failures:
                assert isinstance(error, TurndockError)
                assert (error.reason, error.code) == ("MAX_SESSIONS_EXCEEDED", Code.RESOURCE_EXHAUSTED)
                assert error.metadata["max"] == "5"
                assert error.metadata["limit"] == "max_agents_per_scope"
                assert int(error.metadata["current"]) == 5
            assert await started(stub, f"{attempt}", BLUE)
            await stub.StopAgent(StopAgentRequest(agent_name=f"{attempt}"), metadata=BLUE)
            alive = [name for name, one in enumerate(ended) if isinstance(one, str)]
            for number in alive:
                await stub.StopAgent(StopAgentRequest(agent_name=f"{attempt}-{number}"), metadata=RED)


async def test_a_start_that_fails_or_is_repeated_takes_no_place(tmp_path: Path) -> None:
    async with limited(tmp_path, max_agents_per_scope=1) as stub:
        for _ in range(3):
            with pytest.raises(TurndockError) as caught:
                await started(stub, config='{"delay_ms": -1}')
            assert caught.value.code is not Code.RESOURCE_EXHAUSTED
        request = StartAgentRequest(
            request_id="r1", definition=AgentDefinition(agent_name="a1", backend="echo")
        )
        sessions = {(await stub.StartAgent(request, metadata=RED)).agent.session_id for _ in range(3)}
        assert len(sessions) == 1
        assert (await refusal(started(stub, "a2"))).reason == "MAX_SESSIONS_EXCEEDED"


async def test_prompts_that_wait_are_counted_over_all_agents_of_a_scope(tmp_path: Path) -> None:
    limits = {"max_queued_prompts_per_scope": 3, "max_queued_bytes_per_scope": 20}
    async with limited(tmp_path, **limits) as stub:
        for name in ("a1", "a2"):
            session_id = await started(stub, name, config=SLOW)
            await stub.Tell(TellRequest(agent_name=name, prompt="one two"), metadata=RED)
            await until_running(stub, session_id)
        await started(stub, "b1", BLUE, config=SLOW)

        async def tell(name: str, prompt: str = "x", metadata: Any = RED) -> None:
            with wire.translated():
                await stub.Tell(TellRequest(agent_name=name, prompt=prompt), metadata=metadata)

        told = await asyncio.gather(
            *(tell(f"a{number % 2 + 1}") for number in range(10)), return_exceptions=True
        )
        assert [one for one in told if one is None] == [None] * 3
        error = await refusal(tell("a1"))
        assert error.reason == "MAX_RUNS_EXCEEDED"
        assert error.metadata["limit"] == "scope_count"
        assert (error.metadata["max"], error.metadata["current"]) == ("3", "3")
        for _ in range(3):
            await tell("b1", metadata=BLUE)
        [run] = (await stub.ListRuns(_waiting("a1"), metadata=RED)).runs[:1]
        await stub.CancelRun(CancelRunRequest(agent_name="a1", run_id=run.id), metadata=RED)
        assert (await refusal(tell("a2", "x" * 19))).metadata["limit"] == "scope_bytes"
        await tell("a2", "x" * 18)


async def until_running(stub: Any, session_id: str) -> None:
    """Wait until the agent's turn is under way."""
    request = WatchRequest(cursors=[Cursor(session_id=session_id)], with_status=True)
    call = stub.Watch(request, metadata=RED, timeout=WAIT_S)
    async for frame in call:
        if frame.status.current_run_id:
            call.cancel()
            return


def _waiting(name: str) -> ListRunsRequest:
    return ListRunsRequest(agent_name=name, statuses=[RunStatus.RUN_STATUS_PENDING])
