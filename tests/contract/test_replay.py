"""The backend `replay`: a recorded session said again, without anybody being asked."""

from __future__ import annotations

import pytest

from support.harness import Harness, refused, types
from support.parts import EOF, emit, error, gate, result, text, tool_result, tool_use, usage
from turndock.types.v1 import Event, EventType, RunStatus
from turndock_server.backends.replay import ReplayBackend

FAILED = RunStatus.RUN_STATUS_FAILED

SCRIPTS = [
    [
        text("hel"),
        tool_use("t-1", "read", path="/x"),
        tool_result("t-1", {"n": 9007199254740993}),
        {"thinking": "hm"},
        text("lo \ufffd"),
        usage(5, 1),
        usage(10, 2),
        result("hello", sid="s-1", data={"a": 1}, stop_reason="stop"),
    ],
    [text("half"), tool_use("t-2"), error("rate_limited")],
    [text("without an end"), EOF],
]


async def recorded(host: Harness) -> str:
    """A session with a run that succeeds, one that fails and one that just stops."""
    host.backends["replay"] = ReplayBackend(host.store, host.artifacts)
    started = await host.start(*SCRIPTS, name="original")
    for number, prompt in enumerate(("one", "two", "three")):
        await host.ask(prompt, "original", request_id=f"r-{number}")
    return started.agent.session_id


async def replaying(host: Harness, session_id: str, **config: object) -> None:
    await host.start_with("replay", {"session_id": session_id, **config})


def bare(event: Event) -> bytes:
    """An event without what the host must set."""
    common = Event()
    common.CopyFrom(event)
    for name in ("id", "session_id", "sequence", "incarnation", "stored_at_us"):
        common.ClearField(name)
    return common.SerializeToString(deterministic=True)


def said(log: list[Event]) -> list[bytes]:
    """What the backend said: all but the host's own events."""
    own = ("run_started", "message_sent", "message_received", "run_completed", "run_failed")
    return [bare(event) for event in log if types([event])[0] not in own]


async def test_a_recording_is_played_byte_for_byte_without_asking_anybody(host: Harness) -> None:
    session_id = await recorded(host)
    asked = len(host.backend.record.prompts)
    await replaying(host, session_id)
    for number, prompt in enumerate(("one", "two", "three")):
        run_id = f"r-{number}"
        answer = await host.ask(prompt, request_id=run_id)
        before = await host.log_of(session_id, run_id=run_id)
        after = await host.log(run_id=run_id)
        assert types(after) == types(before)
        ends = (EventType.EVENT_TYPE_TOOL_CALL_FAILED, *[event.type for event in before[-1:]])
        assert said([e for e in after if e.type not in ends]) == said(
            [e for e in before if e.type not in ends]
        )
        original = await host.poll(run_id, "original")
        assert answer.run.status == original.status
        assert (answer.response.text, answer.response.usage) == (
            original.response.text,
            original.response.usage,
        )
        assert answer.failure == original.failure
        assert answer.response.data_json == original.response.data_json
    assert len(host.backend.record.prompts) == asked
    assert (await host.state())["responses"] == (await host.state("original"))["responses"]


async def test_it_goes_on_where_it_stood_when_its_agent_comes_back(host: Harness) -> None:
    session_id = await recorded(host)
    await replaying(host, session_id)
    await host.ask("one")
    replay_id = (await host.stop()).session_id
    await host.start_with("replay", {"session_id": session_id}, session_id=replay_id)
    assert (await host.ask("two")).failure.reason == "rate_limited"


async def test_another_prompt_than_the_recorded_one_is_refused_unless_any_will_do(host: Harness) -> None:
    session_id = await recorded(host)
    await replaying(host, session_id)
    answer = await host.ask("something else")
    assert (answer.run.status, answer.failure.reason) == (FAILED, "replay_diverged")
    assert "'r-0'" in answer.failure.message
    assert (await host.ask("one")).response.text == "hello"
    await host.stop()
    await replaying(host, session_id, prompts="any")
    assert (await host.ask("something else")).response.text == "hello"


async def test_a_recording_comes_to_its_end(host: Harness) -> None:
    session_id = await recorded(host)
    await replaying(host, session_id)
    for prompt in ("one", "two", "three"):
        await host.ask(prompt)
    assert (await host.ask("four")).failure.reason == "replay_exhausted"


async def test_a_run_that_goes_on_cannot_be_played(local_host: Harness) -> None:
    host = local_host
    host.backends["replay"] = ReplayBackend(host.store, host.artifacts)
    started = await host.start([gate("g"), result("late")], name="original")
    run_id = await host.tell("one", "original")
    await host.backend.entered("g")
    await replaying(host, started.agent.session_id)
    assert (await host.ask("one")).failure.reason == "replay_incomplete"
    host.backend.release("g")
    await host.ended(run_id, "original")
    assert (await host.ask("one")).response.text == "late"


async def test_large_payloads_are_said_again_in_full(local_host: Harness) -> None:
    host = local_host
    host.backends["replay"] = ReplayBackend(host.store, host.artifacts)
    started = await host.start([emit(3, size=3 << 19), result()], name="original", behavior="")
    await host.ended(await host.tell("one", "original"), "original")
    await host.start_with("replay", {"session_id": started.agent.session_id}, behavior="")
    await host.ended(await host.tell("one"))
    sizes = [
        [
            event.offloaded.size
            for event in await host.log(name)
            if event.type == EventType.EVENT_TYPE_MESSAGE_STREAMED
        ]
        for name in ("original", "a1")
    ]
    assert len(sizes[0]) == 3
    assert all(abs(one - other) < 100 for one, other in zip(*sizes, strict=True))


async def test_a_fork_of_a_replay_goes_on_where_the_replay_stood(host: Harness) -> None:
    session_id = await recorded(host)
    await replaying(host, session_id)
    await host.ask("one")
    forked = await host.fork((await host.status()).session_id)
    await host.start_with("replay", {"session_id": session_id}, name="a2", session_id=forked.id)
    assert (await host.ask("two", "a2")).failure.reason == "rate_limited"
    assert (await host.ask("two")).failure.reason == "rate_limited"


async def test_what_is_no_recording_fails_the_start(local_host: Harness) -> None:
    local_host.backends["replay"] = ReplayBackend(local_host.store)
    with refused("BACKEND_START_FAILED") as unknown:
        await replaying(local_host, "nope")
    assert "nope" in unknown.value.message
    for config in ({}, {"session_id": ""}, {"session_id": "x", "speed": 2}):
        with pytest.raises(Exception, match="config_json"):
            await local_host.start_with("replay", config)
