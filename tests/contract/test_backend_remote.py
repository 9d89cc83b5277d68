"""A backend behaves the same in this process, behind gRPC, and with others on one stream."""

import asyncio

import pytest

from support.docking import (
    DEADLINE_S,
    Mode,
    Outputs,
    RecordingHost,
    ScriptedBackend,
    a_prompt,
    docked,
    every_mode,
    play,
    remote_modes,
    texts,
)
from turndock import events, jsontext
from turndock.backend.v1 import Paused, PromptRequest, Result
from turndock.ports import (
    CheckpointRejected,
    Rejected,
    TurnContext,
    TurnOutput,
)
from turndock.types.v1 import (
    BackendSession,
    Event,
    EventType,
    Failure,
    MessageStreamed,
    ToolApprovalDecided,
    ToolApprovalRequested,
)

# --- What a turn says --------------------------------------------------------------------------------------


@every_mode
async def test_outputs_arrive_unchanged_and_in_order(mode: Mode) -> None:
    said: list[TurnOutput] = [
        events.text("hel"),
        events.thinking("hm"),
        events.tool_use("t1", "read", '{"id":9007199254740993}'),
        events.tool_result("t1", "[1,2]"),
        events.usage(10, 2),
        events.custom("note", '{"a":1}'),
        events.result("hello", provider_session_id="p-1", stop_reason="stop", data_json='{"n":1}'),
    ]

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        assert request.prompt == "hi"
        assert request.scope.tenant == "red"
        yield "text"
        yield ["lists", events.text("too")]
        for output in said:
            yield output

    async with docked(ScriptedBackend(script), mode) as backend:
        assert await play(backend) == [
            events.text("text"),
            events.text("lists"),
            events.text("too"),
            *said,
        ]


@every_mode
@pytest.mark.parametrize(
    "terminal",
    [
        events.error("rate_limited", "slow down", retryable=True),
        events.paused([ToolApprovalRequested(approval_id="a1", tool_name="rm")]),
        events.result(),
    ],
    ids=["error", "paused", "result"],
)
async def test_every_terminal_arrives(mode: Mode, terminal: Failure | Paused | Result) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        yield terminal

    async with docked(ScriptedBackend(script), mode) as backend:
        assert await play(backend) == [terminal]


@every_mode
async def test_ten_thousand_outputs_keep_their_order(mode: Mode) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        for n in range(10_000):
            yield f"{n},"
        yield events.result()

    async with docked(ScriptedBackend(script), mode) as backend:
        said = await play(backend)
    assert texts(said) == "".join(f"{n}," for n in range(10_000))


@every_mode
async def test_a_lone_output_is_not_held_back(mode: Mode) -> None:
    gate = asyncio.Event()

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        yield "lone"
        await gate.wait()
        yield events.result()

    async with docked(ScriptedBackend(script), mode) as backend:
        async with asyncio.timeout(DEADLINE_S):
            async for output in backend.prompt(a_prompt(), RecordingHost()):
                gate.set()  # only what arrived lets the turn go on
                assert output


@every_mode
async def test_nothing_is_pulled_after_the_terminal_and_the_generator_is_closed(mode: Mode) -> None:
    pulled = closed = False
    done = asyncio.Event()

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        nonlocal pulled, closed
        try:
            yield events.result("done")
            pulled = True
            yield "more"
        finally:
            await asyncio.sleep(0)  # clean-up may wait, and is let finish
            closed = True
            done.set()

    async with docked(ScriptedBackend(script), mode) as backend:
        stream = backend.prompt(a_prompt(), RecordingHost())
        said = await anext(stream)
        assert said in (events.result("done"), [events.result("done")])
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        await asyncio.wait_for(done.wait(), DEADLINE_S)
    assert (pulled, closed) == (False, True)


@every_mode
async def test_a_stream_without_a_terminal_just_ends(mode: Mode) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        for _ in range(1000):
            yield "x"

    async with docked(ScriptedBackend(script), mode) as backend:
        assert texts(await play(backend)) == "x" * 1000


@every_mode
async def test_a_turn_that_says_nothing_at_all_just_ends(mode: Mode) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        if request.prompt == "never":
            yield "never"

    async with docked(ScriptedBackend(script), mode) as backend:
        assert await play(backend) == []


