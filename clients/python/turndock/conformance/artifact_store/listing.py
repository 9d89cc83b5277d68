"""Listing rows: order, totals, pages."""

from __future__ import annotations

import asyncio

from turndock.conformance.artifact_store.suite import KIB, MAX_MESSAGE_BYTES, SUITE, Fixture
from turndock.conformance.claims import equal, holds, refused


@SUITE.case("A-06")
async def a_session_lists_its_artifacts_in_creation_order(fixture: Fixture) -> None:
    """List of a session has its rows in the order of their first Put, with their count and bytes."""
    await fixture.put(b"a" * 100, "b.txt", session_id="ses_1")
    await fixture.put(b"b" * 200, "a.txt", session_id="ses_1")
    await fixture.put(b"c" * 400, "c.txt", session_id="ses_2")
    await fixture.put(b"d" * 800, "d.txt")
    page = await fixture.list("ses_1")
    equal([artifact.key for artifact in page.artifacts], ["b.txt", "a.txt"], "The order is that of creation.")
    equal((page.total_count, page.total_bytes), (2, 300), "Count and bytes are those of the session.")
    equal(page.next_cursor, "", "There is no further page.")
    page = await fixture.list()
    equal(
        [artifact.key for artifact in page.artifacts],
        ["b.txt", "a.txt", "c.txt", "d.txt"],
        "Without a session all rows are listed, those without one too.",
    )
    equal((page.total_count, page.total_bytes), (4, 1500), "Count and bytes are those of all rows.")


@SUITE.case("A-06")
async def an_unknown_session_lists_nothing(fixture: Fixture) -> None:
    """List of an unknown session is OK and empty, with totals of 0."""
    await fixture.put(b"bytes", session_id="ses_1")
    page = await fixture.list("unknown")
    equal(
        (len(page.artifacts), page.total_count, page.total_bytes, page.next_cursor),
        (0, 0, 0, ""),
        "Nothing is listed.",
    )


@SUITE.case("A-06")
async def a_deleted_artifact_is_not_listed(fixture: Fixture) -> None:
    """Delete hides the row: it is neither read, listed nor counted; again it is OK."""
    await fixture.put(b"a" * 100, "a", session_id="ses_1")
    await fixture.put(b"b" * 200, "b", session_id="ses_1")
    for _ in range(2):
        await fixture.delete("a")
        page = await fixture.list("ses_1")
        equal([artifact.key for artifact in page.artifacts], ["b"], "The deleted row is not listed.")
        equal((page.total_count, page.total_bytes), (1, 200), "The deleted row is not counted.")
        equal(await fixture.head("a"), None, "The deleted row is not read.")


@SUITE.case("ArtifactStore.List")
async def writing_again_does_not_move_a_row(fixture: Fixture) -> None:
    """A key that is written again keeps its place and counts once, with its new size; deleted and written, it moves."""
    for key in ("a", "b", "c"):
        await fixture.put(b"12345", key, session_id="ses_1")
    await fixture.put(b"1234567", "a", session_id="ses_1")
    equal(await fixture.keys("ses_1"), ("a", "b", "c"), "Writing again does not move it.")
    page = await fixture.list("ses_1")
    equal((page.total_count, page.total_bytes), (3, 17), "It counts once, with its new size.")
    await fixture.delete("a")
    await fixture.put(b"1", "a", session_id="ses_1")
    equal(await fixture.keys("ses_1"), ("b", "c", "a"), "Deleting and writing it moves it to the end.")


@SUITE.case("ArtifactStore.List")
async def pages_hold_every_row_once(fixture: Fixture) -> None:
    """All pages together are the list, in its order; each carries the totals; the last one has no cursor."""
    keys = tuple(f"k{number:02}" for number in range(9, -1, -1))
    for key in keys:
        await fixture.put(b"12", key, session_id="ses_1")
        await fixture.put(b"12", f"other-{key}", session_id="ses_2")
    for limit, sizes in ((1, [1] * 10), (3, [3, 3, 3, 1]), (5, [5, 5]), (10, [10]), (1000, [10])):
        pages = await fixture.pages("ses_1", limit)
        equal([len(page.artifacts) for page in pages], sizes, f"Pages of {limit} rows.")
        listed = tuple(artifact.key for page in pages for artifact in page.artifacts)
        equal(listed, keys, f"Pages of {limit} rows hold every row once, in order.")
        totals = {(page.total_count, page.total_bytes) for page in pages}
        equal(totals, {(10, 20)}, "Every page has the totals of the whole list.")


