"""The tables that say who may call, and how a connection is encrypted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from turndock_server.config.values import Reference, Section

RoleName = Literal["observer", "controller", "admin"]
Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA",
]  # fmt: skip


class TlsSettings(Section):
    """Encryption of the server's own address.

    Files are PEM. New ones in their place count from the next connection on, without a restart.
    """

    cert: Path | None = None
    """The server's certificate, followed by those that lead to its authority. Unset = nothing is encrypted."""
    key: Path | None = None
    """The certificate's private key. For the server's user alone."""
    client_ca: Path | None = None
    """The authority whose certificates clients must show (mutual TLS). Unset = clients need none."""


class PluginTlsSettings(Section):
    """Encryption towards a plug-in at `grpcs://host:port`. Files are PEM."""

    ca: Path | None = None
    """The authority that the plug-in's certificate must lead to. Unset = the public ones."""
    cert: Path | None = None
    """The certificate this server shows, if the plug-in asks for one."""
    key: Path | None = None
    """Its private key."""


class AuthSettings(Section):
    """Who may call.

    With none of `auth.tokens`, `jwt` and `certificates`, everybody who reaches the server may do everything.
    """

    tokens: Path | None = None
    """The file with the digests of bearer tokens, as `turndock tokens create` makes it. A change counts within a
    second."""


class JwtSettings(Section):
    """JSON Web Tokens that somebody else issues.

    A token must be signed, name the issuer and the audience, and not have expired.
    """

    algorithms: tuple[Algorithm, ...] = ()
    """The signatures that are accepted, all of one family. Empty = no JSON Web Tokens."""
    issuer: str | None = Field(default=None, min_length=1)
    """What the claim `iss` must be."""
    audience: str | None = Field(default=None, min_length=1)
    """What the claim `aud` must be or hold."""
    keys: Path | None = None
    """A file with the issuer's public keys as a JSON Web Key Set; a change counts within a second. For all algorithms
    but those that begin with HS."""
    secret: Reference | None = None
    """The secret shared with the issuer, of at least 32 bytes. For algorithms that begin with HS."""
    leeway_seconds: float = Field(default=30, ge=0, le=600, allow_inf_nan=False)
    """How far the issuer's clock may be from this server's, in seconds."""
    principal_claim: str = Field(default="sub", min_length=1)
    """The claim that says who it is, for the log."""
    scope_claim: str = Field(default="tenant", min_length=1)
    """The claim that names the tenant. A token without it needs the role `admin`, and is good for every scope."""
    roles_claim: str = Field(default="roles", min_length=1)
    """The claim with one role or several, of which the highest counts. `a.b` is the claim `b` within `a`."""
    roles: dict[str, RoleName] = Field(default_factory=dict[str, RoleName])
    """What the claim's values stand for, such as `{ops = "admin"}`. Empty = the names of the roles themselves."""

    @property
    def key_set(self) -> Path:
        """The file of `keys`."""
        return self.keys or Path()


class CertificateSettings(Section):
    """Somebody who is known by the certificate of the connection (`tls.client_ca`), by the table's name."""

    name: str = Field(min_length=1)
    """A subject alternative name of the certificate, or its common name."""
    role: RoleName
    """What the holder may do."""
    scope: str | None = Field(default=None, min_length=1)
    """The tenant it is good for. Unset = every one, which takes the role `admin`."""
