"""Retry tokens: `request_id` on every mutating call."""

from __future__ import annotations

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.session_store.suite import MAILBOX, SUITE, Fixture
from turndock.types.v1 import Fence, RunStatus

RUNNING = RunStatus.RUN_STATUS_RUNNING
COMPLETED = RunStatus.RUN_STATUS_COMPLETED
ANOTHER = "The same request_id with another request is refused."


@SUITE.case("SaveSession", "PF-B07")
async def a_repeated_save_does_not_undo_a_later_one(fixture: Fixture) -> None:
    """SaveSession with a known request_id returns the stored answer and changes nothing."""
    saved = await fixture.save(fixture.session(tags=["first"]), request_id="q1")
    await fixture.save(fixture.session(tags=["second"]), request_id="q2")
    again = await fixture.save(fixture.session(tags=["first"]), request_id="q1")
    equal(again, saved, "The retry gets the first answer.")
    equal(list((await fixture.read_session()).tags), ["second"], "The retry changes nothing.")
    await refused(
        fixture.save(fixture.session(tags=["third"]), request_id="q1"), "IDEMPOTENCY_CONFLICT", ANOTHER
    )
    equal(list((await fixture.read_session()).tags), ["second"], "The refused request changes nothing.")


@SUITE.case("SaveRun", "PF-B07")
async def a_repeated_run_save_does_not_undo_a_later_one(fixture: Fixture) -> None:
    """SaveRun with a known request_id returns the stored answer, also where `expected_status` no longer holds."""
    await fixture.save_run(fixture.run(), request_id="q1")
    pending = RunStatus.RUN_STATUS_PENDING
    begun = await fixture.save_run(fixture.run(status=RUNNING), expected_status=pending, request_id="q2")
    await fixture.save_run(fixture.run(status=COMPLETED), request_id="q3")
    again = await fixture.save_run(fixture.run(status=RUNNING), expected_status=pending, request_id="q2")
    equal(again, begun, "The retry gets the first answer.")
    equal((await fixture.read_run()).status, COMPLETED, "The retry changes nothing.")
    call = fixture.save_run(fixture.run(status=COMPLETED), request_id="q2")
    await refused(call, "IDEMPOTENCY_CONFLICT", ANOTHER)
    call = fixture.save_run(fixture.run("run_2"), request_id="q1")
    await refused(call, "IDEMPOTENCY_CONFLICT", ANOTHER)
    await refused(fixture.read_run("run_2"), "RUN_NOT_FOUND", "The refused request stores nothing.")


@SUITE.case("AppendEvents", "PF-B07")
async def a_repeated_append_returns_the_stored_answer(fixture: Fixture) -> None:
    """AppendEvents with a known request_id returns the stored results; with another batch it is refused."""
    batch = fixture.events(2)
    first = await fixture.append(*batch, request_id="q1")
    await fixture.append(fixture.event())
    again = await fixture.append(*batch, request_id="q1")
    equal(again, first, "The retry gets the first answer: nothing in it is a duplicate.")
    await refused(fixture.append(fixture.event(), request_id="q1"), "IDEMPOTENCY_CONFLICT", ANOTHER)
    await refused(
        fixture.append_one(batch[0], request_id="q1"), "IDEMPOTENCY_CONFLICT", f"{ANOTHER} (Another call.)"
    )
    equal(await fixture.numbers(), [1, 2, 3], "Neither the retry nor the refused request stores anything.")


@SUITE.case("AppendEvents", "PF-E31")
async def a_retry_is_answered_before_its_condition_is_checked(fixture: Fixture) -> None:
    """A retry whose first try was stored succeeds although the log has grown by that very try."""
    event = fixture.event()
    for _ in range(2):
        result = await fixture.append_one(event, request_id="q1", expected={"no_events": True})
        equal(result.event.sequence, 1, "First try and retry get the same number.")
    equal(await fixture.head(), 1, "One event is stored.")


@SUITE.case("Fence", "PF-B07")
async def a_retry_is_answered_although_its_owner_has_changed(fixture: Fixture) -> None:
    """A write that was stored under an older epoch is answered when it is retried; a new one is FENCED."""
    event = fixture.event()
    run, batch = fixture.run(), fixture.events(1)
    old, new = Fence(epoch=1), Fence(epoch=2)
    first = await fixture.append_one(event, request_id="q1", fence=old)
    saved = await fixture.save(fixture.session(), request_id="q2", fence=old)
    flushed = await fixture.flush(fixture.session(), run, batch, request_id="q3", fence=old)
    await fixture.append(fixture.event(), fence=new)
    equal(
        await fixture.append_one(event, request_id="q1", fence=old), first, "The retried append is answered."
    )
    equal(
        await fixture.save(fixture.session(), request_id="q2", fence=old),
        saved,
        "The retried save is answered.",
    )
    again = await fixture.flush(fixture.session(), run, batch, request_id="q3", fence=old)
    equal(again, flushed, "The retried flush is answered.")
    await refused(
        fixture.append(fixture.event(), request_id="q4", fence=old), "FENCED", "A new write is not."
    )


