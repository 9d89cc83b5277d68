"""Endpoints, channels and servers."""

from pathlib import Path

import pytest

from turndock import wire
from turndock.errors import TurndockError


@pytest.mark.parametrize(
    ("text", "endpoint", "address", "target"),
    [
        ("grpc://agents.example:7070", wire.Endpoint("agents.example", 7070), "agents.example:7070", None),
        ("127.0.0.1:7070", wire.Endpoint("127.0.0.1", 7070), "127.0.0.1:7070", None),
        ("grpc://[::1]:7070/", wire.Endpoint("::1", 7070), "[::1]:7070", None),
        ("unix:7070", wire.Endpoint(path="7070"), "unix:7070", "unix:7070"),
        ("unix:/run/x.sock", wire.Endpoint(path="/run/x.sock"), "unix:/run/x.sock", "unix:/run/x.sock"),
        ("unix:///run/x.sock", wire.Endpoint(path="/run/x.sock"), "unix:/run/x.sock", "unix:/run/x.sock"),
    ],
)
def test_an_endpoint_is_understood(
    text: str, endpoint: wire.Endpoint, address: str, target: str | None
) -> None:
    parsed = wire.parse_endpoint(text)
    assert parsed == endpoint
    assert parsed.address == address
    assert parsed.target == (target or f"dns:///{address}")
    assert wire.parse_endpoint(str(parsed)) == parsed


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", ":7070", "::1:7070", "grpc://", "unix:"])
def test_an_endpoint_with_something_missing_is_refused(text: str) -> None:
    with pytest.raises(TurndockError, match="endpoint"):
        wire.parse_endpoint(text)


@pytest.mark.parametrize(
    "text", ["h:70000", "h:-1", "h:x", "h:٣", "https://h:1", "h:1/path", "unix:/" + "x" * 200]
)
def test_anything_else_is_refused_with_the_field_s_name(text: str) -> None:
    with pytest.raises(TurndockError) as caught:
        wire.parse_endpoint(text, "plugins.echo.endpoint")
    assert caught.value.reason == "VALIDATION_ERROR"
    assert caught.value.violations[0].field == "plugins.echo.endpoint"


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("localhost:1", True),
        ("127.3.2.1:1", True),
        ("[::1]:1", True),
        ("unix:/x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
    ],
)
def test_only_loopback_and_unix_sockets_are_local(text: str, local: bool) -> None:
    assert wire.parse_endpoint(text).is_local is local


async def test_port_zero_is_answered_with_the_port_taken() -> None:
    server = wire.new_server()
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        assert endpoint.port > 0
        async with wire.connect(endpoint) as channel:
            await channel.channel_ready()
    finally:
        await server.stop(0)


async def test_PF_E11_a_second_server_on_a_port_fails_and_the_first_is_undisturbed() -> None:
    first, second = wire.new_server(), wire.new_server()
    endpoint = wire.bind(first, "127.0.0.1:0")
    await first.start()
    try:
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{endpoint.port}: Address already in use"):
            wire.bind(second, endpoint)
        async with wire.connect(endpoint) as channel:
            await channel.channel_ready()
    finally:
        await first.stop(0)
        await second.stop(0)


async def test_a_unix_socket_serves(tmp_path: Path) -> None:
    server = wire.new_server()
    endpoint = wire.bind(server, f"unix:{tmp_path}/s")
    await server.start()
    try:
        async with wire.connect(f"unix:{tmp_path}/s") as channel:
            await channel.channel_ready()
    finally:
        await server.stop(0)
    assert endpoint == wire.Endpoint(path=f"{tmp_path}/s")
