"""P: titles of conversations, and when they are saved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.docking import Mode
from support.harness import WAIT_S, Harness, StoreName, harnessed
from support.parts import Part, crash, error, event, gate, result, text
from support.scripted_agent import NOREPLY, ScriptedAgent
from support.snapshots import RecordingSnapshots
from turndock import events, jsontext
from turndock.behavior.v1 import (
    HandleEventRequest,
    HandleEventResponse,
    HandleResponseRequest,
    HandleResponseResponse,
)
from turndock.store.v1 import (
    ListSessionsRequest,
)
from turndock.types.v1 import AgentPhase, Cursor

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


async def test_a_title_of_the_backend_survives_the_turns_end(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    started = await host.start(
        [text("a"), titled("  Plans \n for May "), text("b"), result("ok")], [result("c")]
    )
    await host.ask("a")
    assert snapshots.story == ["on_title_generated", "on_completion"]
    assert [save.snapshot.title for save in snapshots.saves] == ["Plans for May"] * 2
    await host.ask("c")
    assert snapshots.story[2:] == ["on_completion"], "a title is new only once"
    assert (await host.status()).title == "Plans for May"
    assert (await host.stored_session(started.agent.session_id)).agent.title == "Plans for May"
    (listed,) = (await host.store.list_sessions(ListSessionsRequest())).sessions
    assert listed.agent.title == "Plans for May"
    assert [each.custom.name for each in await host.log() if each.HasField("custom")] == [events.TITLE]


@pytest.mark.parametrize("ending", [[error("overloaded")], [crash()]], ids=["error", "crash"])
async def test_a_title_survives_a_turn_that_fails(host: Harness, ending: list[Part]) -> None:
    await host.start([titled("Plans"), *ending])
    assert (await host.ask("a")).HasField("failure")
    assert (await host.status()).title == "Plans"


async def test_a_title_is_shown_and_saved_in_the_middle_of_a_turn(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.start([text("a"), titled("Plans"), text("b"), gate("held"), result("ok")])
    asking = host.asking("a")
    status = await host.until(lambda status: status.title == "Plans")
    assert status.phase == AgentPhase.AGENT_PHASE_PROCESSING
    await asyncio.wait_for(snapshots.told("on_title_generated"), WAIT_S)
    host.backend.release("held")
    await asking
    assert snapshots.story == ["on_title_generated", "on_completion"]


async def test_a_silent_save_of_a_title_does_not_hold_the_turn_up(
    tmp_path: Path, snapshots: RecordingSnapshots
) -> None:
    async with harnessed(
        "sqlite", "in_process", tmp_path, snapshots=snapshots, snapshot_timeout_s=0.3
    ) as host:
        started = await host.start(
            [titled("Plans"), text("a"), gate("one"), text("b"), gate("two"), result("ok")]
        )
        snapshots.silent = True
        asking = host.asking("a")
        await host.backend.entered("one")
        await asyncio.wait_for(snapshots.told("on_title_generated"), WAIT_S)
        host.backend.release("one")
        seen = await host.watched(Cursor(session_id=started.agent.session_id), upto=6)
        assert seen[-1].message_streamed.text == "b"
        snapshots.silent = False
        host.backend.release("two")
        assert (await asking).response.text == "ok"


@pytest.mark.parametrize("bad", ['"Plans"', '{"title":7}', '{"title":" "}', "{}", ""])
async def test_a_title_that_is_none_is_an_event_like_any_reserved_one(local_host: Harness, bad: str) -> None:
    await local_host.start(
        [event(type="EVENT_TYPE_CUSTOM", custom={"name": events.TITLE, "dataJson": bad}), result("a")]
    )
    await local_host.ask("a")
    assert (await local_host.status()).title == ""
    (kept,) = [each for each in await local_host.log() if each.HasField("error_occurred")]
    assert kept.error_occurred.original_type == events.TITLE


class Titling(ScriptedAgent):
    """Gives the conversation the title of its first answer, and whatever title it is notified of."""

    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        answer = await super().handle_response(request)
        answer.title = f"About {request.response.text}"
        return answer

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        title = jsontext.parse(request.payload_json, "payload_json")
        return HandleEventResponse(decision=NOREPLY, title=str(title))


async def test_a_title_of_the_behavior_is_stored_and_logged(
    host: Harness, snapshots: RecordingSnapshots
) -> None:
    await host.dock_behavior("titling", Titling())
    started = await host.start([result("cats")], behavior="titling")
    await host.ask("a")
    assert snapshots.story == ["on_title_generated", "on_completion"]
    assert (await host.status()).title == "About cats"
    await host.notify("Dogs", wait=True)
    assert (await host.until(lambda status: status.title == "Dogs")).phase == AgentPhase.AGENT_PHASE_IDLE
    assert snapshots.story == ["on_title_generated", "on_completion", "on_title_generated"]
    assert (await host.stored_session(started.agent.session_id)).agent.title == "Dogs"
    given = [events.title_of(each) for each in await host.log() if each.custom.name == events.TITLE]
    assert given == ["About cats", "Dogs"]


def test_a_title_is_one_line_of_at_most_a_kibibyte() -> None:
    assert events.clean_title(" a\x00b\n c ") == "a\ufffdb c"
    assert len(events.clean_title("é" * 2000).encode()) == events.MAX_TITLE_BYTES
    assert events.title_of(events.title("Plans")) == "Plans"
