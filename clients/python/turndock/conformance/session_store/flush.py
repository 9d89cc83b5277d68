"""Flush: a session, a run and events, all or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.session_store.suite import SUITE, Fixture, together
from turndock.errors import TurndockError
from turndock.store.v1 import FlushRequest
from turndock.types.v1 import Event, EventBatch, EventType, RunStatus, SessionStatus

PENDING = RunStatus.RUN_STATUS_PENDING
RUNNING = RunStatus.RUN_STATUS_RUNNING
COMPLETED = RunStatus.RUN_STATUS_COMPLETED


def turn(fixture: Fixture) -> list[Event]:
    """The events of a short turn."""
    return [
        fixture.event("started", run_id="run_1", type=EventType.EVENT_TYPE_RUN_STARTED),
        fixture.event("completed", run_id="run_1", type=EventType.EVENT_TYPE_RUN_COMPLETED),
    ]


@SUITE.case("S-19")
async def a_flush_stores_all_three(fixture: Fixture) -> None:
    """Flush stores session, run and events, and returns the events as stored and the log's head."""
    await fixture.append(fixture.event())
    response = await fixture.flush(fixture.session(tags=["t"]), fixture.run(status=COMPLETED), turn(fixture))
    equal(list((await fixture.read_session()).tags), ["t"], "The session is stored.")
    equal((await fixture.read_run()).status, COMPLETED, "The run is stored.")
    equal(
        [event.id for event in (await fixture.log(after_sequence=1)).events],
        ["started", "completed"],
        "In order.",
    )
    equal(
        [result.event.sequence for result in response.results], [2, 3], "The results are the stored events."
    )
    equal(response.head, 3, "The head is returned.")
    equal((await fixture.read_session()).last_sequence, 3, "The session knows its log.")


@SUITE.case("S-19")
async def a_flush_with_a_bad_event_stores_nothing(fixture: Fixture) -> None:
    """A flush with one invalid event is INVALID_ARGUMENT and leaves no session, no run and no event."""
    bad = [*turn(fixture), fixture.event(time_us=0)]
    call = fixture.flush(fixture.session(), fixture.run(status=COMPLETED), bad)
    await refused(call, "VALIDATION_ERROR", "The third event has no time.", field="[2].time_us")
    unspecified = [fixture.event(type=EventType.EVENT_TYPE_UNSPECIFIED)]
    call = fixture.flush(fixture.session(), fixture.run(status=COMPLETED), unspecified)
    await refused(call, "INVALID_EVENT_TYPE", "The event has no type.", field="[0].type")
    await refused(fixture.read_session(), "SESSION_NOT_FOUND", "No session is stored.")
    await refused(fixture.read_run(), "RUN_NOT_FOUND", "No run is stored.")
    equal(await fixture.head(), 0, "No event is stored.")


@SUITE.case("S-19")
async def a_flush_needs_all_its_parts(fixture: Fixture) -> None:
    """A flush without session, run or events is VALIDATION_ERROR; a batch of nothing is a batch."""
    parts: dict[str, Any] = {
        "session": fixture.session(),
        "run": fixture.run(status=RUNNING),
        "events": EventBatch(),
    }
    for missing in parts:
        request = FlushRequest(
            scope=fixture.scope, **{name: part for name, part in parts.items() if name != missing}
        )
        await refused(fixture.store.flush(request), "VALIDATION_ERROR", f"Without {missing}.", field=missing)
        await refused(fixture.read_session(), "SESSION_NOT_FOUND", f"Nothing is stored without {missing}.")
    response = await fixture.store.flush(FlushRequest(scope=fixture.scope, **parts))
    equal((len(response.results), response.head), (0, 0), "A flush of no events is fine.")
    equal(await fixture.active_run(), "run_1", "Its run is stored.")


@SUITE.case("S-19")
async def the_parts_of_a_flush_belong_to_one_session(fixture: Fixture) -> None:
    """A run or an event of another session is VALIDATION_ERROR, and nothing is stored in either session."""
    call = fixture.flush(fixture.session(), fixture.run(session_id="ses_2"), [])
    await refused(call, "VALIDATION_ERROR", "The run is of another session.", field="run.session_id")
    call = fixture.flush(fixture.session(), fixture.run(), [fixture.event(session_id="ses_2")])
    await refused(call, "VALIDATION_ERROR", "The event is of another session.", field="[0].session_id")
    await refused(fixture.read_session(), "SESSION_NOT_FOUND", "Nothing is stored.")
    equal(await fixture.head("ses_2"), 0, "Nothing is stored in the other session.")


