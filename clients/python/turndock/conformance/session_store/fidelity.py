"""Fidelity: what was written is what is read, digit for digit and byte for byte."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from turndock.conformance.claims import copied, equal, holds, refused
from turndock.conformance.session_store.suite import SUITE, Fixture
from turndock.store.v1 import AppendEventsRequest, GetSessionRequest, SaveRunRequest, SaveSessionRequest
from turndock.types.v1 import (
    Event,
    MessageReceived,
    MessageStreamed,
    Response,
    Run,
    RunStatus,
    Session,
    TokenUsageUpdated,
    Usage,
)

NUMBERS = (
    '{"big":9223372036854775807,"count":7,"flag":true,"id":9007199254740993,"one":1,"price":0.1,"zero":-0.0,'
    '"text":"a\\"b\\\\c\u2028\U0001f600e\u0301","list":[1.0,1,null,{}],"long":123456789012345678901234567890}'
)
"""JSON that loses something in careless hands."""

UNKNOWN_FIELDS = bytes.fromhex("f8fa0105") + b"\xaa\xfa\x01\x09unheardof"
"""Field 4001 as a number and, as bytes, field 4005: nothing this release knows."""


def nested(depth: int) -> str:
    """A JSON object of that depth."""
    return '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)


def filled(message: Message, salt: int = 1) -> None:
    """Set every field of a message to something else than its default; of a oneof, its first member."""
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and len(oneof.fields) > 1 and message.WhichOneof(oneof.name):
            continue
        if field.message_type:
            member = getattr(message, field.name)
            filled(member.add() if field.is_repeated else member, salt + field.number)
            continue
        value = field.enum_type.values[-1].number if field.enum_type else _value(field.name, field.type, salt)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def _value(name: str, kind: int, salt: int) -> str | bytes | bool | float:
    if name.endswith("_json"):
        return f'{{"{name}":{salt}}}'
    values: dict[int, str | bytes | bool | float] = {
        FieldDescriptor.TYPE_STRING: f"{name} é {salt}",
        FieldDescriptor.TYPE_BYTES: bytes([0, 255, salt % 256]),
        FieldDescriptor.TYPE_BOOL: True,
        FieldDescriptor.TYPE_DOUBLE: 0.1 + salt,
    }
    return values.get(kind, 1_000 + salt)


def as_given(stored: Message, given: Message, *names: str) -> Message:
    """A stored message with the fields that are the store's to set put back to what the writer gave."""
    result = copied(stored)
    for name in names:
        result.ClearField(name)
        field = given.DESCRIPTOR.fields_by_name[name]
        if field.message_type and given.HasField(name):
            getattr(result, name).CopyFrom(getattr(given, name))
        elif not field.message_type:
            setattr(result, name, getattr(given, name))
    return result


def same_bytes(stored: Message, given: Message, what: str, *names: str) -> None:
    """Fail unless a stored message is the given one, unknown fields included, but for the store's own fields."""
    got = as_given(stored, given, *names)
    if got.SerializeToString(deterministic=True) != given.SerializeToString(deterministic=True):
        differing = [
            field.name
            for field in given.DESCRIPTOR.fields
            if getattr(got, field.name) != getattr(given, field.name)
        ]
        holds(
            False,
            f"{what} is not what was written; what differs: {differing or 'fields that are unknown here'}.",
        )


def same_event(stored: Event, given: Event, what: str) -> None:
    """Fail unless a stored event is the given one but for what the store sets."""
    same_bytes(stored, given, what, "sequence", "incarnation", "stored_at_us")


@SUITE.case("PF-B25")
async def json_is_kept_as_text(fixture: Fixture) -> None:
    """JSON text comes back byte for byte: no number changes its type or digits, no key its place."""
    await fixture.save(fixture.session(metadata_json=NUMBERS, context_json=NUMBERS))
    await fixture.save_run(fixture.run(metadata_json=NUMBERS, provider_metadata_json=NUMBERS))
    event = fixture.event(data_json=NUMBERS, metadata_json=NUMBERS)
    result = await fixture.append_one(event)
    session, run = await fixture.read_session(), await fixture.read_run()
    (stored,) = (await fixture.log()).events
    kept = {
        "session.metadata_json": session.metadata_json,
        "session.context_json": session.context_json,
        "run.metadata_json": run.metadata_json,
        "run.provider_metadata_json": run.provider_metadata_json,
        "event.data_json": stored.data_json,
        "event.metadata_json": stored.metadata_json,
        "result.event.data_json": result.event.data_json,
    }
    for name, text in kept.items():
        equal(text, NUMBERS, f"{name} is kept as it was written.")


