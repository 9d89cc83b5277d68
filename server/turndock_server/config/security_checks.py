"""What the tables about safety cannot be wrong about alone: keys that do not fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from turndock.endpoint import parse_endpoint
from turndock_server.config.errors import Fault
from turndock_server.config.settings import EXEC, Settings


def exposure(settings: Settings) -> Iterator[Fault]:
    """Nothing unencrypted can be reached from other machines by mistake."""
    if not settings.server.endpoint.is_local and settings.tls.cert is None and not settings.server.insecure:
        yield Fault(
            "server.listen",
            f"{settings.server.listen} can be reached from other machines, without encryption",
            "Listen on 127.0.0.1 or a unix socket, give tls.cert and tls.key, or set server.insecure = true if every "
            "one of them may use it",
        )


def encryption(settings: Settings) -> Iterator[Fault]:
    """A certificate has its key, and something to encrypt."""
    tls = settings.tls
    if tls.cert is not None and tls.key is None:
        yield Fault("tls.key", "is missing", "Name the private key of tls.cert")
    if tls.cert is None:
        for key in ("key", "client_ca"):
            if getattr(tls, key) is not None:
                yield Fault(f"tls.{key}", "means nothing without tls.cert", "Name the server's certificate")
        if settings.server.endpoint.tls:
            yield Fault(
                "tls.cert", "is missing, and server.listen says grpcs://", "Name tls.cert and tls.key"
            )
    elif settings.server.endpoint.path:
        yield Fault(
            "tls.cert",
            "is for an address with a port; a unix socket never leaves the machine",
            "Take [tls] away, or listen at host:port",
        )


def web_tokens(settings: Settings) -> Iterator[Fault]:
    """JSON Web Tokens are signed in one way, and whoever signs them is named."""
    jwt = settings.jwt
    if not jwt.algorithms:
        for key in ("issuer", "audience", "keys", "secret"):
            if getattr(jwt, key) is not None:
                yield Fault(f"jwt.{key}", "means nothing without jwt.algorithms", 'Such as ["RS256"]')
        return
    shared = {algorithm.startswith("HS") for algorithm in jwt.algorithms}
    if len(shared) > 1:
        yield Fault(
            "jwt.algorithms", "mixes shared secrets (HS…) with key pairs", "Accept one kind or the other"
        )
    wanted, other = ("secret", "keys") if shared == {True} else ("keys", "secret")
    if getattr(jwt, wanted) is None:
        yield Fault(f"jwt.{wanted}", "is missing, and the algorithms need it")
    if getattr(jwt, other) is not None:
        yield Fault(f"jwt.{other}", "is of no use for these algorithms", "Take it away")
    for key in ("issuer", "audience"):
        if getattr(jwt, key) is None:
            yield Fault(f"jwt.{key}", "is missing", "Otherwise tokens that were made for others would do")


def certificates(settings: Settings) -> Iterator[Fault]:
    """Whoever is known by a certificate has to show one, and no two are known by the same."""
    seen: dict[str, str] = {}
    for principal, one in settings.certificates.items():
        key = f"certificates.{principal}"
        if settings.tls.client_ca is None:
            yield Fault(
                key, "nobody shows a certificate without tls.client_ca", "Name the clients' authority"
            )
        if one.scope is None and one.role != "admin":
            yield Fault(f"{key}.scope", "is missing", f"The role {one.role} is good for one scope")
        if one.name in seen:
            yield Fault(f"{key}.name", f"is that of certificates.{seen[one.name]}, too", "Give each its own")
        seen.setdefault(one.name, principal)


def plugin_encryption(settings: Settings) -> Iterator[Fault]:
    """Certificates are for plug-ins that are reached by TLS."""
    for name, plugin in settings.plugins.items():
        is_encrypted = not plugin.endpoint.startswith(EXEC) and parse_endpoint(plugin.endpoint).tls
        key = f"plugins.{name}.tls"
        if plugin.tls.model_fields_set and not is_encrypted:
            yield Fault(key, "is only for grpcs://host:port", "Change the endpoint, or take it away")
        if (plugin.tls.cert is None) != (plugin.tls.key is None):
            missing = "key" if plugin.tls.key is None else "cert"
            yield Fault(f"{key}.{missing}", "is missing: a certificate and its key go together")
