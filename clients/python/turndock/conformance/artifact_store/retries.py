"""Retry tokens: `request_id` on Put and Delete."""

from __future__ import annotations

import hashlib
from typing import Any

from turndock.conformance.artifact_store.suite import SUITE, Fixture, same_bytes
from turndock.conformance.claims import equal, refused

ANOTHER = "The same request_id with another request is refused."


@SUITE.case("PF-B07", "ArtifactStore.Put")
async def a_repeated_put_returns_the_stored_answer(fixture: Fixture) -> None:
    """Put with a known request_id answers as before and changes nothing, also when the key changed or went since."""
    first = await fixture.put(b"first", request_id="q1", metadata_json='{"v":1}')
    again = await fixture.put(b"first", request_id="q1", metadata_json='{"v":1}')
    equal(again, first, "The retry gets the first answer.")
    await fixture.put(b"second")
    again = await fixture.put(b"first", request_id="q1", metadata_json='{"v":1}')
    equal(again, first, "The retry gets the first answer, although the key was written since.")
    same_bytes(await fixture.get(), b"second", "The retry does not undo the later Put.")
    await fixture.delete()
    again = await fixture.put(b"first", request_id="q1", metadata_json='{"v":1}')
    equal(again, first, "The retry gets the first answer, although the key was deleted since.")
    await refused(fixture.get(), "NOT_FOUND", "The retry does not undo the Delete.")


@SUITE.case("PF-B07", "ArtifactStore.Put")
async def a_request_id_belongs_to_one_put(fixture: Fixture) -> None:
    """Put with a known request_id and other bytes, another key or another row is refused and stores nothing."""
    stored = await fixture.put(b"first", request_id="q1", session_id="ses_1", media_type="text/plain")
    others: tuple[tuple[bytes, dict[str, Any]], ...] = (
        (b"other", {"session_id": "ses_1", "media_type": "text/plain"}),
        (b"first", {"session_id": "ses_2", "media_type": "text/plain"}),
        (b"first", {"session_id": "ses_1"}),
        (b"first", {"session_id": "ses_1", "media_type": "text/plain", "key": "other"}),
    )
    for data, fields in others:
        await refused(fixture.put(data, request_id="q1", **fields), "IDEMPOTENCY_CONFLICT", ANOTHER)
    equal(await fixture.head(), stored.artifact, "The refused requests change nothing.")
    same_bytes(await fixture.get(), b"first", "The bytes stay.")
    equal(await fixture.keys(), ("k",), "No other key was made.")


@SUITE.case("PF-B07", "ArtifactStore.Put")
async def a_repeated_if_absent_is_the_same_answer(fixture: Fixture) -> None:
    """A retry of the Put that stored an immutable key is told that it stored it, not that it was there."""
    first = await fixture.put(b"bytes", if_absent=True, request_id="q1")
    again = await fixture.put(b"bytes", if_absent=True, request_id="q1")
    equal((first.duplicate, again.duplicate), (False, False), "The retry gets the first answer.")
    other = await fixture.put(b"bytes", if_absent=True, request_id="q2")
    equal(other.duplicate, True, "Another request with the same bytes finds them there.")


@SUITE.case("PF-B07", "ArtifactStore.Put")
async def a_refused_put_does_not_use_up_its_request_id(fixture: Fixture) -> None:
    """A Put that failed may be sent again, mended, with its request_id."""
    digest = hashlib.sha256(b"right").digest()
    call = fixture.put(b"wrong", request_id="q1", expected_sha256=digest)
    await refused(call, "DIGEST_MISMATCH", "Other bytes than announced are refused.")
    await fixture.put(b"right", request_id="q1", expected_sha256=digest)
    same_bytes(await fixture.get(), b"right", "The mended request is stored.")


@SUITE.case("PF-B07", "ArtifactStore.Delete")
async def a_repeated_delete_does_not_undo_a_later_put(fixture: Fixture) -> None:
    """Delete with a known request_id changes nothing; with another key it is refused, and so is a Put with it."""
    await fixture.put(b"first")
    await fixture.delete(request_id="q1")
    await fixture.put(b"second")
    await fixture.put(b"other", "other")
    await fixture.delete(request_id="q1")
    same_bytes(await fixture.get(), b"second", "The retry deletes nothing.")
    await refused(fixture.delete("other", request_id="q1"), "IDEMPOTENCY_CONFLICT", ANOTHER)
    same_bytes(await fixture.get("other"), b"other", "The refused request deletes nothing.")
    await refused(fixture.put(b"third", request_id="q1"), "IDEMPOTENCY_CONFLICT", ANOTHER)
    same_bytes(await fixture.get(), b"second", "The refused request stores nothing.")


@SUITE.case("PF-B07", "P-13")
async def request_ids_of_two_partitions_are_two(fixture: Fixture) -> None:
    """The same request_id in another partition is another one."""
    other = fixture.other()
    await fixture.put(b"mine", request_id="q1")
    await other.put(b"theirs", request_id="q1")
    same_bytes(await fixture.get(), b"mine", "Each request was carried out.")
    same_bytes(await other.get(), b"theirs", "Each request was carried out.")
