"""From credentials to a principal: one place that knows every kind of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from turndock_server.access.files import UnusableFileError
from turndock_server.access.principal import Principal, Role, unauthenticated
from turndock_server.access.tokens import Tokens
from turndock_server.config import ConfigError, Fault, Settings

_SCHEME: Final = "bearer "


class Verifier(Protocol):
    """Knows one kind of tokens."""

    def principal(self, token: str) -> Principal:
        """Who has the token. Raises UNAUTHENTICATED."""
        ...


class Authenticator:
    """Finds out who calls. A token counts before a certificate, and one that is not valid is never ignored."""

    def __init__(
        self,
        *,
        tokens: Verifier | None = None,
        jwt: Verifier | None = None,
        certificates: Mapping[str, Principal] | None = None,
    ) -> None:
        self._tokens = tokens
        self._jwt = jwt
        self._certificates = certificates or {}

    def principal(self, authorization: str, certified: Callable[[], Iterable[str]]) -> Principal:
        """Who sends this `authorization`, over a connection whose certificate has the names `certified()`.

        Raises UNAUTHENTICATED.
        """
        if authorization:
            return self._bearer(authorization)
        if self._certificates:
            for name in certified():
                if name in self._certificates:
                    return self._certificates[name]
        raise unauthenticated("no credentials: send `authorization: Bearer <token>`")

    def _bearer(self, authorization: str) -> Principal:
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise unauthenticated("authorization: must be `Bearer <token>`")
        token = authorization[len(_SCHEME) :].strip()
        verifier = self._jwt if token.count(".") == 2 else self._tokens
        if verifier is None:
            raise unauthenticated("the token is not valid")
        return verifier.principal(token)


def authenticator_of(settings: Settings) -> Authenticator | None:
    """What the configuration asks for; None = a server on which everybody may do everything.

    Raises `ConfigError` for files that are not there or not what they should be.
    """
    if not settings.authenticates:
        return None
    return Authenticator(
        tokens=_tokens(settings), jwt=_jwt(settings), certificates=certificate_principals(settings)
    )


def certificate_principals(settings: Settings) -> dict[str, Principal]:
    """Names in certificates and whom they stand for."""
    return {
        one.name: Principal(principal, Role.of(one.role), one.scope)
        for principal, one in settings.certificates.items()
    }


def _tokens(settings: Settings) -> Verifier | None:
    path = settings.auth.tokens
    if path is None:
        return None
    try:
        return Tokens(path)
    except UnusableFileError as error:
        mend = "`turndock tokens create` makes the file"
        raise ConfigError([Fault("auth.tokens", str(error), mend)]) from None


def _jwt(settings: Settings) -> Verifier | None:
    wanted = settings.jwt
    if not wanted.algorithms:
        return None
    from turndock_server.access.jwt import MIN_SECRET_BYTES, Claims, JwtVerifier, key_file

    if wanted.secret is not None:
        secret = wanted.secret.read("jwt.secret").encode()
        if len(secret) < MIN_SECRET_BYTES:
            problem = f"is shorter than {MIN_SECRET_BYTES} bytes, and can be guessed"
            raise ConfigError([Fault("jwt.secret", problem, "Use a longer one, drawn at random")])
    else:
        secret = b""
    try:
        keys = secret or key_file(wanted.key_set)
    except UnusableFileError as error:
        raise ConfigError([Fault("jwt.keys", str(error))]) from None
    return JwtVerifier(
        keys,
        algorithms=wanted.algorithms,
        issuer=wanted.issuer or "",
        audience=wanted.audience or "",
        leeway_s=wanted.leeway_seconds,
        claims=Claims(
            wanted.principal_claim,
            wanted.scope_claim,
            wanted.roles_claim,
            {value: Role.of(role) for value, role in wanted.roles.items()} or None,
        ),
    )
