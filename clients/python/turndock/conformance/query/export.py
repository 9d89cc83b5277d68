"""ExportSession."""

from __future__ import annotations

from turndock.conformance.claims import equal, holds, refused, unknown
from turndock.conformance.query.suite import (
    ARTIFACTS,
    MAX_MESSAGE_BYTES,
    NOW_US,
    SUITE,
    Fixture,
    exported_events,
    exported_runs,
    tokens,
)
from turndock.store.v1 import ExportSessionRequest
from turndock.types.v1 import Custom, EventType, MessageStreamed, RunStatus

MIB = 1 << 20


@SUITE.case("Q-10")
async def an_export_is_the_session_its_runs_and_its_events(fixture: Fixture) -> None:
    """An export has the session, its runs and its events in the order of their numbers, and nothing of another one."""
    await fixture.save(tags=["a"])
    run = await fixture.run(provider="claude", usage=tokens(1, 2, 3))
    events = await fixture.append(fixture.event(after=2), fixture.event(after=1))
    await fixture.save("ses_2")
    await fixture.run("run_2", "ses_2")
    await fixture.append(fixture.event("ses_2"))
    parts = await fixture.export()
    session = parts[0].session
    equal(
        (session.id, list(session.tags), session.last_sequence), ("ses_1", ["a"], 2), "The session is first."
    )
    equal(exported_runs(parts), [run], "Its run is there as GetRun returns it.")
    equal(exported_events(parts), events, "Its events are there, in the order of their numbers.")
    equal(parts[-1].end.head, 2, "The end names the highest number.")


@SUITE.case("Q-10")
async def an_unknown_session_is_not_exported(fixture: Fixture) -> None:
    """An unknown session is SESSION_NOT_FOUND, also when it has a log; a soft-deleted one is exported."""
    await unknown(fixture.export("unknown"), "SESSION_NOT_FOUND", "An unknown session is not found.")
    await fixture.append(fixture.event("only-a-log"))
    await unknown(fixture.export("only-a-log"), "SESSION_NOT_FOUND", "A session nobody saved is not found.")
    await refused(fixture.export(""), "VALIDATION_ERROR", "No id is refused.", field="session_id")
    await fixture.save(deleted_at_us=NOW_US)
    parts = await fixture.export()
    equal(
        [part.WhichOneof("part") for part in parts], ["session", "end"], "What there is none of is left out."
    )


@SUITE.case("Q-10", needs=(ARTIFACTS,))
async def artifacts_are_exported_when_asked_for(fixture: Fixture) -> None:
    """Rows of artifacts come only with include_artifacts, in creation order, and only the session's."""
    await fixture.save()
    for key, session_id in (("b", "ses_1"), ("a", "ses_1"), ("c", "ses_2")):
        await fixture.put(key, key.encode(), session_id)
    without = await fixture.export()
    equal(without[-1].end.artifact_count, 0, "Without being asked for there is none.")
    parts = await fixture.export(include_artifacts=True)
    rows = [row for part in parts for row in part.artifacts.artifacts]
    equal([(row.key, row.size) for row in rows], [("b", 1), ("a", 1)], "They are in creation order.")


@SUITE.case("Query.ExportSession")
async def runs_are_exported_in_mailbox_order(fixture: Fixture) -> None:
    """Runs come in the order of the mailbox, whatever their ids and statuses."""
    await fixture.save()
    for name, place in (("a", 3), ("c", 1), ("b", 2)):
        await fixture.run(name, queue_key=place, status=RunStatus.RUN_STATUS_PENDING)
    equal([run.id for run in exported_runs(await fixture.export())], ["c", "b", "a"], "Lower places first.")


