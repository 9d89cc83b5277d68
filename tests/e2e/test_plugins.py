"""Docked plug-ins: real processes, which are killed, refused, restarted and never left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from support.programs import gone, python
from support.turns import Conversation, text
from turndock import events
from turndock.errors import TurndockError
from turndock.plugin.v1 import Contract, ContractKind, DescribeResponse, ProbeResponse
from turndock.ports import Backend, BackendLost, Rejected
from turndock.serving import add_backend, add_plugin, serve
from turndock.wire import bind, new_server
from turndock_server.backends.echo import EchoBackend
from turndock_server.backends.stage import RemoteStage
from turndock_server.plugins import Dock, StaticPlugin, SupervisedPlugin

PLUGIN = [sys.executable, "-m", "turndock_server.backends.plugin"]
DockT = TypeVar("DockT", bound=Dock)
Docking = Callable[[DockT], AbstractAsyncContextManager[DockT]]


@asynccontextmanager
async def docked(dock: DockT, *, ready: bool = True) -> AsyncGenerator[DockT]:
    await dock.start()
    try:
        if ready:
            await dock.wait_ready(20)
        yield dock
    finally:
        await dock.stop()


async def until(dock: Dock, holds: Callable[[], bool]) -> None:
    """Wait for something that shows in a dock's state."""
    async with asyncio.timeout(20):
        while not holds():
            await dock._change.wait()


async def test_a_supervised_echo_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "turndock")
    plugin = SupervisedPlugin("echo", [*PLUGIN, "echo"])
    async with docked(plugin):
        talk = await Conversation(plugin.backend()).start()
        assert text(await talk.ask("hello world")) == "hello world"
        assert talk.session.provider_session_id == "echo-ses_1"
        assert talk.backend.capabilities >= {"update_session", "resume_session"}
        info = plugin.info()
        assert (info.name, info.starts, info.state) == ("echo", 1, ProbeResponse.STATE_READY)
        assert info.description.name == "echo"
        folder = Path(plugin.endpoint.path).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        pid = plugin.pid
    assert pid is not None
    await gone(pid)
    assert not folder.exists()
    assert plugin.info().state == ProbeResponse.STATE_NOT_READY
    assert any(
        record.name == "turndock.plugins.echo" and "listens at" in record.message for record in caplog.records
    )
    await plugin.stop()


async def test_a_killed_plugin_is_started_again_and_used_again(tmp_path: Path) -> None:
    control = tmp_path / "c"
    plugin = SupervisedPlugin(
        "scripted", [*PLUGIN, "scripted", "--control", str(control)], restart_s=(0.05, 1)
    )
    async with docked(plugin):
        backend = plugin.backend()
        scripts = [[{"text": "x"}, {"gate": "g"}, {"result": "never"}], [{"result": "again"}]]
        talk = await Conversation(backend, scripts=scripts, default=[{"result": "again"}]).start()
        first = asyncio.ensure_future(talk.ask("a"))
        await RemoteStage(control).entered("g")
        assert plugin.pid is not None
        os.kill(plugin.pid, signal.SIGKILL)
        with pytest.raises(BackendLost):
            await first
        await until(plugin, lambda: "signal 9" in plugin.message)
        assert plugin.info().state == ProbeResponse.STATE_NOT_READY
        await plugin.wait_ready(20)
        assert plugin.starts == 2
        assert plugin.info().message == ""
        again = asyncio.ensure_future(talk.ask("b"))  # the new process finds its place by the session
        await RemoteStage(control).entered("g")
        await RemoteStage(control).release("g")
        assert (await again)[-1] == events.result("never")
        assert await talk.ask("c") == [events.result("again")]