@SUITE.case("ArtifactStore.List", "PF-E33")
async def pages_stand_still_while_rows_come_and_go(fixture: Fixture) -> None:
    """Between two pages rows may be written, added and deleted: what was not touched is listed exactly once."""
    for number in range(9):
        await fixture.put(b"1", f"k{number}")
    first = await fixture.list(limit=3)
    await fixture.put(b"22", "k0")
    await fixture.put(b"22", "k7")
    await fixture.delete("k2")
    await fixture.delete("k4")
    await fixture.put(b"1", "new")
    listed = [artifact.key for artifact in first.artifacts]
    cursor = first.next_cursor
    while cursor:
        page = await fixture.list(limit=3, cursor=cursor)
        listed += [artifact.key for artifact in page.artifacts]
        cursor = page.next_cursor
    equal(
        listed,
        ["k0", "k1", "k2", "k3", "k5", "k6", "k7", "k8", "new"],
        "Rows that were not deleted are there once, and the new one at the end.",
    )


@SUITE.case("ArtifactStore.List")
async def a_cursor_fits_only_its_list(fixture: Fixture) -> None:
    """A cursor of another session, another partition or nobody's making is INVALID_CURSOR."""
    other = fixture.other()
    for key in ("a", "b", "c"):
        await fixture.put(b"1", key, session_id="ses_1")
        await other.put(b"1", key, session_id="ses_1")
    cursor = (await fixture.list("ses_1", limit=1)).next_cursor
    holds(cursor, "A page that is not the last has a cursor.")
    for sentence, reader, session_id, text in (
        ("A cursor of a session's list fits no other list.", fixture, "", cursor),
        ("A cursor of a session's list fits no other session.", fixture, "ses_2", cursor),
        ("A cursor fits no other partition.", other, "ses_1", cursor),
        ("A cursor is whole.", fixture, "ses_1", cursor[:-1]),
        ("A cursor is unchanged.", fixture, "ses_1", f"{cursor}x"),
        ("A number is no cursor.", fixture, "ses_1", "1"),
        ("A text is no cursor.", fixture, "ses_1", "é \x00 !"),
    ):
        await refused(reader.list(session_id, limit=1, cursor=text), "INVALID_CURSOR", sentence)
    page = await fixture.list("ses_1", limit=2, cursor=cursor)
    equal([artifact.key for artifact in page.artifacts], ["b", "c"], "A cursor fits with another limit.")


@SUITE.case("ArtifactStore.List")
async def limits_are_from_1_to_1000(fixture: Fixture) -> None:
    """A limit of 0, below, or above 1,000 is refused; 1,000 is taken; unset it is 50."""
    for limit in (0, -1, 1001, 2**31 - 1):
        call = fixture.list(limit=limit)
        await refused(call, "VALIDATION_ERROR", f"A limit of {limit} is refused.", field="limit")
    await asyncio.gather(*(fixture.put(b"1", f"k{number}") for number in range(51)))
    equal(len((await fixture.list(limit=1000)).artifacts), 51, "A limit of 1,000 is taken.")
    page = await fixture.list()
    equal(len(page.artifacts), 50, "The limit is 50 unless it is set.")
    holds(page.next_cursor, "The 51st row is on the next page.")


@SUITE.case("ArtifactStore.List", "PF-B29")
async def pages_are_cut_by_bytes_too(fixture: Fixture) -> None:
    """Rows with much metadata come in smaller pages, none of which is too large to travel."""
    metadata = '{"a":"%s"}' % ("x" * (60 * KIB))
    names = sorted(f"k{number:02}" for number in range(80))
    await asyncio.gather(*(fixture.put(b"1", key, metadata_json=metadata) for key in names))
    pages = await fixture.pages(limit=1000)
    sizes = [page.ByteSize() for page in pages]
    holds(max(sizes) < MAX_MESSAGE_BYTES, f"A page of {max(sizes)} bytes is above gRPC's default.")
    listed = sorted(artifact.key for page in pages for artifact in page.artifacts)
    equal(listed, names, "All pages together hold every row once.")
