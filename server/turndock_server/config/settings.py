"""The tables and keys of `turndock.toml`. Their docstrings are their documentation: docs/reference/configuration.md."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, Field, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from turndock import jsontext
from turndock.endpoint import Endpoint, parse_endpoint
from turndock.errors import TurndockError
from turndock.store.v1 import MailboxLimits
from turndock.types.v1 import AgentLimits, CaptureMode, HostLostPolicy
from turndock_server.config.retention import MaintenanceSettings
from turndock_server.config.security import (
    AuthSettings,
    CertificateSettings,
    JwtSettings,
    PluginTlsSettings,
    TlsSettings,
)
from turndock_server.config.values import (
    BY_REFERENCE,
    Name,
    Reference,
    Section,
    Value,
    inline_secrets,
    looks_secret,
)

_YEAR_MS = 365 * 24 * 3600 * 1000
_MAX_BYTES = 1 << 40

EXEC = "exec:"
"""What the endpoint of a supervised plug-in begins with; its command line follows."""
PLUGIN = "plugin:"
"""What the kind of a store that is a plug-in begins with; the plug-in's name follows."""


def _endpoint(text: str) -> str:
    """Accepts what `parse_endpoint` accepts."""
    try:
        parse_endpoint(text)
    except TurndockError as error:
        raise ValueError("; ".join(violation.description for violation in error.violations)) from None
    return text


def _plugin_endpoint(text: str) -> str:
    """Accepts an endpoint, or `exec:` with a command line."""
    if not text.startswith(EXEC):
        return _endpoint(text)
    try:
        command = shlex.split(text.removeprefix(EXEC))
    except ValueError as error:
        raise ValueError(f"the command line after exec: cannot be split: {error}") from None
    if not command:
        raise ValueError("no command line after exec:")
    return text


def _postgresql_url(text: str) -> str:
    """Accepts the URL of a PostgreSQL database without a password in it."""
    parts = urlsplit(text)
    if parts.scheme not in {"postgresql", "postgres", "postgresql+asyncpg"}:
        raise ValueError("must be postgresql://user@host:port/database")
    if parts.password or "password" in parse_qs(parts.query):
        raise ValueError(f"holds a password. {BY_REFERENCE}, as store.password")
    return text


def _json_table(table: dict[str, Any]) -> dict[str, Any]:
    """Accepts what JSON can say, as long as no secret is in it."""
    try:
        jsontext.check(jsontext.canonical(table), "config")
    except (TypeError, ValueError) as error:
        raise ValueError(f"is no JSON: {error}") from None
    except TurndockError as error:
        raise ValueError(error.message) from None
    if secrets := inline_secrets(table, "config"):
        raise ValueError(
            f"{', '.join(secrets)} looks like a secret, and this table is stored with every session. Give it to the "
            "program that needs it, by an environment variable or through the `env` of its plug-in"
        )
    return table


def _plugin_of(kind: str) -> str | None:
    return kind.removeprefix(PLUGIN) if kind.startswith(PLUGIN) else None


def _kind(*built_in: str) -> AfterValidator:
    """Accepts the given kinds of stores, and plug-ins."""

    def check(kind: str) -> str:
        if kind not in built_in and not _plugin_of(kind):
            raise ValueError(f"must be {', '.join(built_in)} or {PLUGIN}<name>")
        return kind

    return AfterValidator(check)


JsonTable = Annotated[dict[str, Any], AfterValidator(_json_table)]


class ServerSettings(Section):
    """How the server is reached, and how it ends."""

    listen: Annotated[str, AfterValidator(_endpoint)] = "127.0.0.1:7420"
    """Where it listens: `host:port`, or `unix:/path` for a unix socket. Port 0 takes any free port."""
    insecure: bool = False
    """Allow an address that other machines can reach although nothing is encrypted. Without it, and without `tls.cert`,
    the server refuses to start on any but a loopback address or a unix socket."""
    grace_seconds: float = Field(default=25, ge=0, le=3600, allow_inf_nan=False)
    """How long turns may go on after SIGTERM, in seconds; then they are killed. A second SIGTERM ends the wait.
    Whatever supervises the server must wait a few seconds longer before it kills."""
    reflection: bool = True
    """Offer gRPC server reflection, so that tools such as grpcurl work without the protos."""
    max_message_bytes: int = Field(default=4 << 20, ge=1 << 20, le=64 << 20)
    """Largest gRPC message taken, in bytes. Clients have limits of their own: 4 MiB unless told otherwise."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens."""
        return parse_endpoint(self.listen, "server.listen")