async def test_a_plugin_that_never_listens_is_reported_and_ended(tmp_path: Path) -> None:
    plugin = SupervisedPlugin("mute", python(tmp_path, "import signal; signal.pause()"))
    async with docked(plugin, ready=False):
        with pytest.raises(TurndockError) as caught:
            await plugin.wait_ready(0.3)
        assert caught.value.reason == "PLUGIN_UNAVAILABLE"
        assert caught.value.message == (
            f"plug-in mute is not ready after 0.3 s: runs as process {plugin.pid}, "
            "which has not answered at TURNDOCK_PLUGIN_ENDPOINT yet"
        )
        with pytest.raises(TurndockError, match="PLUGIN_UNAVAILABLE: plug-in mute has not answered yet"):
            plugin.session_store()
        backend = plugin.backend()
        assert backend.capabilities == frozenset()
        with pytest.raises(TurndockError, match="PLUGIN_UNAVAILABLE"):
            await Conversation(backend).start()
        with pytest.raises(Rejected) as rejected:
            await Conversation(backend).ask("x")
        assert rejected.value.failure.reason == "plugin_unavailable"
        assert rejected.value.failure.retryable
        pid = plugin.pid
    assert pid is not None
    await gone(pid)


async def test_a_plugin_that_ends_at_once_is_started_again_and_its_last_words_are_told(
    tmp_path: Path,
) -> None:
    source = "import sys; print('loading'); print('no module named model', file=sys.stderr); sys.exit(3)"
    plugin = SupervisedPlugin("broken", python(tmp_path, source), restart_s=(0.01, 0.05))
    async with docked(plugin, ready=False):
        await until(plugin, lambda: plugin.starts >= 3 and "no module" in plugin.message)
        assert plugin.message == "exited with code 3: no module named model"
        with pytest.raises(TurndockError, match="exited with code 3: no module named model"):
            await plugin.wait_ready(0)


async def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    plugin = SupervisedPlugin("none", f"exec:{tmp_path}/none --flag", restart_s=(0.01, 0.05))
    async with docked(plugin, ready=False):
        await until(plugin, lambda: "cannot be started" in plugin.message)
        assert plugin.starts == 0
        assert "No such file" in plugin.info().message


async def test_a_plugin_that_prints_nonsense_works_and_its_output_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "turndock")
    source = f"""
        import os, sys
        sys.path[:0] = {sys.path!r}
        os.write(1, b"\\xff\\x00 nonsense\\n" + b"x" * 100_000 + b"\\n\\n")
        os.write(2, b"complaint without an end")
        from turndock_server.backends.plugin import main
        main(["echo"])
    """
    plugin = SupervisedPlugin("noisy", python(tmp_path, source))
    async with docked(plugin):
        talk = await Conversation(plugin.backend()).start()
        assert text(await talk.ask("hi")) == "hi"
    messages = [record.message for record in caplog.records if record.name == "turndock.plugins.noisy"]
    assert "\ufffd\0 nonsense" in messages
    assert "x" * 256 + "… (100000 bytes)" in messages
    assert any(message.startswith("complaint without an end") for message in messages)


async def test_the_whole_group_is_killed_at_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "turndock")
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); signal.pause()"
    source = f"""
        import signal, subprocess, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-I", "-S", "-u", "-c", {stubborn!r}], stdout=subprocess.PIPE)
        child.stdout.readline()
        print("grandchild", child.pid)
        sys.exit(1) if len(sys.argv) > 1 else signal.pause()
    """

    def grandchildren() -> list[int]:
        words = [record.message.split() for record in caplog.records]
        return [int(said[1]) for said in words if said[0] == "grandchild"]

    plugin = SupervisedPlugin("stubborn", python(tmp_path, source), grace_s=0.1)
    async with docked(plugin, ready=False):
        await _logged(grandchildren)
        pids = [plugin.pid, *grandchildren()]
    for pid in pids:
        assert pid is not None
        await gone(pid)

    caplog.clear()
    leaving = SupervisedPlugin("leaving", python(tmp_path, source, "leave"), restart_s=(0.01, 0.01))
    async with docked(leaving, ready=False):
        await until(leaving, lambda: leaving.starts >= 2)
        await gone(grandchildren()[0])  # killed with the process that ended by itself


