"""Uploads that break, compete, or must not replace anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from turndock.conformance.artifact_store.suite import (
    CHUNK_BYTES,
    MIB,
    SUITE,
    Fixture,
    chunks,
    message,
    noise,
    same_bytes,
)
from turndock.conformance.claims import ContractBroken, equal, holds, refused
from turndock.errors import TurndockError
from turndock.store.v1 import ArtifactStorePutRequest, ArtifactStorePutResponse


class _Broken(Exception):
    """What a caller's own stream raises."""


async def _after_traffic(fixture: Fixture) -> None:
    """Time enough for whatever a broken upload has left behind to come to its end."""
    for number in range(3):
        await fixture.put(noise(2 * MIB), f"traffic-{number}")
        await fixture.get(f"traffic-{number}")


async def _side_by_side(
    fixture: Fixture, contents: Sequence[bytes], **fields: Any
) -> list[ArtifactStorePutResponse | BaseException]:
    """Put all contents under one key; every upload has begun before the first one ends."""
    barrier = asyncio.Barrier(len(contents))

    async def upload(number: int, data: bytes) -> AsyncIterator[ArtifactStorePutRequest]:
        yield message(fixture.header(metadata_json=f'{{"writer":{number}}}', **fields))
        yield message(data[:CHUNK_BYTES])
        await barrier.wait()
        for chunk in chunks(data[CHUNK_BYTES:]):
            yield message(chunk)

    calls = [fixture.store.put(upload(number, data)) for number, data in enumerate(contents)]
    return await asyncio.gather(*calls, return_exceptions=True)


@SUITE.case("PF-E15")
async def an_upload_that_is_cancelled_stores_nothing(fixture: Fixture) -> None:
    """A Put of 8 MiB that is cancelled after 3 MiB leaves the old content, and no content where there was none."""
    before = (await fixture.put(b"old")).artifact
    data = noise(8 * MIB)
    for key in ("k", "new"):
        sent = asyncio.Event()

        async def upload(
            key: str = key, sent: asyncio.Event = sent
        ) -> AsyncIterator[ArtifactStorePutRequest]:
            yield message(fixture.header(key))
            for chunk in chunks(data[: 3 * MIB]):
                yield message(chunk)
            sent.set()
            await asyncio.Event().wait()

        call = asyncio.ensure_future(fixture.store.put(upload()))
        await sent.wait()
        call.cancel()
        await asyncio.wait((call,))
        holds(call.cancelled() or call.exception(), "A cancelled call does not answer.")
    for _ in range(2):
        same_bytes(await fixture.get(), b"old", "The old content stays.")
        equal(await fixture.head(), before, "The old row stays.")
        await refused(fixture.get("new"), "NOT_FOUND", "Half an upload is no artifact.")
        equal(await fixture.head("new"), None, "Half an upload has no row.")
        await _after_traffic(fixture)


@SUITE.case("PF-E15")
async def an_upload_that_breaks_stores_nothing(fixture: Fixture) -> None:
    """A Put whose stream of chunks raises after 3 of 8 MiB fails and leaves the old content."""
    await fixture.put(b"old")

    async def upload() -> AsyncIterator[ArtifactStorePutRequest]:
        yield message(fixture.header())
        for chunk in chunks(noise(3 * MIB)):
            yield message(chunk)
        raise _Broken

    try:
        await fixture.store.put(upload())
    except (_Broken, TurndockError, asyncio.CancelledError):
        pass
    else:
        raise ContractBroken("A Put whose stream broke answered OK.")
    same_bytes(await fixture.get(), b"old", "The old content stays.")
    await _after_traffic(fixture)
    same_bytes(await fixture.get(), b"old", "The old content stays, also later.")


@SUITE.case("PF-E15")
async def of_concurrent_puts_of_an_immutable_key_one_wins(fixture: Fixture) -> None:
    """Of 10 concurrent Puts of different bytes with `if_absent` one stores its bytes, the others are ALREADY_EXISTS."""
    contents = [noise(CHUNK_BYTES + 1, seed=number) for number in range(10)]
    outcomes = await _side_by_side(fixture, contents, if_absent=True)
    winners = [
        number for number, outcome in enumerate(outcomes) if isinstance(outcome, ArtifactStorePutResponse)
    ]
    equal(len(winners), 1, "One Put wins.")
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            holds(
                isinstance(outcome, TurndockError) and outcome.reason == "ALREADY_EXISTS",
                f"The others are ALREADY_EXISTS; one is {outcome!r}.",
            )
    same_bytes(await fixture.get(), contents[winners[0]], "The winner's bytes are there, whole.")


