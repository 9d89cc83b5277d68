"""A backend that emits events as fast as it can, or at a steady rate: `load_backend.py [endpoint]`.

Its configuration: `events` per turn, `size` of each text in bytes, `rate` in events per second (0 = flat out). The text
begins with the time it was emitted, in nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator

from turndock import events
from turndock.backend.v1 import (
    PromptRequest,
    ResumeSessionRequest,
    ResumeSessionResponse,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
)
from turndock.ports import Backend, TurnContext, TurnOutput
from turndock.serving import serve
from turndock.types.v1 import BackendSession


class LoadBackend(Backend):
    """Emits what its configuration says."""

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse(session=BackendSession(data=request.config_json.encode()))

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        return ResumeSessionResponse(session=request.session)

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> AsyncIterator[TurnOutput]:
        config = json.loads(request.session.data)
        count, size, rate = config.get("events", 0), config.get("size", 200), config.get("rate", 0)
        padding = "x" * max(size - 20, 0)
        began = time.monotonic()
        for index in range(count):
            if rate:
                await asyncio.sleep(max(began + index / rate - time.monotonic(), 0))
            elif index % 64 == 0:
                await asyncio.sleep(0)
            yield f"{time.monotonic_ns():020d}{padding}"
        yield events.result("done")


if __name__ == "__main__":
    endpoint = sys.argv[1] if len(sys.argv) > 1 else None
    asyncio.run(
        serve(
            name="load",
            version="1",
            backend=LoadBackend(),
            endpoint=endpoint,
            on_ready=lambda at: print("READY", at, flush=True),
        )
    )