async def _logged(found: Callable[[], list[int]]) -> None:
    """Wait until something shows in the log."""
    logged = asyncio.Event()

    class Waker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.set()

    waker = Waker()
    logging.getLogger("turndock").addHandler(waker)
    try:
        async with asyncio.timeout(20):
            while not found():
                await logged.wait()
                logged.clear()
    finally:
        logging.getLogger("turndock").removeHandler(waker)


async def test_a_plugin_dies_with_a_server_that_is_killed_and_its_directory_goes(tmp_path: Path) -> None:
    source = f"""
        import asyncio, signal, sys
        sys.path[:0] = {sys.path!r}
        from turndock_server import processes
        from turndock_server.plugins import SupervisedPlugin

        async def main():
            plugin = SupervisedPlugin("mute", [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
            await plugin.start()
            while plugin.pid is None:
                await plugin._change.wait()
            print(plugin.pid, processes._guardian._process.pid, plugin.endpoint.path)
            await asyncio.Event().wait()

        asyncio.run(main())
    """
    server = await asyncio.create_subprocess_exec(
        *python(tmp_path, source),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert server.stdout is not None
    plugin, guardian, path = (await server.stdout.readline()).decode().split()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)  # as a plug-in that is killed leaves it behind
        server.kill()
        await server.wait()
        await gone(int(plugin))
        await gone(int(guardian))
    assert not Path(path).parent.exists()


@asynccontextmanager
async def serving(backend: Backend, endpoint: str, **options: object) -> AsyncGenerator[None]:
    """A plug-in in this process, at a place of its own."""
    stop = asyncio.Event()
    listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve(
            name="p",
            version=str(options.get("version", "1")),
            backend=backend,
            endpoint=endpoint,
            stop=stop,
            grace=0,
            on_ready=lambda _: listening.set_result(None),
        )
    )
    try:
        await asyncio.wait((task, listening), return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        stop.set()
        await task


async def test_a_static_plugin_may_come_late_go_and_come_back_changed(tmp_path: Path) -> None:
    endpoint = f"unix:{tmp_path}/s"
    plugin = StaticPlugin("late", endpoint)
    async with docked(plugin, ready=False):
        with pytest.raises(TurndockError, match=r"plug-in late is not ready after 0\.1 s"):
            await plugin.wait_ready(0.1)
        backend = plugin.backend()
        async with serving(EchoBackend(), endpoint):
            await plugin.wait_ready(20)
            talk = await Conversation(backend).start()
            await talk.ask("one")
        await until(plugin, lambda: plugin.info().state != ProbeResponse.STATE_READY)
        async with serving(EchoBackend(), endpoint, version="2"):
            await plugin.wait_ready(20)
            assert plugin.info().description.version == "2"
            assert text(await talk.ask("two")) == "two"
    assert plugin.info().starts == 0


@asynccontextmanager
async def describing(
    endpoint: str, description: DescribeResponse, probe: Callable[[], ProbeResponse] | None = None
) -> AsyncGenerator[None]:
    """A plug-in that says this of itself."""
    server = new_server()

    async def ask() -> ProbeResponse:
        return probe() if probe else ProbeResponse(state=ProbeResponse.STATE_READY)

    add_plugin(server, description, ask)
    add_backend(server, EchoBackend())
    bind(server, endpoint)
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


def backend_contract(least: int, most: int) -> DescribeResponse:
    kind = ContractKind.CONTRACT_KIND_BACKEND
    return DescribeResponse(
        name="p", version="9", contracts=[Contract(kind=kind, min_version=least, max_version=most)]
    )


async def test_a_plugin_of_another_version_is_refused_at_once(tmp_path: Path) -> None:
    endpoint = f"unix:{tmp_path}/s"
    plugin = StaticPlugin("new", endpoint)
    async with docked(plugin, ready=False):
        async with describing(endpoint, backend_contract(2, 3)):
            with pytest.raises(TurndockError) as caught:
                await plugin.wait_ready(20)
            assert str(caught.value) == (
                "PLUGIN_UNAVAILABLE: plug-in new serves backend in versions 2 to 3; this server speaks version 1"
            )
            assert plugin.info().state == ProbeResponse.STATE_ERROR
        await until(plugin, lambda: plugin.info().state == ProbeResponse.STATE_NOT_READY)
        newer = backend_contract(1, 3)
        newer.contracts.add(kind=99, min_version=7, max_version=7)  # pyright: ignore[reportArgumentType] - one this server does not know
        async with describing(endpoint, newer):
            await plugin.wait_ready(20)


async def test_a_plugin_says_when_it_is_ready_and_when_no_more(tmp_path: Path) -> None:
    states = iter(
        (
            ProbeResponse(state=ProbeResponse.STATE_NOT_READY, message="loads its model"),
            ProbeResponse(state=ProbeResponse.STATE_ERROR, message="the model is damaged"),
            ProbeResponse(),
            ProbeResponse(state=ProbeResponse.STATE_ERROR, message="out of memory"),
        )
    )
    last = ProbeResponse(state=ProbeResponse.STATE_READY)
    endpoint = f"unix:{tmp_path}/s"
    plugin = StaticPlugin("slow", endpoint, probe_interval_s=0.05)
    seen: list[str] = []
    async with (
        describing(endpoint, backend_contract(1, 1), lambda: next(states, last)),
        docked(plugin, ready=False),
    ):
        while len(seen) < 5:
            await plugin._change.wait()
            seen.append(f"{ProbeResponse.State.Name(plugin.state)} {plugin.message}".strip())
    assert seen == [
        "STATE_NOT_READY loads its model",
        "STATE_ERROR the model is damaged",
        "STATE_READY",
        "STATE_ERROR out of memory",
        "STATE_READY",
    ]


async def test_a_server_that_is_no_plugin_is_told(tmp_path: Path) -> None:
    endpoint = f"unix:{tmp_path}/s"
    server = new_server()
    add_backend(server, EchoBackend())
    bind(server, endpoint)
    await server.start()
    plugin = StaticPlugin("other", endpoint)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, 0)
        await stack.enter_async_context(docked(plugin, ready=False))
        await until(plugin, lambda: plugin.info().state == ProbeResponse.STATE_ERROR)
        assert plugin.message == "is no Turndock plug-in: it does not serve turndock.plugin.v1.Plugin"


