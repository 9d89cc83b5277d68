"""Encryption: the server shows who it is, clients do where they are asked to, and new files count at once."""

import datetime
import logging
from pathlib import Path

import pytest

from support.secured import Authority, an_app
from support.servers import beside, unused_port
from turndock import wire
from turndock.client import Client, Retry, Tls
from turndock.errors import TurndockError
from turndock.plugin.v1 import DescribeRequest
from turndock.remote import RemotePlugin
from turndock_server.app import CannotStart
from turndock_server.backends.echo import EchoBackend

TLS = '[tls]\ncert = "server.pem"\nkey = "server.key"\n'
MUTUAL = TLS + 'client_ca = "ca.pem"\n'
ONCE = Retry(tries=1)


async def test_a_client_that_trusts_the_authority_is_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("server", "127.0.0.1")
    async with an_app(tmp_path, TLS) as (_, endpoint):
        assert str(endpoint).startswith("grpcs://127.0.0.1:")
        async with Client(str(endpoint), tls=Tls(authority.path)) as client:
            agent = await client.start_agent("ann", backend="echo")
            assert (await agent.ask("hello")).text == "hello"


async def test_a_client_refuses_a_server_it_cannot_trust(tmp_path: Path) -> None:
    Authority(tmp_path).issue("server", "127.0.0.1")
    other = Authority(tmp_path, "other")
    async with an_app(tmp_path, TLS) as (_, endpoint):
        for tls in (Tls(other.path), None):
            async with Client(str(endpoint), tls=tls, retry=ONCE) as client:
                with pytest.raises(TurndockError) as caught:
                    await client.info()
                assert caught.value.reason == "UNAVAILABLE"


async def test_an_unencrypted_client_gets_nowhere(tmp_path: Path) -> None:
    Authority(tmp_path).issue("server", "127.0.0.1")
    async with (
        an_app(tmp_path, TLS) as (_, endpoint),
        Client(endpoint.address, retry=ONCE, timeout=2) as client,
    ):
        with pytest.raises(TurndockError) as caught:
            await client.info()
        assert caught.value.reason in ("UNAVAILABLE", "TIMEOUT")


async def test_with_a_client_authority_a_client_must_show_a_certificate_of_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("server", "127.0.0.1")
    mine = authority.issue("ann.example")
    foreign = Authority(tmp_path, "other").issue("eve.example")
    stranger = Tls(authority.path, foreign.cert, foreign.key)
    async with an_app(tmp_path, MUTUAL) as (_, endpoint):
        async with Client(str(endpoint), tls=mine) as client:
            assert (await client.info()).backends
        for tls in (Tls(authority.path), stranger):
            async with Client(str(endpoint), tls=tls, retry=ONCE, timeout=2) as client:
                with pytest.raises(TurndockError) as caught:
                    await client.info()
                assert caught.value.reason in ("UNAVAILABLE", "TIMEOUT")


async def test_new_files_count_from_the_next_connection_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Authority(tmp_path)
    first.issue("server", "127.0.0.1")
    async with an_app(tmp_path, TLS) as (_, endpoint):
        async with Client(str(endpoint), tls=Tls(first.path), retry=ONCE) as before:
            await before.info()
            second = Authority(tmp_path, "second")
            second.issue("server", "127.0.0.1")
            async with Client(str(endpoint), tls=Tls(second.path), retry=ONCE) as after:
                await after.info()
            await before.info()  # its connection stands
        (tmp_path / "server.key").write_text("no key")
        with caplog.at_level(logging.ERROR, "turndock.wire"):
            async with Client(str(endpoint), tls=Tls(second.path), retry=ONCE) as after:
                await after.info()
    assert "the ones before stay" in caplog.text
    assert "no key" not in caplog.text


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("server.key", None, "tls.key: cannot read"),
        ("server.pem", "no certificate", "tls.cert: .*are no pair"),
        ("server.key", "spare.key", "tls.cert: .*are no pair that can be used"),
        ("ca.pem", "none", "tls.client_ca: .*holds no certificates"),
    ],
)
async def test_files_that_do_not_fit_together_start_nothing(
    tmp_path: Path, file: str, content: str | None, why: str
) -> None:
    authority = Authority(tmp_path)
    authority.issue("spare")
    authority.issue("server", "127.0.0.1")
    path = tmp_path / file
    path.unlink()
    if content is not None:
        spare = tmp_path / content
        path.write_text(spare.read_text() if spare.exists() else content)
    with pytest.raises(CannotStart, match=why):
        async with an_app(tmp_path, MUTUAL):
            pass


