"""The echo."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from support.turns import Conversation, said, text
from turndock import events
from turndock.errors import TurndockError
from turndock.types.v1 import Event
from turndock_server.backends import registry
from turndock_server.backends.echo import EchoBackend, EchoState


async def test_the_words_come_back_one_by_one() -> None:
    talk = await Conversation(EchoBackend()).start()
    outputs = await talk.ask(" hello  big world\n")
    assert said(outputs) == [
        " ",
        "hello  ",
        "big ",
        "world\n",
        "usage",
        events.result(" hello  big world\n", provider_session_id="echo-ses_1", stop_reason="stop"),
    ]
    usage = outputs[4]
    assert isinstance(usage, Event)
    assert usage.token_usage_updated.usage.input_tokens == 3


@pytest.mark.parametrize("prompt", ["", "   ", "x", "two\nlines", "é" * 5000, "w " * 1000])
async def test_the_pieces_are_the_prompt(prompt: str) -> None:
    talk = await Conversation(EchoBackend()).start()
    assert text(await talk.ask(prompt)) == prompt


async def test_the_session_counts_turns_and_keeps_its_name() -> None:
    talk = await Conversation(EchoBackend(), delay_ms=0).start()
    await talk.ask("a")
    await talk.ask("b")
    assert EchoState.of(talk.session).turns == 2
    assert talk.session.provider_session_id == "echo-ses_1"
    await talk.resume(delay_ms=3)
    assert EchoState.of(talk.session).turns == 2
    assert EchoState.of(talk.session).config.delay_ms == 3
    assert talk.session.provider_session_id == "echo-ses_1"
    await talk.terminate()


async def test_a_slow_echo_can_be_left() -> None:
    talk = await Conversation(EchoBackend(), delay_ms=60_000).start()
    async with aclosing(talk.open(talk.request("a b"))) as outputs:
        first = asyncio.ensure_future(anext(outputs))
        await asyncio.wait([first], timeout=0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"delay_ms": -1}, "config_json.delay_ms"),
        ({"delay_ms": "1"}, "config_json.delay_ms"),
        ({"dealy_ms": 1}, "config_json.dealy_ms"),
    ],
)
async def test_a_wrong_configuration_is_refused_by_its_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(TurndockError) as caught:
        await Conversation(EchoBackend(), **config).start()
    assert caught.value.reason == "VALIDATION_ERROR"
    assert [violation.field for violation in caught.value.violations] == [field]


async def test_a_session_of_another_backend_is_refused() -> None:
    talk = Conversation(EchoBackend())
    talk.session.data = b'{"turns": "many"}'
    with pytest.raises(TurndockError, match=r"session\.data: is no EchoState"):
        await talk.ask("x")


def test_backends_are_found_by_name() -> None:
    assert {"command", "echo", "llama", "scripted"} <= registry.registry().keys()
    assert isinstance(registry.create("echo"), EchoBackend)
    assert registry.create("echo").capabilities == {"update_session", "resume_session"}
    with pytest.raises(TurndockError, match="NOT_FOUND: backend 'nope' not found"):
        registry.create("nope")
