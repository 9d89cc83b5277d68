"""The composition root: the only module that knows every concrete class, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack, ExitStack

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from turndock import events, wire
from turndock.agent.v1 import GetServerInfoResponse
from turndock.errors import TurndockError
from turndock.plugin.v1 import ContractKind
from turndock.ports import (
    AgentPersistence,
    ArtifactStore,
    Backend,
    Behavior,
    EventWatcher,
    Mailbox,
    Maintenance,
    Query,
    SessionStore,
)
from turndock.store.v1 import DeleteSessionRequest, ModelPrice
from turndock.types.v1 import Limits
from turndock_server import __version__
from turndock_server.backends import registry as backends
from turndock_server.behaviors import registry as behaviors
from turndock_server.config import (
    BackendSettings,
    BehaviorSettings,
    ConfigError,
    PluginSettings,
    Settings,
)
from turndock_server.config.settings import PLUGIN
from turndock_server.core.accounts import DEFAULT_LIMITS, with_defaults
from turndock_server.core.behavior_calls import Patience
from turndock_server.core.dispatcher import LocalDispatcher
from turndock_server.core.feed import AgentKey, Feed, LogPage
from turndock_server.core.host import Host
from turndock_server.core.journal import Journal
from turndock_server.core.persistence import Persistence
from turndock_server.core.prompts import Prompts
from turndock_server.core.redaction import EventRedactor
from turndock_server.core.starter import Starter
from turndock_server.core.watch import ReadLog, read_log_of
from turndock_server.holding import Held, hold
from turndock_server.observability import Redactor
from turndock_server.plugins.dock import Dock
from turndock_server.plugins.static import StaticPlugin, plugin_credentials
from turndock_server.plugins.supervised import SupervisedPlugin
from turndock_server.services import listening
from turndock_server.services.agent_host import SERVICE as AGENT_HOST
from turndock_server.services.agent_host import AgentHostService
from turndock_server.services.maintenance import MaintenanceService
from turndock_server.services.stores import (
    AgentPersistenceService,
    ArtifactStoreService,
    QueryService,
    SessionStoreService,
)
from turndock_server.stores.artifacts import forgetting
from turndock_server.stores.checks import partition

log = logging.getLogger("turndock.server")

_SERVICES = (
    AGENT_HOST.full_name,
    "turndock.store.v1.SessionStore",
    "turndock.store.v1.ArtifactStore",
)
_AGENT_PERSISTENCE = "turndock.store.v1.AgentPersistence"
COMMAND = "command"
_LAST_WORDS_S = 0.5
"""How long calls that are being answered may take once every turn has ended. Some would wait for ever."""


class CannotStart(Exception):
    """The server cannot start; the text says why and what to do."""


class App:
    """A server: `start`, then `stop`. What was started is stopped in the opposite order, also when a start fails."""

    def __init__(self, settings: Settings, *, on_superseded: Callable[[], None] = lambda: None) -> None:
        """`on_superseded` is called when another server has taken the store over, and this one must end."""
        self._settings = settings
        self._on_superseded = on_superseded
        self._cleanup = AsyncExitStack()
        self._health = health.aio.HealthServicer()
        self._plugins: dict[str, Dock] = {}
        self._started_at_us = events.now_us()
        self._host_id = events.new_id()
        self._stopping = False
        self._services = list(_SERVICES)
        self._host: Host | None = None
        self._server: grpc.aio.Server | None = None
        self.endpoint: wire.Endpoint | None = None
        """Where it listens, once started."""

    async def start(self) -> None:
        """Bind, open the stores, dock the plug-ins, settle what the last run left, then say SERVING.

        Raises `CannotStart`.
        """
        try:
            await self._start()
        except (TurndockError, ConfigError, OSError, Held) as error:
            await self._cleanup.aclose()
            raise CannotStart(_why(error)) from error
        except BaseException:
            await self._cleanup.aclose()
            raise

    async def stop(self, grace_s: float) -> None:
        """Refuse new work, end watches with their cursors, settle turns within the grace, then close everything."""
        await self._health.enter_graceful_shutdown()
        self._stopping = True
        if self._host is not None:
            await self._host.stop(grace_s)
        if self._server is not None:
            await self._server.stop(_LAST_WORDS_S)
        await self._cleanup.aclose()

    def hurry(self) -> None:
        """End the turns under way at once, whatever is left of the grace."""
        if self._host is not None:
            self._host.kill_turns()

    async def _start(self) -> None:
        settings = self._settings
        if settings.lock_path is not None:
            settings.lock_path.parent.mkdir(parents=True, exist_ok=True)
            lock = hold(settings.lock_path)
            self._cleanup.callback(lock.release)
        server = listening.new_server(settings, lambda: self._stopping)
        addressed = ExitStack()
        self._cleanup.callback(addressed.close)
        self.endpoint = listening.listen(server, settings, addressed)
        await self._dock_plugins()
        artifacts = await self._open_artifacts()
        store = await self._open_store()
        persistence = self._persistence(store)
        redactor = self._redactor()
        mailbox = store if isinstance(store, Mailbox) else self._serial_mailbox(store)
        self._host = host = Host(
            Journal(
                store,
                mailbox,
                Feed(),
                redact=EventRedactor(redactor) if redactor else None,
                on_deleted=_forget_in(artifacts, persistence),
            ),
            LocalDispatcher(),
            {
                name: self._backend(name, each, store, artifacts)
                for name, each in settings.offered_backends().items()
            },
            self._behaviors(),
            host_id=self._host_id,
            sole_host=True,
            defaults=with_defaults(settings.limits.agent_limits(), DEFAULT_LIMITS),
            read_log=_log_reader(store),
            artifacts=artifacts,
            redact_text=(lambda text: redactor.count(text)[0]) if redactor else str,
            backend_defaults={
                name: each.config_json
                for name, each in settings.offered_backends().items()
                if each.kind != COMMAND
            },
            behavior_defaults={name: each.config_json for name, each in settings.behaviors.items()},
            backend_wait_s=settings.limits.backend_wait_ms / 1000,
            persistence=Persistence(persistence, timeout_s=settings.persistence.timeout_seconds),
            behavior_patience={
                name: Patience(timeout_s=each.timeout_seconds, wait_s=each.wait_seconds)
                for name, each in settings.behaviors.items()
            },
            max_prompt_bytes=settings.limits.max_prompt_bytes,
            max_agents_per_scope=settings.limits.max_agents_per_scope,
        )
        prompts = Prompts(
            host,
            max_prompt_bytes=settings.limits.max_prompt_bytes,
            scope_limits=settings.limits.scope_mailboxes(),
        )
        AgentHostService(host, Starter(host), prompts, self._info).add_to(server)
        SessionStoreService(host, store if isinstance(store, EventWatcher) else None, prompts).add_to(server)
        ArtifactStoreService(artifacts).add_to(server)
        if persistence is not None:
            AgentPersistenceService(persistence).add_to(server)
            self._services.append(_AGENT_PERSISTENCE)
        maintenance = self._maintenance(store, artifacts, host.journal)
        if maintenance is not None:
            MaintenanceService(maintenance).add_to(server)
            self._services.append("turndock.store.v1.Maintenance")
        query = self._open_query(store, artifacts)
        if query is not None:
            QueryService(query, self._prices()).add_to(server)
            self._services.append("turndock.store.v1.Query")
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if settings.server.reflection:
            reflection.enable_server_reflection(
                (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME), server
            )
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)
        await server.start()
        self._server = server
        self._cleanup.push_async_callback(server.stop, 0)
        self._cleanup.push_async_callback(host.stop, 0)
        await host.start()
        await self._say(health_pb2.HealthCheckResponse.SERVING)
        log.info("turndock %s serves at %s", __version__, self.endpoint)

    # --- Parts ---------------------------------------------------------------------------------------------------

    async def _dock_plugins(self) -> None:
        for name, plugin in self._settings.plugins.items():
            self._plugins[name] = _dock(name, plugin)
        self._cleanup.push_async_callback(self._undock_plugins)
        for dock in self._plugins.values():
            await dock.start()
        required = sorted(self._settings.required_plugins())
        await asyncio.gather(
            *(
                self._plugins[name].wait_ready(self._settings.plugins[name].start_timeout_seconds)
                for name in required
            )
        )

    async def _undock_plugins(self) -> None:
        await asyncio.gather(*(dock.stop() for dock in self._plugins.values()))

    async def _open_store(self) -> SessionStore:
        settings = self._settings.store
        if settings.plugin is not None:
            return self._plugins[settings.plugin].session_store()
        if settings.kind == "memory":
            from turndock_server.stores.memory import MemorySessionStore

            return MemorySessionStore()
        from turndock_server.stores.sql import SqlSessionStore

        store = await SqlSessionStore.open(
            settings.url or self._settings.store_path,
            password=settings.read_password(),
            synchronous=settings.synchronous,
            busy_timeout_ms=settings.busy_timeout_ms,
        )
        self._cleanup.push_async_callback(store.close)
        if settings.url and not await store.be_only_server(
            self._on_superseded, patience_ms=settings.busy_timeout_ms
        ):
            raise CannotStart(
                "another server has this database. Stop it, or name another database as store.url"
            )
        return store

    def _maintenance(
        self, store: SessionStore, artifacts: ArtifactStore, journal: Journal
    ) -> Maintenance | None:
        """What keeps the session store small and sound; None for a plug-in that does not offer it."""
        plugin = self._settings.store.plugin
        if plugin is not None:
            dock = self._plugins[plugin]
            return dock.maintenance() if dock.serves(ContractKind.CONTRACT_KIND_MAINTENANCE) else None
        from turndock_server.plugins.archives import Archives
        from turndock_server.stores.maintenance import StoreMaintenance
        from turndock_server.stores.memory import MemorySessionStore
        from turndock_server.stores.sql import SqlSessionStore

        if not isinstance(store, (SqlSessionStore, MemorySessionStore)):
            return None
        return StoreMaintenance(
            store.upkeep(),
            artifacts=artifacts,
            archives=Archives(artifacts, self._plugins),
            on_deleted=journal.was_deleted,
        )

    def _open_query(self, store: SessionStore, artifacts: ArtifactStore) -> Query | None:
        """What searches the session store; None for a plug-in that cannot be searched."""
        plugin = self._settings.store.plugin
        if plugin is not None:
            dock = self._plugins[plugin]
            return dock.query() if dock.serves(ContractKind.CONTRACT_KIND_QUERY) else None
        if self._settings.store.kind == "memory":
            from turndock_server.stores.memory import MemorySessionStore

            return store.query(artifacts) if isinstance(store, MemorySessionStore) else None
        from turndock_server.stores.sql import SqlQuery, SqlSessionStore

        return SqlQuery(store, artifacts) if isinstance(store, SqlSessionStore) else None

    def _prices(self) -> list[ModelPrice]:
        from turndock_server.stores.price_file import read_prices

        path = self._settings.pricing.path
        return read_prices(path) if path is not None else []

    def _serial_mailbox(self, store: SessionStore) -> Mailbox:
        from turndock_server.stores.serial_mailbox import SerialMailbox

        log.warning("the session store has no mailbox: this server must be its only host")
        return SerialMailbox(store)

    async def _open_artifacts(self) -> ArtifactStore:
        settings = self._settings.artifacts
        limit = self._settings.limits.max_artifact_bytes
        if settings.plugin is not None:
            from turndock_server.stores.isolated import IsolatedArtifactStore

            return IsolatedArtifactStore(self._plugins[settings.plugin].artifact_store())
        if settings.kind == "memory":
            from turndock_server.stores.memory_artifacts import MemoryArtifactStore

            return MemoryArtifactStore(max_artifact_bytes=limit)
        from turndock_server.stores.files import FileArtifactStore

        store = FileArtifactStore(self._settings.artifacts_path, max_artifact_bytes=limit)
        await store.open()
        self._cleanup.push_async_callback(store.close)
        return store

    def _persistence(self, store: SessionStore) -> AgentPersistence | None:
        """What keeps snapshots; None if nothing does."""
        from turndock_server.stores.memory_snapshots import MemoryAgentPersistence
        from turndock_server.stores.sql import SqlSessionStore

        settings = self._settings
        kind, plugin = settings.persistence.kind, settings.persistence.plugin
        if kind == "store" and isinstance(store, SqlSessionStore):
            return store.agent_persistence
        if kind == "store":
            plugin = settings.store.plugin
        if plugin is not None:
            return self._plugins[plugin].agent_persistence()
        return None if kind == "none" else MemoryAgentPersistence()

    def _redactor(self) -> Redactor | None:
        """What takes secrets out of events, if the configuration asks for it."""
        settings = self._settings.redaction
        if not settings.enabled:
            return None
        return Redactor(
            self._settings.secrets(), patterns=settings.patterns, categorized=settings.categorized
        )

    def _backend(
        self, name: str, settings: BackendSettings, store: SessionStore, artifacts: ArtifactStore
    ) -> Backend:
        if settings.plugin is not None:
            return self._plugins[settings.plugin].backend()
        if settings.kind == COMMAND:
            # Its program is the operator's to choose: an agent's configuration must not name another.
            from turndock_server.backends.command import CommandBackend, CommandConfig
            from turndock_server.backends.sessions import parse_config

            return CommandBackend(parse_config(CommandConfig, settings.config_json))
        if settings.kind == backends.REPLAY:
            from turndock_server.backends.replay import ReplayBackend

            return ReplayBackend(store, artifacts)
        if settings.kind not in backends.registry():
            known = (*backends.registry(), backends.REPLAY, "plugin")
            raise _not_installed(f"backends.{name}.kind", settings.kind, known)
        try:
            return backends.create(settings.kind)
        except ImportError as error:
            raise CannotStart(f"backends.{name}: {error}") from error

    def _behaviors(self) -> dict[str, Behavior]:
        """Those of the configuration, and every plug-in's under its own name."""
        docked: dict[str, Behavior] = {
            f"{PLUGIN}{name}": dock.behavior(timeout=Patience().timeout_s)
            for name, dock in self._plugins.items()
        }
        return docked | {name: self._behavior(name, each) for name, each in self._settings.behaviors.items()}

    def _behavior(self, name: str, settings: BehaviorSettings) -> Behavior:
        if settings.plugin is not None:
            return self._plugins[settings.plugin].behavior(timeout=settings.timeout_seconds)
        if settings.kind not in behaviors.registry():
            raise _not_installed(f"behaviors.{name}.kind", settings.kind, (*behaviors.registry(), "plugin"))
        return behaviors.create(settings.kind)

    def _offered_behaviors(self) -> list[str]:
        """Those of the configuration, and the plug-ins that say they have one."""
        kind = ContractKind.CONTRACT_KIND_BEHAVIOR
        plugins = [f"{PLUGIN}{name}" for name, dock in self._plugins.items() if dock.serves(kind)]
        return sorted([*self._settings.behaviors, *plugins])

    # --- What it says about itself -------------------------------------------------------------------------------

    async def _say(self, state: int) -> None:
        for service in ("", *self._services):
            await self._health.set(service, state)

    async def _info(self) -> GetServerInfoResponse:
        settings = self._settings
        return GetServerInfoResponse(
            version=__version__,
            limits=Limits(
                max_event_bytes=1 << 20,
                max_prompt_bytes=settings.limits.max_prompt_bytes,
                max_page_bytes=1 << 20,
                max_batch_events=10_000,
                max_json_depth=64,
                max_artifact_bytes=settings.limits.max_artifact_bytes,
                max_message_bytes=settings.server.max_message_bytes,
            ),
            backends=sorted(settings.offered_backends()),
            behaviors=self._offered_behaviors(),
            plugins=[dock.info() for dock in self._plugins.values()],
            session_store=settings.store.kind,
            artifact_store=settings.artifacts.kind,
            started_at_us=self._started_at_us,
            host_id=self._host_id,
            live_agents=self._host.roster.size if self._host else 0,
            services=self._services,
            agent_persistence=settings.persistence.kind,
            credentials=settings.credentials,
        )


