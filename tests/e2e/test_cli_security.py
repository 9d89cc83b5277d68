"""An encrypted server that asks who calls, set up and used by the command line alone, as the guide says."""

import json
from pathlib import Path

import pytest

from support import commands
from support.secured import Authority

CONFIG = """
auth.tokens = "tokens.json"
[server]
listen = "127.0.0.1:0"
[tls]
cert = "server.pem"
key = "server.key"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Authority(tmp_path).issue("server", "127.0.0.1")
    (tmp_path / "turndock.toml").write_text(CONFIG)
    return tmp_path


async def token(folder: Path, *options: str) -> str:
    made = await commands.run("tokens", "create", *options, cwd=folder)
    assert made.code == 0, made
    assert made.out.strip() not in made.err
    assert "It is not shown again" in made.err
    return made.out.strip()


async def test_a_server_is_set_up_and_used_with_tokens_over_tls(folder: Path) -> None:
    mine = await token(folder, "ann", "--role", "controller", "--scope", "red", "--expires-days", "90")
    async with commands.serving(folder) as server:
        assert server.address.startswith("grpcs://127.0.0.1:")
        where = {"TURNDOCK_SERVER": server.address, "TURNDOCK_TLS_CA": "ca.pem"}
        known = {**where, "TURNDOCK_TOKEN": mine}

        async def run(*arguments: str, variables: dict[str, str] = known) -> commands.Finished:
            return await commands.run(*arguments, cwd=folder, variables=variables)

        assert (await run("agents", "start", "demo", "--backend", "echo")).code == 0
        assert "Hello" in (await run("ask", "--agent", "demo", "Hello")).out
        for scope in ((), ("--scope", "red")):  # The credentials say which it is.
            assert "demo" in (await run("sessions", "list", *scope)).out
        assert "in scope" in (await run("info")).out
        assert "credentials       token\n" in (await run("info")).out
        distrust = await run("info", variables={**known, "TURNDOCK_TLS_CA": ""})
        assert (distrust.code, "the certificate is not trusted" in distrust.err) == (4, True)
        assert "Handshake failed" not in distrust.err

        refused = await run("agents", "list", variables=where)
        assert (refused.code, "UNAUTHENTICATED" in refused.err) == (1, True)
        assert "TURNDOCK_TOKEN or --token-file" in refused.err
        refused = await run("agents", "list", "--scope", "blue")
        assert "PERMISSION_DENIED" in refused.err

        # One made while it runs, from a file; then revoked.
        (folder / "bob.token").write_text(
            await token(folder, "bob", "--role", "observer", "--scope", "red") + "\n"
        )
        bob = {**where, "TURNDOCK_TOKEN_FILE": "bob.token"}
        listed = json.loads((await commands.run("tokens", "list", "--json", cwd=folder)).out)
        assert [(one["name"], one["role"], one["scope"]) for one in listed] == [
            ("ann", "controller", "red"),
            ("bob", "observer", "red"),
        ]
        assert not any("sha256" in one for one in listed)
        assert "bob" in (await commands.run("tokens", "list", cwd=folder)).out
        assert "demo" in (await run("agents", "list", variables=bob)).out
        assert "needs the role controller" in (await run("tell", "--agent", "demo", "x", variables=bob)).err
        assert (await commands.run("tokens", "revoke", "bob", cwd=folder)).code == 0
        ended = await run("agents", "list", variables=bob)
        while ended.code == 0:  # The server looks at the file once in a second.
            ended = await run("agents", "list", variables=bob)
        assert "the token is not valid" in ended.err
        stopped = await server.stop()
    assert stopped.code == 0
    assert mine not in stopped.err
    assert mine not in (folder / "tokens.json").read_text()


async def test_the_doctor_says_what_is_wrong_before_anything_is_started(folder: Path) -> None:
    first = await commands.run("doctor", cwd=folder)
    assert first.code == 1
    assert "auth.tokens: cannot read" in first.out
    await token(folder, "ann", "--role", "admin")
    (folder / "server.key").chmod(0o644)
    second = await commands.run("doctor", cwd=folder)
    assert "1 tokens are valid" in second.out
    assert "can be read by other users" in second.out
    assert "is valid until" in second.out


async def test_tokens_need_a_file_and_a_scope(tmp_path: Path) -> None:
    ended = await commands.run("tokens", "create", "ann", "--role", "admin", cwd=tmp_path)
    assert (ended.code, "the configuration names no file of tokens" in ended.err) == (2, True)
    ended = await commands.run(
        "tokens", "create", "ann", "--role", "observer", "--file", "t.json", cwd=tmp_path
    )
    assert (ended.code, "needs a scope" in ended.err, "--scope TENANT" in ended.err) == (2, True, True)
    assert not (tmp_path / "t.json").exists()


async def test_a_server_off_loopback_starts_with_a_certificate_and_not_without(folder: Path) -> None:
    await token(folder, "ann", "--role", "admin")
    async with commands.serving(folder, "--listen", "0.0.0.0:0") as server:
        assert server.address.startswith("grpcs://0.0.0.0:")
        assert (await server.stop()).code == 0
    (folder / "turndock.toml").write_text('auth.tokens = "tokens.json"')
    ended = await commands.run("serve", "--listen", "0.0.0.0:0", cwd=folder)
    assert ended.code == 2
    assert "give tls.cert and tls.key" in ended.err