async def test_a_contract_a_plugin_does_not_serve_cannot_be_had(tmp_path: Path) -> None:
    endpoint = f"unix:{tmp_path}/s"
    plugin = StaticPlugin("p", endpoint)
    async with serving(EchoBackend(), endpoint), docked(plugin):
        for port in (
            plugin.session_store,
            plugin.artifact_store,
            plugin.remote_behavior,
            plugin.query,
            plugin.maintenance,
            plugin.agent_persistence,
        ):
            with pytest.raises(TurndockError, match="INVALID_OPERATION: plug-in p does not serve"):
                port()


@pytest.mark.parametrize("endpoint", ["", "http://x:1", "nowhere", "unix:"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(TurndockError, match="VALIDATION_ERROR"):
        StaticPlugin("p", endpoint)


def test_a_command_that_is_none_is_refused() -> None:
    with pytest.raises(TurndockError, match="VALIDATION_ERROR: command: names no program"):
        SupervisedPlugin("p", "exec:")


async def test_a_plugin_gets_the_environment_it_is_given_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "turndock")
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    source = "import os; print('keys', *sorted(os.environ)); os._exit(0)"
    plugin = SupervisedPlugin("p", python(tmp_path, source), {"MODEL_KEY": "k"}, restart_s=(30, 30))
    async with docked(plugin, ready=False):
        await until(plugin, lambda: "keys" in plugin.message)
        keys = plugin.message.split()
    assert {"MODEL_KEY", "TURNDOCK_PLUGIN_ENDPOINT", "PATH"} <= set(keys)
    assert "DATABASE_PASSWORD" not in keys


async def test_a_long_temporary_directory_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    plugin = SupervisedPlugin("p", ["true"])
    async with docked(plugin, ready=False):
        assert len(plugin.endpoint.path) < 100
    assert list(long.iterdir()) == []
