"""Who runs an agent: the port between hosts, and its adapter for one process.

A ticket says "this agent may have work". Losing one is harmless, since a sweep offers again what nobody does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from turndock import events
from turndock_server.core.feed import AgentKey
from turndock_server.core.lifecycle import Kill

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Signal:
    """For whoever runs an agent: end the turn under way."""

    kill: Kill
    run_id: str = ""
    """Only this run's turn; empty = whichever is under way."""


class Ticket(Protocol):
    """One offer of work."""

    @property
    def agent(self) -> AgentKey: ...
    @property
    def id(self) -> str: ...
    @property
    def delivery(self) -> int:
        """1 for the first delivery."""
        ...

    async def keep(self) -> None:
        """Say that the work goes on; due from receipt until `done`."""

    async def done(self) -> None:
        """The work is done; the ticket is not delivered again."""


OnTicket = Callable[[Ticket], Awaitable[None]]
OnSignal = Callable[[AgentKey, Signal], Awaitable[None]]


class Dispatcher(Protocol):
    """Carries offers and signals to whichever host runs an agent."""

    async def start(self, on_ticket: OnTicket, on_signal: OnSignal) -> None:
        """Begin to deliver."""

    async def offer(self, agent: AgentKey) -> None:
        """Offer an agent's work; after the commit that made it. A hint, may be lost."""

    async def signal(self, agent: AgentKey, signal: Signal) -> None:
        """Hand a signal to whoever runs the agent."""

    async def stop(self) -> None:
        """Deliver nothing more and wait for deliveries under way."""


@dataclass(frozen=True, slots=True)
class _LocalTicket:
    agent: AgentKey
    id: str = field(default_factory=events.new_id)
    delivery: int = 1

    async def keep(self) -> None:
        """One process needs no heartbeat: the ticket dies with it."""

    async def done(self) -> None:
        """One process keeps no list of tickets."""


class LocalDispatcher:
    """Everything in one process: an offer is a task, a signal is a call."""

    def __init__(self) -> None:
        self._on_ticket: OnTicket | None = None
        self._on_signal: OnSignal | None = None
        self._deliveries: set[asyncio.Task[None]] = set()

    async def start(self, on_ticket: OnTicket, on_signal: OnSignal) -> None:
        """Begin to deliver."""
        self._on_ticket = on_ticket
        self._on_signal = on_signal

    async def offer(self, agent: AgentKey) -> None:
        """Deliver a ticket in a task of its own."""
        if self._on_ticket is None:
            return
        delivery = asyncio.ensure_future(self._on_ticket(_LocalTicket(agent)))
        # The loop keeps only weak references to tasks.
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._delivered)

    async def signal(self, agent: AgentKey, signal: Signal) -> None:
        """Deliver a signal now."""
        if self._on_signal is not None:
            await self._on_signal(agent, signal)

    async def stop(self) -> None:
        """Deliver nothing more and wait for deliveries under way."""
        self._on_ticket = self._on_signal = None
        if self._deliveries:
            await asyncio.wait(self._deliveries)

    def _delivered(self, delivery: asyncio.Future[None]) -> None:
        self._deliveries.discard(delivery)
        if not delivery.cancelled() and delivery.exception() is not None:
            log.error("a ticket could not be delivered", exc_info=delivery.exception())