@SUITE.case("PF-B27")
async def json_is_kept_to_a_depth_of_64(fixture: Fixture) -> None:
    """JSON nested 64 deep is kept; 65 deep it is refused naming the field, also when it is 10,000 deep."""
    deep = nested(64)
    await fixture.save(fixture.session(metadata_json=deep))
    await fixture.save_run(fixture.run(metadata_json=deep))
    await fixture.append(fixture.event(data_json=deep))
    equal((await fixture.read_session()).metadata_json, deep, "A session's JSON of depth 64 is kept.")
    equal((await fixture.log()).events[0].data_json, deep, "An event's JSON of depth 64 is kept.")
    for depth in (65, 200, 10_000):
        call = fixture.save(fixture.session(context_json=nested(depth)))
        await refused(call, "VALIDATION_ERROR", f"Depth {depth}.", field="session.context_json")
        run = fixture.save_run(fixture.run(metadata_json=nested(depth)))
        await refused(run, "VALIDATION_ERROR", f"Depth {depth}.", field="run.metadata_json")
        event = fixture.append(fixture.event(data_json=nested(depth)))
        await refused(event, "VALIDATION_ERROR", f"Depth {depth}.", field="events[0].data_json")


@SUITE.case("PF-B33")
async def what_a_newer_writer_sends_is_kept(fixture: Fixture) -> None:
    """Unknown event types, fields and payload members are stored and returned byte for byte, in their place."""
    newer = Event.FromString(fixture.event().SerializeToString() + UNKNOWN_FIELDS)
    newer.type = 4_711  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue] - the case's point
    member = fixture.event(message_received=None)
    member.MergeFromString(b"\xfa\x03\x06\x0a\x04text")
    batch = [fixture.event(), newer, member, fixture.event()]
    results = await fixture.append(*batch)
    for read in ([result.event for result in results], list((await fixture.log()).events)):
        equal([event.sequence for event in read], [1, 2, 3, 4], "The unknown ones have their numbers.")
        for given, stored in zip(batch, read, strict=True):
            same_event(stored, given, "An event")
    again = await fixture.append(*batch)
    equal([result.payload_differs for result in again], [False] * 4, "Sent again, nothing differs.")
    changed = copied(newer)
    changed.MergeFromString(UNKNOWN_FIELDS[:-1] + b"!")
    (result,) = await fixture.append(changed)
    equal(result.payload_differs, True, "A difference in an unknown field is a difference.")
    (only,) = (await fixture.log(types=[newer.type])).events
    same_event(only, newer, "An event found by its unknown type")


@SUITE.case("PF-B33")
async def unknown_fields_of_sessions_and_runs_are_kept(fixture: Fixture) -> None:
    """Fields this release does not know survive in sessions and runs."""
    session = Session.FromString(fixture.session().SerializeToString() + UNKNOWN_FIELDS)
    run = Run.FromString(fixture.run().SerializeToString() + UNKNOWN_FIELDS)
    await fixture.save(session)
    await fixture.save_run(run)
    own = ("scope", "created_at_us", "updated_at_us", "last_sequence", "incarnation")
    same_bytes(await fixture.read_session(), session, "A session", *own)
    same_bytes(await fixture.read_run(), run, "A run", "created_at_us")


@SUITE.case("PF-B25")
async def every_field_of_a_session_is_kept(fixture: Fixture) -> None:
    """A session with every field set is read back as it was written, but for what is the store's."""
    given = Session()
    filled(given)
    given.id, given.agent_id = "ses_1", given.agent.definition.agent_name
    own = ("scope", "last_sequence", "incarnation")
    same_bytes(await fixture.save(given), given, "The session in the answer", *own)
    same_bytes(await fixture.read_session(), given, "The session", *own)
    listed = (await fixture.list_sessions()).sessions[0]
    same_bytes(listed, given, "The session in a list", *own)


@SUITE.case("PF-B25")
async def every_field_of_a_run_is_kept(fixture: Fixture) -> None:
    """A run with every field set is read back as it was written, but for the events of its response."""
    given = Run()
    filled(given)
    given.id, given.session_id = "run_1", "ses_1"
    saved = await fixture.save_run(given)
    given.response.ClearField("events")
    given.response.ClearField("terminal")
    same_bytes(saved, given, "The run in the answer")
    same_bytes(await fixture.read_run(), given, "The run")
    same_bytes((await fixture.list_runs()).runs[0], given, "The run in a list")


