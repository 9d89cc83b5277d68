"""What every command that talks to a server has in common: its options, its client, and how it fails."""

import asyncio
import functools
import inspect
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import typer

from turndock_server.cli.exits import Exit
from turndock_server.cli.options import (
    DEFAULT_SERVER,
    ScopeOption,
    ServerOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    TokenFileOption,
)
from turndock_server.cli.output import fail, safe

if TYPE_CHECKING:
    from turndock.client import AgentHandle, Client, Tls
    from turndock.errors import TurndockError
    from turndock.remote import RemoteArtifactStore, RemoteMaintenance, RemoteQuery, RemoteSessionStore
    from turndock.types.v1 import Scope

TOKEN_VARIABLE = "TURNDOCK_TOKEN"


@dataclass(frozen=True, slots=True)
class Files:
    """Where a command finds what proves who calls, and who answers."""

    token: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def prove_something(self, token: str) -> bool:
        """Whether the caller shows credentials, by these files or by a token at hand."""
        return bool(token or self.token or self.cert)

    def tls(self) -> "Tls | None":
        """What to encrypt with; None = the server's address says whether to."""
        if self.ca is None and self.cert is None and self.key is None:
            return None
        from turndock.client import Tls

        return Tls(self.ca, self.cert, self.key)


class _ClientOptions(TypedDict):
    token: str
    token_file: Path | None
    scope: str | None
    tls: "Tls | None"


class Connection:
    """A server, in a scope."""

    def __init__(self, client: "Client", patient: "Client", scope: "Scope | None") -> None:
        self.client = client
        """Gives up at once when nobody is there: who types a command wants to know."""
        self.patient = patient
        """Tries for a while, for what goes on after the first answer."""
        self.scope = scope
        """For requests that name it themselves; None = the unscoped partition."""

    def agent(self, name: str) -> "AgentHandle":
        """The agent of that name. Calls nobody."""
        return self.client.agent(name)

    @functools.cached_property
    def sessions(self) -> "RemoteSessionStore":
        """The server's session store."""
        return self.client.session_store()

    @functools.cached_property
    def artifacts(self) -> "RemoteArtifactStore":
        """The server's artifact store."""
        return self.client.artifact_store()

    @functools.cached_property
    def maintenance(self) -> "RemoteMaintenance":
        """The server's maintenance."""
        return self.client.maintenance()

    @functools.cached_property
    def query(self) -> "RemoteQuery":
        """The server's query."""
        return self.client.query()


def connected(command: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a coroutine function a command: `--server`, `--scope` and the like are added; it gets the connection first.

    All other parameters are keyword-only. Every failure ends the command with a sentence on standard error and its
    exit code.
    """

    @functools.wraps(command)
    def run(
        *,
        server: str,
        scope: str | None,
        token_file: Path | None,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        **options: Any,
    ) -> None:
        files = Files(token_file, tls_ca, tls_cert, tls_key)
        _run(server, scope, files, lambda connection: command(connection, **options))

    added = inspect.signature(_connection_options).parameters.values()
    own = list(inspect.signature(command).parameters.values())[1:]
    parameters = [*own, *added]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _connection_options(
    *,
    server: ServerOption = DEFAULT_SERVER,
    scope: ScopeOption = None,
    token_file: TokenFileOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """The parameters that every command has besides its own."""


def _run(server: str, scope: str | None, files: Files, act: Callable[[Connection], Awaitable[None]]) -> None:
    from turndock.client import TurnFailed
    from turndock.errors import TurndockError

    try:
        asyncio.run(_connect(server, scope, files, act))
    except TurndockError as error:
        raise refused(error, server) from None
    except TurnFailed as error:
        raise fail(f"the turn did not succeed: {error}", code=Exit.TURN_FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None


async def _connect(
    server: str, scope: str | None, files: Files, act: Callable[[Connection], Awaitable[None]]
) -> None:
    from turndock.client import Client, Retry
    from turndock.types.v1 import Scope

    common: _ClientOptions = {
        "token": os.environ.get(TOKEN_VARIABLE, ""),
        "token_file": files.token,
        "scope": scope or None,
        "tls": files.tls(),
    }
    async with (
        Client(server, retry=Retry(tries=1), **common) as client,
        Client(server, **common) as patient,
    ):
        acts_in = Scope(tenant=scope) if scope else None
        if acts_in is None and files.prove_something(common["token"]):
            info = await client.info()  # which scope the credentials are bound to, if they are
            acts_in = info.scope if info.HasField("scope") else None
        await act(Connection(client, patient, acts_in))


def refused(error: "TurndockError", server: str) -> typer.Exit:
    """Say why a call failed and what to do next, and return what to raise."""
    from turndock.errors import REASONS, Code

    if error.reason == "UNAVAILABLE":
        problem, remedy = _why_nobody(error.message, server)
        typer.echo(f"turndock: {problem} {safe(server)}", err=True)
        typer.echo(f"  {remedy}", err=True)
        return typer.Exit(Exit.UNREACHABLE)
    if error.wire_code is None and error.code is Code.INVALID_ARGUMENT:
        return fail(error.message, code=Exit.USAGE)
    info = REASONS.get(error.reason)
    return fail(
        f"{error.message} ({error.reason})", _ADVICE.get(error.reason) or (info.advice if info else "")
    )


def _why_nobody(message: str, server: str) -> tuple[str, str]:
    """What is wrong with a connection and what to do, as far as gRPC's words tell."""
    if any(words in message for words in ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification", "Peer name")):
        remedy = (
            "--tls-ca or TURNDOCK_TLS_CA names the authority to trust; the certificate names its addresses."
        )
        return "the certificate is not trusted, or is not for", remedy
    if "WRONG_VERSION_NUMBER" in message:
        return "nothing is encrypted at", "Leave out grpcs:// and --tls-ca, if that is meant."
    remedy = "`turndock serve` starts one; --server or TURNDOCK_SERVER names another."
    if "refused" not in message and not server.startswith(("grpcs://", "unix:")):
        remedy += " One that encrypts is named by grpcs://."
    return "no server answers at", remedy


_ADVICE: dict[str, Any] = {
    "UNAUTHENTICATED": "TURNDOCK_TOKEN or --token-file holds the token; --tls-cert and --tls-key are the certificate.",
    "PLUGIN_UNAVAILABLE": "`turndock info` shows how the plug-in is; what it says itself is in the server's log.",
    "VALIDATION_ERROR": "Mend that, and run the command again.",
    "AGENT_NOT_FOUND": "`turndock agents list` shows those there are; `turndock agents start NAME --backend echo` "
    "starts one.",
    "SESSION_NOT_FOUND": "`turndock sessions list` shows those there are.",
    "RUN_NOT_FOUND": "`turndock runs list AGENT` shows those there are.",
    "APPROVAL_NOT_FOUND": "`turndock approvals list` shows what waits for a decision.",
    "NOT_FOUND": "`turndock artifacts list` shows those there are.",
    "FENCED": "An agent is at work with it: `turndock agents stop NAME` first.",
    "SEQUENCE_IN_FUTURE": "`turndock sessions show SESSION` says how long the log is.",
    "PERMISSION_DENIED": "TURNDOCK_TOKEN or --token-file holds the token; `turndock tokens create` makes one that may.",
}
"""What to do next, where the command line has a better word than the protocol."""
