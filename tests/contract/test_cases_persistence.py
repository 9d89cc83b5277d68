"""P: snapshots at the points of an agent's life where that matters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.docking import Mode
from support.harness import Harness, StoreName, harnessed, refused
from support.parts import Part, ckpt_or_on, crash, error, event, gate, result, text
from support.scripted_agent import chain
from support.snapshots import UNAVAILABLE, RecordingSnapshots
from turndock import events, jsontext, wire
from turndock.agent.v1 import AskRequest, StartAgentRequest, TouchRequest
from turndock.errors import Code
from turndock.store.v1 import (
    Lifecycle,
    LoadStateRequest,
    PersistStateRequest,
    Snapshot,
)
from turndock.types.v1 import AgentDefinition, AgentLimits, AgentPhase
from turndock_server.core.feed import AgentKey
from turndock_server.core.transcript import AGENT_SHUTDOWN

SETUPS: tuple[tuple[StoreName, Mode], ...] = (
    ("memory", "in_process"),
    ("sqlite", "in_process"),
    ("sqlite", "multiplexed"),
)


@pytest.fixture
def snapshots() -> RecordingSnapshots:
    return RecordingSnapshots()


@pytest.fixture(params=SETUPS, ids="-".join)
async def host(
    request: pytest.FixtureRequest, tmp_path: Path, snapshots: RecordingSnapshots
) -> AsyncIterator[Harness]:
    """A host in every setup, with what is docked, persistence included, in this process or behind gRPC."""
    store, mode = request.param
    async with harnessed(store, mode, tmp_path, snapshots=snapshots) as harness:
        yield harness


def titled(title: str) -> Part:
    """A backend's event that gives the conversation a title."""
    return event(
        type="EVENT_TYPE_CUSTOM",
        custom={"name": events.TITLE, "dataJson": jsontext.canonical({"title": title})},
    )


def saved_state(snapshots: RecordingSnapshots, place: int = -1) -> dict[str, Any]:
    return jsontext.parse_object(snapshots.saves[place].snapshot.state_json, "state_json")


# --- A turn's end ----------------------------------------------------------------------------------------------------


