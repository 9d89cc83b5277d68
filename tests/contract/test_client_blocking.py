"""The client for code without an event loop."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from support.agent_host import fake_host
from support.proxy import proxied
from turndock.client import Retry, SyncClient, TurnFailed
from turndock.errors import TurndockError

DEADLINE_S = 20.0
EAGER = Retry(tries=3, first_pause=0.01, longest_pause=0.05)


async def in_thread(work: Callable[[str], None], endpoint: str) -> None:
    """Run blocking work in a thread, while this loop serves."""
    await asyncio.wait_for(asyncio.to_thread(work, endpoint), DEADLINE_S)


def use(endpoint: str) -> None:
    with SyncClient(endpoint, retry=EAGER) as client:
        agent = client.start_agent("ann", backend="echo", metadata={"a": 1})
        assert agent.ask("hello").text == "HELLO"
        told = agent.tell("quiet")
        assert agent.result(told.run.id).text == "QUIET"
        with agent.prompt("loud") as stream:
            assert [event.message_streamed.text for event in stream] == ["started", "ended"]
        assert stream.response.text == "LOUD"
        assert [run.prompt for run in agent.runs()] == ["hello", "quiet", "loud"]
        assert [status.agent_name for status in client.list_agents()] == ["ann"]
        assert client.info().version == "fake"
        assert agent.notify([1]).sequence == 7
        with pytest.raises(TurnFailed, match="rate_limited"):
            agent.ask("fail: rate_limited")
        with pytest.raises(TurndockError, match="AGENT_NOT_FOUND"):
            client.agent("bob").status()
        with agent.watch(5) as watch:
            assert [next(watch).sequence for _ in range(4)] == [6, 7, 8, 9]
            assert watch.cursors[0].after_sequence == 9


async def test_every_method_blocks_until_its_answer() -> None:
    async with fake_host() as (_, endpoint):
        await in_thread(use, str(endpoint))


def watch_until_closed(endpoint: str) -> None:
    with SyncClient(endpoint, retry=EAGER) as client:
        agent = client.start_agent("ann", backend="echo")
        watch = agent.watch()
        seen: list[int] = []
        standing = threading.Event()

        def read() -> None:
            with watch:
                standing.set()
                seen.extend(event.sequence for event in watch)

        reader = threading.Thread(target=read)
        reader.start()
        assert standing.wait(DEADLINE_S)
        agent.ask("one")
        with agent.watch(1) as other:
            assert next(other).sequence == 2
        watch.close()
        reader.join(DEADLINE_S)
        assert seen in ([1, 2], [1], [])  # what it had read by then


async def test_a_watch_in_another_thread_ends_when_it_is_closed() -> None:
    async with fake_host() as (_, endpoint):
        await in_thread(watch_until_closed, str(endpoint))


def watch_over_a_break(endpoint: str, cut: Callable[[], None]) -> None:
    lost, back = threading.Event(), threading.Event()
    with SyncClient(endpoint, retry=EAGER) as client:
        agent = client.start_agent("ann", backend="echo")
        with agent.watch(on_lost=lambda _: lost.set(), on_resumed=back.set) as watch:
            agent.ask("one")
            assert next(watch).sequence == 1
            cut()
            agent.ask("two")
            assert [next(watch).sequence for _ in range(3)] == [2, 3, 4]
        assert lost.is_set()
        assert back.is_set()


async def test_a_watch_says_that_its_connection_is_lost_and_back() -> None:
    async with fake_host() as (_, endpoint), proxied(endpoint.host, endpoint.port) as proxy:
        loop = asyncio.get_running_loop()

        def cut() -> None:
            loop.call_soon_threadsafe(proxy.cut)

        work = asyncio.to_thread(watch_over_a_break, f"127.0.0.1:{proxy.port}", cut)
        await asyncio.wait_for(work, DEADLINE_S)


def use_from_many_threads(endpoint: str) -> None:
    with SyncClient(endpoint, retry=EAGER) as client:
        agent = client.start_agent("ann", backend="echo")
        answers: list[str] = []

        def ask(number: int) -> None:
            answers.extend(agent.ask(f"{number}.{n}").text for n in range(20))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert sorted(answers) == sorted(f"{number}.{n}" for number in range(5) for n in range(20))


async def test_several_threads_share_a_client(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_host() as (_, endpoint):
        await in_thread(use_from_many_threads, str(endpoint))
    assert caplog.records == []  # two loops in one process do not disturb each other


async def test_a_client_that_is_closed_leaves_no_thread_and_a_bad_endpoint_none_either() -> None:
    before = threading.active_count()
    client = SyncClient("127.0.0.1:1")
    client.close()
    client.close()
    with pytest.raises(TurndockError, match="endpoint"):
        SyncClient("nowhere")
    assert threading.active_count() <= before
