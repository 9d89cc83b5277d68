"""`turndock serve` and `turndock doctor` as processes: start, refusal, stop."""

import json
import signal
import socket
from pathlib import Path

import pytest

from support import commands

FREE = ("--listen", "127.0.0.1:0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_says_where_it_is_and_stops_when_told(tmp_path: Path, number: signal.Signals) -> None:
    async with commands.serving(tmp_path, *FREE) as server:
        assert server.address.startswith("grpc://127.0.0.1:")
        ended = await server.stop(number)
    assert ended.code == 0
    messages = [json.loads(line)["message"] for line in ended.err.splitlines()]
    assert messages[0].endswith(server.address)
    assert messages[-1] == "stopped"
    assert (tmp_path / "turndock-data" / "turndock.db").exists()


async def test_PF_E11_a_second_server_on_an_address_fails_and_leaves_the_first_alone(tmp_path: Path) -> None:
    async with commands.serving(tmp_path, *FREE) as first:
        address = first.address.removeprefix("grpc://")
        second = await commands.run("serve", "--listen", address, "--data", "other", cwd=tmp_path)
        assert second.code == 1
        assert second.err == (
            f"turndock: cannot start: cannot listen at grpc://{address}: Address already in use. "
            "server.listen or --listen names another address\n"
        )
        assert (await first.stop()).code == 0


async def test_a_second_server_on_a_store_fails_and_names_the_first(tmp_path: Path) -> None:
    async with commands.serving(tmp_path, *FREE) as first:
        second = await commands.run("serve", *FREE, cwd=tmp_path)
        assert second.code == 1
        assert f"held by process {first.process.pid}" in second.err
        findings = await commands.run("doctor", *FREE, "--json", cwd=tmp_path)
        errors = [one for one in json.loads(findings.out) if one["level"] == "error"]
        assert [error["subject"] for error in errors] == ["store.path"]
        assert f"process {first.process.pid}" in errors[0]["what"]
        assert findings.code == 1
        assert (await first.stop()).code == 0
    async with commands.serving(tmp_path, *FREE) as third:
        assert (await third.stop()).code == 0


async def test_a_second_server_on_a_unix_socket_fails(tmp_path: Path) -> None:
    async with commands.serving(tmp_path, "--listen", "unix:x.sock") as first:
        assert first.address == "unix:x.sock"
        second = await commands.run("serve", "--listen", "unix:x.sock", "--data", "other", cwd=tmp_path)
        assert second.code == 1
        assert f"held by process {first.process.pid}" in second.err
        assert (await first.stop()).code == 0


async def test_a_configuration_with_a_mistake_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "turndock.toml").write_text("[server]\nlistn = '127.0.0.1:0'\n[store]\nkind = 'postgres'\n")
    ended = await commands.run("serve", cwd=tmp_path)
    assert ended.code == 2
    assert "turndock.toml: server.listn: unknown key. Did you mean server.listen?" in ended.err
    assert "turndock.toml: store.kind: must be sqlite, postgresql, memory or plugin:<name>" in ended.err
    assert not (tmp_path / "turndock-data").exists()


async def test_a_backend_that_is_not_installed_is_named_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "turndock.toml").write_text("[backends.mine]\nkind = 'mime'\n")
    ended = await commands.run("serve", *FREE, cwd=tmp_path)
    assert ended.code == 1
    assert "backends.mine.kind: nothing of the name 'mime' is installed. Known here: command," in ended.err


async def test_nothing_listens_off_loopback_by_mistake(tmp_path: Path) -> None:
    ended = await commands.run("serve", "--listen", "0.0.0.0:0", cwd=tmp_path)
    assert ended.code == 2
    assert "can be reached from other machines" in ended.err
    async with commands.serving(tmp_path, "--listen", "0.0.0.0:0", "--insecure") as server:
        assert (await server.stop()).code == 0


async def test_a_secret_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "turndock.toml").write_text(
        "[plugins.m]\nendpoint='exec:m'\nenv.KEY={env='NOT_SET_ANYWHERE'}"
    )
    ended = await commands.run("serve", *FREE, cwd=tmp_path)
    assert ended.code == 2
    assert "plugins.m.env.KEY: the environment variable NOT_SET_ANYWHERE is not set" in ended.err


async def test_the_doctor_finds_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = await commands.run("doctor", "--listen", f"127.0.0.1:{port}", cwd=tmp_path)
    assert ended.code == 1
    assert "another program listens" in ended.out
    assert ended.out.rstrip().endswith("1 error")
    assert (await commands.run("doctor", *FREE, cwd=tmp_path)).code == 0


SLOW = '{"delay_ms": 60000}'


async def test_a_turn_that_outlasts_the_grace_is_ended_once_and_waiting_prompts_stay(tmp_path: Path) -> None:
    grace = {"TURNDOCK_SERVER__GRACE_SECONDS": "0.2"}
    async with commands.serving(tmp_path, "--listen", "unix:x.sock", variables=grace) as first:
        where = {"TURNDOCK_SERVER": first.address}
        for arguments in (
            ("agents", "start", "slow", "-b", "echo", "--backend-config", SLOW),
            ("tell", "--agent", "slow", "--request-id", "r-1", "one"),
            ("tell", "--agent", "slow", "--request-id", "r-2", "two"),
        ):
            assert (await commands.run(*arguments, cwd=tmp_path, variables=where)).code == 0
        assert (await first.stop()).code == 0
    async with commands.serving(tmp_path, "--listen", "unix:x.sock", variables=grace) as second:
        listed = await commands.run("runs", "list", "slow", "--json", cwd=tmp_path, variables=where)
        ended, waiting = json.loads(listed.out)
        assert (ended["id"], ended["failure"]["reason"]) == ("r-1", "host_stopping")
        assert (waiting["id"], waiting["status"]) == ("r-2", "RUN_STATUS_RUNNING")
        log = await commands.run(
            "watch", "slow", "--json", "--run", "r-1", "--until-terminal", cwd=tmp_path, variables=where
        )
        types = [json.loads(line)["type"] for line in log.out.splitlines()]
        assert [kind for kind in types if kind.startswith("EVENT_TYPE_RUN_")] == [
            "EVENT_TYPE_RUN_STARTED",
            "EVENT_TYPE_RUN_CANCELLED",
        ]
        assert (await second.stop()).code == 0


async def test_a_second_signal_ends_the_wait_for_turns(tmp_path: Path) -> None:
    async with commands.serving(tmp_path, *FREE) as server:
        where = {"TURNDOCK_SERVER": server.address}
        start = ("agents", "start", "slow", "-b", "echo", "--backend-config", SLOW)
        assert (await commands.run(*start, cwd=tmp_path, variables=where)).code == 0
        assert (await commands.run("tell", "--agent", "slow", "x", cwd=tmp_path, variables=where)).code == 0
        server.process.send_signal(signal.SIGTERM)
        assert server.process.stderr is not None
        while b"stopping" not in await server.process.stderr.readline():
            pass
        ended = await server.stop()
    assert ended.code == 0
    assert "asked to stop twice" in ended.err
    assert json.loads(ended.err.splitlines()[-1])["message"] == "stopped"
