"""Checks of who may call, and of what is encrypted."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from turndock.endpoint import parse_endpoint
from turndock.errors import TurndockError
from turndock_server.access import authenticator_of, tokens
from turndock_server.config import ConfigError, Settings
from turndock_server.config.settings import EXEC
from turndock_server.doctor.findings import Finding, Level

SOON: Final = timedelta(days=21)
"""How long before its end a certificate is worth a word."""


def exposure(settings: Settings) -> Iterator[Finding]:
    """Who can reach the server. (That nobody does by mistake is seen to when the configuration is read.)"""
    where = settings.server.listen
    if settings.server.endpoint.is_local:
        yield Finding(Level.OK, "server.listen", f"{where} can be reached from this machine only")
    elif settings.tls.cert is None:
        if settings.authenticates:
            what = (
                f"whoever can listen on the way to {where} reads every token in the clear, and what is sent"
            )
        else:
            what = f"whoever reaches {where} may do everything, and can read what others send"
        mend = "Give tls.cert and tls.key, or let only a trusted network reach it"
        yield Finding(Level.WARNING, "server.insecure", what, mend)
    elif settings.authenticates or settings.tls.client_ca is not None:
        yield Finding(Level.OK, "server.listen", f"{where} is encrypted")
    else:
        what = f"whoever reaches {where} may do everything: nobody has to say who they are"
        yield Finding(
            Level.WARNING, "auth", what, "Set auth.tokens, jwt or certificates: docs/guides/security.md"
        )


def certificates(settings: Settings) -> Iterator[Finding]:
    """Every certificate is valid, fits its key, and the key is its owner's alone."""
    tls = settings.tls
    if tls.cert is not None and tls.key is not None:
        yield from _pair("tls", tls.cert, tls.key, tls.client_ca)
    for name, plugin in settings.plugins.items():
        key = f"plugins.{name}.tls"
        if plugin.tls.ca is not None:
            yield from _validity(f"{key}.ca", plugin.tls.ca)
        if plugin.tls.cert is not None and plugin.tls.key is not None:
            yield from _pair(key, plugin.tls.cert, plugin.tls.key, None)


def plugin_encryption(settings: Settings) -> Iterator[Finding]:
    """What is said to a plug-in elsewhere is encrypted."""
    for name, plugin in settings.plugins.items():
        if plugin.endpoint.startswith(EXEC):
            continue
        where = parse_endpoint(plugin.endpoint)
        if not (where.is_local or where.tls):
            what = f"prompts and answers travel to {where} unencrypted"
            yield Finding(Level.WARNING, f"plugins.{name}.endpoint", what, f"Use grpcs://{where.address}")


def authentication(settings: Settings) -> Iterator[Finding]:
    """What callers are known by can be read, and by nobody else be written."""
    path = settings.auth.tokens
    if path is not None and path.is_file() and tokens.PREFIX in path.read_text(errors="replace"):
        mend = "Revoke that token: the file is for digests, which `turndock tokens create` writes"
        yield Finding(Level.ERROR, "auth.tokens", f"{path} holds a token in the clear", mend)
    try:
        authenticator_of(settings)
    except ConfigError as error:
        yield from (Finding(Level.ERROR, fault.key, fault.problem, fault.remedy) for fault in error.faults)
        return
    if path is not None:
        yield from _token_file(path)
    if settings.jwt.algorithms:
        yield Finding(Level.OK, "jwt", f"tokens of {settings.jwt.issuer} are accepted")


def _token_file(path: Path) -> Iterator[Finding]:
    if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        what = f"{path} can be written by other users, who could add tokens of their own"
        yield Finding(Level.ERROR, "auth.tokens", what, f"chmod 600 {path}")
    rows = tokens.read(path)
    over = sum(row.has_expired(time.time()) for row in rows)
    valid = len(rows) - over
    if not valid:
        yield Finding(Level.WARNING, "auth.tokens", "no token is valid", "`turndock tokens create` makes one")
    else:
        expired = f", {over} have expired" if over else ""
        yield Finding(Level.OK, "auth.tokens", f"{valid} tokens are valid{expired}")


def _pair(field: str, cert: Path, key: Path, client_ca: Path | None) -> Iterator[Finding]:
    from turndock.wire import server_credentials

    try:
        server_credentials(cert, key, client_ca, field=field)
    except TurndockError as error:
        for one in error.violations:
            yield Finding(Level.ERROR, one.field, one.description, "Give files that fit each other, as PEM")
        return
    yield from _validity(f"{field}.cert", cert)
    if client_ca is not None:
        yield from _validity(f"{field}.client_ca", client_ca)
    if key.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield Finding(Level.WARNING, f"{field}.key", f"{key} can be read by other users", f"chmod 600 {key}")


def _validity(subject: str, path: Path) -> Iterator[Finding]:
    """Whether the certificates of a file are valid now, and for how long."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        yield Finding(Level.ERROR, subject, f"{path} cannot be read: {error}", "Give certificates as PEM")
        return
    now = datetime.now(UTC)
    ends = min(one.not_valid_after_utc for one in found)
    begins = max(one.not_valid_before_utc for one in found)
    if ends <= now:
        yield Finding(Level.ERROR, subject, f"{path} expired on {ends:%Y-%m-%d}", "Renew it")
    elif begins > now:
        yield Finding(
            Level.ERROR, subject, f"{path} is not valid before {begins:%Y-%m-%d}", "Look at the clock"
        )
    elif ends - now < SOON:
        yield Finding(Level.WARNING, subject, f"{path} expires on {ends:%Y-%m-%d}", "Renew it")
    else:
        yield Finding(Level.OK, subject, f"{path} is valid until {ends:%Y-%m-%d}")
