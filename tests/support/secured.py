"""A whole server in this process, with certificates and tokens made for the test."""

from __future__ import annotations

import datetime
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import trustme

from turndock import wire
from turndock.wire import Endpoint, Tls
from turndock_server.access import Role, tokens
from turndock_server.app import App
from turndock_server.config import load

ALL_SCOPES = "admin"
"""Name of the token that is bound to no scope."""


class Authority:
    """Makes certificates, and puts them into a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._authority = trustme.CA(organization_name=name)
        self.path = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(str(self.path))

    def issue(self, name: str, *hosts: str, ends: datetime.datetime | None = None) -> Tls:
        """A certificate for these hosts, with its key, as `<name>.pem` and `<name>.key`."""
        made = self._authority.issue_cert(*(hosts or (name,)), common_name=name, not_after=ends)
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(key))
        key.chmod(0o600)
        return Tls(self.path, cert, key)


def make_tokens(path: Path, *scopes: str) -> dict[str, str]:
    """A token of every role for each scope, as `<scope>-<role>`, and `admin` for all of them."""
    made = {ALL_SCOPES: tokens.create(path, ALL_SCOPES, Role.ADMIN)[0]}
    for scope in scopes:
        for role in (Role.OBSERVER, Role.CONTROLLER, Role.ADMIN):
            name = f"{scope}-{role}"
            made[name] = tokens.create(path, name, role, scope)[0]
    return made


@asynccontextmanager
async def an_app(
    folder: Path, config: str = "", *, store: str = "memory"
) -> AsyncGenerator[tuple[App, Endpoint]]:
    """A server in this process with that configuration and that kind of store."""
    file = folder / "turndock.toml"
    stores = f'data = "data"\nstore.kind = "{store}"\nartifacts.kind = "memory"\n'
    file.write_text(f'{stores}server.listen = "127.0.0.1:0"\n{config}')
    app = App(load(file))
    await app.start()
    try:
        assert app.endpoint is not None
        yield app, app.endpoint
    finally:
        await app.stop(0)


@asynccontextmanager
async def a_channel(endpoint: Endpoint, tls: Tls | None = None) -> AsyncGenerator[grpc.aio.Channel]:
    """A channel to a server."""
    async with wire.connect(endpoint, credentials=tls.credentials() if tls else None) as channel:
        yield channel


def sending(token: str, scope: str | None = None) -> tuple[tuple[str, str], ...]:
    """The metadata of a call with a token."""
    named = () if scope is None else ((wire.SCOPE, wire.encode_tenant(scope)),)
    return ((wire.AUTHORIZATION, wire.bearer(token)), *named)
