"""What drives a host for the turn machine's test: its callers, its watchers, and its deaths."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import Any

from model.turn_machine import Plan
from support.crashing import MortalStore, forsake, kill
from support.harness import StoreName, opened_store
from support.hosting import make_host
from support.parts import approval, asked, paused
from support.scripted_agent import HALT, ScriptedAgent, chain
from turndock.agent.v1 import (
    ApprovalAnswer,
    BusyPolicy,
    CancelRunRequest,
    InterruptRequest,
    NotifyRequest,
    ResolveApprovalRequest,
    StartAgentRequest,
    StopAgentRequest,
    TellRequest,
    UpdateQueuedRunRequest,
    WatchRequest,
    WatchResponse,
)
from turndock.errors import TurndockError
from turndock.ports import SessionStore
from turndock.store.v1 import GetEventsRequest, ListRunsRequest
from turndock.types.v1 import (
    AgentDefinition,
    AgentLimits,
    AgentPhase,
    Cursor,
    Event,
    HostLostPolicy,
    Page,
    Response,
    Run,
    RunOrigin,
    RunStatus,
)
from turndock_server.backends.scripted import ScriptedBackend
from turndock_server.core.host import Host, Located
from turndock_server.core.prompts import Prompts
from turndock_server.core.starter import Starter

NAME = "a1"
Outcome = tuple[Run, Response | None]


class Watcher:
    """Collects a log from a cursor on, over as many hosts as it takes."""

    def __init__(self, cursor: Cursor) -> None:
        self.after = cursor.after_sequence
        self.cursor = cursor
        self.got: list[Event] = []
        self._task: asyncio.Task[None] | None = None
        self._more = asyncio.Event()

    def attach(self, host: Host) -> None:
        """Read on at this host."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._watch(host))

    async def reached(self, head: int) -> None:
        """Wait until everything up to that number was delivered."""
        while self.cursor.after_sequence < head:
            self._more.clear()
            await self._more.wait()

    async def _watch(self, host: Host) -> None:
        async with aclosing(host.watch(None, WatchRequest(cursors=[self.cursor]))) as frames:
            async for encoded in frames:
                frame = WatchResponse.FromString(encoded)
                self.got += frame.batch.events
                self.cursor = frame.cursor
                self._more.set()


