"""JSON Web Tokens: signed by somebody the configuration names, for this server, not expired."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import jwt

from turndock import events, jsontext
from turndock.errors import TurndockError
from turndock_server.access.files import FollowedFile, UnusableFileError
from turndock_server.access.principal import Principal, Role, unauthenticated

MIN_SECRET_BYTES: Final = 32
"""A shared secret shorter than its digest can be guessed (RFC 7518, 3.2)."""


_MAX_NAME: Final = 128
_MAX_TENANT_BYTES: Final = 256
"""No store takes a longer one."""
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""What would break a line of a log, or could not be stored beside a decision."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Which claim says what. A claim within claims is written with dots."""

    principal: str = "sub"
    scope: str = "tenant"
    roles: str = "roles"
    role_of: Mapping[str, Role] | None = None
    """Values of the roles claim and the roles they stand for; unset = the roles' own names."""


class JwtVerifier:
    """Checks tokens. The algorithms are the configuration's alone: what a token says of itself chooses nothing.

    `keys` are the secret, or a file with the public keys. Its changes count within a second, so that an issuer may
    change keys while the server runs.
    """

    def __init__(
        self,
        keys: bytes | FollowedFile[jwt.PyJWK],
        *,
        algorithms: Sequence[str],
        issuer: str,
        audience: str,
        leeway_s: float = 30.0,
        claims: Claims | None = None,
    ) -> None:
        self._keys = keys
        self._algorithms = list(algorithms)
        self._issuer = issuer
        self._audience = audience
        self._leeway_s = leeway_s
        self._claims = claims or Claims()

    def principal(self, token: str) -> Principal:
        """Whom a token names. Raises UNAUTHENTICATED, with no more than the kind of the fault."""
        try:
            found = jwt.decode(
                token,
                self._key_for(token),
                algorithms=self._algorithms,
                issuer=self._issuer,
                audience=self._audience,
                leeway=self._leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise unauthenticated("the token has expired") from None
        except jwt.PyJWTError:
            raise unauthenticated("the token is not valid") from None
        scope = _claim(found, self._claims.scope)
        if scope is not None and not (isinstance(scope, str) and _is_tenant(scope)):
            raise unauthenticated("the token is not valid")
        try:
            expires_at = float(found["exp"]) + self._leeway_s
        except OverflowError:
            raise unauthenticated("the token is not valid") from None
        name = str(_claim(found, self._claims.principal) or "unnamed")
        return Principal(
            name=_UNPRINTABLE.sub(jsontext.REPLACEMENT, name)[:_MAX_NAME],
            role=self._role(_claim(found, self._claims.roles)),
            scope=scope,
            expires_at=expires_at,
        )

    def _key_for(self, token: str) -> Any:
        if isinstance(self._keys, bytes):
            return self._keys
        keys = self._keys.items()
        key_id = jwt.get_unverified_header(token).get("kid")
        if key_id is None and len(keys) == 1:
            return next(iter(keys.values()))
        try:
            return keys[str(key_id)]
        except KeyError:
            raise jwt.InvalidKeyError from None

    def _role(self, value: object) -> Role:
        """The highest role among those a token names; several stand in a list, or in a text with blanks between."""
        names = value.split() if isinstance(value, str) else value
        if not isinstance(names, list):
            return Role.NONE
        known = self._claims.role_of or {str(role): role for role in Role if role is not Role.NONE}
        found = [
            known[name] for name in cast("list[object]", names) if isinstance(name, str) and name in known
        ]
        return max(found, default=Role.NONE)


def _is_tenant(scope: str) -> bool:
    try:
        events.check_id(scope, "scope", max_bytes=_MAX_TENANT_BYTES)
    except (TurndockError, UnicodeEncodeError):
        return False
    return True


def key_file(path: Path) -> FollowedFile[jwt.PyJWK]:
    """The public keys of a file with a JSON Web Key Set. Raises `UnusableFileError`."""
    return FollowedFile(path, read_keys)


def read_keys(path: Path) -> dict[str, jwt.PyJWK]:
    """The public keys of a file with a JSON Web Key Set, by their ids. Raises `UnusableFileError`."""
    try:
        content = json.loads(path.read_bytes())
        keys = jwt.PyJWKSet.from_dict(content).keys
    except OSError as error:
        raise UnusableFileError(f"cannot read {path}: {error.strerror or type(error).__name__}") from None
    except (ValueError, AttributeError, TypeError, jwt.PyJWTError) as error:
        raise UnusableFileError(f"{path} is no JSON Web Key Set: {error}") from None
    if any(key.key_type == "oct" for key in keys):
        raise UnusableFileError(f"{path} holds a shared secret; that is what jwt.secret is for")
    if len(keys) > 1 and any(not key.key_id for key in keys):
        raise UnusableFileError(f"{path} holds several keys, so each needs a kid")
    return {key.key_id or "": key for key in keys}


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """The claim of that name; failing that, what the dots in the name lead to."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        if not isinstance(found, dict):
            return None
        found = cast("dict[str, object]", found).get(part)
    return found
