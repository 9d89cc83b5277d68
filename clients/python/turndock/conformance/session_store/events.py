"""Appending events: numbers, duplicates, batches, conditions."""

from __future__ import annotations

from turndock import events as event_rules
from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.session_store.suite import NOW_US, SUITE, Fixture
from turndock.store.v1 import AppendEventRequest, ExpectedSequence
from turndock.types.v1 import Event, EventType, MessageReceived


def changed(event: Event, text: str) -> Event:
    """An event of the same id with another payload."""
    result = Event()
    result.CopyFrom(event)
    result.message_received.CopyFrom(MessageReceived(text=text))
    return result


@SUITE.case("S-07")
async def each_session_numbers_its_events_from_one(fixture: Fixture) -> None:
    """AppendEventWithSequence assigns 1, 2, 3, … per session; GetLatestSequence is the highest, 0 before any."""
    await fixture.save(fixture.session())
    equal(await fixture.head(), 0, "A session without events has latest sequence 0.")
    equal(await fixture.head("unknown"), 0, "An unknown session has latest sequence 0; that is no error.")
    for expected in (1, 2):
        result = await fixture.append_one(fixture.event())
        equal(result.event.sequence, expected, "Numbers are dense and begin at 1.")
        holds(not result.duplicate, "A new event is no duplicate.")
    equal(
        (await fixture.append_one(fixture.event(session_id="ses_2"))).event.sequence, 1, "Another session: 1."
    )
    equal(await fixture.head(), 2, "GetLatestSequence is the highest number.")


@SUITE.case("S-07")
async def what_the_store_sets_is_not_the_writers(fixture: Fixture) -> None:
    """sequence, incarnation and stored_at of an appended event are ignored; the store sets them."""
    saved = await fixture.save(fixture.session())
    forged = fixture.event(sequence=77, incarnation="forged", stored_at_us=5)
    stored = (await fixture.append_one(forged)).event
    equal(stored.sequence, 1, "A preset sequence is ignored.")
    equal(stored.incarnation, saved.incarnation, "The incarnation is the session's.")
    holds(stored.stored_at_us > 5, "stored_at is the store's clock.")
    equal(stored.time_us, NOW_US, "time is the writer's.")
    equal(list((await fixture.log()).events), [stored], "GetEvents returns the event as the append did.")
    again = await fixture.append_one(fixture.event(forged.id, sequence=99))
    equal((again.duplicate, again.payload_differs), (True, False), "What the store sets makes no difference.")


@SUITE.case("AppendEvent")
async def append_event_numbers_like_the_others(fixture: Fixture) -> None:
    """AppendEvent stores the event under the next number, once, and says only that."""
    event = fixture.event()
    for _ in range(2):
        await fixture.store.append_event(AppendEventRequest(scope=fixture.scope, event=event))
    await fixture.append(fixture.event())
    equal(await fixture.numbers(), [1, 2], "A repeated AppendEvent stores nothing and uses no number.")
    strict = AppendEventRequest(scope=fixture.scope, event=changed(event, "other"), strict_duplicates=True)
    await refused(fixture.store.append_event(strict), "IDEMPOTENCY_CONFLICT", "strict_duplicates is heeded.")
    late = AppendEventRequest(
        scope=fixture.scope, event=fixture.event(), expected=ExpectedSequence(last_sequence=1)
    )
    await refused(fixture.store.append_event(late), "SEQUENCE_CONFLICT", "expected is heeded.")
    wrong = AppendEventRequest(scope=fixture.scope, event=fixture.event(time_us=0))
    call = fixture.store.append_event(wrong)
    await refused(call, "VALIDATION_ERROR", "An event without a time is refused.", field="event.time_us")


@SUITE.case("S-07")
async def a_session_need_not_have_been_saved(fixture: Fixture) -> None:
    """Events of a session that was never saved are kept; a later save finds them."""
    result = await fixture.append_one(fixture.event())
    await refused(fixture.read_session(), "SESSION_NOT_FOUND", "Appending saves no session.")
    saved = await fixture.save(fixture.session())
    equal(saved.last_sequence, 1, "The saved session knows its log.")
    equal(saved.incarnation, result.event.incarnation, "Saving the session does not begin another life.")
    equal((await fixture.append_one(fixture.event())).event.sequence, 2, "The numbers go on.")


