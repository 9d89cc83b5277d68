"""Events too large for the log, as clients see them: whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from support.held import config
from support.proxy import proxied
from support.servers import a_server, beside, unused_port
from turndock import events, jsontext
from turndock.backend.v1 import PromptRequest
from turndock.client import Client, Retry
from turndock.ports import TurnContext, TurnOutput
from turndock.store.v1 import ArtifactStoreDeleteRequest
from turndock.types.v1 import Event, Scope
from turndock_server.backends.echo import EchoBackend

pytestmark = pytest.mark.slow

LARGE = "x" * (3 << 19)


class Reporter(EchoBackend):
    """Says something larger than a log takes."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> AsyncIterator[TurnOutput]:
        yield "a"
        yield events.custom("report", jsontext.canonical(LARGE))
        yield "b"
        yield events.result("done")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncGenerator[None]:
    async with beside(f"unix:{tmp_path / 'backend'}", backend=Reporter()):
        yield


async def watched(client: Client, session_id: str, *, upto: int) -> list[Event]:
    got: list[Event] = []
    async with client.watch(session_id) as watch:
        async for event in watch:
            got.append(event)
            if event.sequence == upto:
                return got
    raise AssertionError("the watch ended")


def is_report(event: Event) -> bool:
    return event.custom.name == "report" and LARGE in event.custom.data_json


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("scope", [None, "red"])
async def test_an_offloaded_payload_is_read_back_wherever_it_is_watched(
    tmp_path: Path, scope: str | None
) -> None:
    async with (
        a_server(tmp_path, config(tmp_path)) as server,
        Client(server.endpoint, scope=scope) as client,
    ):
        agent = await client.start_agent("ann", backend="beside")
        session_id = (await agent.status()).session_id
        async with agent.prompt("go") as stream:
            live = [event async for event in stream]
        (report,) = filter(is_report, live)
        assert not report.HasField("offloaded")
        assert report.session_id == session_id
        assert [event.sequence for event in live] == list(range(live[0].sequence, live[-1].sequence + 1))
        again = await watched(client, session_id, upto=live[-1].sequence)
        assert again[-len(live) :] == live

        # Whose bytes are gone comes with its reference, and holds up nothing.
        key = f"turndock/event/{report.id}"
        own = None if scope is None else Scope(tenant=scope)
        await client.artifact_store().delete(ArtifactStoreDeleteRequest(scope=own, key=key))
        without = await watched(client, session_id, upto=live[-1].sequence)
        (stub,) = [event for event in without if event.sequence == report.sequence]
        assert (stub.offloaded.key, stub.offloaded.size > len(LARGE)) == (key, True)
        assert stub.WhichOneof("payload") is None
        assert [event.sequence for event in without] == [event.sequence for event in again]


@pytest.mark.usefixtures("backend")
async def test_a_connection_lost_while_payloads_are_read_back_repeats_nothing(tmp_path: Path) -> None:
    port = unused_port()
    async with (
        a_server(tmp_path, config(tmp_path), listen=f"127.0.0.1:{port}") as server,
        Client(server.endpoint) as direct,
    ):
        agent = await direct.start_agent("ann", backend="beside")
        for _ in range(3):
            await agent.ask("go")
        status = await agent.status()
        async with (
            proxied("127.0.0.1", port) as proxy,
            Client(f"127.0.0.1:{proxy.port}", retry=Retry(first_pause=0.01, longest_pause=0.05)) as client,
        ):
            got: list[Event] = []
            async with client.watch(status.session_id) as watch:
                async for event in watch:
                    got.append(event)
                    if event.HasField("message_streamed") or is_report(event):
                        proxy.cut()
                    if event.sequence == status.last_sequence:
                        break
        assert [event.sequence for event in got] == list(range(1, status.last_sequence + 1))
        assert len(list(filter(is_report, got))) == 3