@SUITE.case("PF-E15")
async def concurrent_puts_of_the_same_bytes_all_succeed(fixture: Fixture) -> None:
    """10 concurrent Puts of the same bytes with `if_absent` are all OK, and one of them stored them."""
    data = noise(CHUNK_BYTES + 1)
    outcomes = await _side_by_side(fixture, [data] * 10, if_absent=True)
    answers = [outcome for outcome in outcomes if isinstance(outcome, ArtifactStorePutResponse)]
    equal(len(answers), 10, f"All are OK; they answer {outcomes}.")
    equal(sorted(answer.duplicate for answer in answers), [False] + [True] * 9, "One Put stored the bytes.")
    equal(len({answer.artifact.SerializeToString() for answer in answers}), 1, "All answer the same row.")
    same_bytes(await fixture.get(), data, "The bytes are there.")


@SUITE.case("PF-E15")
async def concurrent_puts_never_mix(fixture: Fixture) -> None:
    """After 10 concurrent Puts of a key its content is that of one of them, with that one's row."""
    contents = [noise(MIB + number, seed=number) for number in range(10)]
    outcomes = await _side_by_side(fixture, contents)
    answers = [outcome for outcome in outcomes if isinstance(outcome, ArtifactStorePutResponse)]
    equal(len(answers), 10, f"All are OK; they answer {outcomes}.")
    artifact, data = await fixture.read()
    rows = [answer.artifact for answer in answers]
    holds(artifact in rows, "The row is that of one writer.")
    same_bytes(data, contents[rows.index(artifact)], "The bytes are those of the row's writer.")
    listed = await fixture.list()
    equal((listed.total_count, listed.total_bytes), (1, len(data)), "There is one artifact of that size.")


@SUITE.case("PF-E15", "ArtifactStore.Put")
async def if_absent_never_replaces(fixture: Fixture) -> None:
    """With `if_absent` the same bytes are a duplicate that changes nothing, and other bytes are ALREADY_EXISTS."""
    first = await fixture.put(b"bytes", if_absent=True, session_id="ses_1", metadata_json='{"v":1}')
    equal(first.duplicate, False, "A new key is stored.")
    again = await fixture.put(b"bytes", if_absent=True, session_id="ses_2", metadata_json='{"v":2}')
    equal(again.duplicate, True, "The same bytes are a duplicate.")
    equal(again.artifact, first.artifact, "The duplicate answers the row that is there.")
    equal(await fixture.head(), first.artifact, "A duplicate changes nothing, metadata included.")
    for other in (b"other", b"byte", b""):
        await refused(fixture.put(other, if_absent=True), "ALREADY_EXISTS", "Other bytes are refused.")
    same_bytes(await fixture.get(), b"bytes", "The bytes stay.")
    replaced = await fixture.put(b"other")
    equal(replaced.duplicate, False, "Without `if_absent` the key can be replaced.")
    await fixture.delete()
    equal((await fixture.put(b"third", if_absent=True)).duplicate, False, "A deleted key is absent.")


@SUITE.case("ArtifactStore.Put")
async def an_upload_may_come_slowly_beside_others(fixture: Fixture) -> None:
    """While one upload waits for its next chunk, every other call answers, also for the same key."""
    await fixture.put(b"old")
    sent, go_on = asyncio.Event(), asyncio.Event()

    async def upload() -> AsyncIterator[ArtifactStorePutRequest]:
        yield message(fixture.header())
        yield message(b"slow ")
        sent.set()
        await go_on.wait()
        yield message(b"upload")

    slow = asyncio.ensure_future(fixture.store.put(upload()))
    try:
        await sent.wait()
        same_bytes(await fixture.get(), b"old", "Half an upload is not seen.")
        await fixture.put(b"between")
        same_bytes(await fixture.get(), b"between", "Another Put of the key is not held up.")
        equal(await fixture.keys(), ("k",), "List is not held up.")
    finally:
        go_on.set()
        await asyncio.wait((slow,))
    slow.result()
    same_bytes(await fixture.get(), b"slow upload", "The upload that ends last is what stays.")