@SUITE.case("S-09")
async def a_duplicate_id_returns_the_stored_event(fixture: Fixture) -> None:
    """Appending a known id stores nothing and returns the stored event, and says whether the payload differs."""
    event = fixture.event("X", message_received=MessageReceived(text="v1"))
    first = await fixture.append_one(event)
    again = await fixture.append_one(event)
    equal(
        (again.duplicate, again.payload_differs), (True, False), "The same event again is a true duplicate."
    )
    equal(again.event, first.event, "A duplicate returns the event as it is stored.")
    other = await fixture.append_one(changed(event, "v2"))
    equal((other.duplicate, other.payload_differs), (True, True), "Another payload is told.")
    equal(other.event, first.event, "What is stored stays as it is.")
    moved = await fixture.append_one(
        fixture.event("X", time_us=NOW_US + 1, message_received=event.message_received)
    )
    holds(moved.payload_differs, "A different time is a difference, too.")
    equal(list((await fixture.log()).events), [first.event], "One row.")
    equal(await fixture.head(), 1, "A duplicate uses no number.")


@SUITE.case("S-09")
async def event_ids_are_unique_within_a_scope(fixture: Fixture) -> None:
    """An id that another session of the scope has is known: its event is returned, nothing is stored."""
    first = await fixture.append_one(fixture.event("X", "ses_1"))
    other = await fixture.append_one(fixture.event("X", "ses_2"))
    equal((other.duplicate, other.payload_differs), (True, True), "The id is known, and the session differs.")
    equal(other.event, first.event, "The event of the other session is returned.")
    equal(await fixture.head("ses_2"), 0, "Nothing is stored in the second session.")


@SUITE.case("AppendEvents")
async def strict_duplicates_refuses_another_payload(fixture: Fixture) -> None:
    """With strict_duplicates a known id with another payload is IDEMPOTENCY_CONFLICT and nothing is stored."""
    event = fixture.event("X")
    await fixture.append(event)
    result = await fixture.append_one(event, strict_duplicates=True)
    holds(result.duplicate, "A true duplicate is fine, also when strict.")
    batch = [fixture.event(), changed(event, "other"), fixture.event()]
    await refused(
        fixture.append(*batch, strict_duplicates=True), "IDEMPOTENCY_CONFLICT", "A changed event is refused."
    )
    twice = fixture.event("Y")
    call = fixture.append(twice, changed(twice, "other"), strict_duplicates=True)
    await refused(call, "IDEMPOTENCY_CONFLICT", "It is refused within one batch, too.")
    equal(await fixture.numbers(), [1], "Nothing of the refused batches is stored.")
    equal((await fixture.append_one(fixture.event())).event.sequence, 2, "They used no number.")


@SUITE.case("S-11")
async def a_duplicate_within_a_batch_takes_no_number(fixture: Fixture) -> None:
    """The same id twice in one batch is stored once; both results are that event."""
    event = fixture.event("X")
    first, second = await fixture.append(event, event)
    equal((first.event.id, first.event.sequence, first.duplicate), ("X", 1, False), "The first is stored.")
    equal(
        (second.duplicate, second.payload_differs), (True, False), "The second is a duplicate of the first."
    )
    equal(second.event, first.event, "Both results are the stored event.")
    equal(await fixture.numbers(), [1], "One row.")
    equal(await fixture.head(), 1, "One number.")