@SUITE.case("Flush", "PF-B07")
async def a_repeated_flush_does_not_undo_a_later_save(fixture: Fixture) -> None:
    """Flush with a known request_id returns the stored answer and changes nothing, also in session and run."""
    batch = fixture.events(2)
    first = await fixture.flush(
        fixture.session(tags=["a"]), fixture.run(status=RUNNING), batch, request_id="q1"
    )
    await fixture.save(fixture.session(tags=["b"]))
    await fixture.save_run(fixture.run(status=COMPLETED))
    again = await fixture.flush(
        fixture.session(tags=["a"]), fixture.run(status=RUNNING), batch, request_id="q1"
    )
    equal(again, first, "The retry gets the first answer.")
    equal(list((await fixture.read_session()).tags), ["b"], "The retry does not save the session again.")
    equal((await fixture.read_run()).status, COMPLETED, "The retry does not save the run again.")
    call = fixture.flush(fixture.session(tags=["c"]), fixture.run(status=RUNNING), batch, request_id="q1")
    await refused(call, "IDEMPOTENCY_CONFLICT", ANOTHER)


@SUITE.case("SessionStore")
async def a_failed_call_uses_up_no_request_id(fixture: Fixture) -> None:
    """A request that was refused may be mended and sent again under its request_id."""
    broken, whole = fixture.event(time_us=0), fixture.event()
    await refused(
        fixture.append(broken, request_id="q1"), "VALIDATION_ERROR", "An event without a time is refused."
    )
    equal(
        (await fixture.append(whole, request_id="q1"))[0].event.sequence, 1, "The mended request is stored."
    )
    call = fixture.append(fixture.event(), request_id="q2", expected={"last_sequence": 7})
    await refused(call, "SEQUENCE_CONFLICT", "A condition that does not hold is refused.")
    await fixture.append(fixture.event(), request_id="q2", expected={"last_sequence": 1})


@SUITE.case("SessionStore")
async def request_ids_end_with_their_session(fixture: Fixture) -> None:
    """After a session was deleted its request ids are free; those of another session or scope never matter."""
    await fixture.save(fixture.session(tags=["first"]), request_id="q1")
    other = fixture.other()
    await other.save(other.session(tags=["other"]), request_id="q1")
    await fixture.delete()
    await fixture.save(fixture.session(tags=["second"]), request_id="q1")
    equal(list((await fixture.read_session()).tags), ["second"], "The id is free after the deletion.")
    equal(list((await other.read_session()).tags), ["other"], "Each scope has its own request ids.")


@SUITE.case("DeleteSession")
async def a_repeated_deletion_is_ok(fixture: Fixture) -> None:
    """DeleteSession repeated with its request_id is OK, as without one."""
    await fixture.save(fixture.session())
    await fixture.delete(request_id="q1")
    await fixture.delete(request_id="q1")
    await refused(fixture.read_session(), "SESSION_NOT_FOUND", "The session is deleted.")


@SUITE.case("EditRun", "CancelRun", needs=(MAILBOX,))
async def repeated_edits_and_cancellations_change_nothing(fixture: Fixture) -> None:
    """EditRun and CancelRun with a known request_id return the stored answer and change nothing."""
    await fixture.save(fixture.session())
    await fixture.enqueue(fixture.run("run_1"))
    first = await fixture.edit("run_1", prompt="one", request_id="q1")
    await fixture.edit("run_1", prompt="two")
    equal(
        await fixture.edit("run_1", prompt="one", request_id="q1"), first, "The retry gets the first answer."
    )
    equal((await fixture.read_run("run_1")).prompt, "two", "The retry changes nothing.")
    await refused(fixture.edit("run_1", prompt="three", request_id="q1"), "IDEMPOTENCY_CONFLICT", ANOTHER)
    ended = fixture.event(run_id="run_1")
    cancelled = await fixture.cancel("run_1", event=ended, request_id="q2")
    again = await fixture.cancel("run_1", event=ended, request_id="q2")
    holds(cancelled.HasField("result"), "CancelRun says what became of the terminal event.")
    equal(again, cancelled, "The retry gets the first answer, the event's result included.")
    equal(await fixture.head(), 1, "The terminal event is stored once.")