class StoreSettings(Section):
    """What remembers sessions, runs and events."""

    kind: Annotated[str, _kind("sqlite", "postgresql", "memory")] = "sqlite"
    """`sqlite`: one file. `postgresql`: a database server. `memory`: nothing survives the process. `plugin:<name>`: the
    plug-in of that name."""
    path: Path | None = None
    """The file, for `sqlite`. Default: `turndock.db` in the data directory."""
    synchronous: Literal["full", "normal"] = "full"
    """For `sqlite`. `full`: what was acknowledged survives a power cut. `normal`: it survives the death of the process;
    a power cut may take the last moments with it, never the file's consistency. Faster on slow disks."""
    busy_timeout_ms: int = Field(default=5_000, ge=0, le=600_000)
    """How long a write waits for another program that has the file or the row locked, and any call for a `postgresql`
    server that cannot be reached, in milliseconds."""
    url: Annotated[str, AfterValidator(_postgresql_url)] | None = None
    """The database, for `postgresql`: `postgresql://user@host:5432/database`, with the parameters that libpq knows,
    such as `?sslmode=verify-full&sslrootcert=/path`. It must hold no password."""
    password: Reference | None = None
    """For `postgresql`: the user's password, by reference: `{env = "NAME"}` or `{file = "path"}`. Without it, what
    PostgreSQL's clients do without: `PGPASSWORD`, `~/.pgpass`, a certificate, or none."""

    @property
    def plugin(self) -> str | None:
        """Name of the plug-in that is the store; None = it is none."""
        return _plugin_of(self.kind)

    def read_password(self) -> str | None:
        """The password; None without one. Raises `ConfigError` for a reference that cannot be read."""
        return None if self.password is None else self.password.read("store.password")


class ArtifactSettings(Section):
    """What keeps artifacts: large payloads, files, whatever an agent makes."""

    kind: Annotated[str, _kind("files", "memory")] = "files"
    """`files`: a directory. `memory`: nothing survives the process. `plugin:<name>`: the plug-in of that name."""
    path: Path | None = None
    """The directory, for `files`. Default: `artifacts` in the data directory."""

    @property
    def plugin(self) -> str | None:
        """Name of the plug-in that is the store; None = it is none."""
        return _plugin_of(self.kind)


class PersistenceSettings(Section):
    """What keeps snapshots of agents, taken at the points of their lives where that matters. Agents need none."""

    kind: Annotated[str, _kind("none", "store", "memory")] = "none"
    """`none`: nothing does. `store`: whatever remembers sessions keeps them beside these. `memory`: nothing survives
    the process. `plugin:<name>`: the plug-in of that name."""
    timeout_seconds: float = Field(default=5, gt=0, le=600, allow_inf_nan=False)
    """How long saving a snapshot may hold up an agent, in seconds; then it is given up, counted and tried again at the
    next occasion."""

    @property
    def plugin(self) -> str | None:
        """Name of the plug-in that keeps snapshots; None = none does."""
        return _plugin_of(self.kind)


class PricingSettings(Section):
    """What tokens cost, for `turndock usage --cost` and every GetCostSummary that brings no prices of its own."""

    path: Path | None = None
    """A TOML file of prices: docs/guides/usage-and-cost.md shows one. Read when the server starts. Without one, runs
    whose provider reported no cost count as unmapped."""


