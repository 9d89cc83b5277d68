"""Bearer tokens: 256 random bits that are shown once, and a file that knows no more than their SHA-256.

A token reads `tdk_<id>_<secret>`. The id finds its row, the digest of the whole is compared in constant time. Random
bits cannot be guessed from their digest, so no slow hash is needed, and none is paid for on each call.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Final, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from turndock_server.access.files import FollowedFile, UnusableFileError
from turndock_server.access.principal import Principal, Role, unauthenticated

PREFIX: Final = "tdk_"
_NOBODYS: Final = hashlib.sha256(b"").hexdigest()
_LOCK_TIMEOUT_S: Final = 10.0


class TokenRow(BaseModel):
    """What is kept of a token."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")]
    name: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,128}$")]
    """Who has it, for people and logs."""
    role: Literal["observer", "controller", "admin"]
    scope: Annotated[str, StringConstraints(min_length=1)] | None = None
    """The tenant it is good for; unset = none in particular, which takes the role admin."""
    created_at: int
    """Seconds since 1970."""
    expires_at: int | None = None
    """Seconds since 1970; unset = never."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

    @property
    def principal(self) -> Principal:
        """Who calls with it."""
        return Principal(self.name, Role.of(self.role), self.scope, self.expires_at)

    def has_expired(self, now: float) -> bool:
        """Whether it is not valid any more."""
        return self.expires_at is not None and self.expires_at <= now


class _Rows(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    version: Literal[1] = 1
    tokens: list[TokenRow] = Field(default_factory=list[TokenRow])


def create(
    path: Path, name: str, role: Role, scope: str | None = None, expires_at: int | None = None
) -> tuple[str, TokenRow]:
    """Make a token and keep its row; the token itself is returned here and never again.

    Raises `UnusableFileError`, also for a role other than admin without a scope, which would be good for nothing.
    """
    if scope is None and role is not Role.ADMIN:
        raise UnusableFileError(
            f"a token of the role {role} needs a scope: only admin is good for all of them"
        )
    identifier = secrets.token_hex(4)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
    token = f"{PREFIX}{identifier}_{secret}"
    try:
        row = TokenRow(
            id=identifier,
            name=name,
            role=str(role),  # type: ignore[arg-type]  # pydantic checks it
            scope=scope,
            created_at=int(time.time()),
            expires_at=expires_at,
            sha256=digest(token),
        )
    except ValidationError as error:
        raise UnusableFileError(_first_fault(error)) from None
    with _changing(path) as rows:
        rows.tokens.append(row)
    return token, row


def revoke(path: Path, identifier: str) -> TokenRow:
    """Forget a token, by its id or by its name if only one has it. Raises `UnusableFileError`."""
    with _changing(path) as rows:
        found = [row for row in rows.tokens if identifier in (row.id, row.name)]
        if len(found) != 1:
            problem = "several tokens have" if found else "no token has"
            raise UnusableFileError(f"{problem} the id or name {identifier!r} in {path}")
        rows.tokens.remove(found[0])
    return found[0]


def read(path: Path) -> list[TokenRow]:
    """Every token's row. Raises `UnusableFileError`."""
    try:
        rows = _Rows.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UnusableFileError(f"cannot read {path}: {error.strerror or type(error).__name__}") from None
    except ValidationError as error:
        raise UnusableFileError(f"{path} is no token file: {_first_fault(error)}") from None
    if any(row.scope is None and row.role != "admin" for row in rows.tokens):
        raise UnusableFileError(f"{path}: a token without a scope must have the role admin")
    return rows.tokens


def digest(token: str) -> str:
    """What a token file keeps of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """The tokens of a file, as a server checks them. A change of the file counts within a second."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises `UnusableFileError`."""
        self._rows = FollowedFile(path, lambda path: {row.id: row for row in read(path)})

    def principal(self, token: str) -> Principal:
        """Who has a token. Raises UNAUTHENTICATED, which does not say whether there ever was such a token."""
        row = self._rows.items().get(token.removeprefix(PREFIX).partition("_")[0])
        matches = hmac.compare_digest(digest(token), row.sha256 if row is not None else _NOBODYS)
        if row is None or not matches:
            raise unauthenticated("the token is not valid")
        if row.has_expired(time.time()):
            raise unauthenticated("the token has expired")
        return row.principal


@contextlib.contextmanager
def _changing(path: Path) -> Generator[_Rows]:
    """The rows, which are written back whole, for the owner's eyes, when the block ends well."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_LOCK_TIMEOUT_S):
            rows = _Rows(tokens=read(path) if path.exists() else [])
            yield rows
            _replace(path, json.dumps(rows.model_dump(exclude_none=True), indent=2) + "\n")
    except Timeout:
        raise UnusableFileError(f"another program is changing {path}") from None
    except OSError as error:
        raise UnusableFileError(f"cannot write {path}: {error.strerror or type(error).__name__}") from None


def _replace(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