def _dock(name: str, settings: PluginSettings) -> Dock:
    if settings.command:
        return SupervisedPlugin(name, settings.command, settings.environment(f"plugins.{name}"))
    return StaticPlugin(name, settings.endpoint, credentials=plugin_credentials(name, settings))


def _log_reader(store: SessionStore) -> ReadLog:
    """The SQL store's own way, which never decodes what it reads; through the port otherwise."""
    from turndock_server.stores.sql import SqlSessionStore

    if not isinstance(store, SqlSessionStore):
        return read_log_of(store)

    def read(key: AgentKey, after: int, limit: int) -> Awaitable[LogPage]:
        return store.read_frames(key.tenant or "", key.session_id, after=after, limit=limit)

    return read


def _forget_in(
    artifacts: ArtifactStore, persistence: AgentPersistence | None
) -> Callable[[DeleteSessionRequest], Awaitable[None]]:
    """Takes a deleted session's rows out of an artifact store that keeps them apart, and its snapshot out of memory."""
    from turndock_server.stores.memory_snapshots import MemoryAgentPersistence

    forget_artifacts = forgetting(artifacts)

    async def forget(request: DeleteSessionRequest) -> None:
        if isinstance(persistence, MemoryAgentPersistence):
            await persistence.forget_session(partition(request), request.session_id)
        await forget_artifacts(request)

    return forget


def _not_installed(key: str, kind: str, known: Collection[str]) -> CannotStart:
    there_are = f"Known here: {', '.join(sorted(known))}" if known else "No distribution here registers any"
    return CannotStart(f"{key}: nothing of the name {kind!r} is installed. {there_are}")


def _why(error: Exception) -> str:
    if isinstance(error, Held):
        return f"{error}. Stop that server, or give this one another data directory (--data) or address (--listen)"
    if isinstance(error, TurndockError):
        return error.message
    return str(error)
