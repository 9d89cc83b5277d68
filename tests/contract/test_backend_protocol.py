"""The host's side of the backend contract against backends that break its rules, or whose connection breaks."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable

import grpc
import grpc.aio
import pytest

from support.docking import REMOTE_MODES, Mode, RecordingHost, ScriptedBackend, a_prompt
from support.proxy import Proxy, proxied
from turndock import events, serving, wire
from turndock.backend.v1 import (
    Accepted,
    GrantCreditRequest,
    GrantCreditResponse,
    InterruptRequest,
    InterruptResponse,
    PromptRequest,
    PromptResponse,
    StartSessionRequest,
    StreamEventsRequest,
    StreamEventsResponse,
    TurnItem,
    TurnItems,
    UpdateSessionRequest,
    UpdateSessionResponse,
)
from turndock.backend.v1.backend_pb2_grpc import BackendServicer, add_BackendServicer_to_server
from turndock.errors import Code, TurndockError, is_not_offered
from turndock.ports import Backend, BackendCrashed, BackendLost, TurnContext, TurnOutput
from turndock.remote import MULTIPLEXED, RemoteBackend
from turndock.types.v1 import Event, Failure

DEADLINE_S = 10.0
ACCEPTED = TurnItem(index=1, accepted=Accepted())

Outputs = AsyncIterator[TurnOutput | list[TurnOutput]]


async def play(
    backend: Backend, request: PromptRequest | None = None, said: list[TurnOutput] | None = None
) -> list[TurnOutput]:
    said = [] if said is None else said
    async with asyncio.timeout(DEADLINE_S):
        async for output in backend.prompt(request or a_prompt(), RecordingHost()):
            said += output if isinstance(output, list) else [output]
    return said


class ForeignBackend(BackendServicer):
    """A backend by hand: says just the given items, on the shared stream where it is asked to."""

    def __init__(self, items: Iterable[TurnItem], *, sent_items: int | None = None, error: str = "") -> None:
        self.items = list(items)
        self.sent_items = sent_items
        self.error = error
        self.shared: asyncio.Queue[StreamEventsResponse] = asyncio.Queue()
        self.calls: list[str] = []

    async def Prompt(
        self, request: PromptRequest, context: grpc.aio.ServicerContext[PromptRequest, PromptResponse]
    ) -> None:
        if request.multiplexed:
            turn = TurnItems(turn_token=request.turn_token, items=self.items)
            self.shared.put_nowait(StreamEventsResponse(turns=[turn]))
            await context.write(PromptResponse(sent_items=self.sent_items))
        else:
            await context.write(PromptResponse(items=self.items))
        if self.error:
            raise TurndockError(self.error, "as told")

    async def StreamEvents(
        self,
        request: StreamEventsRequest,
        context: grpc.aio.ServicerContext[StreamEventsRequest, StreamEventsResponse],
    ) -> None:
        await context.send_initial_metadata(())
        while True:
            await context.write(await self.shared.get())

    async def GrantCredit(
        self,
        request: GrantCreditRequest,
        context: grpc.aio.ServicerContext[GrantCreditRequest, GrantCreditResponse],
    ) -> GrantCreditResponse:
        return GrantCreditResponse()

    def UpdateSession(
        self,
        request: UpdateSessionRequest,
        context: grpc.aio.ServicerContext[UpdateSessionRequest, UpdateSessionResponse],
    ) -> Awaitable[UpdateSessionResponse]:
        self.calls.append("UpdateSession")
        return super().UpdateSession(request, context)


@contextlib.asynccontextmanager
async def hosted(servicer: BackendServicer, mode: Mode) -> AsyncGenerator[RemoteBackend]:
    server = wire.new_server()
    add_BackendServicer_to_server(servicer, server)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        async with wire.connect(endpoint) as channel:
            backend = RemoteBackend(channel, {"interrupt", *([MULTIPLEXED] if mode == "multiplexed" else [])})
            try:
                yield backend
            finally:
                await backend.close()
    finally:
        await server.stop(0)


remote_modes = pytest.mark.parametrize("mode", REMOTE_MODES)


@remote_modes
async def test_PF_B33_an_item_of_a_newer_kind_is_passed_over_and_does_not_end_the_turn(mode: Mode) -> None:
    unknown = TurnItem.FromString(TurnItem(index=2).SerializeToString() + b"\xf2\x07\x03new")
    terminal = TurnItem(index=4, result=events.result("ok"))
    items = [ACCEPTED, unknown, TurnItem(index=3, event=events.text("x")), terminal]
    async with hosted(ForeignBackend(items, sent_items=4), mode) as backend:
        assert await play(backend) == [events.text("x"), events.result("ok")]


@remote_modes
async def test_what_comes_after_the_terminal_is_not_read(mode: Mode) -> None:
    items = [
        ACCEPTED,
        TurnItem(index=2, error=Failure(reason="first")),
        TurnItem(index=3, result=events.result("second")),
    ]
    async with hosted(ForeignBackend(items, sent_items=3), mode) as backend:
        assert await play(backend) == [Failure(reason="first")]


@remote_modes
async def test_a_turn_that_does_not_begin_as_it_must_is_lost(mode: Mode) -> None:
    items = [TurnItem(index=1, event=events.text("x"))]
    async with hosted(ForeignBackend(items, sent_items=1), mode) as backend:
        with pytest.raises(BackendLost, match="began with event instead of accepted or rejected"):
            await play(backend)


@pytest.mark.parametrize(("second", "due"), [(3, 2), (1, 2)], ids=["gap", "repeat"])
async def test_a_gap_or_a_repeat_in_a_shared_stream_loses_the_turn(second: int, due: int) -> None:
    items = [ACCEPTED, TurnItem(index=second, event=events.text("x"))]
    async with hosted(ForeignBackend(items, sent_items=2), "multiplexed") as backend:
        with pytest.raises(BackendLost, match=f"sent item {second} of the turn where {due} was due"):
            await play(backend)


async def test_more_items_than_there_is_credit_for_lose_the_turn() -> None:
    items = [ACCEPTED, *(TurnItem(index=n, event=events.text("x")) for n in range(2, 5000))]
    async with hosted(ForeignBackend(items, sent_items=len(items)), "multiplexed") as backend:
        with pytest.raises(BackendLost, match="more items than it had credit for"):
            await play(backend)


async def test_a_shared_turn_that_ends_without_its_count_is_lost() -> None:
    items = [ACCEPTED, TurnItem(index=2, event=events.text("x"))]
    async with hosted(ForeignBackend(items), "multiplexed") as backend:
        with pytest.raises(BackendLost, match="without saying how many items"):
            await play(backend)


async def test_items_that_come_after_the_end_of_their_call_are_waited_for() -> None:
    """The two streams have no order between them."""
    release = asyncio.Event()

    class Late(ForeignBackend):
        async def StreamEvents(
            self,
            request: StreamEventsRequest,
            context: grpc.aio.ServicerContext[StreamEventsRequest, StreamEventsResponse],
        ) -> None:
            await context.send_initial_metadata(())
            message = await self.shared.get()
            await release.wait()
            await context.write(message)
            await asyncio.Event().wait()

    servicer = Late([ACCEPTED, TurnItem(index=2, event=events.text("x"))], sent_items=2, error="TASK_CRASHED")
    said: list[TurnOutput] = []
    async with hosted(servicer, "multiplexed") as backend:
        task = asyncio.create_task(play(backend, said=said))
        await asyncio.wait([task], timeout=0.2)  # the call has ended long before
        assert not task.done()
        release.set()
        with pytest.raises(BackendCrashed, match="as told"):
            await task
    assert said == [events.text("x")]


@remote_modes
@pytest.mark.parametrize("reason", ["PLUGIN_UNAVAILABLE", "INTERNAL_ERROR", "FENCED"])
async def test_any_other_status_is_a_lost_backend(mode: Mode, reason: str) -> None:
    said: list[TurnOutput] = []
    items = [ACCEPTED, TurnItem(index=2, event=events.text("x"))]
    async with hosted(ForeignBackend(items, sent_items=2, error=reason), mode) as backend:
        with pytest.raises(BackendLost, match=f"{reason}: as told"):
            await play(backend, said=said)
    assert said == [events.text("x")]


@remote_modes
async def test_B_16_an_optional_call_that_is_absent_is_asked_for_once(mode: Mode) -> None:
    servicer = ForeignBackend([])
    async with hosted(servicer, mode) as backend:
        for _ in range(3):
            with pytest.raises(TurndockError) as caught:
                await backend.update_session(UpdateSessionRequest())
            assert is_not_offered(caught.value)
            assert caught.value.code is Code.UNIMPLEMENTED
    assert servicer.calls == ["UpdateSession"]


async def test_a_backend_without_the_shared_stream_it_announced_uses_streams_of_its_own() -> None:
    class Old(ForeignBackend):
        StreamEvents = BackendServicer.StreamEvents  # type: ignore[assignment]  # answers UNIMPLEMENTED

    terminal = TurnItem(index=2, result=events.result("ok"))
    async with hosted(Old([ACCEPTED, terminal]), "multiplexed") as backend:
        assert await play(backend) == [events.result("ok")]
        assert await play(backend) == [events.result("ok")]


async def test_a_silent_backend_is_given_up_after_the_deadline() -> None:
    class Silent(ForeignBackend):
        async def Interrupt(
            self,
            request: InterruptRequest,
            context: grpc.aio.ServicerContext[InterruptRequest, InterruptResponse],
        ) -> InterruptResponse:
            await asyncio.Event().wait()
            return InterruptResponse()

    server = wire.new_server()
    add_BackendServicer_to_server(Silent([]), server)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    async with wire.connect(endpoint) as channel:
        backend = RemoteBackend(channel, timeout=0.05)
        with pytest.raises(TurndockError) as caught:
            await backend.interrupt(InterruptRequest(turn_token="t"))
    await server.stop(0)
    assert (caught.value.reason, caught.value.code) == ("TIMEOUT", Code.DEADLINE_EXCEEDED)


# --- Connections that break --------------------------------------------------------------------------------


class Gated:
    """A script whose turns wait at a gate after their first output."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.ended = 0
        self.end = asyncio.Event()

    async def script(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        try:
            yield "first"
            await self.gate.wait()
            yield events.result("ok")
        finally:
            self.ended += 1
            self.end.set()

    async def all_ended(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.ended < count:
                await self.end.wait()
                self.end.clear()


@contextlib.asynccontextmanager
async def behind_proxy(backend: Backend, mode: Mode) -> AsyncGenerator[tuple[RemoteBackend, Proxy]]:
    server = wire.new_server()
    serving.add_backend(server, backend)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    capabilities = serving.capabilities_of(backend)
    if mode == "own_streams":
        capabilities -= {MULTIPLEXED}
    async with (
        proxied(endpoint.host, endpoint.port) as proxy,
        wire.connect(f"127.0.0.1:{proxy.port}") as channel,
    ):
        remote = RemoteBackend(channel, capabilities)
        try:
            yield remote, proxy
        finally:
            await remote.close()
            await server.stop(0)


async def reached(backend: Backend) -> None:
    """The backend can be reached again; the channel may not have noticed a break at once."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await backend.start_session(StartSessionRequest())
                return
            except TurndockError as error:
                if error.code is not Code.UNAVAILABLE:
                    raise


@remote_modes
async def test_PF_B05_a_broken_connection_loses_the_turns_under_way_and_later_ones_run(mode: Mode) -> None:
    gated = Gated()
    said: list[list[TurnOutput]] = [[] for _ in range(5)]
    async with behind_proxy(ScriptedBackend(gated.script), mode) as (backend, proxy):
        for round_ in range(2):
            await reached(backend)
            tasks = [asyncio.create_task(play(backend, said=one)) for one in said]
            async with asyncio.timeout(DEADLINE_S):
                while not all(len(one) == round_ + 1 for one in said):
                    await asyncio.wait(tasks, timeout=0.01)
            proxy.cut()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, BackendLost)
            await gated.all_ended(5 * (round_ + 1))  # the backend knows, too
        gated.gate.set()
        await reached(backend)
        outputs = await play(backend)
    assert outputs[-1] == events.result("ok")
    assert all(isinstance(event, Event) for one in said for event in one)


@remote_modes
async def test_a_backend_that_cannot_be_reached_is_lost_at_once(mode: Mode) -> None:
    async with behind_proxy(ScriptedBackend(Gated().script), mode) as (backend, proxy):
        proxy.close_gate()
        with pytest.raises(BackendLost, match="PLUGIN_UNAVAILABLE"):
            await play(backend)
        with pytest.raises(TurndockError) as caught:
            await backend.interrupt(InterruptRequest(turn_token="t"))
        assert caught.value.reason == "PLUGIN_UNAVAILABLE"


@remote_modes
async def test_closing_the_channel_under_a_turn_loses_it_and_cancels_nobody(mode: Mode) -> None:
    gated = Gated()
    server = wire.new_server()
    served = ScriptedBackend(gated.script)
    serving.add_backend(server, served)
    endpoint = wire.bind(server, "127.0.0.1:0")
    await server.start()
    channel = wire.connect(endpoint)
    backend = RemoteBackend(channel, [MULTIPLEXED] if mode == "multiplexed" else [])
    stream = backend.prompt(a_prompt(), RecordingHost())
    await anext(stream)
    task = asyncio.ensure_future(anext(stream))
    await asyncio.wait([task], timeout=0)
    await channel.close()
    with pytest.raises(BackendLost):
        await task
    await gated.all_ended(1)
    await backend.close()
    await server.stop(0)


async def test_closing_the_backend_ends_shared_turns() -> None:
    gated = Gated()
    async with behind_proxy(ScriptedBackend(gated.script), "multiplexed") as (backend, _):
        stream = backend.prompt(a_prompt(), RecordingHost())
        await anext(stream)
        await backend.close()
        with pytest.raises(BackendLost, match="closed"):
            await anext(stream)
        await gated.all_ended(1)


async def test_two_turns_with_one_token_are_refused() -> None:
    gated = Gated()
    request = a_prompt()
    async with behind_proxy(ScriptedBackend(gated.script), "own_streams") as (backend, _):
        first = backend.prompt(request, RecordingHost())
        await anext(first)
        with pytest.raises(BackendLost, match="ALREADY_EXISTS"):
            await play(backend, request)
        await first.aclose()  # type: ignore[attr-defined]  # it is a generator