async def test_a_plug_in_elsewhere_is_reached_by_mutual_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("plugin", "127.0.0.1")
    authority.issue("host.example")
    credentials = wire.server_credentials(tmp_path / "plugin.pem", tmp_path / "plugin.key", authority.path)
    where = f"grpcs://127.0.0.1:{unused_port()}"
    async with beside(where, backend=EchoBackend(), credentials=credentials):
        config = f"""
            [backends.far]
            kind = "plugin"
            plugin = "far"
            [plugins.far]
            endpoint = "{where}"
            tls = {{ca = "ca.pem", cert = "host.example.pem", key = "host.example.key"}}
            required = true
        """
        async with an_app(tmp_path, config) as (_, endpoint), Client(str(endpoint)) as client:
            agent = await client.start_agent("ann", backend="far")
            assert (await agent.ask("hello")).text == "hello"
        config = config.replace("tls = {", "start_timeout_seconds = 0.5\n tls = {").replace(
            ', cert = "host.example.pem", key = "host.example.key"', ""
        )
        with pytest.raises(CannotStart, match="plug-in far is not ready"):
            async with an_app(tmp_path, config):
                pass


async def test_a_plug_in_finds_its_files_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    mine, host = authority.issue("plugin", "127.0.0.1"), authority.issue("host.example")
    where = f"grpcs://127.0.0.1:{unused_port()}"
    monkeypatch.delenv("TURNDOCK_PLUGIN_TLS_CERT", raising=False)
    with pytest.raises(TurndockError, match="TURNDOCK_PLUGIN_TLS_CERT: must name a PEM file"):
        async with beside(where, backend=EchoBackend()):
            pass
    monkeypatch.setenv("TURNDOCK_PLUGIN_TLS_CERT", str(mine.cert))
    monkeypatch.setenv("TURNDOCK_PLUGIN_TLS_KEY", str(mine.key))
    monkeypatch.setenv("TURNDOCK_PLUGIN_TLS_CLIENT_CA", str(authority.path))
    async with beside(where, backend=EchoBackend()):
        async with wire.connect(where, credentials=host.credentials()) as channel:
            described = await RemotePlugin(channel).describe(DescribeRequest())
            assert described.name == "beside"
        async with wire.connect(where, credentials=Tls(authority.path).credentials()) as channel:
            with pytest.raises(TurndockError):
                await RemotePlugin(channel, timeout=2).describe(DescribeRequest())


async def test_an_expired_certificate_is_refused_by_clients(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    authority.issue("server", "127.0.0.1", ends=yesterday)
    async with (
        an_app(tmp_path, TLS) as (_, endpoint),
        Client(str(endpoint), tls=Tls(authority.path), retry=ONCE) as client,
    ):
        with pytest.raises(TurndockError) as caught:
            await client.info()
        assert caught.value.reason == "UNAVAILABLE"


def test_half_a_pair_is_refused_by_name(tmp_path: Path) -> None:
    mine = Authority(tmp_path).issue("ann.example")
    with pytest.raises(TurndockError, match=r"tls\.key: is missing"):
        Tls(cert=mine.cert).credentials()
    with pytest.raises(TurndockError, match=r"tls\.cert: is missing"):
        Tls(key=mine.key).credentials()


async def test_grpcs_is_an_endpoint_like_any_other_and_nothing_listens_there_without_a_certificate() -> None:
    where = wire.parse_endpoint("grpcs://agents.example:7420")
    assert (where.tls, where.target, str(where)) == (
        True,
        "dns:///agents.example:7420",
        "grpcs://agents.example:7420",
    )
    with pytest.raises(TurndockError, match="needs a certificate"):
        wire.bind(wire.new_server(), "grpcs://127.0.0.1:0")
