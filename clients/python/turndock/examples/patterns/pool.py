"""Pool: interchangeable agents share one queue; a job whose turn fails goes back into it.

Shows failures as data (`TurnFailed`, `retryable`), back-pressure by the number of workers, and results in the order of
the jobs. No behavior is needed: the pool is the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from turndock.client import AgentHandle, Client, TurnFailed
from turndock.examples.patterns.program import agent, main

TRIES = 3


class Pool:
    """Agents that take turns at a queue of jobs."""

    def __init__(self, workers: Sequence[AgentHandle]) -> None:
        self._workers = workers
        self.done_by: dict[str, int] = {worker.name: 0 for worker in workers}

    async def map(self, jobs: Sequence[str]) -> list[str]:
        """Each job's answer, in the order of the jobs. Raises a group of `TurnFailed` when one has failed too often."""
        queue: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        for number in range(len(jobs)):
            queue.put_nowait((number, 1))
        answers: dict[int, str] = {}

        async def work(worker: AgentHandle) -> None:
            while len(answers) < len(jobs):
                number, attempt = await queue.get()
                try:
                    answers[number] = (await worker.ask(jobs[number])).text
                except TurnFailed as failed:
                    if not failed.failure.retryable or attempt == TRIES:
                        raise
                    queue.put_nowait((number, attempt + 1))
                else:
                    self.done_by[worker.name] += 1
                if len(answers) == len(jobs):
                    finished.set()

        finished = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(worker)) for worker in self._workers]
            group.create_task(_end(tasks, finished))
        return [answers[number] for number in range(len(jobs))]


async def _end(tasks: Sequence[asyncio.Task[None]], finished: asyncio.Event) -> None:
    """Send home whoever waits for a job once there are no more."""
    await finished.wait()
    for task in tasks:
        task.cancel()


async def pool(client: Client, *, backend: str = "scripted", size: int = 3) -> dict[str, Any]:
    """The answers, and how many jobs there were done in all; each worker stumbles over its first."""
    stumble = [{"error": {"reason": "rate_limited", "retryable": True}}]
    config = {"backend": backend, "backend_config": {"scripts": [stumble, [{"result": "done"}]]}}
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(agent(client, f"worker-{number}", **config))
            for number in range(1, size + 1)
        ]
        team = Pool(workers)
        answers = await team.map([f"job {number}" for number in range(8)])
        return {"answers": answers, "done": sum(team.done_by.values())}


if __name__ == "__main__":
    main("pool", pool)
