"""P: snapshots of agents that wait for people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.docking import Mode
from support.harness import Harness, StoreName, approve, harnessed, refused, reject
from support.parts import Script, approval, asked, event, paused, result, text
from support.scripted_agent import ScriptedAgent
from support.snapshots import UNAVAILABLE, RecordingSnapshots
from turndock import events, jsontext
from turndock.agent.v1 import ApprovalAnswer
from turndock.behavior.v1 import PreTurnRequest, PreTurnResponse, RequireApproval
from turndock.types.v1 import AgentLimits, AgentPhase, ToolApprovalRequested
from turndock_server.core.feed import AgentKey

AWAITING = AgentPhase.AGENT_PHASE_AWAITING_APPROVAL
DORMANT = AgentPhase.AGENT_PHASE_DORMANT
ASKS = [text("may I? "), approval("a1", "delete"), result("done")]
PARKS = [text("may I? "), paused(asked("a1", "delete"))]
GOES_ON = [result("done")]
SETUPS: tuple[tuple[StoreName, Mode], ...] = (("memory", "in_process"), ("sqlite", "multiplexed"))

kept_open_and_parked = pytest.mark.parametrize("script", [ASKS, PARKS], ids=["kept open", "parked"])


@pytest.fixture
def snapshots() -> RecordingSnapshots:
    return RecordingSnapshots()


@pytest.fixture(params=SETUPS, ids="-".join)
async def host(
    request: pytest.FixtureRequest, tmp_path: Path, snapshots: RecordingSnapshots
) -> AsyncIterator[Harness]:
    store, mode = request.param
    async with harnessed(store, mode, tmp_path, snapshots=snapshots) as harness:
        yield harness


@kept_open_and_parked
async def test_P_03_a_turn_that_waits_raises_the_flag_and_its_end_lowers_it(
    host: Harness, snapshots: RecordingSnapshots, script: Script
) -> None:
    started = await host.start(script, GOES_ON, [result("next")])
    phases: list[AgentPhase.ValueType] = []

    def look(_: object) -> None:
        agent = host.served.host.roster.get(AgentKey(None, started.agent.session_id))
        phases.append(agent.status().phase if agent is not None else DORMANT)

    snapshots.on_write = look
    asking = host.asking("go")
    await host.until_asked()
    assert snapshots.story == ["on_interrupt", "flag true"]
    assert AWAITING not in phases, "it is saved before anybody sees it"
    (save,) = snapshots.saves
    assert save.snapshot.interrupted
    assert [each.approval_id for each in save.snapshot.pending_approvals] == ["a1"]
    assert (await host.stored_session(started.agent.session_id)).interrupted
    await host.resolve(approve("a1"))
    assert (await asking).response.text.endswith("done")
    await host.ask("next")
    assert snapshots.story == [
        "on_interrupt",
        "flag true",
        "on_completion",
        "flag false",
        "on_completion",
    ]
    assert snapshots.flags == [True, False]
    assert not snapshots.saves[-1].snapshot.interrupted
    assert not (await host.stored_session(started.agent.session_id)).interrupted


@kept_open_and_parked
async def test_PF_B19_a_late_answer_moves_no_flag(
    host: Harness, snapshots: RecordingSnapshots, script: Script
) -> None:
    await host.start(script, GOES_ON)
    asking = host.asking("go")
    await host.until_asked()
    with refused("APPROVAL_NOT_FOUND"):
        await host.resolve(approve("unknown"))
    assert snapshots.flags == [True]
    await host.resolve(approve("a1"))
    await asking
    assert snapshots.flags == [True, False]


@kept_open_and_parked
async def test_P_09_an_interrupt_while_it_waits_lowers_the_flag(
    host: Harness, snapshots: RecordingSnapshots, script: Script
) -> None:
    await host.start(script, [result("next")])
    asking = host.asking("go")
    await host.until_asked()
    await host.interrupt()
    assert (await asking).failure.reason == "interrupted"
    assert snapshots.story == ["on_interrupt", "flag true", "on_cancel", "flag false"]
    assert (await host.ask("b")).response.text == "next"


async def test_P_05_a_paused_agent_comes_back_with_its_flag(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start(PARKS, GOES_ON, limits=AgentLimits(idle_shutdown_ms=50))
    run = await host.tell("go")
    await host.until(lambda status: status.phase == DORMANT)
    assert snapshots.story == ["on_interrupt", "flag true", "on_shutdown"]
    left = snapshots.saves[-1].snapshot
    assert left.interrupted
    assert [each.approval_id for each in left.pending_approvals] == ["a1"]
    await host.resolve(approve("a1"))
    assert (await host.ended(run)).response.text == "done"
    await host.until(lambda status: status.phase == DORMANT)
    assert [each for each in snapshots.story if each != "on_shutdown"] == [
        "on_interrupt",
        "flag true",
        "on_completion",
        "flag false",
    ]
    assert snapshots.flags == [True, False]


@kept_open_and_parked
async def test_P_07_saves_that_fail_while_it_waits_are_not_felt(
    host: Harness, snapshots: RecordingSnapshots, script: Script
) -> None:
    await host.start(script, GOES_ON)
    snapshots.trouble = UNAVAILABLE
    asking = host.asking("go")
    await host.until_asked()
    assert snapshots.story == ["on_interrupt", "flag true"]
    snapshots.trouble = None
    await host.resolve(approve("a1"))
    assert (await asking).response.text.endswith("done")
    assert snapshots.flags == [True], "it was never raised, and need not be lowered"
    assert (await host.status()).persistence_failures == 2


@pytest.mark.parametrize(
    ("answer", "story"),
    [(approve("a1"), "on_completion"), (reject("a1"), "on_error")],
    ids=["approved", "rejected"],
)
async def test_P_03_a_turn_that_people_have_to_agree_to_first_moves_the_flag_too(
    host: Harness, snapshots: RecordingSnapshots, answer: ApprovalAnswer, story: str
) -> None:
    async def pre_turn(_: PreTurnRequest) -> PreTurnResponse:
        asked = RequireApproval(request=ToolApprovalRequested(approval_id="a1"))
        return PreTurnResponse(require_approval=asked)

    await host.dock_behavior("careful", ScriptedAgent(pre_turn=pre_turn))
    await host.start(GOES_ON, behavior="careful")
    asking = host.asking("go")
    await host.until_asked()
    await host.resolve(answer)
    await asking
    assert snapshots.story == ["on_interrupt", "flag true", story, "flag false"]


@kept_open_and_parked
async def test_a_title_given_before_people_are_asked_is_kept(
    host: Harness, snapshots: RecordingSnapshots, script: Script
) -> None:
    title = event(
        type="EVENT_TYPE_CUSTOM",
        custom={"name": events.TITLE, "dataJson": jsontext.canonical({"title": "Plans"})},
    )
    await host.start([title, *script], limits=AgentLimits(idle_shutdown_ms=50))
    asking = host.asking("go")
    await host.until_asked()
    assert snapshots.saves[-1].snapshot.title == "Plans"
    await host.interrupt()
    await asking
    assert (await host.until(lambda status: status.phase == DORMANT)).title == "Plans"
