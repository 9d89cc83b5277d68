"""What an ArtifactStore refuses, and that a refused call changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from turndock.conformance.artifact_store.suite import (
    KIB,
    MAX_CHUNK_BYTES,
    SUITE,
    Fixture,
    message,
    noise,
    same_bytes,
)
from turndock.conformance.claims import copied, equal, refused
from turndock.store.v1 import ArtifactStorePutRequest
from turndock.types.v1 import Scope


@SUITE.case("ArtifactStore.Put")
async def an_upload_is_a_header_and_then_chunks(fixture: Fixture) -> None:
    """An upload that begins with anything but a header, or goes on with anything but chunks, stores nothing."""
    await fixture.put(b"old")
    begins = "An upload begins with its header."
    await refused(fixture.upload(), "VALIDATION_ERROR", begins, field="header")
    await refused(fixture.upload(b"bytes"), "VALIDATION_ERROR", begins, field="header")
    twice = fixture.upload(fixture.header(), b"new", fixture.header())
    await refused(twice, "VALIDATION_ERROR", "There is one header.", field="chunk")
    same_bytes(await fixture.get(), b"old", "What was there stays.")


@SUITE.case("ArtifactStore.Put")
async def a_chunk_above_a_mebibyte_is_refused(fixture: Fixture) -> None:
    """A chunk larger than 1 MiB stores nothing, wherever it stands."""
    await fixture.put(b"old")
    large = noise(MAX_CHUNK_BYTES + 1)
    for parts in ((large,), (b"new", large), (large, b"new")):
        call = fixture.upload(fixture.header(), *parts)
        await refused(call, "VALIDATION_ERROR", "A chunk has at most 1 MiB.", field="chunk")
    same_bytes(await fixture.get(), b"old", "What was there stays.")


@SUITE.case("PF-B35")
async def a_key_has_1_to_1024_bytes(fixture: Fixture) -> None:
    """Every call refuses the empty key and one of more than 1,024 bytes of UTF-8; 1,024 are taken."""

    async def put(key: str) -> object:
        return await fixture.put(b"bytes", key)

    calls: tuple[Callable[[str], Awaitable[object]], ...] = (put, fixture.get, fixture.delete, fixture.head)
    for key in ("", "k" * 1025, "é" * 513):
        for call in calls:
            sentence = f"A key of {len(key.encode())} bytes is refused."
            await refused(call(key), "VALIDATION_ERROR", sentence, field="key")
    for key in ("k" * 1024, "é" * 512, "k"):
        await fixture.put(key.encode(), key)
        same_bytes(await fixture.get(key), key.encode(), f"A key of {len(key.encode())} bytes is a key.")


@SUITE.case("ArtifactStore.Put")
async def metadata_is_a_json_object_of_at_most_64_kib(fixture: Fixture) -> None:
    """Metadata that is no JSON object, or too large, is refused with its field; the largest is kept exactly."""
    await fixture.put(b"old")
    too_large = '{"a":"%s"}' % ("x" * (64 * KIB))
    for metadata in ("[1]", "7", "{", '{"a":NaN}', '{"a":1,"a":2}', too_large):
        call = fixture.put(b"new", metadata_json=metadata)
        sentence = f"Metadata {metadata[:20]!r} is refused."
        await refused(call, "VALIDATION_ERROR", sentence, field="metadata_json")
    same_bytes(await fixture.get(), b"old", "What was there stays.")
    largest = '{"a":"%s"}' % ("x" * (64 * KIB - len('{"a":""}')))
    stored = await fixture.put(b"new", metadata_json=largest)
    equal(stored.artifact.metadata_json, largest, "64 KiB of metadata are kept.")
    exact = '{"a":9007199254740993,"b":1.0,"c":7}'
    stored = await fixture.put(b"new", metadata_json=exact)
    equal(stored.artifact.metadata_json, exact, "Numbers keep every digit.")


@SUITE.case("PF-E15", "ArtifactStore.Put")
async def other_bytes_than_announced_are_refused(fixture: Fixture) -> None:
    """A wrong digest or a wrong size is DIGEST_MISMATCH, and what was there stays, row included."""
    before = (await fixture.put(b"old", metadata_json='{"v":1}')).artifact
    data = noise(100 * KIB)
    digest = hashlib.sha256(data).digest()
    wrong: tuple[dict[str, Any], ...] = (
        {"expected_sha256": hashlib.sha256(b"else").digest()},
        {"expected_size": len(data) - 1},
        {"expected_size": len(data) + 1},
        {"expected_size": 0},
        {"expected_size": len(data) + 1, "expected_sha256": digest},
        {"expected_size": len(data), "expected_sha256": hashlib.sha256(b"else").digest()},
    )
    for announced in wrong:
        call = fixture.put(data, **announced)
        await refused(call, "DIGEST_MISMATCH", "Other bytes than announced are refused.")
    nothing = fixture.upload(fixture.header(expected_size=1))
    await refused(nothing, "DIGEST_MISMATCH", "No bytes are not the one that was announced.")
    same_bytes(await fixture.get(), b"old", "What was there stays.")
    equal(await fixture.head(), before, "Its row stays.")
    await refused(
        fixture.put(data, "new", expected_size=1), "DIGEST_MISMATCH", "More than announced is refused."
    )
    await refused(fixture.get("new"), "NOT_FOUND", "A refused upload makes no artifact.")


@SUITE.case("ArtifactStore.Put")
async def bytes_as_announced_are_taken(fixture: Fixture) -> None:
    """Size and digest that fit are no hindrance; a digest that is none is refused."""
    data = noise(100 * KIB)
    await fixture.put(data, expected_size=len(data), expected_sha256=hashlib.sha256(data).digest())
    same_bytes(await fixture.get(), data, "What was announced is stored.")
    await fixture.put(b"", "empty", expected_size=0, expected_sha256=hashlib.sha256().digest())
    same_bytes(await fixture.get("empty"), b"", "An announced 0 is a size like any other.")
    call = fixture.put(data, expected_sha256=b"short")
    await refused(call, "VALIDATION_ERROR", "A SHA-256 has 32 bytes.", field="expected_sha256")


@SUITE.case("ArtifactStore.Put", "ArtifactStore.List")
async def an_empty_tenant_is_refused(fixture: Fixture) -> None:
    """A scope without a tenant is no scope: it is neither the unscoped partition nor all of them."""
    nobody = fixture.within(Scope(opaque=b"user-7"))
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        nobody.put,
        nobody.get,
        nobody.delete,
        nobody.head,
        nobody.list,
    )
    for call in calls:
        await refused(call(), "VALIDATION_ERROR", "An empty tenant is refused.", field="scope.tenant")


@SUITE.case("ArtifactStore.Put")
async def a_store_changes_no_message_it_is_given(fixture: Fixture) -> None:
    """A message handed over is nobody's to change."""
    header = fixture.header(session_id="ses_1", metadata_json='{ "b" : 1, "a" : 2 }', request_id="q1")
    requests = [message(header), message(b"bytes")]
    before = [copied(request) for request in requests]

    async def upload() -> AsyncIterator[ArtifactStorePutRequest]:
        for request in requests:
            yield request

    await fixture.store.put(upload())
    equal(requests, before, "The messages are as they were.")
