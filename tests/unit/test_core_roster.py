"""What happens between a store's commit and the host's hearing of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from support.hosting import make_host
from support.scripted_agent import HALT, ScriptedAgent
from turndock.agent.v1 import StartAgentRequest, StopAgentRequest, TellRequest
from turndock.behavior.v1 import PreTurnRequest, PreTurnResponse, Proceed
from turndock.errors import TurndockError
from turndock.types.v1 import AgentDefinition, AgentPhase, RunOrigin, RunStatus
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.core.host import Host
from turndock_server.core.prompts import Prompts
from turndock_server.core.starter import Starter
from turndock_server.stores.memory import MemorySessionStore


class Lagging:
    """A store whose answers to one call are held back after they were made, or fail, as a test wants."""

    def __init__(self, store: MemorySessionStore) -> None:
        self._store = store
        self.held: dict[str, asyncio.Event] = {}
        self.made: dict[str, asyncio.Event] = {}
        self.broken: set[str] = set()

    def hold(self, name: str) -> asyncio.Event:
        """Hold the answers to that call back; set the event to let them go. The other event says that one is made."""
        self.made[name] = asyncio.Event()
        self.held[name] = asyncio.Event()
        return self.made[name]

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        call: Callable[[Any], Awaitable[Any]] = getattr(self._store, name)

        async def lagging(request: Any) -> Any:
            if name in self.broken:
                raise TurndockError("STORAGE_CONNECTION_FAILED", "told to")
            answer = await call(request)
            if name in self.held:
                self.made[name].set()
                await self.held[name].wait()
            return answer

        return lagging


class World:
    def __init__(self) -> None:
        self.store = Lagging(MemorySessionStore())
        self.backend = ScriptedBackend()

        async def pre_turn(_: PreTurnRequest) -> PreTurnResponse:
            return PreTurnResponse(proceed=Proceed())

        self.agent = ScriptedAgent(responses={"halt": HALT}, pre_turn=pre_turn)
        self.host: Host = make_host(
            self.store,  # type: ignore[arg-type]  # passes every call on
            {"scripted": self.backend},
            {"scripted": self.agent},
        )
        self.prompts = Prompts(self.host, max_prompt_bytes=1 << 20)

    async def start(self, scripts: str) -> None:
        await self.host.start()
        definition = AgentDefinition(
            agent_name="a1", backend="scripted", behavior="scripted", backend_config_json=scripts
        )
        await Starter(self.host).start(None, StartAgentRequest(definition=definition))

    async def tell(self, run_id: str) -> None:
        call = TellRequest(request_id=run_id, agent_name="a1", prompt=run_id)
        async with self.prompts.submitted(None, call, RunOrigin.RUN_ORIGIN_TELL):
            pass

    async def telling(self, run_id: str) -> asyncio.Task[None]:
        """A Tell whose run is stored, and which may have to wait for somebody before it hears more."""
        made = self.store.hold("enqueue_run")
        task = asyncio.create_task(self.tell(run_id))
        await made.wait()
        self.store.held.pop("enqueue_run").set()
        return task

    async def quiet(self) -> None:
        dispatcher: Any = self.host.roster.dispatcher
        while tasks := [*self.host.roster._loops.values(), *dispatcher._deliveries]:
            await asyncio.wait(tasks)

    async def leave(self) -> None:
        await self.quiet()
        located = await self.host.locate(None, "a1")
        assert located.live is not None
        await self.host.roster.leave(located.live, "inactivity")

    async def status_of(self, run_id: str) -> RunStatus.ValueType:
        located = await self.host.locate(None, "a1")
        return (await self.prompts.run(located, run_id, wait_s=0, with_events=False)).status


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.store.held.clear()
    made.store.broken.clear()
    await made.host.stop(1.0)


async def test_a_run_that_has_ended_before_its_caller_hears_of_it_does_not_wait_any_more(
    world: World,
) -> None:
    await world.start('{"scripts":[[{"result":"halt"}]]}')
    await world.leave()
    made = world.store.hold("enqueue_run")
    telling = asyncio.create_task(world.tell("r1"))
    await made.wait()
    # Meanwhile somebody wakes the agent, which finds the run, runs it, and halts.
    agent = await world.host.claimed(await world.host.locate(None, "a1"))
    world.host.roster.wake(agent)
    await world.quiet()
    assert await world.status_of("r1") == RunStatus.RUN_STATUS_COMPLETED
    world.store.held["enqueue_run"].set()
    await telling
    await world.quiet()
    status = await world.host.status(await world.host.locate(None, "a1"))
    assert (status.halted, status.queued) == (True, 0)
    assert world.agent.names().count("pre_turn") == 1


async def test_a_run_that_its_agent_has_not_read_is_not_forgotten(world: World) -> None:
    await world.start('{"scripts":[[{"result":"ok"}]]}')
    await world.leave()
    claimed = world.store.hold("claim_agent")
    waking = asyncio.create_task(world.host.claimed(await world.host.locate(None, "a1")))
    await claimed.wait()
    # The claim has been granted without this run, and the agent is not there yet.
    telling = await world.telling("r1")
    world.store.held.pop("claim_agent").set()
    await waking
    await telling
    await world.quiet()
    assert await world.status_of("r1") == RunStatus.RUN_STATUS_COMPLETED


async def test_an_agent_that_leaves_while_a_run_arrives_comes_back(world: World) -> None:
    await world.start('{"scripts":[[{"result":"ok"}]]}')
    await world.quiet()
    saving = world.store.hold("save_session")
    leaving = asyncio.create_task(world.leave())
    await saving.wait()
    telling = await world.telling("r1")
    world.store.held.pop("save_session").set()
    await leaving
    await telling
    await world.quiet()
    assert await world.status_of("r1") == RunStatus.RUN_STATUS_COMPLETED
    assert world.backend.record.prompts[0].run_id == "r1"


async def test_an_agent_whose_store_fails_is_dropped_and_goes_on_when_it_is_back(world: World) -> None:
    await world.start('{"scripts":[[{"gate":"g"},{"result":"lost"}],[{"result":"ok"}]]}')
    await world.tell("r1")
    await world.backend.entered("g")
    world.store.broken |= {"flush", "claim_agent"}
    world.backend.release("g")
    await world.quiet()
    located = await world.host.locate(None, "a1")
    assert located.live is None
    # The first sweeps fail too; the agent must not be forgotten because of it.
    await world.host.roster._on_ticket(_Ticket(located.key))
    world.store.broken.clear()
    assert located.key in world.host.roster._dropped
    await world.tell("r2")
    await world.quiet()
    assert await world.status_of("r1") == RunStatus.RUN_STATUS_FAILED
    assert await world.status_of("r2") == RunStatus.RUN_STATUS_COMPLETED


class _Ticket:
    id = "t"
    delivery = 1

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    async def keep(self) -> None: ...
    async def done(self) -> None: ...


async def test_an_end_that_cannot_be_stored_leaves_the_agent_as_it_was(world: World) -> None:
    await world.start('{"scripts":[[{"result":"ok"}]]}')
    await world.quiet()
    world.store.broken.add("save_session")
    with pytest.raises(TurndockError, match="STORAGE_CONNECTION_FAILED"):
        await world.host.stop_agent(None, StopAgentRequest(agent_name="a1"))
    world.store.broken.clear()
    await world.tell("r1")
    await world.quiet()
    assert await world.status_of("r1") == RunStatus.RUN_STATUS_COMPLETED
    stopped = await world.host.stop_agent(None, StopAgentRequest(agent_name="a1"))
    assert stopped.phase == AgentPhase.AGENT_PHASE_STOPPED


async def test_a_run_that_arrives_while_its_agent_ends_is_cancelled(world: World) -> None:
    await world.start('{"scripts":[[{"result":"never"}]]}')
    await world.quiet()
    located = await world.host.locate(None, "a1")
    made = world.store.hold("enqueue_run")
    telling = asyncio.create_task(world.tell("r1"))
    await made.wait()
    await world.host.stop_agent(None, StopAgentRequest(agent_name="a1"))
    world.store.held.pop("enqueue_run").set()
    await telling
    await world.quiet()
    run = await world.prompts.run(located, "r1", wait_s=0, with_events=False)
    assert (run.status, run.failure.reason) == (RunStatus.RUN_STATUS_CANCELLED, "agent_terminated")
    with pytest.raises(TurndockError, match="AGENT_NOT_FOUND"):
        await world.tell("r2")