class Driver:
    """One agent, whose every turn waits at a gate; hosts come and go, the store and the plug-ins stay."""

    store: SessionStore
    host: Host
    session_id: str

    def __init__(self, plans: list[Plan], *, max_pending: int, retries: bool) -> None:
        policy = HostLostPolicy.HOST_LOST_POLICY_RETRY if retries else HostLostPolicy.HOST_LOST_POLICY_FAIL
        self._limits = AgentLimits(max_pending_prompts=max_pending, host_lost_policy=policy)
        self.agent = ScriptedAgent()
        self.backend = ScriptedBackend([self._script(turn, plan) for turn, plan in enumerate(plans)])
        self.asks: dict[str, asyncio.Task[Outcome]] = {}
        self.watchers: list[Watcher] = []
        self._hung_up: set[str] = set()
        self._exits = AsyncExitStack()

    def _script(self, turn: int, plan: Plan) -> list[dict[str, Any]]:
        end, choice = plan
        if choice != "noreply":
            move = HALT if choice == "halt" else chain(f"c{turn}")
            self.agent.responses[f"r{turn}"] = self.agent.errors[f"e{turn}"] = move
        terminals: dict[str, dict[str, Any]] = {
            "ok": {"result": None},
            "error": {"error": f"e{turn}"},
            "eof": {"eof": None},
            "crash": {"crash": "told to"},
            "parks": paused(asked(f"q{turn}")),
        }
        begin = [{"text": f"r{turn}"}, {"gate": f"g{turn}"}]
        if end == "asks":
            return [*begin, approval(f"q{turn}"), {"result": None}]
        return [*begin, terminals[end]]

    # --- Hosts ---------------------------------------------------------------------------------------------------

    async def open(self, store_name: StoreName, folder: Path) -> None:
        """Open the store, and start a host and the agent."""
        self.store = await self._exits.enter_async_context(opened_store(store_name, folder))
        await self._new_host()
        self.session_id = ""
        await self.start_agent()
        self.watch(0)

    async def close(self) -> None:
        """End everything."""
        for task in self.asks.values():
            task.cancel()
        await kill(self.host, self._mortal)
        await self._exits.aclose()

    async def lose_host(self, zombies_turn: int | None) -> None:
        """Have the host die, or with a turn, be taken for dead while it goes on with that turn; begin with another."""
        for task in self.asks.values():
            task.cancel()
        lost = self.host
        if zombies_turn is None:
            await kill(lost, self._mortal)
        else:
            await forsake(lost)
        await asyncio.gather(*self.asks.values(), return_exceptions=True)
        self.asks.clear()
        await self._new_host()
        for watcher in self.watchers:
            watcher.attach(self.host)
        if zombies_turn is not None:
            loops = list(lost.roster._loops.values())
            self.backend.release(f"g{zombies_turn}")
            await asyncio.gather(*loops)
            assert not lost.roster.size, "a host that lost its claim must let go of the agent"

    async def _new_host(self) -> None:
        self._mortal = MortalStore(self.store)
        self.host = make_host(self._mortal, {"scripted": self.backend}, {"scripted": self.agent})  # type: ignore[arg-type]  # passes every call on
        self._prompts = Prompts(self.host, max_prompt_bytes=1 << 20)
        await self.host.start()

    async def quiet(self, turn: int | None, asked: str = "") -> None:
        """Wait until that turn is at its gate, or asks that; without one, until nothing goes on."""
        if asked:
            while not (await self.host.status(await self.located())).pending_approvals:  # noqa: ASYNC110 - no watch
                await asyncio.sleep(0)
            return
        if turn is not None:
            await self.backend.entered(f"g{turn}")
            return
        dispatcher: Any = self.host.roster.dispatcher
        while tasks := [*self.host.roster._loops.values(), *dispatcher._deliveries]:
            await asyncio.wait(tasks)

    # --- Calls ---------------------------------------------------------------------------------------------------

    async def located(self) -> Located:
        return await self.host.locate(None, NAME)

    async def start_agent(self) -> None:
        """Start the agent, or start it again with its session."""
        definition = AgentDefinition(
            agent_name=NAME, backend="scripted", behavior="scripted", limits=self._limits
        )
        request = StartAgentRequest(definition=definition, session_id=self.session_id)
        self.session_id = (await Starter(self.host).start(None, request)).located.key.session_id

    async def stop_agent(self) -> None:
        status = await self.host.stop_agent(None, StopAgentRequest(agent_name=NAME))
        assert status.phase == AgentPhase.AGENT_PHASE_STOPPED

    async def tell(self, run_id: str, prompt: str, policy: BusyPolicy.ValueType) -> str | None:
        """Put a prompt into the mailbox; the reason if it is refused."""
        call = TellRequest(request_id=run_id, agent_name=NAME, prompt=prompt, busy_policy=policy)
        try:
            async with self._prompts.submitted(None, call, RunOrigin.RUN_ORIGIN_TELL) as submitted:
                assert submitted.run.id == run_id
        except TurndockError as error:
            return error.reason
        return None

    async def ask(self, run_id: str, policy: BusyPolicy.ValueType) -> str | None:
        """Put a prompt into the mailbox and wait for its outcome in the background; the reason if it is refused."""
        accepted = asyncio.Event()

        async def asking() -> Outcome:
            call = TellRequest(request_id=run_id, agent_name=NAME, prompt=run_id, busy_policy=policy)
            try:
                async with self._prompts.submitted(
                    None, call, RunOrigin.RUN_ORIGIN_ASK, unwanted=lambda: run_id in self._hung_up
                ) as submitted:
                    accepted.set()
                    return await self._prompts.outcome(submitted)
            finally:
                accepted.set()

        task = asyncio.create_task(asking())
        await accepted.wait()
        await asyncio.sleep(0)
        if task.done() and isinstance(error := task.exception(), TurndockError):
            return error.reason
        self.asks[run_id] = task
        return None

    async def hang_up(self, run_id: str) -> None:
        task = self.asks.pop(run_id)
        self._hung_up.add(run_id)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def cancel(self, run_id: str) -> None:
        run = await self._prompts.cancel(
            await self.located(), CancelRunRequest(agent_name=NAME, run_id=run_id)
        )
        assert run.status == RunStatus.RUN_STATUS_CANCELLED

    async def edit(self, run_id: str, before: str | None, prompt: str | None) -> None:
        request = UpdateQueuedRunRequest(
            agent_name=NAME,
            run_id=run_id,
            before_run_id=before or "",
            to_tail=before is None,
            prompt=prompt,
        )
        await self._prompts.update(await self.located(), request)

    async def release(self, turn: int) -> None:
        self.backend.release(f"g{turn}")

    async def answer(self, answer: ApprovalAnswer) -> str | None:
        """Decide on an approval; the reason if it is refused."""
        request = ResolveApprovalRequest(agent_name=NAME, answers=[answer])
        try:
            await self.host.resolve_approval(await self.located(), request, "")
        except TurndockError as error:
            return error.reason
        return None

    async def interrupt(self) -> str:
        """The run that is killed; empty = none."""
        answer = await self.host.interrupt(await self.located(), InterruptRequest(agent_name=NAME))
        return answer.run_id

    async def notify(self, request_id: str, payload: str, *, wait: bool) -> int:
        """Notify, and once more with the same id; the notification's number."""
        request = NotifyRequest(
            request_id=request_id, agent_name=NAME, payload_json=payload, wait_applied=wait
        )
        answer = await self.host.notify(await self.located(), request)
        assert answer.applied or not wait
        again = await self.host.notify(await self.located(), request)
        assert again.sequence == answer.sequence
        return answer.sequence

    async def unhalt(self) -> None:
        await self.host.unhalt(await self.located())

    async def leave_memory(self) -> None:
        """What the idle shutdown does."""
        await self.quiet(None)
        agent = self.host.roster.get((await self.located()).key)
        if agent is not None:
            await self.host.roster.leave(agent, "inactivity")
            assert (await self.located()).live is None

    def watch(self, after: int) -> None:
        """One more watcher, from now on."""
        watcher = Watcher(Cursor(session_id=self.session_id, after_sequence=after))
        watcher.attach(self.host)
        self.watchers.append(watcher)

    # --- What is stored --------------------------------------------------------------------------------------------

    async def log(self) -> list[Event]:
        """All events."""
        log: list[Event] = []
        while True:
            request = GetEventsRequest(session_id=self.session_id, after_sequence=len(log))
            page = await self.store.get_events(request)
            log += page.events
            if not page.events:
                return log

    async def runs(self) -> list[Run]:
        """All runs, in mailbox order."""
        runs: list[Run] = []
        cursor = ""
        while True:
            request = ListRunsRequest(session_id=self.session_id, page=Page(cursor=cursor))
            page = await self.store.list_runs(request)
            runs += page.runs
            cursor = page.next_cursor
            if not cursor:
                return runs