class LimitSettings(Section):
    """What bounds an agent that does not say otherwise when it is started, and what bounds every request."""

    watchdog_ms: int = Field(default=600_000, ge=0, le=_YEAR_MS)
    """Longest turn, in milliseconds. 0 = no watchdog."""
    inactivity_ms: int = Field(default=0, ge=0, le=_YEAR_MS)
    """Longest silence of a backend within a turn, in milliseconds. 0 = no limit."""
    backend_wait_ms: int = Field(default=30_000, ge=100, le=3_600_000)
    """How long the start of an agent, and a turn that has to take its backend's session up again, wait for the backend,
    in milliseconds: until it can be reached and until it has answered. Then the start, or the turn, fails."""
    idle_shutdown_ms: int = Field(default=300_000, ge=0, le=_YEAR_MS)
    """Idle time after which an agent leaves memory, in milliseconds. Any call brings it back. 0 = never."""
    max_pending_prompts: int = Field(default=1_000, ge=0, le=1_000_000)
    """Most prompts in an agent's mailbox. With 0 an idle agent still takes one."""
    max_pending_bytes: int = Field(default=1 << 20, ge=0, le=_MAX_BYTES)
    """Most bytes of prompts in an agent's mailbox."""
    max_pending_notifications: int = Field(default=1_000, ge=0, le=1_000_000)
    """Most notifications that wait for a turn's end."""
    max_events_per_turn: int = Field(default=1_000, ge=0, le=1_000_000)
    """Most events a response carries. The log has all of them."""
    max_event_bytes_per_turn: int = Field(default=1 << 20, ge=0, le=3 << 20)
    """Most bytes of events a response carries."""
    capture_mode: Literal["compact", "lossless"] = "compact"
    """What happens to a response beyond these two. `compact`: it says what is left out. `lossless`: the turn fails."""
    max_turns: int | None = Field(default=None, ge=1, le=1 << 53)
    """Most turns of an agent's life. Unset = no limit."""
    max_tokens: int | None = Field(default=None, ge=1, le=1 << 53)
    """Most tokens of an agent's life, input and output together. Unset = no limit."""
    max_turn_time_ms: int | None = Field(default=None, ge=1)
    """Most wall time of an agent's turns, all together, in milliseconds. Unset = no limit."""
    max_self_chain: int | None = Field(default=None, ge=0, le=1_000_000)
    """Most runs in a row that an agent's behavior asked for itself. Unset = no limit."""
    host_lost_policy: Literal["fail", "retry"] = "fail"
    """What becomes of a run whose host died. `fail`: it ends with `host_lost`. `retry`: it is tried again, and what it
    did so far may happen twice."""
    max_prompt_bytes: int = Field(default=1 << 20, ge=1, le=3 << 20)
    """Largest prompt, in bytes of UTF-8."""
    max_artifact_bytes: int = Field(default=1 << 30, ge=1, le=_MAX_BYTES)
    """Largest artifact, in bytes."""
    max_calls_per_scope: int | None = Field(default=None, ge=1, le=(1 << 31) - 1)
    """Most calls of a scope that are answered at the same time, streams included. Unset = no limit."""
    max_streams_per_scope: int | None = Field(default=None, ge=1, le=(1 << 31) - 1)
    """Most streams of a scope at the same time: `Prompt`, `Watch`, up- and downloads. Unset = no limit."""
    max_watchers_per_scope: int | None = Field(default=None, ge=1, le=(1 << 31) - 1)
    """Most logs of a scope that are watched at the same time; a `Watch` with three cursors counts as three. Unset = no
    limit."""
    max_agents_per_scope: int | None = Field(default=None, ge=1, le=(1 << 31) - 1)
    """Most agents of a scope that have not been stopped, dormant ones included. Unset = no limit."""

    max_queued_prompts_per_scope: int | None = Field(default=None, ge=0, le=(1 << 31) - 1)
    """Most prompts that wait in all mailboxes of a scope together. Unset = no limit."""
    max_queued_bytes_per_scope: int | None = Field(default=None, ge=0, le=_MAX_BYTES)
    """Most bytes of prompts that wait in all mailboxes of a scope together. Unset = no limit."""

    def scope_mailboxes(self) -> MailboxLimits:
        """What bounds all mailboxes of a scope together."""
        return MailboxLimits(
            max_scope_count=self.max_queued_prompts_per_scope, max_scope_bytes=self.max_queued_bytes_per_scope
        )

    def agent_limits(self) -> AgentLimits:
        """What an agent is bound by unless its definition says otherwise."""
        return AgentLimits(
            watchdog_ms=self.watchdog_ms,
            inactivity_ms=self.inactivity_ms,
            idle_shutdown_ms=self.idle_shutdown_ms,
            max_pending_prompts=self.max_pending_prompts,
            max_pending_bytes=self.max_pending_bytes,
            max_pending_notifications=self.max_pending_notifications,
            max_events_per_turn=self.max_events_per_turn,
            max_event_bytes_per_turn=self.max_event_bytes_per_turn,
            capture_mode=CaptureMode.Value(f"CAPTURE_MODE_{self.capture_mode.upper()}"),
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            max_turn_time_ms=self.max_turn_time_ms,
            max_self_chain=self.max_self_chain,
            host_lost_policy=HostLostPolicy.Value(f"HOST_LOST_POLICY_{self.host_lost_policy.upper()}"),
        )