# --- Sessions, rejections, checkpoints, approvals ----------------------------------------------------------


@every_mode
async def test_the_accepted_session_arrives_before_the_first_output(mode: Mode) -> None:
    session = BackendSession(data=b"\x00n=1", provider_session_id="p")
    host = RecordingHost()

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        turn.accept(session)
        yield "x"
        yield events.result()

    async with docked(ScriptedBackend(script), mode) as backend:
        stream = backend.prompt(a_prompt(), host)
        await anext(stream)
        assert host.sessions == [session]
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator


@every_mode
async def test_without_accept_the_session_is_unchanged(mode: Mode) -> None:
    host = RecordingHost()

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        yield events.result()

    async with docked(ScriptedBackend(script), mode) as backend:
        await play(backend, host)
    assert host.sessions == []


@every_mode
async def test_B_07_a_rejection_is_raised(mode: Mode) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        if request.prompt == "hi":
            raise Rejected(Failure(reason="down", message="maintenance", retryable=True))
        yield "never"

    async with docked(ScriptedBackend(script), mode) as backend:
        with pytest.raises(Rejected) as caught:
            await play(backend)
    assert caught.value.failure == Failure(reason="down", message="maintenance", retryable=True)


@every_mode
async def test_a_checkpoint_is_answered_before_the_turn_goes_on(mode: Mode) -> None:
    host = RecordingHost()
    order: list[str] = []

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        yield "before"
        await turn.checkpoint("s-1")
        order.append(f"back with {host.checkpoints}")
        await turn.checkpoint("s-2")
        yield "after"
        yield events.result()

    async with docked(ScriptedBackend(script), mode) as backend:
        said = await play(backend, host)
    assert texts(said) == "beforeafter"
    assert order == ["back with ['s-1']"]
    assert host.checkpoints == ["s-1", "s-2"]


@every_mode
async def test_B_13_a_refused_checkpoint_that_passes_ends_the_turn_with_its_reason(mode: Mode) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        yield "before"
        await turn.checkpoint("s-1")
        yield "never"

    async with docked(ScriptedBackend(script), mode) as backend:
        with pytest.raises(CheckpointRejected) as caught:
            await play(backend, RecordingHost(reject="conflicting_session_id"))
    assert caught.value.reason == "conflicting_session_id"


@every_mode
async def test_B_13_a_backend_that_ignores_a_refusal_goes_on(mode: Mode) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        try:
            await turn.checkpoint("s-1")
        except CheckpointRejected as rejected:
            yield rejected.reason
        yield events.result("ok")

    async with docked(ScriptedBackend(script), mode) as backend:
        said = await play(backend, RecordingHost(reject="unsupported_checkpoint"))
    assert said == [events.text("unsupported_checkpoint"), events.result("ok")]


@remote_modes
async def test_an_id_that_cannot_travel_reaches_the_host_as_one_it_refuses(mode: Mode) -> None:
    host = RecordingHost(reject="invalid_session_id")

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        await turn.checkpoint("half \ud83d")
        yield "never"

    async with docked(ScriptedBackend(script), mode) as backend:
        with pytest.raises(CheckpointRejected, match="invalid_session_id"):
            await play(backend, host)
    assert host.checkpoints == [""]


@every_mode
async def test_approvals_asked_for_at_once_are_put_to_the_host_at_once(mode: Mode) -> None:
    both = asyncio.Barrier(2)

    class Human(RecordingHost):
        async def approval(self, request: ToolApprovalRequested) -> ToolApprovalDecided:
            decided = await super().approval(request)
            async with asyncio.timeout(DEADLINE_S):
                await both.wait()  # neither is answered before both are asked
            return decided

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        yield "asking"
        asked = [ToolApprovalRequested(approval_id=name, tool_name=name) for name in ("write", "delete")]
        answers = await asyncio.gather(*(turn.approval(one) for one in asked))
        yield ",".join(answer.approval_id for answer in answers)
        yield events.result()

    host = Human()
    async with docked(ScriptedBackend(script), mode) as backend:
        assert texts(await play(backend, host)) == "askingwrite,delete"
    assert host.approvals == ["write", "delete"]


# --- What does not travel as it is -------------------------------------------------------------------------