@SUITE.case("Query.ExportSession", "PF-E07")
async def an_export_is_of_the_moment_it_began(fixture: Fixture) -> None:
    """What is written after the first part is no part of the export, however slowly it is read; writers do not wait."""
    await fixture.save(tags=["before"])
    await fixture.run("run_1")
    await fixture.append(*(fixture.event() for _ in range(3)))
    stream = fixture.query.export_session(ExportSessionRequest(scope=fixture.scope, session_id="ses_1"))
    parts = [await anext(aiter(stream))]
    await fixture.save(tags=["after"])
    await fixture.run("run_1", provider="late")
    await fixture.run("run_2")
    await fixture.append(*(fixture.event() for _ in range(3)))
    parts += [part async for part in stream]
    equal(list(parts[0].session.tags), ["before"], "The session is that of the beginning.")
    equal([(run.id, run.provider) for run in exported_runs(parts)], [("run_1", "")], "So are its runs.")
    equal([event.sequence for event in exported_events(parts)], [1, 2, 3], "So are its events.")
    equal((parts[-1].end.head, parts[-1].end.event_count), (3, 3), "So is the end.")


@SUITE.case("Query.ExportSession", "PF-B29")
async def batches_are_cut_by_bytes(fixture: Fixture) -> None:
    """No part is too large to travel; many large runs and events arrive all the same, in order."""
    await fixture.save()
    text = "x" * (700 << 10)
    for number in range(9):
        await fixture.run(f"run_{number}", queue_key=number, prompt=text)
        streamed = MessageStreamed(text=text)
        await fixture.append(
            fixture.event(type=EventType.EVENT_TYPE_MESSAGE_STREAMED, message_streamed=streamed)
        )
    parts = await fixture.export()
    largest = max(part.ByteSize() for part in parts)
    holds(largest < MAX_MESSAGE_BYTES // 2, f"A part has {largest} bytes.")
    equal([run.id for run in exported_runs(parts)], [f"run_{number}" for number in range(9)], "Every run.")
    equal([event.sequence for event in exported_events(parts)], list(range(1, 10)), "Every event.")


@SUITE.case("PF-B23", "PF-B25", "PF-B33")
async def nothing_is_lost_or_changed_on_the_way(fixture: Fixture) -> None:
    """Digits, types of numbers, characters and what this release does not know are exported byte for byte."""
    data = '{"big":9223372036854775807,"count":7,"flag":true,"id":9007199254740993,"one":1,"price":0.1}'
    saved = await fixture.save(metadata_json=data, context_json='{"t":"a\\ufffdb 😀"}')
    await fixture.run(metadata_json=data, prompt="😀 \u00e9 e\u0301")
    odd = fixture.event(data_json=data, metadata_json='{"k\\ufffd":1}')
    odd.MergeFromString(b"\xc2\x3e\x03abc")  # field 1000, which no release has
    newer = fixture.event(type=101)  # a number no release has
    newer.MergeFromString(b"\xa2\x0d\x04\x0a\x02hi")  # member 212, which no release's payload has
    custom = fixture.event(type=EventType.EVENT_TYPE_CUSTOM, custom=Custom(name="n", data_json=data))
    await fixture.append(odd, newer, custom)
    saved.last_sequence = 3
    parts = await fixture.export()
    equal(parts[0].session, saved, "The session is as it was saved.")
    equal(exported_runs(parts)[0].metadata_json, data, "So is its run.")
    stored = [event.SerializeToString() for event in await fixture.log()]
    equal(
        [event.SerializeToString() for event in exported_events(parts)], stored, "The events are the log's."
    )


@SUITE.case("Query.ExportSession")
async def a_long_log_is_exported_whole(fixture: Fixture) -> None:
    """A log of several pages arrives with every number once, in order."""
    await fixture.save()
    for _ in range(3):
        await fixture.append(*(fixture.event() for _ in range(900)))
    parts = await fixture.export()
    equal([event.sequence for event in exported_events(parts)], list(range(1, 2701)), "Every event is there.")
    holds(max(part.ByteSize() for part in parts) < MIB, "A part is a page.")