class BackendSettings(Section):
    """A backend that agents may use, by the table's name. Without any: `echo`, and `llama` if it is installed."""

    kind: str = Field(min_length=1)
    """What it is: `echo`, `scripted`, `command`, `llama` or `replay`, which come with Turndock; a name that an
    installed distribution registers as an entry point of `turndock.backends`; or `plugin`."""
    plugin: Name | None = None
    """For `plugin`: which table of `plugins` it is."""
    config: JsonTable = Field(default_factory=dict[str, Any])
    """What an agent's own configuration of the backend is laid over, key by key. Stored with every session, so it must
    hold no secret. For `command` it is the program (`argv`, `env` with references as in `plugins`, `cwd`), which agents
    cannot change."""

    @property
    def config_json(self) -> str:
        """The table as canonical JSON."""
        return jsontext.canonical(self.config)


class BehaviorSettings(Section):
    """A behavior that agents may use, by the table's name."""

    kind: str = Field(min_length=1)
    """What it is: a name that an installed distribution registers as an entry point of `turndock.behaviors`; or
    `plugin`. A plug-in's behavior needs no table: agents may name it `plugin:<name of the plug-in>` as well."""
    plugin: Name | None = None
    """For `plugin`: which table of `plugins` it is."""
    timeout_seconds: float = Field(default=60, gt=0, le=3600, allow_inf_nan=False)
    """How long one of its callbacks may take, in seconds. A later answer counts as a failure of that callback."""
    wait_seconds: float = Field(default=30, ge=0, le=86_400, allow_inf_nan=False)
    """For `plugin`: how long an agent waits for a plug-in that cannot be reached, in seconds, before the callback
    counts as failed. A callback whose plug-in died in the middle of it is made again when the plug-in is back."""
    config: JsonTable = Field(default_factory=dict[str, Any])
    """What an agent's own configuration of the behavior is laid over, key by key. Stored with every session, so it must
    hold no secret."""

    @property
    def config_json(self) -> str:
        """The table as canonical JSON."""
        return jsontext.canonical(self.config)


class PluginSettings(Section):
    """A process that implements contracts, by the table's name."""

    endpoint: Annotated[str, AfterValidator(_plugin_endpoint)]
    """Where it is. `grpc://host:port`, `grpcs://host:port` (TLS) and `unix:/path`: it runs already. `exec:command
    arguments`: the server starts it, hands it the address to serve at in `TURNDOCK_PLUGIN_ENDPOINT`, starts it again
    when it ends, and ends it with itself. No shell is involved; quotes work as in one."""
    tls: PluginTlsSettings = PluginTlsSettings()
    """For `grpcs:`: whom to trust and which certificate to show, such as `{ca = "ca.pem", cert = "me.pem", key =
    "me.key"}`."""
    env: dict[str, Value] = Field(default_factory=dict[str, Value])
    """For `exec:`: environment variables it gets, besides a few harmless ones of the server's. A value is a text, or
    a reference to a secret: `{env = "NAME"}`, `{file = "path"}`."""
    start_timeout_seconds: float = Field(default=60, gt=0, le=3600, allow_inf_nan=False)
    """How long the server's own start waits for the plug-in, in seconds, if it is required. Otherwise the server does
    not wait, and refuses what needs the plug-in until it is ready."""
    required: bool = False
    """Whether the server gives up its start when the plug-in is not ready in time. A plug-in that is a store is always
    required."""

    @field_validator("env")
    @classmethod
    def _holds_no_secret(cls, env: dict[str, Value]) -> dict[str, Value]:
        inline = sorted(name for name, value in env.items() if looks_secret(name, value.literal))
        if inline:
            raise ValueError(f"{', '.join(inline)} looks like a secret. {BY_REFERENCE}")
        return env

    @property
    def command(self) -> tuple[str, ...]:
        """The command line of a supervised plug-in; empty for one that runs by itself."""
        return tuple(shlex.split(self.endpoint.removeprefix(EXEC))) if self.endpoint.startswith(EXEC) else ()

    def environment(self, key: str) -> dict[str, str]:
        """What `env` says, with every reference read. Raises `ConfigError` naming the variable below `key`."""
        return {name: value.read(f"{key}.env.{name}") for name, value in self.env.items()}


