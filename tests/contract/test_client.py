"""The client against a server over gRPC, with answers that get lost and connections that break."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from support.agent_host import FakeAgent, FakeHost, fake_host
from support.proxy import Proxy, proxied
from turndock.agent.v1 import End
from turndock.client import Client, Retry, TurnFailed
from turndock.errors import Code, TurndockError
from turndock.types.v1 import Cursor, RunStatus

DEADLINE_S = 10.0
EAGER = Retry(tries=5, first_pause=0.01, longest_pause=0.05)


@contextlib.asynccontextmanager
async def served(token: str = "", scope: str | None = None) -> AsyncGenerator[tuple[FakeHost, Client]]:
    async with (
        fake_host() as (host, endpoint),
        Client(str(endpoint), retry=EAGER, token=token, scope=scope) as client,
    ):
        yield host, client


async def test_an_agent_is_started_asked_told_and_prompted() -> None:
    async with served() as (_, client):
        agent = await client.start_agent("ann", backend="echo", metadata={"team": 7})
        assert (await agent.ask("hello")).text == "HELLO"
        told = await agent.tell("quiet")
        assert (await agent.result(told.run.id)).text == "QUIET"
        async with agent.prompt("loud") as stream:
            assert [event.message_streamed.text async for event in stream] == ["started", "ended"]
        assert stream.response.text == "LOUD"
        assert stream.run.status == RunStatus.RUN_STATUS_COMPLETED
        assert [run.prompt async for run in agent.runs()] == ["hello", "quiet", "loud"]
        assert (await agent.status()).session_id == "ses-ann"
        assert (await client.info()).version == "fake"
        assert (await agent.notify({"b": 1, "a": 2}, wait_applied=True)).applied


async def test_a_failed_turn_is_raised_and_its_call_is_not() -> None:
    async with served() as (_, client):
        agent = await client.start_agent("ann", backend="echo")
        with pytest.raises(TurnFailed) as caught:
            await agent.ask("fail: rate_limited")
        assert caught.value.failure.reason == "rate_limited"
        assert caught.value.run.status == RunStatus.RUN_STATUS_FAILED
        stream = agent.prompt("fail: down")
        assert len([event async for event in stream]) == 2
        with pytest.raises(TurnFailed, match="down"):
            _ = stream.response
        with pytest.raises(TurnFailed, match="rate_limited"):
            await agent.result(caught.value.run.id)


async def test_an_error_of_the_server_is_raised_as_it_is() -> None:
    async with served() as (host, client):
        with pytest.raises(TurndockError) as caught:
            await client.agent("nobody").ask("hi")
        assert (caught.value.reason, caught.value.code) == ("AGENT_NOT_FOUND", Code.NOT_FOUND)
        with pytest.raises(TurndockError, match="AGENT_NOT_FOUND"):
            await anext(client.agent("nobody").prompt("hi"))
        with pytest.raises(TurndockError, match="AGENT_NOT_FOUND"):
            await client.agent("nobody").watch().opened()
        assert host.calls == {"Ask": 1, "Prompt": 1, "GetAgent": 1}


async def test_lists_are_read_page_by_page() -> None:
    async with served() as (host, client):
        for n in range(7):
            await client.start_agent(f"a{n}", backend="echo")
        names = [status.agent_name async for status in client.list_agents(page_size=3)]
        assert names == [f"a{n}" for n in range(7)]
        assert host.calls["ListAgents"] == 3


async def test_credentials_and_scope_go_with_every_call() -> None:
    async with served(token="s3cret", scope="blaue Füße") as (host, client):
        agent = await client.start_agent("ann", backend="echo")
        await agent.ask("hi")
        async with agent.prompt("hi") as stream, agent.watch():
            await stream.aclose()
    for metadata in host.metadata:
        assert metadata["authorization"] == "Bearer s3cret"
        assert metadata["turndock-scope"] == "blaue F%C3%BC%C3%9Fe"


async def test_a_token_does_not_travel_unencrypted_to_another_machine() -> None:
    with pytest.raises(TurndockError, match="would travel unencrypted"):
        Client("agents.example:7420", token="s3cret")
    await Client("agents.example:7420", token="s3cret", insecure=True).close()


# --- Retries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rpc", ["StartAgent", "Tell", "Ask"])
async def test_PF_B07_a_call_whose_answer_was_lost_is_made_again_with_its_id(rpc: str) -> None:
    async with served() as (host, client):
        host.drop[rpc] = 2
        agent = await client.start_agent("ann", backend="echo")
        if rpc == "Tell":
            await agent.tell("once")
        elif rpc == "Ask":
            assert (await agent.ask("once")).text == "ONCE"
        assert host.calls[rpc] == 3
        [request_id] = {*host.request_ids[rpc]}
        assert request_id
        assert len(host.agents["ann"].runs) == (0 if rpc == "StartAgent" else 1)


async def test_the_caller_s_own_request_id_is_used() -> None:
    async with served() as (host, client):
        agent = await client.start_agent("ann", backend="echo", request_id="q0")
        await agent.ask("x", request_id="q1")
        assert (host.request_ids["StartAgent"], [*host.agents["ann"].runs]) == (["q0"], ["q1"])


async def test_a_server_that_stays_unavailable_is_given_up_after_the_last_try() -> None:
    async with served() as (host, client):
        host.refuse["GetServerInfo"] = 100
        with pytest.raises(TurndockError, match="SERVER_STOPPING"):
            await client.info()
        assert host.calls["GetServerInfo"] == EAGER.tries


async def test_an_unreachable_server_is_given_up_within_the_deadline() -> None:
    patient = Retry(tries=1000, first_pause=0.01, longest_pause=0.05)
    async with Client("127.0.0.1:1", retry=patient, timeout=0.3) as client, asyncio.timeout(DEADLINE_S):
        with pytest.raises(TurndockError) as caught:
            await client.info()
    assert caught.value.code in {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED}


async def test_a_deadline_ends_the_wait_and_not_the_run() -> None:
    async with served() as (host, client):
        agent = await client.start_agent("ann", backend="echo")
        with pytest.raises(TurndockError, match="TIMEOUT"):
            await agent.ask("hold", request_id="q1", timeout=0.1)
        with pytest.raises(TurndockError, match="TIMEOUT"):
            await agent.result("q1", timeout=0.1)
        assert (await agent.run("q1", wait=0.01)).status == RunStatus.RUN_STATUS_RUNNING
        fake = host.agents["ann"]
        waiting = asyncio.create_task(agent.result("q1", timeout=DEADLINE_S))
        host.finish(fake, fake.runs["q1"])
        assert (await waiting).text == "HOLD"


async def test_a_prompt_s_stream_goes_on_after_a_break_and_repeats_nothing() -> None:
    async with served() as (host, client):
        agent = await client.start_agent("ann", backend="echo")
        stream = agent.prompt("hold", request_id="q1")
        assert (await anext(stream)).message_streamed.text == "started"
        fake = host.agents["ann"]
        host.drop["Prompt"] = 2
        fake.append("middle", run_id="q1")
        host.finish(fake, fake.runs["q1"])
        rest = [event.message_streamed.text async for event in stream]
        assert rest == ["middle", "ended"]
        assert stream.response.text == "HOLD"
        assert {*host.request_ids["Prompt"]} == {"q1"}
        assert host.calls["Prompt"] == 3


async def test_leaving_a_prompt_s_stream_leaves_its_run() -> None:
    async with served() as (host, client):
        agent = await client.start_agent("ann", backend="echo")
        async with agent.prompt("hold", request_id="q1"):
            pass
        fake = host.agents["ann"]
        assert fake.runs["q1"].status == RunStatus.RUN_STATUS_RUNNING
        with pytest.raises(RuntimeError, match="not ended"):
            _ = agent.prompt("x").outcome


# --- Watching ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def watched(events: int = 0) -> AsyncGenerator[tuple[FakeHost, FakeAgent, Client, Proxy]]:
    """An agent with so many events, behind a proxy."""
    async with (
        fake_host() as (host, endpoint),
        proxied(endpoint.host, endpoint.port) as proxy,
        Client(f"127.0.0.1:{proxy.port}", retry=EAGER) as client,
        asyncio.timeout(DEADLINE_S),
    ):
        await client.start_agent("ann", backend="echo")
        fake = host.agents["ann"]
        fake.append(*(f"e{n}" for n in range(1, events + 1)))
        yield host, fake, client, proxy


async def test_PF_B01_a_watch_from_any_place_gets_what_comes_after_it_once() -> None:
    async with watched(12) as (_, fake, client, _):
        agent = client.agent("ann")
        for after in (0, Cursor(session_id="ses-ann"), 5, 11):
            async with agent.watch(after) as watch:
                start = after.after_sequence if isinstance(after, Cursor) else after
                got = [(await anext(watch)).sequence for _ in range(12 - start)]
                assert got == [*range(start + 1, 13)]
                assert [cursor.after_sequence for cursor in watch.cursors] == [12]
        async with agent.watch(12) as watch:
            pending = asyncio.ensure_future(anext(watch))
            fake.append("thirteen")
            assert (await pending).sequence == 13


async def test_PF_E29_an_idle_watch_stands_at_once_and_survives_two_breaks() -> None:
    async with watched() as (host, fake, client, proxy):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with client.agent("ann").watch() as watch:
            assert loop.time() - begun < 1  # although there is no event yet
            got: list[int] = []
            for round_ in range(3):
                fake.append(*(f"{round_}.{n}" for n in range(5)))
                got += [(await anext(watch)).sequence for _ in range(5)]
                proxy.cut()
                fake.append("while nobody listened")
                got.append((await anext(watch)).sequence)
            assert got == [*range(1, 19)]
            assert host.calls["Watch"] >= 3
            assert host.calls["GetAgent"] == 1


async def test_a_watch_waits_for_a_server_that_is_away() -> None:
    async with (
        watched(2) as (_, fake, client, proxy),
        client.agent("ann").watch(1) as watch,
    ):
        assert (await anext(watch)).sequence == 2
        proxy.close_gate()
        pending = asyncio.ensure_future(anext(watch))
        fake.append("away")
        await proxy.refused()
        assert not pending.done()
        proxy.open_gate()
        assert (await pending).sequence == 3


async def test_a_watch_says_once_that_its_connection_is_lost_and_once_that_it_is_back() -> None:
    said: list[str] = []
    lost, back = asyncio.Event(), asyncio.Event()

    def on_lost(error: TurndockError) -> None:
        said.append(error.code.name)
        lost.set()

    def on_resumed() -> None:
        said.append("back")
        back.set()

    async with (
        watched(1) as (_, fake, client, proxy),
        client.agent("ann").watch(on_lost=on_lost, on_resumed=on_resumed) as watch,
    ):
        assert (await anext(watch)).sequence == 1
        assert said == []
        for round_ in (2, 3):
            proxy.close_gate()
            pending = asyncio.ensure_future(anext(watch))
            await lost.wait()
            await proxy.refused()
            await proxy.refused()
            assert said[-1] == "UNAVAILABLE"
            proxy.open_gate()
            await back.wait()  # although nothing has happened yet
            fake.append("next")
            assert (await pending).sequence == round_
            lost.clear()
            back.clear()
        assert said == ["UNAVAILABLE", "back"] * 2


async def test_what_a_watch_is_told_to_call_may_end_it() -> None:
    class Enough(Exception):
        pass

    def give_up(error: TurndockError) -> None:
        raise Enough

    async with watched(1) as (_, _, client, proxy), client.agent("ann").watch(on_lost=give_up) as watch:
        assert (await anext(watch)).sequence == 1
        proxy.close_gate()
        with pytest.raises(Enough):
            await anext(watch)


async def test_a_watch_with_bounded_tries_gives_up() -> None:
    async with (
        watched(1) as (_, _, client, proxy),
        client.agent("ann").watch(tries=3) as watch,
    ):
        assert (await anext(watch)).sequence == 1
        proxy.close_gate()
        with pytest.raises(TurndockError) as caught:
            await anext(watch)
        assert caught.value.code is Code.UNAVAILABLE


async def test_PF_B03_a_watch_cut_at_every_place_misses_and_repeats_nothing() -> None:
    async with watched() as (_, fake, client, proxy):

        async def write() -> None:
            for n in range(200):
                fake.append(f"e{n}")
                await asyncio.sleep(0.001)
                if n % 20 == 10:
                    proxy.cut()

        async with client.agent("ann").watch() as watch:
            writer = asyncio.create_task(write())
            got = [(await anext(watch)).sequence for _ in range(200)]
            await writer
        assert got == [*range(1, 201)]


async def test_PF_B39_ranges_that_were_pruned_are_named() -> None:
    async with watched(10) as (_, fake, client, _):
        fake.pruned_through = 6
        async with client.agent("ann").watch(2) as watch:
            got = [(await anext(watch)).sequence for _ in range(4)]
            assert got == [7, 8, 9, 10]
            [skipped] = watch.skipped
            assert (skipped.from_sequence, skipped.to_sequence) == (3, 6)


async def test_a_watch_goes_on_when_its_server_stops_and_ends_when_its_run_has() -> None:
    async with (
        watched(1) as (host, fake, client, _),
        client.agent("ann").watch() as watch,
    ):
        assert (await anext(watch)).sequence == 1
        fake.end = End.REASON_SERVER_STOPPING
        fake.wake()
        pending = asyncio.ensure_future(anext(watch))
        while host.calls["Watch"] < 2:
            await asyncio.wait([pending], timeout=0.01)
        fake.append("next")
        assert (await pending).sequence == 2
        fake.end = End.REASON_TERMINAL
        fake.wake()
        assert [event async for event in watch] == []
        assert watch.end == End.REASON_TERMINAL


async def test_a_watch_stops_when_it_is_told_to() -> None:
    async with watched(1) as (_, _, client, _):
        watch = await client.agent("ann").watch().opened()
        assert (await anext(watch)).sequence == 1
        pending = asyncio.ensure_future(anext(watch))
        await asyncio.wait([pending], timeout=0.05)
        watch.close()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(pending, DEADLINE_S)


@pytest.mark.parametrize("reason", ["SEQUENCE_IN_FUTURE", "SESSION_RECREATED"])
async def test_a_cursor_the_server_refuses_ends_the_watch(reason: str) -> None:
    async with watched(3) as (host, fake, client, _):
        cursor = fake.cursor(9 if reason == "SEQUENCE_IN_FUTURE" else 1)
        if reason == "SESSION_RECREATED":
            cursor.incarnation = "older"
        with pytest.raises(TurndockError, match=reason):
            await client.watch(cursor).opened()
        assert host.calls["Watch"] == 1


async def test_frames_are_yielded_without_what_was_delivered_before() -> None:
    async with (
        watched(5) as (_, fake, client, proxy),
        client.agent("ann").watch(frames=True) as watch,
    ):
        kinds: list[str | None] = []
        sequences: list[int] = []
        while len(sequences) < 6:
            frame = await anext(watch)
            kinds.append(frame.WhichOneof("frame"))
            sequences += [event.sequence for event in frame.batch.events]
            assert frame.cursor == watch.cursors[0]
            if kinds[-1] == "caught_up" and kinds.count("caught_up") == 1:
                proxy.cut()
                fake.append("six")
        assert sequences == [1, 2, 3, 4, 5, 6]
        assert kinds[:4] == ["created", "batch", "batch", "caught_up"]


async def test_dropping_watches_leaves_no_task_behind() -> None:
    async with watched(3) as (_, _, client, _):
        before = len(asyncio.all_tasks())
        for _ in range(10):
            async with client.agent("ann").watch() as watch:
                await anext(watch)
        async with asyncio.timeout(DEADLINE_S):
            while len(asyncio.all_tasks()) > before:
                await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=0.01)