async def test_P_01_a_turn_that_succeeds_is_saved_once_before_the_agent_is_idle(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    started = await host.start([text("hel"), result("hello", sid="thread-1")])
    phases: list[AgentPhase.ValueType] = []

    def look(_: object) -> None:
        agent = host.served.host.roster.get(AgentKey(None, started.agent.session_id))
        phases.append(agent.status().phase if agent is not None else AgentPhase.AGENT_PHASE_UNSPECIFIED)

    snapshots.on_write = look
    assert (await host.ask("hi")).response.text == "hello"
    assert snapshots.story == ["on_completion"]
    assert phases == [AgentPhase.AGENT_PHASE_PROCESSING]
    (save,) = snapshots.saves
    assert (save.agent_id, save.conversation_id) == ("a1", started.agent.session_id)
    assert not save.HasField("scope"), "the agent was started without one"
    assert save.fence.epoch > 0
    assert saved_state(snapshots)["responses"] == ["hello"]
    log = await host.log()
    snapshot = save.snapshot
    assert (snapshot.version, snapshot.interrupted, snapshot.halted) == (1, False, False)
    assert snapshot.provider_session_id == "thread-1"
    assert (snapshot.last_sequence, snapshot.incarnation) == (log[-1].sequence, log[-1].incarnation)
    assert snapshot.run_id == log[-1].run_id
    assert snapshot.serialized_at_us > 0


async def test_P_01_the_scope_is_the_one_of_the_start(host: Harness, snapshots: RecordingSnapshots) -> None:
    definition = AgentDefinition(
        agent_name="a1",
        backend="scripted",
        backend_config_json=jsontext.canonical({"scripts": [[result("x")]]}),
    )
    red = ((wire.SCOPE, wire.encode_tenant("red")),)
    with wire.translated():
        await host.served.stub.StartAgent(StartAgentRequest(definition=definition), metadata=red)
        await host.served.stub.Ask(AskRequest(agent_name="a1", prompt="hi"), metadata=red)
    (save,) = snapshots.saves
    assert (save.scope.tenant, save.scope.opaque) == ("red", b"")
    assert save.snapshot.state_json == "{}", "an agent without a behavior has no state"
    assert b"red" not in save.snapshot.SerializeToString()


async def test_P_02_every_turn_is_saved_and_the_flag_is_not_touched(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start([result("a")], [result("b")])
    for prompt in ("a", "b"):
        await host.ask(prompt)
    assert snapshots.story == ["on_completion", "on_completion"]
    assert saved_state(snapshots)["responses"] == ["a", "b"]


async def test_a_chained_turn_is_saved_too(host: Harness, snapshots: RecordingSnapshots) -> None:
    host.agent.responses["a"] = chain("more")
    await host.start([result("a")], [result("b")])
    await host.ask("a")
    await host.until_idle()
    assert [saved_state(snapshots, place)["responses"] for place in (0, 1)] == [["a"], ["a", "b"]]
    assert snapshots.saves[1].snapshot.run_id.endswith("/chain/1")


async def test_a_turn_that_does_not_take_place_is_no_point(
    snapshots: RecordingSnapshots, tmp_path: Path
) -> None:
    async with harnessed("memory", "in_process", tmp_path, snapshots=snapshots) as host:
        await host.start([result("a")], limits=AgentLimits(max_turns=1))
        await host.ask("a")
        assert (await host.ask("b")).failure.reason == "budget_exceeded"
        assert snapshots.story == ["on_completion"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([text("a"), error("overloaded")], "overloaded"),
        ([text("a"), crash()], "task_crashed"),
        ([text("a")], "no_terminal_event"),
        ([text("a"), gate("never")], "timeout"),
    ],
    ids=["error", "crash", "no-terminal", "watchdog"],
)
async def test_P_09_a_turn_that_fails_in_whatever_way_is_saved(
    host: Harness, snapshots: RecordingSnapshots, script: list[Part], reason: str
) -> None:
    await host.start(script, [result("b")], limits=AgentLimits(watchdog_ms=200))
    failure = (await host.ask("a")).failure
    assert failure.reason == (
        reason if host.mode == "in_process" or reason != "task_crashed" else failure.reason
    )
    assert snapshots.story == ["on_error"]
    assert saved_state(snapshots)["errors"] == [failure.reason]
    assert (await host.ask("b")).response.text == "b", "the next prompt is accepted at once"
    assert snapshots.story == ["on_error", "on_completion"]


async def test_P_09_an_interrupted_turn_is_saved_with_all_that_came_before(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start([text("a"), text("b"), gate("held")], [result("next")])
    asking = host.asking("hi")
    await host.backend.entered("held")
    waiting = host.asking("next")
    await host.until(lambda status: status.queued == 1)
    await host.interrupt()
    assert (await asking).failure.reason == "interrupted"
    assert (await waiting).response.text == "next"
    assert snapshots.story == ["on_cancel", "on_completion"]
    state = saved_state(snapshots, 0)
    assert state["errors"] == ["interrupted"]
    assert state["seen"].count("text") == 2
    assert snapshots.saves[0].snapshot.interrupted is False


async def test_B_13_a_refused_checkpoint_is_one_save_with_the_first_id(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start([ckpt_or_on("first"), ckpt_or_on("second"), result("ok", sid="lost")])
    assert (await host.ask("a")).failure.reason == "conflicting_session_id"
    assert snapshots.story == ["on_error"], "a checkpoint is no point of its own"
    assert snapshots.saves[0].snapshot.provider_session_id == "first"


async def test_PF_B13_a_caller_that_goes_cancels_nothing(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start([text("a"), gate("held"), result("ok")])
    asking = host.asking("hi")
    await host.backend.entered("held")
    asking.cancel()
    await asyncio.wait((asking,))
    host.backend.release("held")
    await host.until_idle()
    assert snapshots.story == ["on_completion"]


async def test_PF_E03_a_partial_answer_is_saved_on_error_and_a_cut_one_with_its_reason(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    started = await host.start(
        [text("x" * 2048), crash()], [text("cut"), result(None, stop_reason="length")], [result("c")]
    )
    assert (await host.ask("a", request_id="r1")).HasField("failure")
    assert (await host.ask("b", request_id="r2")).response.stop_reason == "length"
    assert snapshots.story == ["on_error", "on_completion"]
    await host.stop()
    again = await host.start([result("c")], session_id=started.agent.session_id)
    assert again.restored
    failed = await host.log(run_id="r1")
    assert "".join(each.message_streamed.text for each in failed) == "x" * 2048
    assert failed[-1].run_failed.incomplete_text
    assert (await host.poll("r2")).response.stop_reason == "length"
    state = await host.state()
    assert (len(state["errors"]), state["responses"]) == (1, ["cut"])


# --- What goes wrong there -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [UNAVAILABLE, RuntimeError("boom")], ids=["fails", "raises"])
async def test_P_07_a_save_that_fails_is_counted_and_not_felt(
    host: Harness, snapshots: RecordingSnapshots, trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    await host.start([result("a")], [result("b")])
    snapshots.trouble = trouble
    with caplog.at_level(logging.WARNING):
        assert (await host.ask("a")).response.text == "a"
    assert any("PersistState of agent a1" in record.message for record in caplog.records)
    status = await host.status()
    assert (status.phase, status.persistence_failures) == (AgentPhase.AGENT_PHASE_IDLE, 1)
    assert (await host.ask("b")).response.text == "b"
    assert (await host.status()).persistence_failures == 2
    snapshots.trouble = None


async def test_P_07_a_save_that_never_answers_is_given_up(
    snapshots: RecordingSnapshots, tmp_path: Path
) -> None:
    async with harnessed(
        "sqlite", "in_process", tmp_path, snapshots=snapshots, snapshot_timeout_s=0.05
    ) as host:
        await host.start([result("a")], [result("b")])
        snapshots.silent = True
        for prompt in ("a", "b"):
            assert (await host.ask(prompt)).response.text == prompt
        assert (await host.status()).persistence_failures == 2
        snapshots.silent = False


async def test_P_07_the_flag_is_attempted_although_the_save_failed(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start([result("a")])
    agent = await host.served.host.claimed(await host.served.host.locate(None, "a1"))
    snapshots.trouble = UNAVAILABLE
    await agent.snapshots.save(Lifecycle.LIFECYCLE_ON_INTERRUPT, agent)
    assert snapshots.story == ["on_interrupt", "flag true"]
    assert (await host.status()).persistence_failures == 2
    snapshots.trouble = None
    await agent.snapshots.save(Lifecycle.LIFECYCLE_ON_INTERRUPT, agent)
    assert snapshots.story[2:] == ["on_interrupt", "flag true"], (
        "what a failed call left undone is tried again"
    )
    assert (await host.ask("a")).response.text == "a"
    assert snapshots.story[4:] == ["on_completion", "flag false"]


async def test_P_07_the_count_outlives_the_agent_in_memory(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start([result("a")])
    await host.ask("a")
    snapshots.trouble = UNAVAILABLE
    await host.served.host.roster.leave(
        await host.served.host.claimed(await host.served.host.locate(None, "a1")), "inactivity"
    )
    status = await host.status()
    assert (status.phase, status.persistence_failures) == (AgentPhase.AGENT_PHASE_DORMANT, 1)


async def test_P_08_a_direct_call_answers_its_error(host: Harness, snapshots: RecordingSnapshots) -> None:
    persistence = host.served.snapshots
    request = PersistStateRequest(
        agent_id="a", lifecycle=Lifecycle.LIFECYCLE_ON_COMPLETION, snapshot=Snapshot(state_json="{}")
    )
    await persistence.persist_state(request)
    snapshots.trouble = UNAVAILABLE
    with refused("STORAGE_CONNECTION_FAILED") as failed:
        await persistence.persist_state(request)
    assert failed.value.code is Code.UNAVAILABLE
    with refused("NOT_FOUND"):
        await persistence.load_state(LoadStateRequest(agent_id="b"))


# --- The flag --------------------------------------------------------------------------------------------------------


async def test_P_03_the_flag_moves_once_up_and_once_down(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    started = await host.start([result("a")], [result("b")])
    agent = await host.served.host.claimed(await host.served.host.locate(None, "a1"))
    for _ in range(2):
        await agent.snapshots.save(Lifecycle.LIFECYCLE_ON_INTERRUPT, agent)
    session = await host.stored_session(started.agent.session_id)
    assert session.interrupted
    assert snapshots.saves[0].snapshot.interrupted
    for prompt in ("a", "b"):
        await host.ask(prompt)
    assert snapshots.story == [
        "on_interrupt",
        "flag true",
        "on_interrupt",
        "on_completion",
        "flag false",
        "on_completion",
    ]
    assert not (await host.stored_session(started.agent.session_id)).interrupted


async def test_P_05_leaving_and_a_title_leave_the_flag_alone(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start([titled("Plans"), result("a")])
    located = await host.served.host.locate(None, "a1")
    agent = await host.served.host.claimed(located)
    await agent.snapshots.save(Lifecycle.LIFECYCLE_ON_INTERRUPT, agent)
    await host.served.host.roster.leave(agent, "inactivity")
    assert (snapshots.story[-1], snapshots.flags) == ("on_shutdown", [True])
    await host.ask("a")
    assert snapshots.story[3:] == ["on_title_generated", "on_completion", "flag false"]
    assert snapshots.flags == [True, False]


# --- Leaving memory --------------------------------------------------------------------------------------------------


async def test_P_15_an_idle_agent_is_saved_when_it_leaves_memory(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start([result("a")], limits=AgentLimits(idle_shutdown_ms=100))
    await host.ask("a")
    status = await host.until(lambda status: status.phase == AgentPhase.AGENT_PHASE_DORMANT)
    assert snapshots.story == ["on_completion", "on_shutdown"], "it is saved before anybody is told"
    (left,) = [each for each in await host.log() if each.custom.name == AGENT_SHUTDOWN]
    said = jsontext.parse_object(left.custom.data_json, "data_json")
    assert (said["agent_id"], said["reason"], said["status"]) == ("a1", "inactivity", "idle")
    assert said["interrupt_restorable"] is False
    assert said["last_activity_at_us"] < said["shutdown_at_us"]
    assert snapshots.saves[-1].snapshot.run_id, "the last run whose effect is in it"
    assert saved_state(snapshots)["responses"] == ["a"]
    assert status.turn_count == 1


async def test_P_15_a_touch_puts_it_off_and_a_turn_keeps_it(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start([gate("held"), result("a")], limits=AgentLimits(idle_shutdown_ms=150))
    asking = host.asking("a")
    await host.backend.entered("held")
    agent = host.served.host.roster
    located = await host.served.host.locate(None, "a1")
    assert located.live is not None
    began = located.live.last_activity
    await asyncio.sleep(0.3)  # Time itself is the case: twice what an idle agent gets.
    assert agent.get(located.key) is located.live, "a turn is no idleness"
    host.backend.release("held")
    await asking
    with wire.translated():
        await host.served.stub.Touch(TouchRequest(agent_name="a1"))
    assert located.live.last_activity > began
    await host.until(lambda status: status.phase == AgentPhase.AGENT_PHASE_DORMANT)
    assert snapshots.story == ["on_completion", "on_shutdown"]


async def test_P_15_zero_disables_it(host: Harness) -> None:
    await host.start([result("a")], limits=AgentLimits(idle_shutdown_ms=0))
    located = await host.served.host.locate(None, "a1")
    assert located.live is not None
    assert located.live.idle_shutdown_ms == 0


async def test_a_stopped_agent_is_saved_once(host: Harness, snapshots: RecordingSnapshots) -> None:
    await host.start([text("a"), gate("held")])
    asking = host.asking("a")
    await host.backend.entered("held")
    await host.stop()
    assert (await asking).failure.reason == "agent_terminated"
    assert snapshots.story == ["on_cancel", "on_shutdown"]


async def test_a_host_that_stops_saves_every_agent(tmp_path: Path, snapshots: RecordingSnapshots) -> None:
    async with harnessed("sqlite", "in_process", tmp_path, snapshots=snapshots) as host:
        await host.start([result("a")])
        await host.start([text("b"), gate("held")], name="a2")
        asking = host.asking("b", "a2")
        await host.backend.entered("held")
        stopping = asyncio.create_task(host.served.host.stop(0.1))
        assert (await asking).failure.reason == "host_stopping"
        await stopping
        by_agent: dict[str, list[str]] = {name: [] for name in ("a1", "a2")}
        for save, point in zip(snapshots.saves, snapshots.story, strict=True):
            by_agent[save.agent_id].append(point)
        assert by_agent == {"a1": ["on_shutdown"], "a2": ["on_cancel", "on_shutdown"]}


async def test_a_host_that_stops_does_not_wait_for_silent_persistence(
    tmp_path: Path, snapshots: RecordingSnapshots
) -> None:
    async with harnessed("sqlite", "in_process", tmp_path, snapshots=snapshots) as host:
        for number in range(5):
            await host.start([result("a")], name=f"a{number}")
        snapshots.silent = True
        async with asyncio.timeout(2):
            await host.served.host.stop(0)