@SUITE.case("PF-B15")
async def a_failed_flush_leaves_everything_as_it_was(fixture: Fixture) -> None:
    """After a failed flush session, run, events and counter are as before, and the next number is the next."""
    before = await fixture.save(fixture.session(tags=["old"]))
    await fixture.save_run(fixture.run(status=RUNNING))
    await fixture.append(fixture.event())
    await fixture.save(fixture.agent_session("rival", "ann"))
    changed = fixture.session(tags=["new"], status=SessionStatus.SESSION_STATUS_FAILED)
    completed = fixture.run(status=COMPLETED)
    five = fixture.events(5)
    spoiled = [*five[:3], fixture.event(time_us=0), five[4]]
    known = fixture.event("known", "ses_2")
    await fixture.append(known)
    foreign_id = [*five[:3], fixture.event("known", metadata_json='{"a":1}')]
    unnamed = fixture.run("", status=PENDING)
    failures: tuple[tuple[str, list[Event], dict[str, Any]], ...] = (
        ("VALIDATION_ERROR", spoiled, {}),
        ("SEQUENCE_CONFLICT", five, {"expected": {"last_sequence": 7}}),
        ("INVALID_TRANSITION", five, {"expected_run_status": PENDING}),
        ("IDEMPOTENCY_CONFLICT", foreign_id, {"strict_duplicates": True}),
        ("ALREADY_EXISTS", five, {"session": fixture.agent_session("ses_1", "ann")}),
        ("VALIDATION_ERROR", five, {"chained_run": unnamed}),
        ("VALIDATION_ERROR", five, {"provider_metadata_json": "[]"}),
    )
    for reason, events, fields in failures:
        call = fixture.flush(fields.pop("session", changed), completed, events, **fields)
        await refused(call, reason, "This flush is refused.")
        session = await fixture.read_session()
        equal(list(session.tags), ["old"], f"After {reason} the session is as before.")
        equal(
            (session.status, session.incarnation),
            (before.status, before.incarnation),
            "The session is as before.",
        )
        equal(session.last_sequence, 1, f"After {reason} the counter is as before.")
        equal((await fixture.read_run()).status, RUNNING, f"After {reason} the run is as before.")
        equal(await fixture.numbers(), [1], f"After {reason} no event was added.")
        equal(await fixture.run_ids(), ["run_1"], f"After {reason} no run was added.")
    equal((await fixture.append_one(fixture.event())).event.sequence, 2, "No number was used.")


@SUITE.case("S-19")
async def a_flush_can_be_repeated(fixture: Fixture) -> None:
    """A flush sent again keeps the numbers of its events and adds nothing."""
    events = turn(fixture)
    for is_repeated in (False, True):
        response = await fixture.flush(fixture.session(), fixture.run(status=COMPLETED), events)
        equal(
            [result.event.sequence for result in response.results], [1, 2], "The events have their numbers."
        )
        equal(
            [result.duplicate for result in response.results],
            [is_repeated] * 2,
            "Known events are duplicates.",
        )
        equal(response.head, 2, "Nothing is added.")
    events = [*events, fixture.event("more")]
    response = await fixture.flush(fixture.session(), fixture.run(status=COMPLETED), events)
    equal(
        [result.event.sequence for result in response.results], [1, 2, 3], "Only the new event gets a number."
    )


@SUITE.case("S-19")
async def a_reader_sees_a_flush_whole(fixture: Fixture) -> None:
    """No reader sees a completed run without its terminal event, or the events without the run."""
    await fixture.save(fixture.session())
    is_over = False

    async def read(run_id: str) -> None:
        while not is_over:
            await asyncio.sleep(0)  # a store in memory may answer without giving way to the writers
            log = await fixture.log(run_id=run_id)
            run = await fixture.read_run(run_id)
            if len(log.events) == 2:
                equal(run.status, COMPLETED, f"The events of {run_id} are there, so its outcome is.")
            run = await fixture.read_run(run_id)
            log = await fixture.log(run_id=run_id)
            if run.status == COMPLETED:
                equal(len(log.events), 2, f"{run_id} is completed, so its events are there.")

    ids = [f"run_{number}" for number in range(20)]
    for run_id in ids:
        await fixture.save_run(fixture.run(run_id, status=RUNNING))
    async with asyncio.TaskGroup() as group:
        for run_id in ids[:3]:
            group.create_task(read(run_id))
        writers = [
            group.create_task(
                fixture.flush(
                    fixture.session(), fixture.run(run_id, status=COMPLETED), fixture.events(2, run_id=run_id)
                )
            )
            for run_id in reversed(ids)
        ]
        await asyncio.wait(writers)
        is_over = True
    equal(await fixture.head(), 40, "Every flush is stored.")


