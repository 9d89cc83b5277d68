"""What is put is what is read: whole contents, ranges, rows."""

from __future__ import annotations

import hashlib

from turndock.conformance.artifact_store.suite import (
    CHUNK_BYTES,
    KIB,
    MAX_CHUNK_BYTES,
    MIB,
    SUITE,
    Fixture,
    joined,
    noise,
    same_bytes,
)
from turndock.conformance.claims import equal, holds, refused
from turndock.store.v1 import ArtifactStoreGetRequest


@SUITE.case("A-01")
async def a_later_put_replaces_the_bytes(fixture: Fixture) -> None:
    """Put of a key that is there replaces its content."""
    await fixture.put(b"original")
    await fixture.put(b"updated")
    same_bytes(await fixture.get(), b"updated", "The later content is read.")


@SUITE.case("A-01")
async def bytes_come_back_as_they_were_put(fixture: Fixture) -> None:
    """Bytes are bytes: none is added, lost or changed."""
    data = noise(1024)
    await fixture.put(data)
    same_bytes(await fixture.get(), data, "1,024 random bytes come back.")
    every = bytes(range(256)) * 3
    await fixture.put(every, "every")
    same_bytes(await fixture.get("every"), every, "Every value of a byte comes back.")


@SUITE.case("A-01")
async def chunks_are_joined_in_order(fixture: Fixture) -> None:
    """Chunks are joined in order with nothing between, small and empty ones too."""
    await fixture.upload(fixture.header(), b"hello", b" ", b"", b"world")
    same_bytes(await fixture.get(), b"hello world", "The chunks are joined.")


@SUITE.case("A-01")
async def no_bytes_are_a_content(fixture: Fixture) -> None:
    """An upload without a chunk is an artifact of no bytes, and its download is the row alone."""
    await fixture.upload(fixture.header())
    artifact, data = await fixture.read()
    equal(
        (artifact.size, artifact.sha256, data),
        (0, hashlib.sha256().digest(), b""),
        "No bytes are read with OK.",
    )
    await fixture.upload(fixture.header("chunk"), b"")
    same_bytes(await fixture.get("chunk"), b"", "An empty chunk is no bytes.")


@SUITE.case("ArtifactStore.Get")
async def contents_of_all_sizes_around_a_chunk_come_back(fixture: Fixture) -> None:
    """Contents come back whole at and around the sizes at which they are cut, in chunks of the sizes allowed."""
    edges = (64 * KIB, CHUNK_BYTES, MAX_CHUNK_BYTES)
    for size in (1, *(edge + step for edge in edges for step in (-1, 0, 1)), 3 * MIB + 1):
        data = noise(size, seed=size)
        await fixture.put(data)
        same_bytes(await fixture.get(), data, f"{size} bytes come back.")
    largest = noise(MAX_CHUNK_BYTES)
    await fixture.upload(fixture.header(), largest, b"!")
    same_bytes(await fixture.get(), largest + b"!", "A chunk of 1 MiB is taken.")


@SUITE.case("A-02")
async def a_missing_key_is_not_found(fixture: Fixture) -> None:
    """Get of a key that was never put is NOT_FOUND, and Delete of it is OK."""
    await refused(fixture.get("missing"), "NOT_FOUND", "A key that was never put has no bytes.")
    await fixture.delete("missing")


@SUITE.case("A-02")
async def deleting_is_repeatable(fixture: Fixture) -> None:
    """Delete removes bytes and row; again it is OK; another key is not touched."""
    await fixture.put(b"bytes")
    await fixture.put(b"others", "other")
    await fixture.delete()
    await fixture.delete()
    await refused(fixture.get(), "NOT_FOUND", "A deleted key has no bytes.")
    equal(await fixture.head(), None, "A deleted key has no row.")
    same_bytes(await fixture.get("other"), b"others", "The other key's bytes stay.")
    await fixture.put(b"again")
    same_bytes(await fixture.get(), b"again", "A deleted key can be put again.")


