"""A prompt whose run is streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Self

import grpc.aio

from turndock.agent.v1 import PromptAccepted, PromptOutcome, PromptRequest, PromptResponse
from turndock.client.host import HostCalls
from turndock.client.outcome import TurnFailed
from turndock.client.payloads import Payloads
from turndock.client.streams import ResumedStream
from turndock.types.v1 import Event, Response, Run


class PromptStream(AsyncIterator[Event]):
    """The events of one run, as they come; then its outcome.

    Made by `AgentHandle.prompt`. A lost connection is made again with the same request id, and no event comes twice.
    Leaving the stream leaves the run alone. Iteration raises `TurndockError` when the prompt is refused or the server
    cannot be reached; a turn that fails is an outcome.
    """

    def __init__(self, host: HostCalls, request: PromptRequest) -> None:
        self._host = host
        self._payloads = Payloads(host)
        self._request = request
        self._stream = ResumedStream(self._call, host.retry, tries=host.retry.tries)
        self._accepted: PromptAccepted | None = None
        self._outcome: PromptOutcome | None = None
        self._events = self._read_events()

    async def accepted(self) -> PromptAccepted:
        """Wait until the prompt is durable. Raises as iteration does."""
        while self._accepted is None:
            response = await self._stream.read()
            if response is None:
                raise RuntimeError("the stream was closed before the prompt was accepted")
            if response.HasField("accepted"):
                self._accepted = response.accepted
        return self._accepted

    @property
    def run(self) -> Run:
        """The run as last heard of: in its terminal status at the end. Raises `RuntimeError` before it is accepted."""
        if self._outcome is not None:
            return self._outcome.run
        if self._accepted is None:
            raise RuntimeError("the prompt is not accepted yet")
        return self._accepted.run

    @property
    def outcome(self) -> PromptOutcome:
        """How the run ended. Raises `RuntimeError` before the stream has come to its end."""
        if self._outcome is None:
            raise RuntimeError("the run has not ended yet; iterate to the end first")
        return self._outcome

    @property
    def response(self) -> Response:
        """What the turn answered. Raises `TurnFailed`, and as `outcome`."""
        outcome = self.outcome
        if not outcome.HasField("response"):
            raise TurnFailed(outcome.failure, outcome.run)
        return outcome.response

    def close(self) -> None:
        """Stop reading: iteration ends at its next step. The run goes on."""
        self._stream.close()

    async def aclose(self) -> None:
        """Stop reading, and leave nothing behind. Not while another task iterates."""
        self.close()
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        await self.accepted()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events  # one layer less for each event

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def _read_events(self) -> AsyncGenerator[Event]:
        last = 0
        try:
            while (response := await self._stream.read()) is not None:
                if response.HasField("accepted"):
                    self._accepted = response.accepted
                if not await self._payloads.put_back(response.batch.events, self._stream):
                    continue  # the batch comes again
                for event in response.batch.events:
                    if event.sequence > last:
                        last = event.sequence
                        yield event
                if response.HasField("outcome"):
                    self._outcome = response.outcome
                    return
        finally:
            self._stream.close()

    def _call(self) -> grpc.aio.UnaryStreamCall[PromptRequest, PromptResponse]:
        return self._host.stub.Prompt(self._request, metadata=self._host.metadata)