class RedactionSettings(Section):
    """What is taken out of events before they are stored. The log of the server itself is always redacted."""

    enabled: bool = False
    """Replace what looks like a secret in an event's texts, for the store and for every watcher alike."""
    patterns: tuple[str, ...] = ()
    """Further regular expressions (Python's) whose matches are replaced, beside those that come with Turndock."""
    categorized: bool = False
    """Say what was there: `[REDACTED:aws_access_key]` in place of `[REDACTED]`."""

    @field_validator("patterns")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for index, pattern in enumerate(patterns):
            try:
                expression = re.compile(pattern)
            except re.error as error:
                raise ValueError(f"number {index + 1} is no regular expression: {error}") from None
            if expression.search(""):
                raise ValueError(f"number {index + 1} matches the empty text, and so everything")
        return patterns


class LogSettings(Section):
    """What the server says about itself, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important messages that are shown."""
    format: Literal["auto", "text", "json"] = "auto"
    """`text`: lines for people. `json`: one object a line. `auto`: text on a terminal, json elsewhere."""


class Settings(BaseSettings):
    """Everything a host is told. Called directly it reads nothing; `turndock_server.config.load` does."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        env_prefix="TURNDOCK_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )

    data: Path = Path("turndock-data")
    """The data directory: what is stored in files, and the lock that keeps a second server out. Made when missing.
    The default is in the working directory."""
    server: ServerSettings = ServerSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    jwt: JwtSettings = JwtSettings()
    certificates: dict[Name, CertificateSettings] = {}
    store: StoreSettings = StoreSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    persistence: PersistenceSettings = PersistenceSettings()
    limits: LimitSettings = LimitSettings()
    backends: dict[Name, BackendSettings] = {}
    behaviors: dict[Name, BehaviorSettings] = {}
    plugins: dict[Name, PluginSettings] = {}
    pricing: PricingSettings = PricingSettings()
    redaction: RedactionSettings = RedactionSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed; `load` merges the sources itself, so that an error can say which one is wrong."""
        return (init_settings,)

    @property
    def store_path(self) -> Path:
        """The file of the `sqlite` store."""
        return self.store.path or self.data / "turndock.db"

    @property
    def lock_path(self) -> Path | None:
        """The file by which a server keeps others away from its store; None when nobody else could have it."""
        path = self.store_path
        return path.with_name(f"{path.name}.lock") if self.store.kind == "sqlite" else None

    @property
    def artifacts_path(self) -> Path:
        """The directory of the `files` store."""
        return self.artifacts.path or self.data / "artifacts"

    def offered_backends(self) -> dict[str, BackendSettings]:
        """The backends agents may use: those configured, or the defaults when there are none."""
        if self.backends:
            return dict(self.backends)
        kinds = ["echo", "llama"] if importlib.util.find_spec("xllamacpp") else ["echo"]
        return {kind: BackendSettings(kind=kind) for kind in kinds}

    def required_plugins(self) -> frozenset[str]:
        """Names of the plug-ins without which the server does not start."""
        marked = {name for name, plugin in self.plugins.items() if plugin.required}
        stores = (self.store.plugin, self.artifacts.plugin, self.persistence.plugin)
        return frozenset(marked | {name for name in stores if name})

    @property
    def credentials(self) -> list[str]:
        """What callers may prove who they are with; empty = they do not have to."""
        kinds = {"token": self.auth.tokens, "jwt": self.jwt.algorithms, "certificate": self.certificates}
        return [kind for kind, value in kinds.items() if value]

    @property
    def authenticates(self) -> bool:
        """Whether callers have to say who they are."""
        return bool(self.credentials)

    def references(self) -> dict[str, Reference]:
        """Every reference to a secret, by its key."""
        found: dict[str, Reference] = {
            f"plugins.{plugin}.env.{name}": value
            for plugin, settings in self.plugins.items()
            for name, value in settings.env.items()
            if value.is_secret
        }
        if self.jwt.secret is not None:
            found["jwt.secret"] = self.jwt.secret
        if self.store.password is not None:
            found["store.password"] = self.store.password
        return found

    def secrets(self) -> list[str]:
        """Every secret, for the redactor. Raises `ConfigError` for a reference that cannot be read."""
        return [value.read(key) for key, value in self.references().items()]
