"""A plug-in's place at this server: one channel, and somebody who asks how the process at its other end is.

A task asks for the description after every connect and for the state from time to time; what it heard last is in
`state` and `message`, and every change of it is logged. A plug-in that is not ready is asked again for ever, less and
less often; nothing but `stop` gives it up. The ports that come from here stay the same over all reconnects.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Final

import grpc.aio

from turndock.agent.v1 import PluginInfo
from turndock.errors import TurndockError, is_not_offered
from turndock.plugin.v1 import (
    Contract,
    ContractKind,
    DescribeRequest,
    DescribeResponse,
    ProbeRequest,
    ProbeResponse,
)
from turndock.ports import Backend, Behavior
from turndock.remote import (
    RemoteAgentPersistence,
    RemoteArtifactStore,
    RemoteBackend,
    RemoteBehavior,
    RemoteMaintenance,
    RemotePlainSessionStore,
    RemotePlugin,
    RemoteQuery,
    remote_session_store,
)
from turndock.remote.calls import DEFAULT_TIMEOUT_S
from turndock.wire import PLUGIN_KEEPALIVE_MS, Endpoint, connect
from turndock_server import __version__
from turndock_server.plugins.backend import DockedBackend
from turndock_server.plugins.backoff import Backoff
from turndock_server.plugins.behavior import DockedBehavior

State = ProbeResponse.State
READY: Final = ProbeResponse.STATE_READY
NOT_READY: Final = ProbeResponse.STATE_NOT_READY
ERROR: Final = ProbeResponse.STATE_ERROR

MAINTENANCE_TIMEOUT_S: Final = 24 * 3600.0
"""A call of maintenance goes through a whole store; whoever called sets the deadline that counts."""

VERSION: Final = 1
"""The version of every contract this server speaks."""

_ANSWER_TIMEOUT_S: Final = 5.0
_UNAVAILABLE: Final = "PLUGIN_UNAVAILABLE"


class Dock(ABC):
    """What plug-ins of either kind have in common. Use within one event loop: `start`, `wait_ready`, …, `stop`."""

    state: State.ValueType = NOT_READY
    """How the plug-in was when it was last asked."""
    message: str = "was not asked yet"
    """The last error, or what the plug-in says about its state. Empty = nothing."""
    description: DescribeResponse | None = None
    """What it says about itself; kept while it is away. None: it has not answered yet."""

    def __init__(
        self,
        name: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        probe_interval_s: float = 10.0,
        retry_s: tuple[float, float] = (0.1, 5.0),
    ) -> None:
        self.name = name
        self.log = logging.getLogger(f"turndock.plugins.{name}")
        self._credentials = credentials
        self._probe_interval_s = probe_interval_s
        self._retry = Backoff(*retry_s)
        self._channel: grpc.aio.Channel | None = None
        self._asking: asyncio.Task[None] | None = None
        self._change = asyncio.Event()
        self._described = False
        self._refused = False
        self._expected = False  # whether it is no wonder that the plug-in does not answer
        self._backend: RemoteBackend | None = None
        self._behaviors: dict[float, RemoteBehavior] = {}

    @property
    @abstractmethod
    def endpoint(self) -> Endpoint:
        """Where the plug-in listens."""

    @property
    def starts(self) -> int:
        """Times this server started the process; 0 if it runs by itself."""
        return 0

    @property
    def channel(self) -> grpc.aio.Channel:
        """The one channel to the plug-in. Raises `RuntimeError` before `start` and after `stop`."""
        if self._channel is None:
            raise RuntimeError(f"plug-in {self.name} is not docked")
        return self._channel

    async def start(self) -> None:
        """Begin to connect. Returns at once; `wait_ready` waits."""
        self._channel = connect(
            self.endpoint, credentials=self._credentials, keepalive_ms=PLUGIN_KEEPALIVE_MS
        )
        self._asking = self._look_after(self._keep_asking())

    async def stop(self) -> None:
        """Give the plug-in up; calls under way end. Repeatable."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
            self._asking = None
        self._behaviors.clear()
        await self._leave_backend()
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
        self._expected = True
        self._settle(NOT_READY, "was stopped")

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the plug-in says that it can work.

        Raises `TurndockError` (PLUGIN_UNAVAILABLE), with the last message, when that takes more than `timeout`
        seconds, or as soon as it is clear that the plug-in does not fit this server.
        """
        try:
            async with asyncio.timeout(timeout):
                while self.state != READY and not self._refused:
                    await self._change.wait()
        except TimeoutError:
            problem = f"plug-in {self.name} is not ready after {timeout:g} s: {self.message}"
            raise TurndockError(_UNAVAILABLE, problem) from None
        if self._refused:
            raise TurndockError(_UNAVAILABLE, f"plug-in {self.name} {self.message}")

    async def changed(self) -> None:
        """Wait until the state or the message is another."""
        await self._change.wait()

    def info(self) -> PluginInfo:
        """The plug-in as the server sees it."""
        return PluginInfo(
            name=self.name,
            description=self.description,
            state=self.state,
            message=self.message,
            starts=self.starts,
        )

    def serves(self, kind: ContractKind.ValueType) -> bool:
        """Whether the plug-in has said that it serves this contract."""
        return self.description is not None and any(one.kind == kind for one in self.description.contracts)

    def contract(self, kind: ContractKind.ValueType) -> Contract:
        """What the plug-in says of one contract.

        Raises `TurndockError`: PLUGIN_UNAVAILABLE before it has answered, INVALID_OPERATION if it does not serve it.
        """
        if self.description is None:
            raise TurndockError(_UNAVAILABLE, f"plug-in {self.name} has not answered yet: {self.message}")
        for contract in self.description.contracts:
            if contract.kind == kind:
                return contract
        raise TurndockError("INVALID_OPERATION", f"plug-in {self.name} does not serve {_kind_name(kind)}")

    def backend(self) -> Backend:
        """Its backend, which may be had before the plug-in has answered, and rejects every prompt until then."""
        return DockedBackend(self.remote_backend)

    def remote_backend(self) -> RemoteBackend:
        """The backend as the plug-in describes it now. Raises as `contract`."""
        contract = self.contract(ContractKind.CONTRACT_KIND_BACKEND)
        if self._backend is None:
            self._backend = RemoteBackend(self.channel, contract.capabilities)
        return self._backend

    def behavior(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> Behavior:
        """Its behavior, which may be had before the plug-in has answered. Its calls may take `timeout` seconds."""
        return DockedBehavior(lambda: self.remote_behavior(timeout))

    def remote_behavior(self, timeout: float = DEFAULT_TIMEOUT_S) -> RemoteBehavior:
        """The behavior as the plug-in describes it now. Raises as `contract`."""
        contract = self.contract(ContractKind.CONTRACT_KIND_BEHAVIOR)
        if timeout not in self._behaviors:
            self._behaviors[timeout] = RemoteBehavior(self.channel, contract.capabilities, timeout=timeout)
        return self._behaviors[timeout]

    def session_store(self) -> RemotePlainSessionStore:
        """Its session store, with just the abilities it describes. Raises as `contract`."""
        contract = self.contract(ContractKind.CONTRACT_KIND_SESSION_STORE)
        return remote_session_store(self.channel, contract.capabilities)

    def artifact_store(self) -> RemoteArtifactStore:
        """Its artifact store. Raises as `contract`."""
        self.contract(ContractKind.CONTRACT_KIND_ARTIFACT_STORE)
        return RemoteArtifactStore(self.channel)

    def query(self) -> RemoteQuery:
        """Its query. Raises as `contract`."""
        self.contract(ContractKind.CONTRACT_KIND_QUERY)
        return RemoteQuery(self.channel)

    def maintenance(self) -> RemoteMaintenance:
        """Its maintenance, whose calls may take long. Raises as `contract`."""
        self.contract(ContractKind.CONTRACT_KIND_MAINTENANCE)
        return RemoteMaintenance(self.channel, timeout=MAINTENANCE_TIMEOUT_S)

    def agent_persistence(self) -> RemoteAgentPersistence:
        """Its agent persistence. Raises as `contract`."""
        self.contract(ContractKind.CONTRACT_KIND_AGENT_PERSISTENCE)
        return RemoteAgentPersistence(self.channel)

    def trouble(self, error: TurndockError) -> str:
        """What to say of a plug-in that does not answer."""
        return error.message

    def _look_after(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that is never meant to end by itself; if it does, everybody can see that."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                self.log.error("is not looked after any more", exc_info=task.exception())
                self._settle(ERROR, "is not looked after any more: a fault of this server, see its log")

        task = asyncio.create_task(work, name=f"plug-in {self.name}")
        task.add_done_callback(ended)
        return task

    async def _keep_asking(self) -> None:
        plugin = RemotePlugin(self.channel, timeout=_ANSWER_TIMEOUT_S)
        while True:
            self._settle(*await self._ask(plugin))
            if self.state == READY:
                self._retry.reset()
                await self._connection_changes(self._probe_interval_s)
            else:
                await self._connection_changes(self._retry.next())

    async def _ask(self, plugin: RemotePlugin) -> tuple[State.ValueType, str]:
        """How the plug-in is now, and who it is if that is not known since the last connect."""
        try:
            if not self._described:
                await self._meet(await plugin.describe(DescribeRequest(host_version=__version__)))
            if self._refused:
                return ERROR, self.message
            probe = await plugin.probe(ProbeRequest())
        except TurndockError as error:
            self._described = self._refused = False
            if is_not_offered(error):
                return ERROR, "is no Turndock plug-in: it does not serve turndock.plugin.v1.Plugin"
            return NOT_READY, self.trouble(error)
        return probe.state or READY, probe.message

    async def _meet(self, description: DescribeResponse) -> None:
        self._described = True
        self._expected = False
        problems = [problem for contract in description.contracts if (problem := _misfit(contract))]
        self._refused = bool(problems)
        if problems:
            self.message = "; ".join(problems)
        if description != self.description:
            self.description = description
            self.log.info("is %s %s", description.name, description.version)
            self._behaviors.clear()  # what the last one did not offer this one may
            await self._leave_backend()

    async def _leave_backend(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()

    def _settle(self, state: State.ValueType, message: str) -> None:
        if (state, message) == (self.state, self.message):
            return
        self.state, self.message = state, message
        name = State.Name(state).removeprefix("STATE_")
        quiet = state == READY or self._expected
        self.log.log(
            logging.INFO if quiet else logging.WARNING, "%s", f"{name}: {message}" if message else name
        )
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _connection_changes(self, timeout: float) -> None:
        """Wait until the connection comes or goes, at most `timeout` seconds. After that, all has to be asked anew."""
        connected = self._is_connected()
        try:
            async with asyncio.timeout(timeout):
                while connected == self._is_connected():
                    await self.channel.wait_for_state_change(self.channel.get_state(try_to_connect=True))
        except TimeoutError:
            return
        self._described = False

    def _is_connected(self) -> bool:
        return self.channel.get_state() == grpc.ChannelConnectivity.READY


def _misfit(contract: Contract) -> str:
    """Why a contract does not fit this server; empty if it does, or is one this server does not know."""
    if contract.kind not in ContractKind.values() or contract.min_version <= VERSION <= contract.max_version:
        return ""
    versions = f"{contract.min_version} to {contract.max_version}"
    return f"serves {_kind_name(contract.kind)} in versions {versions}; this server speaks version {VERSION}"


def _kind_name(kind: ContractKind.ValueType) -> str:
    return ContractKind.Name(kind).removeprefix("CONTRACT_KIND_").lower()