@remote_modes
async def test_PF_B23_a_character_split_over_two_texts_is_whole_and_what_is_lost_is_marked(
    mode: Mode,
) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        yield "x\ud83d"
        yield events.usage(1, 1)
        yield "\ude00"
        yield "a\0b"
        yield ""
        yield "lone \udc00"
        yield "end \ud83d"
        yield events.result()

    async with docked(ScriptedBackend(script), mode) as backend:
        said = [one for one in await play(backend) if isinstance(one, Event)]
    spoken = [event.message_streamed.text for event in said if event.HasField("message_streamed")]
    assert spoken == ["x", "😀", "a\ufffdb", "", "lone \ufffd", "end ", "\ufffd"]
    mark = jsontext.canonical({"turndock.repaired": ["message_streamed.text"]})
    assert [event.message_streamed.text for event in said if event.metadata_json == mark] == [
        "a\ufffdb",
        "lone \ufffd",
        "\ufffd",
    ]


@remote_modes
async def test_PF_B29_what_is_larger_than_a_message(mode: Mode) -> None:
    huge = "ü" * (5 << 19)  # 5 MiB of UTF-8

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        yield "small"
        yield huge
        yield Event(
            type=EventType.EVENT_TYPE_MESSAGE_STREAMED, message_streamed=MessageStreamed(text="y" * (3 << 20))
        )
        yield events.tool_result("t1", jsontext.canonical("z" * (5 << 20)))
        yield "more"
        yield events.result("z" * (5 << 20))

    async with docked(ScriptedBackend(script), mode) as backend:
        said = await play(backend)
    assert texts(said) == "small" + huge + "y" * (3 << 20) + "more"
    [lost] = [one for one in said if isinstance(one, Event) and one.HasField("error_occurred")]
    assert lost.error_occurred.original_type == "tool_call_completed"
    assert lost.error_occurred.failure.reason == "event_too_large"
    assert isinstance(said[-1], Failure)
    assert said[-1].reason == "result_too_large"


@every_mode
async def test_PF_B33_events_of_a_newer_kind_travel_byte_for_byte(mode: Mode) -> None:
    newer = Event.FromString(b"\x10\xf4\x03\xfa\x7f\x03new")

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        yield newer
        yield events.result()

    async with docked(ScriptedBackend(script), mode) as backend:
        first = (await play(backend))[0]
    assert isinstance(first, Event)
    assert first.type == 500
    assert first.SerializeToString() == newer.SerializeToString()


# --- Many turns --------------------------------------------------------------------------------------------


@every_mode
async def test_twenty_turns_at_once_keep_apart(mode: Mode) -> None:
    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        for n in range(300):
            yield f"{request.prompt}:{n} "
            if n % 7 == 0:
                await asyncio.sleep(0)
        await turn.checkpoint(f"s-{request.prompt}")
        yield events.result(request.prompt)

    async def one(number: int) -> None:
        host = RecordingHost()
        said = await play(backend, host, a_prompt(str(number)))
        assert texts(said) == "".join(f"{number}:{n} " for n in range(300))
        assert said[-1] == events.result(str(number))
        assert host.checkpoints == [f"s-{number}"]

    async with docked(ScriptedBackend(script), mode) as backend:
        await asyncio.gather(*(one(number) for number in range(20)))


@remote_modes
@pytest.mark.parametrize("size", [10, 20_000], ids=["small", "large"])
async def test_a_turn_nobody_reads_is_held_up_and_holds_up_no_other(mode: Mode, size: int) -> None:
    said = 0

    async def script(request: PromptRequest, turn: TurnContext) -> Outputs:
        nonlocal said
        if request.prompt == "endless":
            while True:
                yield "e" * size
                said += 1
        for n in range(2000):
            yield str(n)
        yield events.result()

    async with docked(ScriptedBackend(script), mode) as backend:
        stalled = backend.prompt(a_prompt("endless"), RecordingHost())
        await anext(stalled)
        seen = -1
        async with asyncio.timeout(DEADLINE_S):
            while said != seen:  # until it stands still
                seen = said
                assert len(await play(backend)) == 2001
        assert said < 20_000
        assert said * size < 4 << 20
        for _ in range(100):
            await anext(stalled)  # reading it sets it going again
        assert said > seen
        await stalled.aclose()  # type: ignore[attr-defined]  # it is a generator