@SUITE.case("SaveRun")
async def a_stored_run_leaves_its_events_to_the_log(fixture: Fixture) -> None:
    """In a stored run the response has no events and no terminal, whichever call stored it."""
    event = fixture.event()
    response = Response(text="ok", events=[event], terminal=event)
    completed = RunStatus.RUN_STATUS_COMPLETED
    await fixture.save_run(fixture.run("saved", status=completed, response=response))
    await fixture.flush(fixture.session(), fixture.run("flushed", status=completed, response=response), [])
    for run_id in ("saved", "flushed"):
        stored = (await fixture.read_run(run_id)).response
        equal(stored.text, "ok", "The response is kept.")
        equal(len(stored.events), 0, "Its events are in the log, and only there.")
        holds(not stored.HasField("terminal"), "Its terminal event is in the log, and only there.")
    equal(len(response.events), 1, "The caller's message is as it was.")


@SUITE.case("PF-B25")
async def every_payload_is_kept(fixture: Fixture) -> None:
    """Events with every payload there is, every field set, are read back as they were written."""
    payloads = Event.DESCRIPTOR.oneofs_by_name["payload"].fields
    batch: list[Event] = []
    for field in payloads:
        event = fixture.event(message_received=None)
        filled(getattr(event, field.name), field.number)
        getattr(event, field.name).SetInParent()
        batch.append(event)
    whole = Event()
    filled(whole)
    whole.id, whole.session_id, whole.run_id, whole.time_us = "whole", "ses_1", "run_1", 2**63 - 1
    batch.append(whole)
    await fixture.append(*batch)
    for given, stored in zip(batch, (await fixture.log()).events, strict=True):
        same_event(stored, given, f"An event with {given.WhichOneof('payload')}")


@SUITE.case("PF-B25")
async def unset_is_not_zero(fixture: Fixture) -> None:
    """Fields that were not set stay unset, those set to zero stay set."""
    usages = (Usage(), Usage(input_tokens=0, output_tokens=0, cost_usd=0.0))
    await fixture.append(
        *(
            fixture.event(message_received=None, token_usage_updated=TokenUsageUpdated(usage=usage))
            for usage in usages
        )
    )
    stored = [event.token_usage_updated for event in (await fixture.log()).events]
    equal([each.usage for each in stored], list(usages), "Unset and zero are two things.")
    holds(not stored[0].usage.HasField("input_tokens"), "What was not reported is unset.")
    holds(stored[1].usage.HasField("input_tokens"), "A reported zero is set.")
    await fixture.save_run(fixture.run("free", cost_usd=0.0))
    await fixture.save_run(fixture.run("unknown"))
    holds((await fixture.read_run("free")).HasField("cost_usd"), "A cost of nothing is known.")
    holds(not (await fixture.read_run("unknown")).HasField("cost_usd"), "An unknown cost is unset.")
    await fixture.append(fixture.event("empty", message_received=MessageReceived()))
    (empty,) = (await fixture.log(after_sequence=2)).events
    holds(empty.HasField("message_received"), "An empty payload is a payload.")


@SUITE.case("PF-B23")
async def text_is_kept_as_it_is(fixture: Fixture) -> None:
    """Text of any script comes back as it was: nothing is normalized, trimmed or cut."""
    texts = (
        "e\u0301",
        "\u00e9",
        "\U0001f468\u200d\U0001f469",
        "  \n\t ",
        "\ufeffx",
        "\ufffd",
        "مرحبا",
        "x" * 100_000,
    )
    await fixture.append(
        *(fixture.event(message_received=None, message_streamed=MessageStreamed(text=text)) for text in texts)
    )
    equal(
        [event.message_streamed.text for event in (await fixture.log()).events], list(texts), "Text by text."
    )
    for number, text in enumerate(texts):
        await fixture.save_run(fixture.run(f"r{number}", prompt=text))
        equal((await fixture.read_run(f"r{number}")).prompt, text, "A prompt is kept.")
    await fixture.save(fixture.session(tags=list(texts)))
    equal(sorted((await fixture.read_session()).tags), sorted(texts), "Tags are kept.")