@SUITE.case("Flush")
async def a_flush_completes_a_run_from_the_expected_status_only(fixture: Fixture) -> None:
    """Of flushes that end a run at the same time, expecting RUNNING, exactly one is stored, events included."""
    await fixture.save(fixture.session())
    await fixture.save_run(fixture.run(status=RUNNING))
    outcomes = (
        COMPLETED,
        RunStatus.RUN_STATUS_FAILED,
        RunStatus.RUN_STATUS_CANCELLED,
        RunStatus.RUN_STATUS_TIMEOUT,
    )
    answers = await together(
        fixture.flush(
            fixture.session(),
            fixture.run(status=status),
            [fixture.event(f"{status}-{number}")],
            expected_run_status=RUNNING,
        )
        for status in outcomes
        for number in range(2)
    )
    refusals = [answer.reason for answer in answers if isinstance(answer, TurndockError)]
    equal(refusals, ["INVALID_TRANSITION"] * 7, "The first terminal wins; the seven others are refused.")
    log = await fixture.log()
    equal(len(log.events), 1, "Only the winner's event is stored.")
    status = (await fixture.read_run()).status
    holds(log.events[0].id.startswith(f"{status}-"), "Run and terminal event are the same flush's.")
    call = fixture.flush(fixture.session(), fixture.run("new"), [], expected_run_status=RUNNING)
    await refused(call, "INVALID_TRANSITION", "A run that is not stored is not RUNNING.")
    unspecified = RunStatus.RUN_STATUS_UNSPECIFIED
    await fixture.flush(fixture.session(), fixture.run("new"), [], expected_run_status=unspecified)


@SUITE.case("Flush")
async def a_flush_heeds_its_condition_on_the_log(fixture: Fixture) -> None:
    """With `expected` a flush is stored only onto the log it was made for."""
    running = fixture.run(status=RUNNING)
    await fixture.flush(fixture.session(), running, fixture.events(2), expected={"no_events": True})
    call = fixture.flush(fixture.session(), running, fixture.events(1), expected={"no_events": True})
    await refused(call, "SEQUENCE_CONFLICT", "The log has had events.")
    response = await fixture.flush(
        fixture.session(), running, fixture.events(1), expected={"last_sequence": 2}
    )
    equal(response.head, 3, "The condition holds.")


@SUITE.case("Flush")
async def a_flush_keeps_the_providers_metadata(fixture: Fixture) -> None:
    """provider_metadata_json of a flush becomes the run's; empty leaves what the run carries."""
    run = fixture.run(status=COMPLETED, provider_metadata_json='{"from":"run"}')
    await fixture.flush(fixture.session(), run, [])
    equal(
        (await fixture.read_run()).provider_metadata_json, '{"from":"run"}', "Empty: the run's own is kept."
    )
    await fixture.flush(fixture.session(), run, [], provider_metadata_json='{"from":"flush"}')
    equal((await fixture.read_run()).provider_metadata_json, '{"from":"flush"}', "Set: it is the run's.")


@SUITE.case("Flush")
async def a_chained_run_goes_before_the_mailbox(fixture: Fixture) -> None:
    """chained_run is stored with the flush, PENDING, before every run that waits, and once."""
    await fixture.save(fixture.session())
    await fixture.save_run(fixture.run("run_1", status=RUNNING, queue_key=100))
    for number in (2, 3):
        await fixture.save_run(fixture.run(f"run_{number}", queue_key=100 * number))
    chained = fixture.run("run_1/chain/1", status=RUNNING, parent_run_id="run_1", prompt="go on")
    completed = fixture.run("run_1", status=COMPLETED, queue_key=100)
    for _ in range(2):
        response = await fixture.flush(fixture.session(), completed, [], chained_run=chained)
        equal(response.chained_run.status, PENDING, "A chained run waits, whatever its writer says.")
        equal(response.chained_run.prompt, "go on", "It is the writer's run.")
        holds(response.chained_run.created_at_us > 0, "The store says when it was made.")
        equal(await fixture.read_run("run_1/chain/1"), response.chained_run, "The answer has it as stored.")
        waiting = await fixture.run_ids(statuses=[PENDING])
        equal(waiting, ["run_1/chain/1", "run_2", "run_3"], "It is first, and stored once.")
    stored = await fixture.read_run("run_1/chain/1")
    await fixture.save_run(fixture.run(stored.id, status=RUNNING, queue_key=stored.queue_key))
    response = await fixture.flush(fixture.session(), completed, [], chained_run=chained)
    equal(response.chained_run.status, RUNNING, "A repeated flush does not set a chained run back.")