@SUITE.case("PF-E31")
async def a_retried_batch_gets_its_old_numbers(fixture: Fixture) -> None:
    """A retried batch returns old numbers for known events and new ones for new events, in request order."""
    e1, e2, e3, e5 = (fixture.event(name) for name in ("e1", "e2", "e3", "e5"))
    await fixture.append(e1, e2, e3)
    await fixture.append(fixture.event("e4"))
    again = await fixture.append(e1, e2, e3)
    equal([result.event.sequence for result in again], [1, 2, 3], "The retry returns the old numbers.")
    equal([result.duplicate for result in again], [True] * 3, "All of them are known.")
    mixed = await fixture.append(e5, e2, e3)
    equal([result.event.id for result in mixed], ["e5", "e2", "e3"], "Results come in request order.")
    equal([result.event.sequence for result in mixed], [5, 2, 3], "Only the new event gets a number.")
    call = fixture.append(fixture.event("e6"), changed(e2, "x"), strict_duplicates=True)
    await refused(call, "IDEMPOTENCY_CONFLICT", "e2 with another payload is a conflict.")
    equal(await fixture.numbers(), [1, 2, 3, 4, 5], "Nothing of that batch is stored.")


@SUITE.case("S-13", "E-01")
async def a_batch_with_one_bad_event_stores_nothing(fixture: Fixture) -> None:
    """A batch is stored as a whole or not at all; a refused one uses no number and names the bad event."""
    await fixture.append(fixture.event())
    too_deep = '{"a":' * 65 + "1" + "}" * 65
    bad = (
        ("INVALID_EVENT_TYPE", "type", fixture.event(type=EventType.EVENT_TYPE_UNSPECIFIED)),
        ("VALIDATION_ERROR", "time_us", fixture.event(time_us=0)),
        ("VALIDATION_ERROR", "time_us", fixture.event(time_us=-1)),
        ("VALIDATION_ERROR", "session_id", fixture.event(session_id="")),
        ("VALIDATION_ERROR", "id", fixture.event("x" * 129)),
        ("VALIDATION_ERROR", "id", fixture.event("a\x00b")),
        ("VALIDATION_ERROR", "data_json", fixture.event(data_json="{")),
        ("VALIDATION_ERROR", "data_json", fixture.event(data_json=too_deep)),
        ("VALIDATION_ERROR", "metadata_json", fixture.event(metadata_json='["no object"]')),
    )
    nameless = fixture.event()
    nameless.id = ""
    for reason, name, event in (*bad, ("VALIDATION_ERROR", "id", nameless)):
        batch = (fixture.event(), fixture.event(session_id="ses_2"), event)
        sentence = f"A batch whose third event has a bad {name} is refused."
        await refused(fixture.append(*batch), reason, sentence, field=f"events[2].{name}")
        equal(await fixture.numbers(), [1], "Nothing of the refused batch is stored.")
        equal(await fixture.head("ses_2"), 0, "Nothing of it is stored in another session.")
    equal(
        (await fixture.append_one(fixture.event())).event.sequence, 2, "The refused batches used no number."
    )


@SUITE.case("AppendEvents")
async def an_empty_batch_is_ok(fixture: Fixture) -> None:
    """A batch of nothing is OK and has no results."""
    equal(await fixture.append(), [], "No events, no results.")


@SUITE.case("AppendEvents")
async def a_batch_may_belong_to_several_sessions(fixture: Fixture) -> None:
    """A batch over several sessions is numbered per session, results in input order."""
    await fixture.append(fixture.event(session_id="b"))
    batch = [fixture.event(session_id=name) for name in ("a", "b", "a", "c", "b")]
    results = await fixture.append(*batch)
    found = [(result.event.session_id, result.event.sequence) for result in results]
    equal(found, [("a", 1), ("b", 2), ("a", 2), ("c", 1), ("b", 3)], "Each session counts for itself.")
    call = fixture.append(*batch, expected={"last_sequence": 2})
    await refused(call, "VALIDATION_ERROR", "A condition needs one session.", field="events[1]")
    call = fixture.append(*batch, fence={"epoch": 1})
    await refused(call, "VALIDATION_ERROR", "A fence needs one session.", field="events[1]")