@SUITE.case("PF-B29")
async def an_event_has_a_mebibyte_at_most(fixture: Fixture) -> None:
    """An event of up to 1 MiB is stored; a larger one is refused with LIMIT_EXCEEDED and nothing is stored."""
    fits = fixture.event(message_received=MessageReceived(text="x" * ((1 << 20) - 300)))
    result = await fixture.append_one(fits)
    same_event(result.event, fits, "An event of almost 1 MiB")
    large = fixture.event(message_received=MessageReceived(text="x" * ((1 << 20) + 1)))
    await refused(
        fixture.append(fixture.event(), large), "LIMIT_EXCEEDED", "An event above 1 MiB.", field="events[1]"
    )
    equal(await fixture.numbers(), [1], "Nothing of the refused batch is stored.")


@SUITE.case("PF-B23")
async def text_no_store_can_keep_is_refused(fixture: Fixture) -> None:
    """U+0000 in a text that is looked up by is INVALID_ARGUMENT naming the field, and nothing is stored."""
    events = {"run_id": "a\x00", "provider": "a\x00", "correlation_id": "\x00"}
    for name, text in events.items():
        call = fixture.append(fixture.event(**{name: text}))
        await refused(call, "VALIDATION_ERROR", f"U+0000 in {name}.", field=f"events[0].{name}")
    for text in ('{"k\\u0000":1}', '{"a":"\\u0000"}', '{"a":"\\ud83d"}'):
        call = fixture.append(fixture.event(metadata_json=text))
        await refused(call, "VALIDATION_ERROR", f"The JSON text {text}.", field="events[0].metadata_json")
    prompt = fixture.save_run(fixture.run(prompt="a\x00b"))
    await refused(prompt, "VALIDATION_ERROR", "U+0000 in a prompt.", field="run.prompt")
    tags = fixture.save(fixture.session(tags=["ok", "\x00"]))
    await refused(tags, "VALIDATION_ERROR", "U+0000 in a tag.", field="session.tags[1]")
    equal(await fixture.head(), 0, "Nothing is stored.")


@SUITE.case("HandsOff")
async def a_message_handed_over_is_the_stores(fixture: Fixture) -> None:
    """What a caller does to its requests afterwards changes nothing stored, and the store changes none of them."""
    store, scope = fixture.store, fixture.scope
    save = SaveSessionRequest(scope=scope, session=fixture.session(tags=["a"]))
    save_run = SaveRunRequest(scope=scope, run=fixture.run())
    append = AppendEventsRequest(scope=scope, events=[fixture.event("e1")])
    before = [copied(request) for request in (save, save_run, append)]
    await store.save_session(save)
    await store.save_run(save_run)
    await store.append_events(append)
    equal([save, save_run, append], before, "The store changes no request it is given.")
    save.session.tags.append("b")
    save_run.run.prompt = "changed"
    append.events[0].message_received.text = "changed"
    equal(list((await fixture.read_session()).tags), ["a"], "The stored session is the store's own.")
    equal((await fixture.read_run()).prompt, "hi", "The stored run is the store's own.")
    equal(
        (await fixture.log()).events[0].message_received.text, "hello", "The stored event is the store's own."
    )
    again = await fixture.append_one(fixture.event("e1"))
    equal(
        again.payload_differs,
        False,
        "A duplicate is compared with what was stored, not with what became of it.",
    )


@SUITE.case("HandsOff")
async def an_answer_is_the_callers(fixture: Fixture) -> None:
    """What a caller does to an answer changes nothing stored and no later answer, also not that of a retry."""
    saving = SaveSessionRequest(scope=fixture.scope, session=fixture.session(tags=["a"]), request_id="q1")
    reading = GetSessionRequest(scope=fixture.scope, session_id="ses_1")
    appending = AppendEventsRequest(scope=fixture.scope, events=[fixture.event()], request_id="q2")
    for _ in range(3):
        saved = await fixture.store.save_session(saving)
        equal(list(saved.session.tags), ["a"], "SaveSession answers with what is stored.")
        saved.session.tags.append("b")
        read = await fixture.store.get_session(reading)
        equal(list(read.session.tags), ["a"], "GetSession answers with what is stored.")
        read.session.tags.append("c")
        appended = await fixture.store.append_events(appending)
        equal(
            appended.results[0].event.message_received.text,
            "hello",
            "AppendEvents answers with what is stored.",
        )
        appended.results[0].event.message_received.text = "changed"
        log = await fixture.log()
        equal(log.events[0].message_received.text, "hello", "GetEvents answers with what is stored.")
        log.events[0].message_received.text = "changed"