@SUITE.case("ArtifactStore.Put", "A-06")
async def the_row_says_what_was_put(fixture: Fixture) -> None:
    """Put answers the stored row; Head, Get and List carry the same one."""
    data = noise(1000)
    stored = await fixture.put(
        data, session_id="ses_1", media_type="text/plain; charset=utf-8", metadata_json='{"a":[1,{"b":null}]}'
    )
    artifact = stored.artifact
    equal(stored.duplicate, False, "A new content is no duplicate.")
    equal(
        (artifact.key, artifact.session_id, artifact.size, artifact.sha256),
        ("k", "ses_1", 1000, hashlib.sha256(data).digest()),
        "Key, session, size and digest are those of what was put.",
    )
    equal(
        (artifact.media_type, artifact.metadata_json),
        ("text/plain; charset=utf-8", '{"a":[1,{"b":null}]}'),
        "Media type and metadata are kept as they are.",
    )
    holds(artifact.stored_at_us > 1_500_000_000_000_000, "stored_at_us is microseconds since the Unix epoch.")
    equal(await fixture.head(), artifact, "Head reads the row.")
    equal((await fixture.read())[0], artifact, "Get begins with the row.")
    equal(list((await fixture.list("ses_1")).artifacts), [artifact], "List reads the row.")


@SUITE.case("ArtifactStore.Put")
async def a_later_put_replaces_the_row(fixture: Fixture) -> None:
    """Put replaces session, media type and metadata too, also by nothing."""
    await fixture.put(b"1", session_id="ses_1", media_type="text/plain", metadata_json='{"a":1}')
    await fixture.put(b"22", session_id="ses_2")
    row = await fixture.head()
    holds(row is not None, "The row is there.")
    equal(
        row and (row.session_id, row.media_type, row.metadata_json, row.size),
        ("ses_2", "", "", 2),
        "Nothing of the earlier row is left.",
    )
    equal(await fixture.keys("ses_1"), (), "The key has left its earlier session.")
    equal(await fixture.keys("ses_2"), ("k",), "The key belongs to the session named last.")


@SUITE.case("A-06")
async def a_missing_row_is_no_error(fixture: Fixture) -> None:
    """Head of a key without a row is OK and carries none."""
    equal(await fixture.head("missing"), None, "There is no row.")


@SUITE.case("ArtifactStore.Get")
async def a_range_is_a_part_of_the_content(fixture: Fixture) -> None:
    """Get reads from `offset`, at most `length` bytes; what lies beyond the end is left out."""
    data = noise(2 * MIB + 7)
    size = len(data)
    await fixture.put(data)
    for offset, length in (
        (0, 1),
        (0, size),
        (5, 64 * KIB),
        (CHUNK_BYTES - 1, CHUNK_BYTES + 2),
        (size - 1, 1),
        (size - 3, 1000),
        (1, 1 << 62),
    ):
        artifact, part = await fixture.read(offset=offset, length=length)
        same_bytes(part, data[offset : offset + length], f"{length} bytes from {offset} on are read.")
        equal(
            (artifact.size, artifact.sha256),
            (size, hashlib.sha256(data).digest()),
            "The row of a range describes the whole content.",
        )
    same_bytes(await fixture.get(offset=size - 9), data[-9:], "Without a length it is read to the end.")
    same_bytes(await fixture.get(length=9), data[:9], "Without an offset it is read from the beginning.")


@SUITE.case("ArtifactStore.Get")
async def a_range_of_no_bytes_is_the_row_alone(fixture: Fixture) -> None:
    """A length of 0, and an offset at the very end, is a range of no bytes; an offset beyond the end is refused."""
    await fixture.put(b"12345")
    same_bytes(await fixture.get(length=0), b"", "A length of 0 is no bytes, not all of them.")
    same_bytes(await fixture.get(offset=5), b"", "At the end there are no bytes.")
    await refused(fixture.get(offset=6), "VALIDATION_ERROR", "Beyond the end is nothing.", field="offset")


@SUITE.case("ArtifactStore.Get", "PF-E15")
async def a_download_is_of_one_content(fixture: Fixture) -> None:
    """All chunks are of the content the row describes, although another is put under the key meanwhile."""
    old, new = noise(4 * MIB, seed=1), noise(5 * MIB, seed=2)
    await fixture.put(old)
    download = fixture.store.get(ArtifactStoreGetRequest(scope=fixture.scope, key="k"))
    received = [await anext(download)]
    await fixture.put(new)
    received += [message async for message in download]
    artifact, data = joined(received)
    equal(artifact.sha256, hashlib.sha256(old).digest(), "The row came first, before the other content.")
    same_bytes(data, old, "The download is of the content it began with.")
    same_bytes(await fixture.get(), new, "A download begun later is of the later content.")