@SUITE.case("AppendEvents")
async def a_condition_on_the_log_is_checked(fixture: Fixture) -> None:
    """An append whose `expected` does not hold is SEQUENCE_CONFLICT; nothing is stored, no number used."""
    await refused(
        fixture.append(fixture.event(), expected={"last_sequence": 1}),
        "SEQUENCE_CONFLICT",
        "The log is empty.",
    )
    await fixture.append(fixture.event(), expected={"no_events": True})
    call = fixture.append(fixture.event(), expected={"no_events": True})
    await refused(call, "SEQUENCE_CONFLICT", "The log has had an event.")
    await fixture.append(fixture.event(), expected={"last_sequence": 1})
    for wrong in (0, 1, 3):
        call = fixture.append(fixture.event(), expected={"last_sequence": wrong})
        await refused(call, "SEQUENCE_CONFLICT", f"The log ends at 2, not at {wrong}.")
        one = fixture.append_one(fixture.event(), expected={"last_sequence": wrong})
        await refused(one, "SEQUENCE_CONFLICT", f"The log ends at 2, not at {wrong}; one event.")
    await fixture.append(fixture.event(), expected={"any": True})
    equal(await fixture.numbers(), [1, 2, 3], "Only appends whose condition held are stored.")
    await fixture.append(fixture.event(session_id="ses_2"), expected={"last_sequence": 0})


@SUITE.case("E-01", "S-13")
async def every_event_type_is_stored(fixture: Fixture) -> None:
    """The 28 types and CUSTOM are all accepted and read back."""
    types = sorted(event_rules.TYPE_NAMES)
    equal(len(types), 29, "28 types and CUSTOM.")
    batch = [fixture.event(type=number) for number in types]
    await fixture.append(*batch)
    equal([event.type for event in (await fixture.log()).events], types, "Types are read back as written.")


@SUITE.case("S-16")
async def three_thousand_events_are_one_batch(fixture: Fixture) -> None:
    """A batch of 3,000 events is stored as a whole under consecutive numbers."""
    results = await fixture.append(*fixture.events(3_000))
    numbers = [result.event.sequence for result in results]
    equal((numbers[0], numbers[-1]), (1, 3_000), "First and last number.")
    holds(numbers == list(range(1, 3_001)), "The numbers are consecutive, in input order.")
    equal(await fixture.head(), 3_000, "GetLatestSequence is the last.")


@SUITE.case("PF-E23")
async def five_thousand_known_events_are_one_batch(fixture: Fixture) -> None:
    """A batch of 5,000 events with every field set is stored, and sent again it stores nothing."""
    batch = [
        fixture.event(
            f"event-{number:05}",
            run_id="run_1",
            provider="scripted",
            correlation_id="corr_1",
            schema_version=1,
            metadata_json='{"a":1}',
            data_json='{"b":2}',
        )
        for number in range(5_000)
    ]
    for is_repeated in (False, True):
        results = await fixture.append(*batch)
        numbers = [result.event.sequence for result in results]
        holds(numbers == list(range(1, 5_001)), f"Numbers 1 to 5,000 (repeated: {is_repeated}).")
        holds(all(result.duplicate is is_repeated for result in results), f"Duplicates: {is_repeated}.")
    equal(await fixture.head(), 5_000, "The repetition uses no number.")


@SUITE.case("PF-E05")
async def one_writer_is_never_in_conflict_with_itself(fixture: Fixture) -> None:
    """Appends go on while the session is saved and the writer's clock runs back; only another writer conflicts."""
    await fixture.save(fixture.session(updated_at_us=NOW_US))
    for number in range(10):
        event = fixture.event(time_us=NOW_US - number * 1_000_000)
        await fixture.append(event, expected={"last_sequence": number})
        saved = await fixture.save(
            fixture.session(updated_at_us=NOW_US - number, context_json=f'{{"n":{number}}}')
        )
        equal(saved.last_sequence, number + 1, "A save sees the append before it, and does not undo it.")
    equal((await fixture.read_session()).context_json, '{"n":9}', "The last save is what is read.")
    equal(await fixture.numbers(), list(range(1, 11)), "No append is lost.")
    other = fixture.append(fixture.event(), expected={"last_sequence": 9})
    await refused(other, "SEQUENCE_CONFLICT", "A writer with an old view of the log is refused.")
