"""ForkSession: a session that begins with another one's history and goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from support.harness import Harness, numbers, refused, types
from support.parts import asked, emit, gate, paused, result, text, tool_use, usage
from turndock import wire
from turndock.agent.v1 import ForkSessionRequest
from turndock.errors import Code, TurndockError
from turndock.store.v1 import (
    ArtifactStoreGetRequest,
    DeleteSessionRequest,
    GetRunRequest,
    GetSessionRequest,
    ListSessionsRequest,
    SaveSessionResponse,
)
from turndock.types.v1 import Cursor, Event, RunStatus, Scope


def same(event: Event) -> bytes:
    """What a fork's event has in common with its parent's."""
    common = Event()
    common.CopyFrom(event)
    for name in ("id", "session_id", "incarnation", "stored_at_us"):
        common.ClearField(name)
    return common.SerializeToString(deterministic=True)


async def talked(host: Harness) -> str:
    """The session of an agent that has answered twice, and would answer a third time."""
    script = [text("hel"), text("lo"), usage(3, 2), result(sid="s-1")]
    started = await host.start(script, [result("two")], [result("three")])
    await host.ask("one", request_id="r-1")
    await host.ask("two", request_id="r-2")
    return started.agent.session_id


async def test_a_fork_has_its_parents_events_under_their_numbers(host: Harness) -> None:
    parent = await talked(host)
    before = await host.log_of(parent)
    forked = await host.fork(parent)
    log = await host.log_of(forked.id)
    assert [same(event) for event in log] == [same(event) for event in before]
    assert {event.session_id for event in log} == {forked.id}
    assert len({event.id for event in [*log, *before]}) == 2 * len(log)
    assert (forked.parent_session_id, forked.forked_at_sequence) == (parent, len(before))
    assert (forked.last_sequence, forked.agent.stopped) == (len(before), True)
    assert await host.log_of(parent) == before
    watched = await host.watched(Cursor(session_id=forked.id), upto=len(before))
    assert watched == log


async def test_a_fork_goes_on_at_the_next_number_with_the_backends_session(host: Harness) -> None:
    parent = await talked(host)
    forked = await host.fork(parent)
    shared = forked.last_sequence
    started = await host.start([result("forked")], name="a2", session_id=forked.id)
    assert (started.restored, started.restored_backend) == (True, True)
    assert (await host.state("a2"))["responses"] == ["hello", "two"]
    assert (await host.ask("go on", "a2")).response.text == "forked"
    assert (await host.ask("three")).response.text == "three"  # the parent does not notice
    log = await host.log("a2")
    assert numbers(log) == list(range(1, len(log) + 1))
    assert types(log[shared:])[:2] == ["session_started", "run_started"]
    assert (await host.state("a2"))["responses"] == ["hello", "two", "forked"]
    assert (await host.state())["responses"] == ["hello", "two", "three"]


async def test_a_fork_of_an_earlier_place_begins_with_a_fresh_backend(host: Harness) -> None:
    parent = await talked(host)
    log = await host.log_of(parent)
    [first_end, _] = [event.sequence for event in log if types([event]) == ["run_completed"]]
    forked = await host.fork(parent, first_end)
    assert numbers(await host.log_of(forked.id)) == list(range(1, first_end + 1))
    started = await host.start([result("other")], name="a2", session_id=forked.id)
    assert (started.restored, started.restored_backend) == (True, False)
    assert (await host.ask("two", "a2", request_id="r-2")).response.text == "other"
    assert [event.sequence for event in await host.log("a2")][-1] > first_end


async def test_a_run_that_had_not_ended_at_the_place_is_cancelled_in_the_fork(host: Harness) -> None:
    parent = (await host.start([text("a"), tool_use("t-1"), gate("g"), result("done")])).agent.session_id
    run_id = await host.tell("one", request_id="r-1")
    await host.backend.entered("g")
    begun = await host.watched(Cursor(session_id=parent), upto=6)
    assert types(begun)[-1] == "tool_call_started"
    forked = await host.fork(parent)
    host.backend.release("g")
    assert (await host.ended(run_id)).status == RunStatus.RUN_STATUS_COMPLETED
    log = await host.log_of(forked.id)
    assert types(log)[-2:] == ["tool_call_failed", "run_cancelled"]
    assert log[-1].run_failed.failure.reason == "forked"
    assert numbers(log) == list(range(1, len(log) + 1))
    run = (await host.store.get_run(GetRunRequest(session_id=forked.id, run_id="r-1"))).run
    assert (run.status, run.failure.reason) == (RunStatus.RUN_STATUS_CANCELLED, "forked")
    started = await host.start([result("anew")], name="a2", session_id=forked.id)
    assert not started.restored_backend
    assert (await host.ask("x", "a2")).response.text == "anew"


async def test_the_history_outlives_the_parent(host: Harness) -> None:
    parent = await talked(host)
    forked = await host.fork(parent)
    log = await host.log_of(forked.id)
    await host.stop()
    await host.store.delete_session(DeleteSessionRequest(session_id=parent))
    assert await host.log_of(forked.id) == log
    await host.start([result("alone")], session_id=forked.id)
    assert (await host.ask("x")).response.text == "alone"
    grandchild = await host.fork(forked.id, len(log), "f-2")
    assert [same(event) for event in await host.log_of(grandchild.id)] == [same(event) for event in log]


async def test_a_large_payload_outlives_the_parents(local_host: Harness) -> None:
    host = local_host
    script = [emit(1, size=2 << 20), result("done")]
    parent = (await host.start(script, behavior="")).agent.session_id
    await host.ended(await host.tell("one"))
    forked = await host.fork(parent)
    [theirs, *_] = [event for event in await host.log_of(parent) if event.HasField("offloaded")]
    [own, *_] = [event for event in await host.log_of(forked.id) if event.HasField("offloaded")]
    assert own.offloaded.key != theirs.offloaded.key
    request = ArtifactStoreGetRequest(key=own.offloaded.key)
    parts = [part async for part in host.artifacts.get(request)]
    assert parts[0].artifact.session_id == forked.id
    whole = Event.FromString(b"".join(part.chunk for part in parts))
    assert (whole.id, whole.session_id) == (own.id, forked.id)
    assert len(whole.message_streamed.text) == 2 << 20
    await host.stop()
    await host.store.delete_session(DeleteSessionRequest(session_id=parent, delete_artifacts=True))
    again = [part async for part in host.artifacts.get(request)]
    assert again == parts


async def test_a_repeated_fork_is_one_and_another_with_its_id_is_refused(host: Harness) -> None:
    parent = await talked(host)
    forked, *others = await asyncio.gather(*(host.fork(parent) for _ in range(5)))
    assert {other.id for other in others} == {forked.id}
    assert (await host.fork(parent, forked.forked_at_sequence)).id == forked.id
    with refused("IDEMPOTENCY_CONFLICT"):
        await host.fork(parent, 1)
    with refused("IDEMPOTENCY_CONFLICT"):
        await host.fork(forked.id)
    assert (await host.fork(parent, request_id="")).id != (await host.fork(parent, request_id="")).id


async def test_places_that_are_not_there_are_refused_and_nothing_is_made(local_host: Harness) -> None:
    host = local_host
    parent = await talked(host)
    head = len(await host.log_of(parent))
    with refused("SEQUENCE_IN_FUTURE") as beyond:
        await host.fork(parent, head + 1)
    assert beyond.value.code is Code.OUT_OF_RANGE
    assert beyond.value.metadata["head"] == str(head)
    with refused("SESSION_NOT_FOUND"):
        await host.fork("nope")
    with refused("VALIDATION_ERROR"):
        await host.fork("")
    assert len((await host.store.list_sessions(ListSessionsRequest())).sessions) == 1
    assert (await host.fork(parent, 0)).last_sequence == 0


async def test_a_foreign_session_is_an_unknown_one(local_host: Harness) -> None:
    parent = await talked(local_host)

    async def told(call: Awaitable[object]) -> tuple[str, str]:
        with pytest.raises(TurndockError) as caught, wire.translated():
            await call
        return caught.value.reason, str(caught.value).replace("nope", parent)

    def asked(session_id: str) -> Awaitable[object]:
        request = ForkSessionRequest(session_id=session_id, request_id="f-9")
        return local_host.served.stub.ForkSession(request, metadata=(("turndock-scope", "red"),))

    assert await told(asked(parent)) == await told(asked("nope"))
    scoped = ListSessionsRequest(scope=Scope(tenant="red"))
    assert not (await local_host.store.list_sessions(scoped)).sessions


async def test_a_fork_that_was_cut_off_is_finished_by_its_retry(local_host: Harness) -> None:
    host = local_host
    parent = await talked(host)
    whole = await host.log_of(parent)
    saving = host.served.host.journal.save_session

    async def cut_off(_: object) -> None:
        raise ConnectionResetError

    host.served.host.journal.save_session = cut_off  # type: ignore[assignment]  # the process dies here
    with refused("INTERNAL_ERROR"):
        await host.fork(parent)
    host.served.host.journal.save_session = saving
    listed = (await host.store.list_sessions(ListSessionsRequest())).sessions
    assert [session.id for session in listed] == [parent]
    forked = await host.fork(parent, len(whole))
    assert [same(event) for event in await host.log_of(forked.id)] == [same(event) for event in whole]
    assert (await host.store.get_session(GetSessionRequest(session_id=forked.id))).session == forked


async def test_a_fork_of_a_parked_turn_withdraws_what_waits_once(
    local_host: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its parent is still asked nobody can be asked in the fork, also when the fork took two tries."""
    parent = (await local_host.start([text("hi"), paused(asked("one"), asked("two"))])).agent.session_id
    waiting = local_host.asking("x", request_id="r")
    await local_host.until_asked(2)
    journal = local_host.served.host.journal
    save = journal.save_session

    async def fail(_: object) -> SaveSessionResponse:
        raise TurndockError("STORAGE_ERROR", "for the test")

    monkeypatch.setattr(journal, "save_session", fail)
    with refused("STORAGE_ERROR"):
        await local_host.fork(parent)
    monkeypatch.setattr(journal, "save_session", save)
    forked = await local_host.fork(parent)
    ended = [
        event for event in await local_host.log_of(forked.id) if event.sequence > forked.forked_at_sequence
    ]
    assert types(ended) == ["tool_approval_denied", "tool_approval_denied", "run_cancelled"]
    assert [event.tool_approval_decided.approval_id for event in ended[:2]] == ["one", "two"]
    assert len(await local_host.until_asked(2)) == 2
    await local_host.stop()
    await waiting
