"""The archive: what is pruned is stored elsewhere first."""

from __future__ import annotations

from turndock.conformance.claims import equal, holds
from turndock.conformance.maintenance.suite import (
    RECEIVED,
    STREAMED,
    SUITE,
    Fixture,
    at_most,
    keeping,
    tokens,
)
from turndock.store.v1 import RetentionPolicy
from turndock.types.v1 import Event

MEDIA_TYPE = "application/vnd.turndock.events"


def events_in(content: bytes) -> list[Event]:
    """The events of an archive: each preceded by its length as a varint."""
    found: list[Event] = []
    at = 0
    while at < len(content):
        size = shift = 0
        while True:
            byte = content[at]
            at, size, shift = at + 1, size | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        found.append(Event.FromString(content[at : at + size]))
        at += size
    return found


@SUITE.case("archive_before_prune")
async def what_is_pruned_is_archived_as_stored(fixture: Fixture) -> None:
    """Each transaction's events are one artifact without a session, byte for byte as they were stored."""
    stored = await fixture.append("ses_1", *[STREAMED, RECEIVED] * 10)
    policy = keeping(8, batch_size=5, archive_before_prune=True, archive_store=fixture.archive_store)
    answer = await fixture.prune("ses_1", policy)
    equal((answer.events_pruned, answer.events_archived), (12, 12), "All that was pruned is archived.")
    incarnation = stored[0].incarnation
    keys = [f"archive/ses_1/{incarnation}/{span}" for span in ("1-9", "11-19", "2-4")]
    equal(list(answer.archive_keys), keys, "Keys name session, incarnation and the numbers.")
    archived: list[Event] = []
    for key in keys:
        artifact, content = await fixture.archived.read(key)
        equal((artifact.media_type, artifact.session_id), (MEDIA_TYPE, ""), "It belongs to no session.")
        archived += events_in(content)
    gone = [event for event in stored if event.sequence not in await fixture.numbers()]
    archived.sort(key=lambda event: event.sequence)
    equal(tokens(archived), tokens(gone), "The archive has what is gone.")


@SUITE.case("archive_before_prune")
async def the_total_is_archived_by_session(fixture: Fixture) -> None:
    """Events that go for the total are archived, too: one artifact for each session."""
    for session_id in ("ses_1", "ses_2", "ses_1", "ses_2"):
        await fixture.append(session_id, *[RECEIVED] * 2)
    policy = RetentionPolicy(
        max_total_events=at_most(3), archive_before_prune=True, archive_store=fixture.archive_store
    )
    report = await fixture.execute(policy)
    figures = (report.events_pruned, report.events_archived, report.archives_written)
    equal(figures, (5, 5, 2), "Five events go, into two artifacts.")
    found: dict[str, list[int]] = {}
    for key in await fixture.archived.keys():
        for event in events_in(await fixture.archived.get(key)):
            found.setdefault(event.session_id, []).append(event.sequence)
    equal(found, {"ses_1": [1, 2, 3], "ses_2": [1, 2]}, "The archive has what is gone.")
    holds(not report.errors, "Nothing went wrong.")


@SUITE.case("archive_before_prune")
async def without_being_asked_nothing_is_archived(fixture: Fixture) -> None:
    """A policy that only names a store does not archive."""
    await fixture.append("ses_1", *[STREAMED] * 4)
    answer = await fixture.prune("ses_1", keeping(1, archive_store=fixture.archive_store))
    equal((answer.events_pruned, answer.events_archived), (3, 0), "Events are pruned, and not archived.")
    equal(await fixture.archived.keys(), (), "The archive is empty.")
